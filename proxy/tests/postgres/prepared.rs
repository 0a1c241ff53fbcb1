//! Prepared statements live with their client, whatever server connection it gets.

use super::support::client::Client;
use super::support::message::{
    Answer, bind, close, describe, execute, parse, parse_typed, run, sync, unnamed,
};
use super::support::proxy::{Proxy, pool_of};
use super::support::server::Database;

/// Statements that a server connection keeps, from `server/prepared.rs`.
const KEPT: usize = 500;

#[test]
fn case_063_a_statement_follows_its_client_to_other_connections() {
    let (database, proxy) = parcels(2);
    let [mut a, mut b, mut c] = [(); 3].map(|()| proxy.client(&database));
    let by_id = |client: &mut Client, id| {
        client.ask(&[bind("", "byid", &[Some(id)]), execute("", 0), sync()].concat())
    };
    let defined =
        a.ask(&[parse_typed("byid", "SELECT label FROM parcel WHERE id = $1", &[23]), sync()].concat());
    assert_eq!(defined.types(), "1Z");
    b.run("BEGIN; SELECT 1");
    let first = by_id(&mut a, "2");
    c.run("BEGIN; SELECT 1");
    b.run("COMMIT");
    let second = by_id(&mut a, "3");
    for (answer, label) in [(first, "p2"), (second, "p3")] {
        assert_eq!((answer.types().as_str(), answer.column()), ("2DCZ", vec![label.to_owned()]));
    }
    assert_eq!(database.backends().len(), 2, "both connections were used");
}

#[test]
fn case_064_a_name_belongs_to_its_client() {
    let (database, proxy) = parcels(1);
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    assert_eq!(synced(&mut a, parse("s0", "SELECT label FROM parcel WHERE id = 1")).types(), "1Z");
    assert_eq!(synced(&mut b, parse("s0", "SELECT id + 100 FROM parcel WHERE id = 1")).types(), "1Z");
    assert_eq!(synced(&mut a, run("s0")).column(), ["p1"]);
    assert_eq!(synced(&mut b, run("s0")).column(), ["101"]);
    assert_eq!(synced(&mut a, close('S', "s0")).types(), "3Z");
    assert_eq!(synced(&mut b, run("s0")).column(), ["101"]);
}

#[test]
fn case_068_a_description_alone_finds_the_statement_on_every_connection() {
    let (database, proxy) = parcels(2);
    let [mut a, mut b, mut c] = [(); 3].map(|()| proxy.client(&database));
    synced(&mut a, parse_typed("meta", "SELECT id, label FROM parcel WHERE id > $1", &[23]));
    b.run("BEGIN; SELECT 1");
    let first = synced(&mut a, describe('S', "meta"));
    c.run("BEGIN; SELECT 1");
    b.run("COMMIT");
    let second = synced(&mut a, describe('S', "meta"));
    assert_eq!(first.types(), "tTZ");
    assert_eq!(first, second);
}

#[test]
fn case_072_deallocate_all_takes_effect_in_its_turn() {
    let (database, proxy) = parcels(1);
    let mut client = proxy.client(&database);
    let keep = parse("keep", "SELECT label FROM parcel WHERE id = 4");
    let answer = synced(&mut client, [unnamed("DEALLOCATE ALL"), keep].concat());
    assert_eq!((answer.types().as_str(), answer.tags()), ("12C1Z", vec!["DEALLOCATE ALL".to_owned()]));
    assert_eq!(synced(&mut client, run("keep")).column(), ["p4"]);
}

#[test]
fn case_073_forgetting_all_statements_forgets_only_ones_own() {
    let (database, proxy) = parcels(1);
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    synced(&mut b, parse("his", "SELECT 'b'"));
    for (sql, text) in [("DEALLOCATE ALL", "SELECT 'a'"), ("DISCARD ALL", "SELECT 'a2'")] {
        synced(&mut a, parse("mine", text));
        assert_eq!(a.run(sql).tags(), [sql]);
        assert_eq!(synced(&mut b, run("his")).column(), ["b"]);
        assert_eq!(synced(&mut a, run("mine")).sqlstate().as_deref(), Some("26000"));
    }
    assert_eq!(synced(&mut a, [parse("mine", "SELECT 'a3'"), run("mine")].concat()).column(), ["a3"]);
}

#[test]
fn case_074_discard_all_is_refused_in_a_transaction() {
    let (database, proxy) = parcels(1);
    let mut client = proxy.client(&database);
    synced(&mut client, parse("a", "SELECT 'still here'"));
    client.run("BEGIN");
    let refused = client.try_query("DISCARD ALL");
    assert_eq!((refused.sqlstate().as_deref(), refused.status()), (Some("25001"), 'E'));
    client.run("ROLLBACK");
    assert_eq!(synced(&mut client, run("a")).column(), ["still here"]);
}

#[test]
fn case_077_a_plan_that_changed_in_a_transaction_fails_it() {
    let (database, proxy) = parcels(1);
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    assert_eq!(synced(&mut a, [parse("all", "SELECT * FROM parcel"), run("all")].concat()).sqlstate(), None);
    b.run("ALTER TABLE parcel ADD COLUMN w int");
    a.run("BEGIN");
    let failed = synced(&mut a, run("all"));
    assert_eq!((failed.sqlstate().as_deref(), failed.status()), (Some("0A000"), 'E'));
    assert_eq!(a.try_query("SELECT 1").sqlstate().as_deref(), Some("25P02"));
    assert_eq!(a.run("ROLLBACK").status(), 'I');
}

#[test]
fn case_080_constants_are_read_with_the_clients_own_date_style() {
    let (database, proxy) = parcels(1);
    let [mut a, mut b] =
        ["ISO, MDY", "ISO, DMY"].map(|style| proxy.login(&database).with("DateStyle", style).connect());
    let month = [parse("d", "SELECT extract(month FROM date '02/03/2024')::int"), run("d")].concat();
    assert_eq!(synced(&mut a, &month).column(), ["2"]);
    assert_eq!(synced(&mut b, &month).column(), ["3"]);
    assert_eq!(synced(&mut a, run("d")).column(), ["2"]);
    assert_eq!(synced(&mut b, run("d")).column(), ["3"]);
}

#[test]
fn case_099_texts_of_megabytes_are_passed_on() {
    let (database, proxy) = parcels(1);
    let mut client = proxy.client(&database);
    let filler = format!("/* {} */", "x".repeat(3_000_000));
    assert_eq!(client.column(&format!("SELECT 1 {filler} + 1")), ["2"]);
    let big = [
        parse("big", &format!("SELECT $1::int4 {filler} + 1")),
        bind("", "big", &[Some("4")]),
        execute("", 0),
    ];
    assert_eq!(synced(&mut client, big.concat()).column(), ["5"]);
    let numbers: Vec<_> = (1..=20_000).map(|n: u32| n.to_string()).collect();
    let sql = format!("SELECT count(*) FROM generate_series(1, 10) n WHERE n IN ({})", numbers.join(","));
    assert_eq!(client.column(&sql), ["10"]);
}

#[test]
fn the_unnamed_statement_lasts_over_syncs_whoever_comes_between() {
    let (database, proxy) = parcels(1);
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    synced(&mut a, parse("", "SELECT label FROM parcel WHERE id = 3"));
    for text in ["SELECT 'b1'", "SELECT 'b2'"] {
        assert_eq!(synced(&mut b, unnamed(text)).sqlstate(), None);
        assert_eq!(synced(&mut a, run("")).column(), ["p3"]);
        assert_eq!(synced(&mut a, describe('S', "")).types(), "tTZ");
    }
    b.run("SELECT 1");
    assert_eq!(synced(&mut a, run("")).column(), ["p3"], "another client's simple query does not count");
    a.run("SELECT 1");
    assert_eq!(synced(&mut a, run("")).sqlstate().as_deref(), Some("26000"), "one's own does");
}

#[test]
fn a_client_without_an_unnamed_statement_never_gets_anothers() {
    let (database, proxy) = parcels(1);
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    synced(&mut a, parse("", "SELECT 'secret'"));
    for request in [run(""), describe('S', "")] {
        assert_eq!(synced(&mut b, request).sqlstate().as_deref(), Some("26000"));
    }
    assert_eq!(synced(&mut a, run("")).column(), ["secret"]);
}

#[test]
fn more_statements_than_a_connection_keeps_all_work() {
    let (database, proxy) = parcels(1);
    let mut client = proxy.client(&database);
    let count = KEPT + 60;
    for first in (0..count).step_by(100) {
        let last = count.min(first + 100);
        let batch: Vec<_> =
            (first..last).flat_map(|n| parse(&format!("s{n}"), &format!("SELECT {n}"))).collect();
        assert_eq!(synced(&mut client, batch).sqlstate(), None);
    }
    for n in [0, 1, 59, 60, 61, count - 1, 0] {
        assert_eq!(synced(&mut client, run(&format!("s{n}"))).column(), [n.to_string()]);
    }
    let all: Vec<_> = (0..count).flat_map(|n| run(&format!("s{n}"))).collect();
    let answer = synced(&mut client, all);
    assert_eq!(answer.column(), (0..count).map(|n| n.to_string()).collect::<Vec<_>>());
    let held: usize = client.value("SELECT count(*) FROM pg_prepared_statements").unwrap().parse().unwrap();
    assert!(held <= KEPT, "{held}");
}

#[test]
fn equal_statements_of_many_clients_are_prepared_once() {
    let (database, proxy) = parcels(1);
    let mut clients = [(); 5].map(|()| proxy.client(&database));
    for (number, client) in clients.iter_mut().enumerate() {
        let name = format!("mine {number}");
        assert_eq!(synced(client, [parse(&name, "SELECT 'same'"), run(&name)].concat()).column(), ["same"]);
    }
    let [client, ..] = &mut clients;
    assert_eq!(
        client.column("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%same%'"),
        ["1"]
    );
}

fn parcels(connections: u32) -> (Database, Proxy) {
    let database = Database::create();
    database.direct().run(
        "CREATE TABLE parcel(id int PRIMARY KEY, label text); \
         INSERT INTO parcel SELECT n, 'p' || n FROM generate_series(1, 6) n",
    );
    (database, Proxy::start(pool_of(connections)))
}

fn synced(client: &mut Client, messages: impl AsRef<[u8]>) -> Answer {
    client.ask(&[messages.as_ref(), &sync()].concat())
}

/// A run that asks what the columns are.
fn described_run(statement: &str) -> Vec<u8> {
    [bind("", statement, &[]), describe('P', ""), execute("", 0), sync()].concat()
}

#[test]
fn a_statement_is_prepared_anew_after_its_table_changed() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let [mut client, mut other] = [(); 2].map(|()| proxy.client(&database));
    client.run("CREATE TABLE t AS SELECT 1 AS a");
    // Both connections have it.
    for client in [&mut client, &mut other] {
        client.run("BEGIN");
        client.ask(&[parse("s", "SELECT * FROM t"), described_run("s")].concat());
    }
    client.run("COMMIT");
    other.run("COMMIT");
    for round in 1..=3 {
        client.run(&format!("ALTER TABLE t ADD COLUMN b{round} int DEFAULT {round}"));
        let answer = client.ask(&described_run("s"));
        assert_eq!(answer.types(), "2TDCZ", "{}", answer.error());
        assert_eq!(answer.rows().remove(0).len(), round + 1);
        // The other connection is known to be outdated, in a transaction too.
        client.run("BEGIN");
        other.run("BEGIN");
        assert_eq!(other.ask(&described_run("s")).rows().remove(0).len(), round + 1);
        client.run("COMMIT");
        other.run("COMMIT");
    }
}

#[test]
fn a_client_that_knows_the_old_columns_is_told_and_can_prepare_anew() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut client = proxy.client(&database);
    client.run("CREATE TABLE t AS SELECT 1 AS a");
    client.ask(&[parse("s", "SELECT * FROM t"), describe('S', "s"), sync()].concat());
    client.ask(&[run("s"), sync()].concat());
    client.run("ALTER TABLE t ADD COLUMN b int DEFAULT 2");
    let refused = client.ask(&[run("s"), sync()].concat());
    assert_eq!(refused.types(), "EZ");
    assert_eq!(refused.sqlstate().as_deref(), Some("0A000"));
    let again = client.ask(&[close('S', "s"), parse("s", "SELECT * FROM t"), run("s"), sync()].concat());
    assert_eq!(again.types(), "312DCZ");
    assert_eq!(again.rows(), [[Some("1".to_owned()), Some("2".to_owned())]]);
    // In a transaction nothing can be repeated.
    client.run("ALTER TABLE t ADD COLUMN c int");
    client.run("BEGIN");
    let refused = client.ask(&described_run("s"));
    assert_eq!((refused.types().as_str(), refused.status()), ("EZ", 'E'));
    client.run("ROLLBACK");
    assert_eq!(client.ask(&described_run("s")).rows().remove(0).len(), 3);
}

#[test]
fn prepared_texts_have_a_limit_in_bytes() {
    let database = Database::create();
    let mut config = pool_of(1);
    config.pooling.max_prepared_bytes = 10_000;
    let proxy = Proxy::start(config);
    let [mut client, mut other] = [(); 2].map(|()| proxy.client(&database));
    let text = |number: usize| format!("SELECT {number} AS \"{}\"", "x".repeat(2000));
    for number in 0..4 {
        client.ask(&[parse(&format!("s{number}"), &text(number)), sync()].concat());
    }
    let refused = client.ask(&[parse("s4", &text(4)), bind("", "s4", &[]), execute("", 0), sync()].concat());
    assert_eq!((refused.types().as_str(), refused.sqlstate().as_deref()), ("EZ", Some("53400")));
    // What is there already can be shared, and what is closed makes room.
    assert_eq!(other.ask(&[parse("mine", &text(0)), run("mine"), sync()].concat()).column(), ["0"]);
    client.ask(&[close('S', "s1"), sync()].concat());
    assert_eq!(client.ask(&[parse("s4", &text(4)), run("s4"), sync()].concat()).column(), ["4"]);
}

#[test]
fn an_error_names_a_statement_as_the_client_did_though_it_is_gone() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut client = proxy.client(&database);
    client.ask(&[parse("mine", "SELECT 1"), parse("d", "DEALLOCATE ALL"), sync()].concat());
    let batch = [bind("", "d", &[]), execute("", 0), bind("", "mine", &[]), sync()].concat();
    let answer = client.ask(&batch);
    assert_eq!(answer.error(), "prepared statement \"mine\" does not exist");
}

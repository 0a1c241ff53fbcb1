//! The copy of the traffic: what reaches another database, what is said of it, and that clients see none of it.

use std::collections::BTreeMap;
use std::thread::scope;

use pgrouting_contract::config::{AuthConfig, PoolMode};
use pgrouting_contract::console::ConsoleConfig;
use pgrouting_contract::mirror::{MirrorConfig, MirrorReport, MirrorState, MirrorStatements};
use pgrouting_contract::stage::Stage;

use super::support::client::Client;
use super::support::http::request;
use super::support::message::{
    batch, bind, close, copy_data, copy_done, copy_fail, execute, parse, query, sync,
};
use super::support::poll;
use super::support::proxy::{Proxy, document, server, user};
use super::support::random::Random;
use super::support::server::{Database, catch_up, own_primary, password_of, primary, standby};

/// A database, another one that its traffic is copied to, and a proxy in between.
pub struct Pair {
    pub source: Database,
    pub target: Database,
    pub proxy: Proxy,
}

/// All that is written is copied, to another database with the same tables.
pub fn pair(tables: &str, change: impl FnOnce(&mut MirrorConfig)) -> Pair {
    let (source, target) = (Database::create(), Database::create());
    source.direct().run(tables);
    target.direct().run(tables);
    let mut config = document();
    config.stage = Stage::Mirror;
    config.console = Some(ConsoleConfig { stats_users: vec!["app".to_owned()], ..ConsoleConfig::default() });
    let mut mirror = MirrorConfig::at("127.0.0.1".to_owned(), primary().port);
    mirror.database = Some(target.name.clone());
    mirror.statements = MirrorStatements::All;
    change(&mut mirror);
    config.mirror = Some(mirror);
    Pair { source, target, proxy: Proxy::start(config) }
}

impl Pair {
    pub fn client(&self) -> Client {
        self.proxy.client(&self.source)
    }

    /// The report.
    pub fn report(&self) -> MirrorReport {
        self.proxy.report().mirror.unwrap()
    }

    /// The report once so many transactions, or more, were offered and all are accounted for.
    pub fn settled(&self, offered: u64) -> MirrorReport {
        poll(&format!("{offered} transactions to be accounted for"), || {
            let report = self.report();
            let lost: u64 = report.dropped.values().chain(report.skipped.values()).sum();
            (report.offered >= offered && report.mirrored + lost == report.offered).then_some(report)
        })
    }

    /// What both databases say.
    pub fn both(&self, sql: &str) -> (Vec<String>, Vec<String>) {
        (self.source.direct().column(sql), self.target.direct().column(sql))
    }
}

const LINES: &str = "CREATE TABLE order_line(id int PRIMARY KEY, qty int, note text)";

fn named(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn transactions_arrive_as_they_happened() {
    let pair = pair(LINES, |_| {});
    let mut client = pair.client();
    client.run("INSERT INTO order_line VALUES (1, 1, 'autocommit')");
    for sql in [
        "BEGIN",
        "INSERT INTO order_line VALUES (2, 1, 'block')",
        "SAVEPOINT a",
        "INSERT INTO order_line VALUES (3, 1, 'undone')",
        "ROLLBACK TO a",
        "INSERT INTO order_line VALUES (4, 1, 'kept')",
        "COMMIT",
        "BEGIN",
        "INSERT INTO order_line VALUES (5, 1, 'rolled back')",
        "ROLLBACK",
        "BEGIN",
        "INSERT INTO order_line VALUES (6, 1, 'fails')",
    ] {
        client.run(sql);
    }
    assert_eq!(client.try_query("SELECT 1/0").sqlstate().as_deref(), Some("22012"));
    client.run("COMMIT");
    client.run("INSERT INTO order_line VALUES (7, 1, 'a'); INSERT INTO order_line VALUES (8, 1, 'b')");
    client.ask(&batch("INSERT INTO order_line VALUES (9, 1, 'extended')"));
    // Two requests in one write.
    client.send(
        &[query("INSERT INTO order_line VALUES (10, 1, 'x')"), query("SELECT count(*) FROM order_line")]
            .concat(),
    );
    client.ready_times(2);
    let report = pair.settled(7);
    assert_eq!(report.mirrored, 7, "{report:?}");
    assert_eq!(report.verdicts.keys().collect::<Vec<_>>(), ["match"], "{report:?}");
    let (here, there) = pair.both("SELECT id FROM order_line ORDER BY id");
    assert_eq!(here, there);
    assert_eq!(here, ["1", "2", "4", "7", "8", "9", "10"]);
}

#[test]
fn case_186_a_session_is_copied_as_a_whole_or_not_at_all() {
    let pair = pair(LINES, |mirror| mirror.percent = 50);
    let sessions = 40;
    for number in 0..sessions {
        let mut client = pair.client();
        client.ask(&[parse("ins", "INSERT INTO order_line VALUES ($1, 1, 'p')"), sync()].concat());
        client.run("BEGIN");
        for id in [number * 2, number * 2 + 1] {
            let id = id.to_string();
            client.ask(&[bind("", "ins", &[Some(&id)]), execute("", 0), sync()].concat());
        }
        client.run("COMMIT");
    }
    let report = pair.settled(1);
    assert!(report.diverged_since.is_some(), "half of the writes are missing there");
    let pairs = "SELECT count(*)::text FROM order_line GROUP BY id / 2";
    let (here, there) = pair.both(pairs);
    assert_eq!(here.len(), sessions);
    assert!(there.iter().all(|rows| rows == "2"), "{there:?}");
    assert!(there.len() > 5 && there.len() < 35, "about half of the sessions: {}", there.len());
    assert_eq!(report.verdicts.keys().collect::<Vec<_>>(), ["match"], "{report:?}");
}

#[test]
fn case_187_statements_are_prepared_again_where_the_connection_is_new() {
    let pair = pair(LINES, |_| {});
    let mut client = pair.client();
    client.ask(&[parse("ins", "INSERT INTO order_line VALUES ($1, 1, 'p')"), sync()].concat());
    client.ask(&[bind("", "ins", &[Some("1")]), execute("", 0), sync()].concat());
    pair.settled(2);
    pair.target.admin().run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgrouting-mirror' \
         AND datname = current_database()",
    );
    let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgrouting-mirror' AND datname = current_database()";
    pair.target.await_value(left, "0");
    client.ask(&[bind("", "ins", &[Some("2")]), execute("", 0), sync()].concat());
    client.ask(&[close('S', "ins"), parse("ins", "UPDATE order_line SET qty = qty + $1"), sync()].concat());
    client.ask(&[bind("", "ins", &[Some("5")]), execute("", 0), sync()].concat());
    let report = pair.settled(5);
    assert_eq!(report.mirrored, 5, "{report:?}");
    let (here, there) = pair.both("SELECT id || ' ' || qty FROM order_line ORDER BY id");
    assert_eq!(
        (here, there),
        (vec!["1 6".to_owned(), "2 6".to_owned()], vec!["1 6".to_owned(), "2 6".to_owned()])
    );
}

#[test]
fn case_190_a_copy_arrives_whole_or_not_at_all() {
    let pair = pair(LINES, |mirror| mirror.queue_bytes = 1024 * 1024);
    let mut client = pair.client();
    client.send(&query("COPY order_line FROM STDIN"));
    client.until('G');
    client.send(&[copy_data(b"1\t1\ta\n2\t1\tb\n"), copy_done()].concat());
    assert_eq!(client.ready().tags(), ["COPY 2"]);
    client.send(&query("COPY order_line FROM STDIN"));
    client.until('G');
    client.send(&[copy_data(b"3\t1\tc\n"), copy_fail("no")].concat());
    assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
    client.send(&query("COPY order_line FROM STDIN"));
    client.until('G');
    let line = |number: u32| format!("1{number:05}\t1\tpadding-padding-padding-padding\n");
    for first in (0..60_000).step_by(1000) {
        let lines: String = (first..first + 1000).map(line).collect();
        client.send(&copy_data(lines.as_bytes()));
    }
    client.send(&copy_done());
    assert_eq!(client.ready().tags(), ["COPY 60000"]);
    // In the extended protocol its Sync is swallowed.
    client
        .send(&[parse("", "COPY order_line FROM STDIN"), bind("", "", &[]), execute("", 0), sync()].concat());
    client.until('G');
    client.send(&[copy_data(b"8\t8\td\n"), copy_done(), sync()].concat());
    client.ready();
    client.run("INSERT INTO order_line VALUES (9, 9, 'z')");
    let report = pair.settled(5);
    assert_eq!(report.dropped, named(&[("too_large", 1)]), "{report:?}");
    let (here, there) = pair.both("SELECT id FROM order_line WHERE id < 100 ORDER BY id");
    assert_eq!(here, ["1", "2", "8", "9"]);
    assert_eq!(here, there, "{report:?}");
    assert_eq!(
        pair.both("SELECT count(*) FROM order_line"),
        (vec!["60004".to_owned()], vec!["4".to_owned()])
    );
}

#[test]
fn case_191_settings_of_the_session_go_with_its_transactions() {
    let tables =
        "CREATE SCHEMA eu; CREATE TABLE eu.sale(at timestamptz); CREATE TABLE public.sale(at timestamptz)";
    let pair = pair(tables, |_| {});
    let mut client = pair.proxy.login(&pair.source).with("search_path", "eu").connect();
    client.run("SET TimeZone = 'Asia/Tokyo'");
    client.run("INSERT INTO sale VALUES ('2024-01-01 00:00')");
    pair.client().run("INSERT INTO sale VALUES ('2023-01-01 00:00')");
    client.run("INSERT INTO sale VALUES ('2024-06-01 00:00')");
    client.run("RESET TimeZone");
    client.run("INSERT INTO sale VALUES ('2025-06-01 00:00')");
    let report = pair.settled(6);
    assert_eq!(report.mirrored, 6, "{report:?}");
    for sql in [
        "SELECT at AT TIME ZONE 'UTC' FROM eu.sale ORDER BY at",
        "SELECT at AT TIME ZONE 'UTC' FROM public.sale ORDER BY at",
    ] {
        let (here, there) = pair.both(sql);
        assert_eq!(here, there, "{sql}");
    }
    assert_eq!(pair.target.direct().column("SELECT count(*) FROM eu.sale"), ["3"]);
}

#[test]
fn case_192_the_order_within_a_client_is_kept() {
    let pair = pair(&format!("{LINES}; INSERT INTO order_line VALUES (1, 0, 'start')"), |_| {});
    let mut client = pair.client();
    for _ in 0..50 {
        client.run("UPDATE order_line SET qty = 1 WHERE id = 1");
        client.run("UPDATE order_line SET qty = qty * 10 WHERE id = 1");
        client.run("UPDATE order_line SET qty = qty + 5 WHERE id = 1");
    }
    let report = pair.settled(150);
    assert_eq!((report.mirrored, report.verdicts), (150, named(&[("match", 150)])));
    assert_eq!(pair.both("SELECT qty FROM order_line"), (vec!["15".to_owned()], vec!["15".to_owned()]));
}

#[test]
fn case_193_nothing_that_the_mirror_says_reaches_the_client() {
    let pair = pair("CREATE TABLE unrelated(i int)", |_| {});
    pair.source.direct().run(LINES);
    let mut client = pair.client();
    client.run("LISTEN depot");
    assert_eq!(client.run("INSERT INTO order_line VALUES (1, 1, 'x')").types(), "CZ");
    assert_eq!(client.column("SELECT count(*) FROM order_line"), ["1"]);
    let failed = client.try_query("SELECT 1/0");
    assert_eq!((failed.types().as_str(), failed.sqlstate().as_deref()), ("EZ", Some("22012")));
    assert_eq!(client.column("SELECT 2"), ["2"]);
    pair.target.admin().run("NOTIFY depot");
    let report = pair.settled(5);
    assert_eq!(report.skipped, named(&[("listen", 1)]));
    assert_eq!(report.errors, named(&[("42P01", 2)]), "{report:?}");
    // Whatever had come would stand before this answer.
    assert_eq!(client.run("SELECT 3").types(), "TDCZ");
    let differing = report.statements.iter().find(|s| s.difference == "42P01 there").unwrap();
    assert!(differing.statement.contains("order_line"), "{differing:?}");
}

#[test]
fn case_195_numbers_from_sequences_drift_and_are_counted() {
    let tables =
        "CREATE TABLE head(id serial PRIMARY KEY, t text); CREATE TABLE item(head_id int REFERENCES head)";
    let pair = pair(tables, |_| {});
    // What was rolled back before anything was copied has used up a number here.
    pair.source.direct().run("INSERT INTO head(t) VALUES ('lost'); DELETE FROM head");
    let mut client = pair.client();
    assert_eq!(client.column("INSERT INTO head(t) VALUES ('kept') RETURNING id"), ["2"]);
    client.run("INSERT INTO item VALUES (2)");
    assert_eq!(client.column("SELECT count(*) FROM item"), ["1"]);
    let report = pair.settled(3);
    assert_eq!(report.mirrored, 3);
    assert_eq!(report.errors, named(&[("23503", 1)]));
    assert_eq!(report.verdicts, named(&[("failed_there", 1), ("rows", 2)]), "{report:?}");
}

#[test]
fn case_196_nothing_of_the_proxy_itself_is_copied() {
    let pair = pair(LINES, |_| {});
    let mut client = pair.client();
    client.run("SHOW SERVER ROLE");
    client.run("SET SERVER ROLE TO 'primary'");
    // The monitor and the catalog have asked the servers by now.
    pair.proxy.await_metric("pgrouting_proxy_server_up{role=\"Primary\",server=\"one\"}", 1);
    client.run("SELECT 1");
    let report = pair.settled(1);
    assert_eq!((report.offered, report.mirrored), (1, 1), "{report:?}");
    let texts: Vec<_> = report.statements.iter().map(|s| s.statement.as_str()).collect();
    assert_eq!(texts, ["SELECT ?"]);
}

#[test]
fn case_197_a_session_joins_and_leaves_at_the_boundaries_of_its_transactions() {
    let mut pair = pair(LINES, |mirror| mirror.percent = 0);
    let mut client = pair.client();
    client.run("BEGIN");
    client.run("INSERT INTO order_line VALUES (1, 1, 'before')");
    pair.proxy.change(|config| config.mirror.as_mut().unwrap().percent = 100);
    poll("the mirror to run", || (pair.report().state == MirrorState::Running).then_some(()));
    client.run("INSERT INTO order_line VALUES (2, 1, 'before')");
    client.run("COMMIT");
    client.run("INSERT INTO order_line VALUES (3, 1, 'after')");
    pair.settled(1);
    client.run("BEGIN");
    client.run("INSERT INTO order_line VALUES (4, 1, 'during')");
    pair.proxy.change(|config| config.stage = Stage::Split);
    poll("the mirror to be off", || (pair.report().state == MirrorState::Inactive).then_some(()));
    client.run("COMMIT");
    client.run("INSERT INTO order_line VALUES (5, 1, 'later')");
    let (here, there) = pair.both("SELECT id FROM order_line ORDER BY id");
    assert_eq!((here.len(), there), (5, vec!["3".to_owned()]));
}

#[test]
fn temporary_tables_and_prepared_names_live_in_the_mirrors_session_too() {
    let pair = pair(LINES, |_| {});
    let mut client = pair.client();
    client.run("CREATE TEMP TABLE mine(a int)");
    client.run("INSERT INTO mine VALUES (1), (2)");
    pair.client().run("INSERT INTO order_line VALUES (5, 5, 'of another session')");
    client.run("INSERT INTO order_line SELECT a, a, 'mine' FROM mine");
    client.run("PREPARE p AS SELECT count(*) FROM mine");
    assert_eq!(client.column("EXECUTE p"), ["2"]);
    client.run("DROP TABLE mine");
    client.run("DEALLOCATE p");
    client.run("SELECT count(*) FROM order_line");
    let report = pair.settled(9);
    assert_eq!((report.mirrored, &report.verdicts), (9, &named(&[("match", 9)])), "{report:?}");
    let (here, there) = pair.both("SELECT id FROM order_line ORDER BY id");
    assert_eq!(here, there);
    client.leave();
    pair.target.await_value("SELECT count(*) FROM pg_class WHERE relpersistence = 't'", "0");
}

#[test]
fn a_client_with_a_connection_of_its_own_has_one_at_the_mirror() {
    let mut pair = pair(LINES, |_| {});
    pair.proxy.change(|config| config.pooling.mode = PoolMode::Session);
    let mut client = pair.client();
    client.run("SET search_path = pg_temp, public");
    client.run("CREATE TABLE mine(a int)");
    client.ask(&[parse("ins", "INSERT INTO mine VALUES ($1)"), sync()].concat());
    for number in ["1", "2", "3"] {
        client.ask(&[bind("", "ins", &[Some(number)]), execute("", 0), sync()].concat());
    }
    pair.client().run("INSERT INTO order_line VALUES (7, 7, 'of another session')");
    client.run("INSERT INTO order_line SELECT a, a, 'x' FROM mine");
    let report = pair.settled(8);
    assert_eq!((report.mirrored, &report.verdicts), (8, &named(&[("match", 8)])), "{report:?}");
    let (here, there) = pair.both("SELECT id FROM order_line ORDER BY id");
    assert_eq!((here.len(), &here), (4, &there));
}

#[test]
fn a_session_that_holds_state_from_before_is_left_out_until_it_is_free() {
    let mut pair = pair(LINES, |mirror| mirror.percent = 0);
    let mut client = pair.client();
    client.run("CREATE TEMP TABLE mine(a int)");
    pair.proxy.change(|config| config.mirror.as_mut().unwrap().percent = 100);
    poll("the mirror to run", || (pair.report().state == MirrorState::Running).then_some(()));
    client.run("SELECT 1");
    client.run("INSERT INTO mine VALUES (1)");
    client.run("DROP TABLE mine");
    client.run("INSERT INTO order_line VALUES (1, 1, 'free')");
    let report = pair.settled(4);
    assert_eq!((report.mirrored, report.skipped), (1, named(&[("state", 3)])));
    assert_eq!(pair.target.direct().column("SELECT count(*) FROM order_line"), ["1"]);
}

#[test]
fn only_reads_are_copied_where_only_reads_are_to_be() {
    let tables = "CREATE TABLE t(a int); INSERT INTO t VALUES (1), (2); CREATE FUNCTION f() RETURNS int LANGUAGE sql STABLE AS 'SELECT 1'";
    let pair = pair(tables, |mirror| mirror.statements = MirrorStatements::ReadsOnly);
    // What is a read here writes there.
    pair.target.direct().run(
        "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql VOLATILE AS 'INSERT INTO t VALUES (99) RETURNING 1'",
    );
    let mut client = pair.client();
    poll("reads to be known as such", || {
        client.run("SELECT a FROM t");
        (pair.report().mirrored > 0).then_some(())
    });
    let before = pair.settled(1);
    client.run("INSERT INTO t VALUES (3)");
    client.run("BEGIN READ ONLY");
    client.run("SELECT count(*) FROM t");
    client.run("COMMIT");
    client.run("SELECT f()");
    // A write right behind a read is none.
    client.send(&[query("SELECT a FROM t"), query("INSERT INTO t VALUES (4)")].concat());
    client.ready_times(2);
    let report = pair.settled(before.offered + 4);
    assert_eq!(pair.target.direct().column("SELECT count(*) FROM t"), ["2"]);
    assert_eq!(report.errors, named(&[("25006", 1)]), "{report:?}");
    assert!(report.skipped["not_read"] > before.skipped.get("not_read").copied().unwrap_or_default());
    assert_eq!(report.diverged_since, None, "reads say where rows differ");
}

#[test]
fn a_transaction_that_stops_being_read_only_writes_nothing_where_only_reads_are_copied() {
    let mut pair = pair("CREATE TABLE t(a int)", |mirror| mirror.statements = MirrorStatements::ReadsOnly);
    pair.proxy.change(|config| config.servers.push(server("two", standby().port)));
    catch_up(&mut primary().admin("postgres"), &mut standby().admin("postgres"));
    let mut client = pair.client();
    poll("READ ONLY transactions to be copied", || {
        client.run("BEGIN READ ONLY");
        client.run("SELECT count(*) FROM t");
        client.run("COMMIT");
        (pair.report().mirrored > 0).then_some(())
    });
    // A standby refuses that, and the mirror would not.
    client.run("BEGIN READ ONLY");
    client.try_query("SET TRANSACTION READ WRITE");
    client.try_query("INSERT INTO t VALUES (1)");
    client.try_query("COMMIT");
    poll("it to be left out", || pair.report().skipped.contains_key("unsupported").then_some(()));
    assert_eq!(pair.both("SELECT count(*) FROM t"), (vec!["0".to_owned()], vec!["0".to_owned()]));
}

#[test]
fn what_is_to_be_rolled_back_leaves_nothing_behind() {
    let pair = pair(LINES, |mirror| mirror.statements = MirrorStatements::RolledBackWrites);
    let mut client = pair.client();
    for round in 0..3 {
        client.run(&format!("INSERT INTO order_line VALUES ({round}, 1, 'a')"));
        client.run("BEGIN");
        client.run(&format!("INSERT INTO order_line VALUES ({}, 1, 'b')", 10 + round));
        client.run(&format!("UPDATE order_line SET qty = 2 WHERE id = {}", 10 + round));
        client.run(if round == 1 { "ROLLBACK" } else { "COMMIT" });
        client.ask(
            &[
                parse("", "BEGIN"),
                bind("", "", &[]),
                execute("", 0),
                parse("", &format!("INSERT INTO order_line VALUES ({}, 1, 'c')", 20 + round)),
                bind("", "", &[]),
                execute("", 0),
                sync(),
            ]
            .concat(),
        );
        client.ask(&batch("COMMIT"));
        client.run(&format!("INSERT INTO order_line VALUES ({}, 1, 'd'); COMMIT; SELECT 1", 30 + round));
    }
    let report = pair.settled(12);
    assert_eq!(report.skipped, named(&[("unsupported", 3)]), "{report:?}");
    assert_eq!(report.mirrored, 9);
    assert_eq!(report.verdicts.keys().collect::<Vec<_>>(), ["match"], "{report:?}");
    assert_eq!(pair.target.direct().column("SELECT count(*) FROM order_line"), ["0"]);
    assert_eq!(pair.source.direct().column("SELECT count(*) FROM order_line"), ["11"]);
}

#[test]
fn differences_are_told_by_statement() {
    let pair = pair("CREATE TABLE t(a int, b text); INSERT INTO t VALUES (1, 'one'), (2, 'two')", |_| {});
    pair.target.direct().run("UPDATE t SET b = 'zwei' WHERE a = 2; INSERT INTO t VALUES (3, 'drei')");
    let mut client = pair.client();
    client.run("SELECT b FROM t WHERE a = 1");
    client.run("SELECT b FROM t WHERE a = 2");
    client.run("SELECT a FROM t");
    client.run("SELECT now()");
    client.run("SELECT a FROM t WHERE a < 3 ORDER BY a");
    client.ask(
        &[parse("s", "SELECT b FROM t WHERE a = $1"), bind("", "s", &[Some("2")]), execute("", 0), sync()]
            .concat(),
    );
    let report = pair.settled(6);
    assert_eq!(report.verdicts, named(&[("match", 3), ("rows", 2), ("tag", 1)]), "{report:?}");
    let statement = |text: &str| {
        report.statements.iter().find(|s| s.statement == text).unwrap_or_else(|| panic!("{report:?}"))
    };
    assert_eq!(statement("SELECT b FROM t WHERE a=?").verdicts, named(&[("match", 1), ("rows", 2)]));
    assert_eq!(statement("SELECT a FROM t").difference, "SELECT 2 here, SELECT 3 there");
    assert_eq!(statement("SELECT now()").uncompared, 1);
    let shown = client.run("SHOW MIRROR");
    assert!(
        shown
            .rows()
            .iter()
            .any(|row| row[0].as_deref() == Some("requests differing") && row[1].as_deref() == Some("3"))
    );
    let shown = client.run("SHOW MIRROR DIFFS");
    assert_eq!(shown.rows()[0][2].as_deref(), Some("2"));
    let text = request(pair.proxy.admin_port, "GET", "/mirror-report", &[], b"").unwrap().body;
    assert!(text.contains("3 differ") && !text.contains("zwei"), "{text}");
    assert_eq!(pair.proxy.metric("pgrouting_proxy_mirror_compared_total{verdict=\"rows\"}"), 2);
}

#[test]
fn case_172_a_mirror_with_another_salt_for_the_same_password_is_logged_in_to() {
    let (here, there) = (Database::create(), own_primary());
    let password = |server: &mut Client| {
        server.run("SET password_encryption = 'scram-sha-256'");
        server.run("DROP ROLE IF EXISTS salted; CREATE ROLE salted LOGIN PASSWORD 'correct horse'");
        server.value("SELECT rolpassword FROM pg_authid WHERE rolname = 'salted'").unwrap()
    };
    assert_ne!(
        password(&mut here.admin()),
        password(&mut there.admin("postgres")),
        "each has a salt of its own"
    );
    let mut config = document();
    config.auth = AuthConfig::UserList { users: vec![user("salted", "correct horse")] };
    config.probe.user = Some(user("app", &password_of("app")));
    config.stage = Stage::Mirror;
    let mut mirror = MirrorConfig::at("127.0.0.1".to_owned(), there.port);
    mirror.database = Some("postgres".to_owned());
    mirror.statements = MirrorStatements::All;
    config.mirror = Some(mirror);
    let proxy = Proxy::start(config);
    let mut login = proxy.login(&here).password("correct horse");
    login.user = "salted".to_owned();
    assert_eq!(login.connect().column("SELECT 1"), ["1"]);
    let report = poll("the copy", || {
        let report = proxy.report().mirror.unwrap();
        (report.mirrored + report.dropped.values().sum::<u64>() > 0).then_some(report)
    });
    assert_eq!((report.mirrored, report.state), (1, MirrorState::Running), "{report:?}");
}

#[test]
fn tpcb_like_transactions_leave_the_same_sums() {
    let tables = "CREATE TABLE accounts(aid int PRIMARY KEY, balance int); CREATE TABLE tellers(tid int PRIMARY KEY, balance int);\
                  CREATE TABLE history(aid int, tid int, delta int);\
                  INSERT INTO accounts SELECT g, 0 FROM generate_series(1, 100) g; INSERT INTO tellers SELECT g, 0 FROM generate_series(1, 10) g";
    let pair = pair(tables, |mirror| mirror.queue_bytes = 16 * 1024 * 1024);
    scope(|threads| {
        for seed in 0..6_u64 {
            let pair = &pair;
            threads.spawn(move || {
                let mut client = pair.client();
                let mut random = Random::seeded(seed + 1);
                for number in 0..50 {
                    let (aid, tid, delta) = (random.below(100) + 1, random.below(10) + 1, random.below(1000));
                    let form = |sql: String| if (seed + number) % 2 == 0 { query(&sql) } else { batch(&sql) };
                    client.run("BEGIN");
                    client.ask(&form(format!(
                        "UPDATE accounts SET balance = balance + {delta} WHERE aid = {aid}"
                    )));
                    client.ask(&form(format!("SELECT balance FROM accounts WHERE aid = {aid}")));
                    client.ask(&form(format!(
                        "UPDATE tellers SET balance = balance + {delta} WHERE tid = {tid}"
                    )));
                    client.ask(&form(format!("INSERT INTO history VALUES ({aid}, {tid}, {delta})")));
                    client.run(if number % 10 == 9 { "ROLLBACK" } else { "END" });
                }
            });
        }
    });
    let report = pair.settled(300);
    assert_eq!(report.mirrored, 300, "{report:?}");
    assert_eq!(report.diverged_since, None);
    for sql in [
        "SELECT sum(balance)::text || ' ' || count(*) FROM accounts",
        "SELECT tid || ' ' || balance FROM tellers ORDER BY tid",
        "SELECT sum(delta)::text || ' ' || count(*) FROM history",
    ] {
        let (here, there) = pair.both(sql);
        assert_eq!(here, there, "{sql}");
    }
}

#[test]
fn clients_share_statements_at_the_mirror_too() {
    let pair = pair(LINES, |mirror| mirror.max_connections = 2);
    let mut clients: Vec<_> = (0..5).map(|_| pair.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let name = format!("mine{number}");
        client.ask(&[parse(&name, "INSERT INTO order_line VALUES ($1, 1, 'p')"), sync()].concat());
    }
    for round in 0..4 {
        for (number, client) in clients.iter_mut().enumerate() {
            let id = (round * 5 + number).to_string();
            client.ask(&[bind("", &format!("mine{number}"), &[Some(&id)]), execute("", 0), sync()].concat());
        }
    }
    let report = pair.settled(25);
    assert_eq!((report.mirrored, report.errors), (25, named(&[])));
    assert_eq!(pair.target.direct().column("SELECT count(*) FROM order_line"), ["20"]);
}

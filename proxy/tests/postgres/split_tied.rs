//! Sessions that keep a connection: which of their reads run elsewhere all the same, and what they see.

use pgrouting_contract::split::{Consistency, WhenNoReplica};

use super::split::To::{self, Primary, Replica};
use super::split::{CRATE, Split, went, why};
use super::support::client::Client;
use super::support::message::{batch, bind, describe, execute, parse, query, sync};
use super::support::poll;
use super::support::proxy::server;
use super::support::server::{catch_up, own_standby, primary, standby};

/// Runs statements in both protocols, and checks what each gives and where it ran.
fn check(client: &mut Client, expected: &[(&str, &[&str], To)]) {
    for (sql, rows, to) in expected {
        for form in [query(sql), batch(sql)] {
            let answer = client.ask(&form);
            assert_eq!(answer.column(), *rows, "{sql}: {}", answer.error());
            assert_eq!(went(client), *to, "{sql}: {}", why(client));
        }
    }
}

/// Waits until the session's reads may go to the replica again after something was defined.
fn settle(client: &mut Client) {
    catch_up(&mut primary().admin("postgres"), &mut standby().admin("postgres"));
    poll("reads to go to the replica", || {
        client.run("SELECT 'settled'");
        (went(client) == Replica).then_some(())
    });
}

#[test]
fn what_a_read_cannot_meet_does_not_hold_it_back() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    client.run("PREPARE by_id AS SELECT note FROM crate WHERE id = $1");
    client.run("LISTEN depot");
    client.run("BEGIN");
    client.run("DECLARE held CURSOR WITH HOLD FOR SELECT id FROM crate ORDER BY id");
    client.run("COMMIT");
    settle(&mut client);
    check(
        &mut client,
        &[
            ("SELECT count(*) FROM crate", &["5"], Replica),
            ("EXECUTE by_id(3)", &["n3"], Primary),
            ("SELECT note FROM crate WHERE id = 2", &["n2"], Replica),
            ("SELECT count(*) FROM pg_listening_channels()", &["1"], Primary),
            ("SELECT count(*) FROM pg_cursors WHERE is_holdable", &["1"], Primary),
        ],
    );
    assert_eq!(client.column("FETCH 2 FROM held"), ["1", "2"]);
    client.run("SELECT 1");
    assert_eq!(client.column("FETCH 2 FROM held"), ["3", "4"]);
    client.run("UPDATE crate SET qty = 0 WHERE id = 1");
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "write"));
    // Several at once, some here and some there.
    client.send(
        &[batch("SELECT 'a'"), batch("EXECUTE by_id(1)"), batch("SELECT 'b'"), query("SELECT 'c'")].concat(),
    );
    let answers: Vec<_> = (0..4).flat_map(|_| client.ready().column()).collect();
    assert_eq!(answers, ["a", "n1", "b", "c"]);
    assert_eq!(split.proxy.metric("pgrouting_proxy_pinned_clients{reason=\"listen\"}"), 1);
    client.run("DISCARD ALL");
    poll("the session to be free", || {
        (split.proxy.metric("pgrouting_proxy_pinned_clients{reason=\"listen\"}") == 0).then_some(())
    });
}

#[test]
fn temporary_objects_are_read_where_they_are() {
    let setup = [
        CRATE[0],
        CRATE[1],
        CRATE[2],
        "CREATE TABLE shelf AS SELECT 7 AS n",
        "CREATE FUNCTION crates() RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM crate'",
        "CREATE VIEW counted AS SELECT crates() AS n",
        "CREATE TABLE named (r regclass)",
        "INSERT INTO named VALUES ('crate')",
    ];
    let split = Split::new(&setup);
    let mut client = split.client();
    client.send(&[parse("before", "SELECT count(*) FROM crate"), sync()].concat());
    client.ready();
    client.run("CREATE TEMP TABLE crate AS SELECT 1 AS id");
    settle(&mut client);
    check(
        &mut client,
        &[
            ("SELECT n FROM shelf", &["7"], Replica),
            ("SELECT count(*) FROM crate", &["1"], Primary),
            ("SELECT count(*) FROM CRATE", &["1"], Primary),
            ("SELECT count(*) FROM public.crate", &["5"], Primary),
            ("SELECT crates()", &["1"], Primary),
            ("SELECT n FROM counted", &["1"], Primary),
            ("SELECT (NULL::crate) IS NULL", &["t"], Primary),
            ("SELECT r FROM named", &["public.crate"], Primary),
            ("SELECT to_regclass('crate') = to_regclass('public.crate')", &["f"], Primary),
            (
                "SELECT pg_table_is_visible(oid) FROM pg_class WHERE oid = 'public.crate'::regclass",
                &["f"],
                Primary,
            ),
            ("SELECT current_schemas(true)::text ~ 'pg_temp'", &["t"], Primary),
            ("SELECT lower('CRATE')", &["crate"], Replica),
        ],
    );
    // A statement that was prepared before, and a description of one.
    let run = [bind("", "before", &[]), execute("", 0), sync()].concat();
    assert_eq!(client.ask(&run).column(), ["1"]);
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "pinned"));
    client.send(&[parse("after", "SELECT n FROM shelf"), describe('S', "after"), sync()].concat());
    client.ready();
    let run = [bind("", "after", &[]), execute("", 0), sync()].concat();
    assert_eq!((client.ask(&run).column(), went(&mut client)), (vec!["7".to_owned()], Replica));
    // Under another name it does not stand in front any more, and stands in front of another.
    client.run("ALTER TABLE pg_temp.crate RENAME TO shelf");
    settle(&mut client);
    check(
        &mut client,
        &[("SELECT count(*) FROM crate", &["5"], Replica), ("SELECT * FROM shelf", &["1"], Primary)],
    );
    client.run("DROP TABLE pg_temp.shelf");
    settle(&mut client);
    check(&mut client, &[("SELECT n FROM shelf", &["7"], Replica), ("SELECT crates()", &["5"], Replica)]);
}

#[test]
fn temporary_objects_that_show_elsewhere_keep_all_reads() {
    let split = Split::new(&CRATE);
    for (sql, count) in [
        ("CREATE TEMP TABLE more () INHERITS (crate); INSERT INTO more VALUES (6)", "6"),
        ("CREATE TEMP TABLE \"schön\" (a int)", "5"),
        ("SELECT pg_advisory_lock(1)", "5"),
    ] {
        let mut client = split.client();
        client.run(sql);
        check(&mut client, &[("SELECT count(*) FROM crate", &[count], Primary)]);
        assert_eq!(why(&mut client), "pinned", "{sql}");
    }
}

#[test]
fn a_tied_session_asks_where_a_statement_would_go() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    client.run("CREATE TEMP TABLE scratch AS SELECT 1 AS a");
    settle(&mut client);
    let reason = |client: &mut Client, sql: &str| {
        let rows = client.run(&format!("EXPLAIN ROUTE {sql}")).rows();
        rows.iter().take(2).map(|row| row[1].clone().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(reason(&mut client, "SELECT * FROM scratch"), ["primary", "pinned"]);
    assert_eq!(reason(&mut client, "SELECT * FROM crate"), ["replica", "read"]);
    client.run("SET SERVER ROLE TO 'primary'");
    check(&mut client, &[("SELECT count(*) FROM crate", &["5"], Primary)]);
    client.run("SET SERVER ROLE TO 'replica'");
    check(
        &mut client,
        &[
            ("SELECT count(*) FROM crate", &["5"], Replica),
            ("SELECT a FROM scratch", &["1"], Primary),
            ("SELECT pg_is_in_recovery()", &["f"], Primary),
        ],
    );
}

#[test]
fn what_a_tied_session_wrote_or_was_told_of_is_seen() {
    let own = own_standby();
    let mut admin = own.admin("postgres");
    let split = Split::of(&CRATE, |config| {
        config.servers[1] = server("two", own.port);
        config.split.consistency = Consistency::Session;
    });
    let mut client = split.client();
    let mut teller = split.client();
    client.run("LISTEN depot");
    poll("reads to go to the replica", || {
        client.try_query("SELECT count(*) FROM crate");
        (went(&mut client) == Replica).then_some(())
    });
    admin.run("SELECT pg_wal_replay_pause()");
    client.run("INSERT INTO crate VALUES (6)");
    check(&mut client, &[("SELECT count(*) FROM crate", &["6"], Primary)]);
    assert_eq!(why(&mut client), "freshness");
    client.run("UNLISTEN depot");
    check(&mut client, &[("SELECT count(*) FROM crate", &["6"], Primary)]);
    client.run("LISTEN depot");
    admin.run("SELECT pg_wal_replay_resume()");
    poll("reads to go to the replica", || {
        assert_eq!(client.column("SELECT count(*) FROM crate"), ["6"]);
        (went(&mut client) == Replica).then_some(())
    });
    admin.run("SELECT pg_wal_replay_pause()");
    teller.run("BEGIN");
    teller.run("INSERT INTO crate VALUES (7)");
    teller.run("NOTIFY depot, 'seven'");
    teller.run("COMMIT");
    assert_eq!(client.notified(), "depot seven");
    check(&mut client, &[("SELECT count(*) FROM crate", &["7"], Primary)]);
    assert_eq!(why(&mut client), "freshness");
    admin.run("SELECT pg_wal_replay_resume()");
}

#[test]
fn a_tied_session_never_waits_for_a_replica_that_is_not_there() {
    let mut own = own_standby();
    let split = Split::of(&CRATE, |config| {
        config.servers[1] = server("two", own.port);
        config.split.when_no_replica = WhenNoReplica::Fail;
    });
    let mut client = split.client();
    client.run("PREPARE one AS SELECT 1");
    poll("reads to go to the replica", || {
        client.try_query("SELECT count(*) FROM crate");
        (went(&mut client) == Replica).then_some(())
    });
    own.crash();
    poll("the replica to be gone", || {
        assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"], "at every moment");
        (went(&mut client) == Primary).then_some(())
    });
    check(&mut client, &[("SELECT count(*) FROM crate", &["5"], Primary)]);
    assert_eq!(client.column("EXECUTE one"), ["1"], "the connection is the same");
}

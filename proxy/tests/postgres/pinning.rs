//! State that cannot move keeps its session on its connection, and nobody else ever sees it.

use pgrouting_contract::config::PinPolicy;

use super::support::message::{bind, execute, parse, sync};
use super::support::poll;
use super::support::proxy::{Proxy, pool_of, session_pool_of};
use super::support::server::Database;

#[test]
fn state_that_cannot_move_pins_until_discard_all() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let mut other = proxy.client(&database);
    for (reason, sql) in [
        ("temp_table", "CREATE TEMP TABLE scratch (n int)"),
        ("advisory_lock", "SELECT pg_advisory_lock(1)"),
        ("cursor", "DECLARE held CURSOR WITH HOLD FOR SELECT 1"),
        ("opaque", "SELECT setseed(0.5)"),
        ("listen", "LISTEN depot"),
        ("prepare", "PREPARE mine AS SELECT 1"),
    ] {
        let metric = format!("pgrouting_proxy_pins_total{{reason=\"{reason}\"}}");
        let before = proxy.metric(&metric);
        let mut client = proxy.client(&database);
        client.run(sql);
        let backend = client.backend();
        // While it is pinned the other client always gets the other connection.
        for _ in 0..3 {
            assert_ne!(other.backend(), backend, "{sql}");
            assert_eq!(client.backend(), backend, "{sql}");
        }
        assert_eq!(proxy.metric(&metric), before + 1, "{sql}");
        assert_eq!(proxy.report().pinned.get(reason), Some(&1), "{sql}");
        client.run("DISCARD ALL");
        // Then it may be given to anyone: a client in a transaction on one leaves the other one to it.
        client.run("BEGIN");
        other.run("SELECT 1");
        client.run("COMMIT");
        other.run("BEGIN; SELECT 1");
        client.run("SELECT 1");
        other.run("COMMIT");
        client.leave();
    }
}

#[test]
fn a_pinned_session_gives_its_connection_back_clean_when_it_leaves() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut client = proxy.client(&database);
    let backend = client.backend();
    for sql in [
        "SET geqo = off",
        "LISTEN depot",
        "PREPARE mine AS SELECT 1",
        "CREATE TEMP TABLE scratch(n int); SET geqo = off",
    ] {
        let mut pinned = proxy.client(&database);
        pinned.run(sql);
        drop(pinned);
        let left = "SELECT current_setting('geqo'), (SELECT count(*) FROM pg_listening_channels()), \
                    (SELECT count(*) FROM pg_prepared_statements), to_regclass('pg_temp.scratch') IS NULL";
        let row = client.run(left).rows().remove(0);
        assert_eq!(row.into_iter().flatten().collect::<Vec<_>>(), ["on", "0", "0", "t"], "{sql}");
        assert_eq!(client.backend(), backend, "{sql}: the connection is kept");
    }
}

#[test]
fn case_152_a_notification_reaches_the_client_that_listens() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let [mut listener, mut bystander, mut sender] = [(); 3].map(|()| proxy.client(&database));
    listener.run("LISTEN depot");
    bystander.run("SELECT 1");
    sender.run("NOTIFY depot, 'm'");
    assert_eq!(listener.notified(), "depot m");
    assert_eq!(bystander.run("SELECT 1").notifications(), Vec::<String>::new());
    sender.run("NOTIFY depot, 'in a transaction'");
    listener.run("UNLISTEN depot");
}

#[test]
fn case_131_a_notification_comes_while_the_session_is_idle() {
    let database = Database::create();
    let proxy = Proxy::start(session_pool_of(2));
    let [mut listener, mut sender] = [(); 2].map(|()| proxy.client(&database));
    listener.run("LISTEN depot");
    for text in ["hello", "again"] {
        sender.run(&format!("NOTIFY depot, '{text}'"));
        assert_eq!(listener.notified(), format!("depot {text}"));
    }
}

#[test]
fn case_151_a_held_cursor_lasts_after_its_transaction() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let [mut client, mut other] = [(); 2].map(|()| proxy.client(&database));
    client.run("BEGIN");
    client.run("DECLARE held CURSOR WITH HOLD FOR SELECT n FROM generate_series(1, 4) n");
    client.run("COMMIT");
    other.run("SELECT 1");
    assert_eq!(client.column("FETCH 2 FROM held"), ["1", "2"]);
    other.run("SELECT 1");
    assert_eq!(client.column("FETCH 2 FROM held"), ["3", "4"]);
    client.run("CLOSE held");
    assert_eq!(client.try_query("FETCH 1 FROM held").sqlstate().as_deref(), Some("34000"));
}

#[test]
fn session_mode_keeps_everything_for_one_client_and_nothing_for_the_next() {
    let database = Database::create();
    let proxy = Proxy::start(session_pool_of(1));
    let mut first = proxy.client(&database);
    first.run("CREATE TEMP TABLE work(n int)");
    first.run("INSERT INTO work VALUES (1)");
    first.run("SET search_path = away; SELECT pg_advisory_lock(77)");
    first.run("PREPARE mine AS SELECT 'mine'");
    assert_eq!(first.column("SELECT n FROM work"), ["1"]);
    assert_eq!(first.column("EXECUTE mine"), ["mine"]);
    let backend = first.backend();
    let login = proxy.login(&database);
    let waiting = std::thread::spawn(move || login.connect());
    first.leave();
    let mut second = waiting.join().unwrap();
    assert_eq!(second.backend(), backend);
    assert_eq!(second.try_query("SELECT n FROM work").sqlstate().as_deref(), Some("42P01"));
    assert_eq!(second.try_query("EXECUTE mine").sqlstate().as_deref(), Some("26000"));
    assert_eq!(second.column("SHOW search_path"), ["\"$user\", public"]);
    assert_eq!(second.run("CREATE TEMP TABLE work(m text)").tags(), ["CREATE TABLE"]);
    database.await_value(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        "0",
    );
}

#[test]
fn a_session_that_is_pinned_by_the_mode_waits_like_any_other() {
    let database = Database::create();
    let proxy = Proxy::start(session_pool_of(1));
    let mut first = proxy.client(&database);
    let backend = first.backend();
    let login = proxy.login(&database);
    let second = std::thread::spawn(move || login.connect());
    proxy.await_waiting(1);
    assert_eq!(first.backend(), backend);
    first.leave();
    let mut second = second.join().unwrap();
    assert_eq!(second.column("SELECT pg_backend_pid()"), [backend]);
    poll("the first to be gone", || (proxy.report().clients.connected == 1).then_some(()));
}

#[test]
fn a_pool_may_refuse_what_would_pin() {
    let database = Database::create();
    let mut config = pool_of(1);
    config.pooling.pin_policy = PinPolicy::Reject;
    let proxy = Proxy::start(config);
    let [mut client, mut other] = [(); 2].map(|()| proxy.client(&database));
    for sql in [
        "LISTEN depot",
        "CREATE TEMP TABLE scratch (n int)",
        "SELECT pg_advisory_lock(1)",
        "DECLARE held CURSOR WITH HOLD FOR SELECT 1",
        "SELECT 1; PREPARE mine AS SELECT 1",
        "LOAD 'auto_explain'",
        "SELECT set_config('my.' || 'x', 'y', false)",
    ] {
        let answer = client.try_query(sql);
        assert_eq!((answer.types().as_str(), answer.status()), ("EZ", 'I'), "{sql}");
        assert_eq!(answer.sqlstate().as_deref(), Some("0A000"), "{sql}");
        assert!(answer.error().contains("does not keep"), "{sql}: {}", answer.error());
        let batch = [parse("", sql), bind("", "", &[]), execute("", 0), sync()].concat();
        let answer = client.ask(&batch);
        assert_eq!((answer.types().as_str(), answer.sqlstate().as_deref()), ("EZ", Some("0A000")), "{sql}");
        assert_eq!(other.column("SELECT 1"), ["1"], "{sql}");
    }
    // It fails its transaction as an error of the server would.
    client.run("BEGIN");
    assert_eq!(client.try_query("LISTEN depot").status(), 'E');
    assert_eq!(client.try_query("SELECT 1").sqlstate().as_deref(), Some("25P02"));
    assert_eq!(client.try_query("LISTEN depot").sqlstate().as_deref(), Some("0A000"));
    client.run("ROLLBACK");
    // What ends with its transaction, or moves, is not refused.
    client.run(
        "BEGIN; CREATE TEMP TABLE scratch (n int) ON COMMIT DROP; SELECT pg_advisory_xact_lock(1); COMMIT",
    );
    client.run("SET geqo = off");
    assert_eq!(client.column("SHOW geqo"), ["off"]);
    assert_eq!(other.column("SHOW geqo"), ["on"]);
}

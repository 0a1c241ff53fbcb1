//! In session mode a client has its connection for itself, as if there were no proxy.

use super::support::message::{bind, execute, parse, sync};
use super::support::proxy::{Proxy, session_pool_of};
use super::support::server::Database;

#[test]
fn the_client_is_told_its_servers_process_id() {
    let database = Database::create();
    let proxy = Proxy::start(session_pool_of(2));
    let mut client = proxy.client(&database);
    assert_eq!(client.backend(), client.key.process_id.to_string());
    // The key cancels through the proxy.
    client.send(&super::support::message::query("SELECT pg_sleep(60)"));
    database.await_sleeping("1");
    client.cancel();
    assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
}

#[test]
fn statements_keep_the_names_that_the_client_gave_them() {
    let database = Database::create();
    let proxy = Proxy::start(session_pool_of(1));
    let mut client = proxy.client(&database);
    client.ask(&[parse("mine", "SELECT 1 AS n"), sync()].concat());
    assert_eq!(client.column("EXECUTE mine"), ["1"]);
    assert_eq!(client.column("SELECT name FROM pg_prepared_statements"), ["mine"]);
    client.run("DEALLOCATE mine");
    let answer = client.ask(&[bind("", "mine", &[]), execute("", 0), sync()].concat());
    assert_eq!(answer.sqlstate().as_deref(), Some("26000"));
    // The next client has none of it.
    client.ask(&[parse("mine", "SELECT 1 AS n"), parse("", "SELECT 2"), sync()].concat());
    client.leave();
    let mut next = proxy.client(&database);
    assert!(next.column("SELECT name FROM pg_prepared_statements").is_empty());
    let answer = next.ask(&[bind("", "", &[]), execute("", 0), sync()].concat());
    assert_eq!(answer.sqlstate().as_deref(), Some("26000"));
}

#[test]
fn what_would_pin_in_transaction_mode_is_listed_in_the_report() {
    let database = Database::create();
    let proxy = Proxy::start(session_pool_of(2));
    let mut client = proxy.login(&database).with("application_name", "billing").connect();
    for sql in [
        "SELECT pg_advisory_lock(1) /* one */",
        "SELECT pg_advisory_lock(2)",
        "SET search_path = shop",
        "SELECT 1",
        "SET LOCAL geqo = off",
        "CREATE TEMP TABLE scratch (n int)",
    ] {
        client.run(sql);
    }
    client.ask(&[parse("", "LISTEN depot"), bind("", "", &[]), execute("", 0), sync()].concat());
    let seen = proxy.report().session_state;
    let mut found: Vec<_> =
        seen.iter().map(|entry| (entry.kind.as_str(), entry.statement.as_str(), entry.count)).collect();
    assert_eq!(
        found.first(),
        Some(&("advisory_lock", "SELECT pg_advisory_lock(?)", 2)),
        "the most frequent first"
    );
    found.sort_unstable();
    assert_eq!(
        found[1..],
        [
            ("listen", "LISTEN depot", 1),
            ("setting", "SET search_path=shop", 1),
            ("temp_table", "CREATE TEMP TABLE scratch(n int)", 1),
        ]
    );
    assert!(seen.iter().all(|entry| entry.application_name == "billing"));
}

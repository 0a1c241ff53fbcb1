//! In session mode a client has its connection for itself, as if there were no proxy.

use pgrouting_contract::config::{AuthConfig, PoolMode};

use super::support::client::Login;
use super::support::message::{bind, copy_done, execute, parse, query, sync};
use super::support::proxy::{Proxy, session_pool_of, user};
use super::support::server::{Database, password_of};

#[test]
fn the_client_is_told_its_servers_process_id() {
    let database = Database::create();
    let proxy = Proxy::start(session_pool_of(2));
    let mut client = proxy.client(&database);
    assert_eq!(client.backend(), client.key.process_id.to_string());
    // The key cancels through the proxy.
    client.send(&query("SELECT pg_sleep(60)"));
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

#[test]
fn a_connection_for_replication_is_passed_through() {
    let database = Database::create();
    let mut admin = database.admin();
    let secret = password_of("replicator");
    admin.run(&format!("CREATE ROLE replicator LOGIN REPLICATION PASSWORD '{secret}'"));
    let mut config = session_pool_of(2);
    if let AuthConfig::UserList { users } = &mut config.auth {
        users.push(user("replicator", &secret));
    }
    let proxy = Proxy::start(config.clone());
    let login = |port| {
        Login::new(port, "replicator", &database.name)
            .with("replication", "true")
            .with("application_name", "copy")
    };
    let mut client = login(proxy.port).connect();
    let start = client.run("IDENTIFY_SYSTEM").rows().remove(0).remove(2).unwrap();
    client.send(&query(&format!("START_REPLICATION PHYSICAL {start}")));
    client.until('W');
    assert_eq!(
        admin.column("SELECT count(*) FROM pg_stat_replication WHERE application_name = 'copy'"),
        ["1"]
    );
    admin.run("CREATE TABLE written AS SELECT 1");
    client.until('d');
    client.send(&copy_done());
    client.ready();
    client.leave();
    // In transaction mode it is refused.
    config.pooling.mode = PoolMode::Transaction;
    let listen = super::support::proxy::local(super::support::free_port());
    config.process.listen.clone_from(&listen);
    let [admin_listen, probe_listen] =
        [(); 2].map(|()| super::support::proxy::local(super::support::free_port()));
    config.process.admin_listen = admin_listen;
    config.process.probe_listen = probe_listen;
    let pooled = Proxy::start(config);
    assert_eq!(login(pooled.port).refused(), "0A000");
    admin.run("DROP ROLE replicator");
}

#[test]
fn what_cannot_be_undone_goes_with_its_connection() {
    let database = Database::create();
    let proxy = Proxy::start(session_pool_of(1));
    let mut client = proxy.client(&database);
    let backend = client.backend();
    client.run("SET geqo = off");
    client.leave();
    let mut client = proxy.client(&database);
    assert_eq!(client.backend(), backend, "it was cleaned and is used again");
    client.run("SELECT setseed(0.5)");
    client.leave();
    assert_ne!(proxy.client(&database).backend(), backend);
}

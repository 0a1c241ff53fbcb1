//! Server connections that end: unseen while nobody uses them, clean errors while somebody does.

use super::support::message::query;
use super::support::proxy::{Proxy, pool_of, session_pool_of};
use super::support::server::Database;

#[test]
fn case_207_connections_that_end_while_idle_are_not_noticed() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(3));
    let mut clients = [(); 5].map(|()| proxy.client(&database));
    for _ in 0..3 {
        // Several connections, all idle afterwards.
        let [first, second, ..] = &mut clients;
        first.run("BEGIN; SELECT 1");
        second.run("SELECT 1");
        first.run("COMMIT");
        terminate_all(&database);
        for client in &mut clients {
            assert_eq!(client.column("SELECT 'served'"), ["served"]);
        }
    }
}

#[test]
fn a_connection_that_ends_in_use_ends_the_session_with_the_servers_own_words() {
    let database = Database::create();
    for config in [pool_of(1), session_pool_of(2)] {
        let proxy = Proxy::start(config);
        let mut client = proxy.client(&database);
        client.run("BEGIN");
        client.send(&query("SELECT pg_sleep(60)"));
        terminate_all(&database);
        assert_eq!(client.ended_with(), "57P01");
        assert_eq!(proxy.client(&database).column("SELECT 2"), ["2"]);
    }
}

#[test]
fn a_server_that_ends_a_connection_over_a_client_s_fault_ends_that_session_only() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let [mut client, mut other] = [(); 2].map(|()| proxy.client(&database));
    client.run("CREATE TABLE t(n int)");
    client.run("BEGIN");
    // The server gives a connection up when it meets a message that cannot be inside a COPY.
    client.send(&query("COPY t FROM STDIN"));
    client.until('G');
    client.send(&query("SELECT 1"));
    let end = client.rest();
    assert_eq!(end.sqlstate().as_deref(), Some("08P01"));
    assert_eq!(end.messages.last().unwrap().field('S').as_deref(), Some("FATAL"));
    assert_eq!(other.column("SELECT count(*) FROM t"), ["0"]);
}

#[test]
fn case_214_a_terminated_connection_is_no_loss_of_the_server() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let mut client = proxy.client(&database);
    client.run("BEGIN; SELECT 1");
    terminate_all(&database);
    assert_eq!(client.ended_with(), "57P01");
    let report = proxy.report();
    assert_eq!(format!("{:?} {:?}", report.servers[0].role, report.servers[0].health), "Primary Up");
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
}

#[test]
fn a_pinned_session_whose_connection_ends_is_told() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let mut client = proxy.client(&database);
    client.run("LISTEN depot");
    client.run("SELECT 1");
    terminate_all(&database);
    // What it had set is lost: going on silently would be wrong.
    assert_eq!(client.ended_with(), "57P01");
}

fn terminate_all(database: &Database) {
    let backends = "FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app' \
                    AND backend_type = 'client backend'";
    assert!(!database.admin().column(&format!("SELECT pg_terminate_backend(pid) {backends}")).is_empty());
    database.await_value(&format!("SELECT count(*) {backends}"), "0");
}

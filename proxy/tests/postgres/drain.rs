//! SIGTERM: clients leave at their transaction boundaries, and no transaction fails.

use std::sync::atomic::{AtomicU32, Ordering};

use pgrouting_contract::duration::DurationText;
use pgrouting_contract::tls::ClientTlsMode;

use super::support::certificates::{Ca, tls};
use super::support::message::{Answer, query};
use super::support::poll;
use super::support::proxy::{Proxy, pool_of, session_pool_of};
use super::support::secure::Secure;
use super::support::server::Database;

#[test]
fn clients_under_load_leave_between_transactions() {
    let database = Database::create();
    database.direct().run("CREATE TABLE tally(client int, n int)");
    let ca = Ca::new();
    let mut over_tls = pool_of(3);
    over_tls.tls = tls(Some(ca.accepting(ClientTlsMode::Require)), None);
    for config in [pool_of(3), session_pool_of(12), over_tls] {
        database.admin().run("TRUNCATE tally");
        let is_secure = config.tls.is_some();
        let mut proxy = Proxy::start(config);
        let begun = AtomicU32::new(0);
        let committed = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8)
                .map(|number| {
                    let login = proxy.login(&database);
                    let login = if is_secure { login.over(&Secure::new(&ca, None)) } else { login };
                    let mut client = login.connect();
                    let begun = &begun;
                    scope.spawn(move || {
                        let mut committed = 0;
                        loop {
                            client.send(&query("BEGIN"));
                            let Some(answer) = until_ready_or_told(&mut client) else { return committed };
                            assert_eq!(answer.status(), 'T');
                            client.run(&format!("INSERT INTO tally VALUES ({number}, {committed})"));
                            client.run("COMMIT");
                            committed += 1;
                            begun.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            poll("some load", || (begun.load(Ordering::Relaxed) > 50).then_some(()));
            proxy.stop();
            clients.into_iter().map(|client| client.join().unwrap()).sum::<i32>()
        });
        assert_eq!(database.admin().value("SELECT count(*) FROM tally").unwrap(), committed.to_string());
        assert!(proxy.ended().success());
    }
}

#[test]
fn idle_clients_are_told_with_57p01_and_the_proxy_is_not_ready() {
    let database = Database::create();
    let mut proxy = Proxy::start(pool_of(3));
    let mut idle = proxy.client(&database);
    let mut pinned = proxy.client(&database);
    let mut busy = proxy.client(&database);
    pinned.run("SET geqo = off");
    busy.run("BEGIN; SELECT 1");
    proxy.signal("TERM");
    poll("the proxy to be draining", || (proxy.get("/readyz")?.status == 503).then_some(()));
    // Clients are accepted until load balancers have noticed.
    assert_eq!(proxy.client(&database).column("SELECT 'late'"), ["late"]);
    assert_eq!(format!("{:?}", proxy.report().state), "Draining");
    for client in [&mut idle, &mut pinned] {
        let end = client.rest();
        assert_eq!((end.types().as_str(), end.sqlstate().as_deref()), ("E", Some("57P01")));
        assert_eq!(end.messages[0].field('S').as_deref(), Some("FATAL"));
    }
    assert_eq!(busy.column("SELECT 'still served'"), ["still served"]);
    busy.send(&query("COMMIT"));
    let end = busy.rest();
    assert_eq!((end.types().as_str(), end.sqlstate().as_deref()), ("CZE", Some("57P01")));
    assert!(proxy.ended().success());
}

#[test]
fn a_transaction_that_does_not_end_is_cut_when_the_time_is_up() {
    let database = Database::create();
    let mut config = pool_of(2);
    config.drain_timeout = DurationText::from_secs(2);
    let mut proxy = Proxy::start(config);
    let [mut idle, mut running] = [(); 2].map(|()| proxy.client(&database));
    idle.run("CREATE TABLE t(n int)");
    idle.run("BEGIN; INSERT INTO t VALUES (1)");
    running.send(&query("SELECT pg_sleep(60)"));
    proxy.signal("TERM");
    assert_eq!(idle.ended_with(), "57P01");
    assert_eq!(running.ended_with(), "57P01");
    assert!(proxy.ended().success());
    database.await_value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app' \
         AND state LIKE 'idle in transaction%'",
        "0",
    );
    assert_eq!(database.admin().value("SELECT count(*) FROM t").unwrap(), "0");
}

#[test]
fn a_proxy_without_clients_ends_at_once_and_leaves_no_connection() {
    let database = Database::create();
    let mut proxy = Proxy::start(pool_of(2));
    proxy.client(&database).run("SELECT 1");
    proxy.stop();
    assert!(proxy.ended().success());
    poll("the server connections to be gone", || database.backends().is_empty().then_some(()));
    assert!(!proxy.is_running());
}

/// The answer to `BEGIN`, or `None` when the client was told to go in its place.
fn until_ready_or_told(client: &mut super::support::client::Client) -> Option<Answer> {
    let mut messages = Vec::new();
    loop {
        let message = client.next()?;
        if message.kind() == 'E' {
            assert_eq!(message.field('C').as_deref(), Some("57P01"), "{message:?}");
            assert_eq!(messages, [], "only between transactions");
            assert!(client.next().is_none(), "the connection is closed behind it");
            return None;
        }
        messages.push(message);
        if messages.last().is_some_and(|message| message.kind() == 'Z') {
            return Some(Answer { messages });
        }
    }
}

//! A cancel request reaches the query of its own session and nothing else.

use super::support::message::{query, sync, unnamed};
use super::support::proxy::{Proxy, pool_of, session_pool_of};
use super::support::server::Database;

#[test]
fn case_155_a_cancel_request_ends_the_query_and_leaves_the_session() {
    let database = Database::create();
    for config in [pool_of(1), session_pool_of(1)] {
        let proxy = Proxy::start(config);
        let mut client = proxy.client(&database);
        for request in [query("SELECT pg_sleep(60)"), [unnamed("SELECT pg_sleep(60)"), sync()].concat()] {
            client.send(&request);
            database.await_sleeping("1");
            client.cancel();
            assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
            assert_eq!(client.column("SELECT 42"), ["42"]);
        }
        client.run("BEGIN");
        client.send(&query("SELECT pg_sleep(60)"));
        database.await_sleeping("1");
        client.cancel();
        assert_eq!(client.ready().status(), 'E');
        client.run("ROLLBACK");
        client.leave();
    }
}

#[test]
fn a_cancel_request_with_a_wrong_key_cancels_nothing() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut client = proxy.client(&database);
    client.send(&query("SELECT pg_sleep(60)"));
    database.await_sleeping("1");
    let mut wrong = client.key.clone();
    wrong.secret[0] ^= 1;
    client.cancel_with(&wrong);
    wrong = client.key.clone();
    wrong.process_id ^= 1;
    client.cancel_with(&wrong);
    // The two were taken and did nothing: the query is still there for the third.
    database.await_sleeping("1");
    client.cancel();
    assert_eq!(client.ready().sqlstate().as_deref(), Some("57014"));
}

#[test]
fn a_cancel_request_of_a_client_that_runs_nothing_hits_nobody() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let [mut idle, mut busy] = [(); 2].map(|()| proxy.client(&database));
    // The connection was the idle client's a moment ago.
    assert_eq!(idle.column("SELECT 1"), ["1"]);
    busy.send(&query("SELECT pg_sleep(60)"));
    database.await_sleeping("1");
    for _ in 0..5 {
        idle.cancel();
    }
    database.await_sleeping("1");
    busy.cancel();
    assert_eq!(busy.ready().sqlstate().as_deref(), Some("57014"));
}

#[test]
fn cancel_requests_that_race_with_the_end_never_hit_the_next_client() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let [mut cancelled, mut other] = [(); 2].map(|()| proxy.client(&database));
    let key = cancelled.key.clone();
    std::thread::scope(|scope| {
        let sender = proxy.client(&database);
        scope.spawn(move || (0..60).for_each(|_| sender.cancel_with(&key)));
        for _ in 0..60 {
            // Either answer is right here.
            let answer = cancelled.try_query("SELECT pg_sleep(0.001)");
            assert!(matches!(answer.sqlstate().as_deref(), None | Some("57014")));
            assert_eq!(other.run("SELECT pg_sleep(0.001), 1").types(), "TDCZ");
        }
    });
}

#[test]
fn a_cancel_request_is_counted_only_when_it_was_passed_on() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut client = proxy.client(&database);
    client.cancel();
    assert_eq!(proxy.metric("pgrouting_proxy_cancels_total"), 0);
    client.send(&query("SELECT pg_sleep(60)"));
    database.await_sleeping("1");
    client.cancel();
    client.ready();
    proxy.await_metric("pgrouting_proxy_cancels_total", 1);
}

#[test]
fn case_157_a_client_that_waits_for_a_connection_can_be_cancelled() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let [mut holder, mut waiting] = [(); 2].map(|()| proxy.client(&database));
    holder.run("CREATE TABLE ledger(n int)");
    holder.run("BEGIN; SELECT 1");
    waiting.send(&query("INSERT INTO ledger VALUES (1)"));
    proxy.await_waiting(1);
    waiting.cancel();
    let answer = waiting.ready();
    assert_eq!((answer.sqlstate().as_deref(), answer.status()), (Some("57014"), 'I'));
    holder.run("COMMIT");
    assert_eq!(waiting.column("SELECT count(*) FROM ledger"), ["0"]);
}

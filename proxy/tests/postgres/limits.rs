//! Statements, transactions and clients that take too long; how many clients a user and a database may have; slow requests.

use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::duration::DurationText;

use super::support::client::Login;
use super::support::console::{console, document_with_console, rows};
use super::support::message::{execute, parse, query, sync, unnamed};
use super::support::poll;
use super::support::proxy::{Proxy, pool_of, session_pool_of};
use super::support::server::Database;

const SHORT: DurationText = DurationText::from_millis(200);

/// A client that may take as long as it likes, and that the proxy must not touch.
fn with(change: impl FnOnce(&mut ProxyConfig)) -> Proxy {
    let mut config = pool_of(4);
    change(&mut config);
    Proxy::start(config)
}

#[test]
fn a_statement_that_takes_too_long_is_cancelled_and_its_session_goes_on() {
    let database = Database::create();
    let proxy = with(|config| config.pooling.query_timeout = SHORT);
    let mut client = proxy.client(&database);
    let stopped = client.try_query("SELECT pg_sleep(60)");
    assert_eq!((stopped.types().as_str(), stopped.status()), ("TEZ", 'I'));
    assert_eq!(stopped.sqlstate().as_deref(), Some("57014"));
    assert!(stopped.error().contains("statement timeout"), "{}", stopped.error());
    let stopped = client.ask(&[unnamed("SELECT pg_sleep(60)"), sync()].concat());
    assert_eq!(stopped.sqlstate().as_deref(), Some("57014"));
    // In a transaction it fails that as any error would.
    client.run("BEGIN");
    assert_eq!(client.try_query("SELECT pg_sleep(60)").status(), 'E');
    assert_eq!(client.try_query("SELECT 1").sqlstate().as_deref(), Some("25P02"));
    client.run("ROLLBACK");
    assert_eq!(client.column("SELECT 1"), ["1"]);
    assert_eq!(proxy.metric("pgrouting_proxy_timeouts_total{timeout=\"query\"}"), 3);
}

#[test]
fn a_cancel_of_the_clients_own_keeps_postgresqls_words() {
    let database = Database::create();
    let proxy = with(|config| config.pooling.query_timeout = DurationText::from_secs(600));
    let mut client = proxy.client(&database);
    client.send(&query("SELECT pg_sleep(60)"));
    poll("a statement that runs", || {
        let running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' \
                       AND datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'";
        (database.admin().value(running).unwrap() == "1").then_some(())
    });
    client.cancel();
    assert!(client.ready().error().contains("user request"));
}

#[test]
fn statements_of_a_pipeline_are_timed_one_by_one() {
    let database = Database::create();
    let proxy = with(|config| config.pooling.query_timeout = DurationText::from_millis(1500));
    let mut client = proxy.client(&database);
    let batch = [unnamed("SELECT pg_sleep(0.5)"), sync()].concat();
    client.send(&batch.repeat(6));
    assert_eq!(client.ready_times(6).sqlstate(), None, "three seconds in all, and none is over the limit");
}

#[test]
fn a_server_that_does_not_stop_when_it_is_asked_to_is_left() {
    let database = Database::create();
    let proxy = with(|config| config.pooling.query_timeout = SHORT);
    let mut client = proxy.client(&database);
    client.set_patience(std::time::Duration::from_secs(30));
    database.admin().run(
        "CREATE FUNCTION stubborn() RETURNS void LANGUAGE plpgsql AS $$ BEGIN LOOP BEGIN PERFORM pg_sleep(0.1); \
         EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$",
    );
    client.send(&query("SELECT stubborn()"));
    let rest = client.rest();
    assert_eq!(rest.sqlstate().as_deref(), Some("57014"));
    assert!(rest.error().contains("terminating connection"), "{}", rest.error());
    database
        .admin()
        .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'SELECT stubborn()'");
}

#[test]
fn a_transaction_in_which_nothing_happens_is_rolled_back() {
    let database = Database::create();
    let proxy = with(|config| config.pooling.idle_transaction_timeout = SHORT);
    let mut client = proxy.client(&database);
    client.run("CREATE TABLE mark(n int)");
    client.run("BEGIN; INSERT INTO mark VALUES (1)");
    assert_eq!(client.ended_with(), "25P03");
    let mut client = proxy.client(&database);
    assert_eq!(client.column("SELECT count(*) FROM mark"), ["0"]);
    // A statement that takes its time is none of that.
    client.run("BEGIN");
    client.run("SELECT pg_sleep(1)");
    client.run("COMMIT");
    assert_eq!(proxy.metric("pgrouting_proxy_timeouts_total{timeout=\"idleTransaction\"}"), 1);
}

#[test]
fn a_transaction_that_takes_too_long_is_ended_in_the_middle_of_a_statement_too() {
    let database = Database::create();
    let proxy = with(|config| config.pooling.transaction_timeout = SHORT);
    let mut busy = proxy.client(&database);
    busy.send(&query("SELECT pg_sleep(60)"));
    assert_eq!(busy.ended_with(), "25P04");
    let mut open = proxy.client(&database);
    open.run("BEGIN");
    assert_eq!(open.ended_with(), "25P04");
    poll("the server has stopped the statement", || {
        let left = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(60)%'";
        (database.admin().value(left).unwrap() == "0").then_some(())
    });
    let mut client = proxy.client(&database);
    for _ in 0..30 {
        client.run("BEGIN");
        client.run("SELECT pg_sleep(0.02)");
        client.run("COMMIT");
    }
}

#[test]
fn a_client_that_asks_for_nothing_leaves_and_one_that_waits_or_works_stays() {
    let database = Database::create();
    let mut config = pool_of(1);
    config.pooling.client_idle_timeout = SHORT;
    let proxy = Proxy::start(config);
    let mut holder = proxy.client(&database);
    holder.send(&query("SELECT pg_sleep(2)"));
    let mut waiting = proxy.client(&database);
    waiting.send(&query("SELECT 1"));
    proxy.await_waiting(1);
    assert_eq!(proxy.client(&database).ended_with(), "57P05");
    assert_eq!(waiting.ready().sqlstate(), None, "it has waited for longer than that");
    assert_eq!(holder.ready().sqlstate(), None);
    assert_eq!(holder.ended_with(), "57P05");
    assert_eq!(waiting.ended_with(), "57P05");
}

#[test]
fn limits_hold_in_session_mode_and_on_kept_connections_too() {
    let database = Database::create();
    let mut config = session_pool_of(4);
    config.pooling.idle_transaction_timeout = SHORT;
    config.pooling.query_timeout = SHORT;
    let proxy = Proxy::start(config);
    let mut client = proxy.client(&database);
    assert_eq!(client.try_query("SELECT pg_sleep(60)").sqlstate().as_deref(), Some("57014"));
    client.run("BEGIN");
    assert_eq!(client.ended_with(), "25P03");
    let proxy = with(|config| config.pooling.client_idle_timeout = DurationText::from_millis(500));
    let mut client = proxy.client(&database);
    client.run("CREATE TEMP TABLE kept(n int)");
    assert_eq!(client.ended_with(), "57P05");
    poll("its connection is cleaned", || {
        let left = "SELECT count(*) FROM pg_class WHERE relname = 'kept'";
        (database.admin().value(left).unwrap() == "0").then_some(())
    });
}

#[test]
fn a_limit_that_comes_later_is_for_clients_that_are_there() {
    let database = Database::create();
    let mut proxy = Proxy::start(pool_of(4));
    let mut client = proxy.client(&database);
    client.run("SELECT 1");
    proxy.change(|config| config.pooling.client_idle_timeout = SHORT);
    assert_eq!(client.ended_with(), "57P05");
}

#[test]
fn a_short_limit_breaks_nothing_off_that_has_just_come() {
    let database = Database::create();
    let proxy = with(|config| {
        config.pooling.client_idle_timeout = DurationText::from_millis(100);
        config.pooling.idle_transaction_timeout = DurationText::from_millis(100);
    });
    database.direct().run("CREATE TABLE ledger(n int)");
    // Each write is answered, or was never run: an idle client that is told to leave has lost nothing.
    std::thread::scope(|scope| {
        for number in 0..8_u64 {
            let (proxy, database) = (&proxy, &database);
            scope.spawn(move || {
                let mut acknowledged = 0;
                for turn in 0..12_u64 {
                    let mut client = proxy.client(database);
                    // Around the limit, by a different distance each time.
                    std::thread::sleep(std::time::Duration::from_millis(140 + (number * 12 + turn) % 100));
                    client.send(&query(&format!("INSERT INTO ledger VALUES ({number})")));
                    let answer = client.ready_or_end();
                    match answer.sqlstate().as_deref() {
                        None => acknowledged += 1,
                        Some(sqlstate) => assert_eq!(sqlstate, "57P05"),
                    }
                }
                let written = format!("SELECT count(*) FROM ledger WHERE n = {number}");
                assert_eq!(database.admin().value(&written).unwrap(), acknowledged.to_string());
            });
        }
    });
}

#[test]
fn the_console_shows_the_limits_under_the_names_that_are_known() {
    let mut config = document_with_console();
    config.pooling.max_client_connections_per_user = Some(30);
    config.pooling.max_server_connections_per_user = Some(3);
    config.pooling.query_timeout = SHORT;
    let proxy = Proxy::start(config);
    let mut admin = console(&proxy);
    for (key, value) in
        [("max_user_client_connections", "30"), ("max_user_connections", "3"), ("query_timeout", "0.2")]
    {
        assert_eq!(rows(&mut admin, "CONFIG", "key", key)[0]["value"], value, "{key}");
    }
    let user = &rows(&mut admin, "USERS", "name", "app_b")[0];
    assert_eq!((&*user["max_user_connections"], &*user["max_user_client_connections"]), ("3", "30"));
}

#[test]
fn a_user_and_a_database_have_clients_of_their_own() {
    let database = Database::create();
    let other = Database::create();
    let proxy = with(|config| {
        config.pooling.max_client_connections_per_user = Some(3);
        config.pooling.max_client_connections_per_database = Some(2);
    });
    let first = proxy.client(&database);
    let _second = proxy.client(&database);
    let refused = proxy.login(&database);
    assert_eq!(refused.refused(), "53300");
    let _third = proxy.client(&other);
    assert_eq!(proxy.login(&other).refused(), "53300", "the user has three");
    first.leave();
    poll("room for a client", || super::support::client::Client::connect(&Login::clone(&refused)).ok());
}

#[test]
fn a_slow_request_is_logged_without_its_constants() {
    let database = Database::create();
    let proxy = with(|config| config.pooling.slow_query_threshold = SHORT);
    let mut client = proxy.client(&database);
    client.run("SELECT 'quick'");
    client.run("SELECT pg_sleep(0.3), 'secret' /*controller='orders',traceparent='00-1-2-01'*/");
    client.run("BEGIN");
    client.ask(&[parse("slow", "SELECT pg_sleep(0.4)"), sync()].concat());
    client.ask(&[super::support::message::bind("", "slow", &[]), execute("", 0), sync()].concat());
    client.run("COMMIT");
    let log = poll("two slow requests in the log", || {
        let log = proxy.log();
        (log.matches("pgrouting_proxy::slow").count() == 2).then_some(log)
    });
    for part in ["controller='orders',traceparent='00-1-2-01'", "SELECT pg_sleep(?) , ?", "server=\"one\""] {
        assert!(log.contains(part), "{part} is not in\n{log}");
    }
    assert!(!log.contains("secret") && !log.contains("quick"), "{log}");
}

#[test]
fn logins_requests_and_waits_have_histograms() {
    let database = Database::create();
    let proxy = with(|_| {});
    let mut client = proxy.client(&database);
    for _ in 0..10 {
        client.run("SELECT 1");
    }
    assert_eq!(proxy.metric("pgrouting_proxy_login_seconds_count"), 1);
    assert!(proxy.metric("pgrouting_proxy_query_seconds_count{target=\"primary\"}") > 0);
    assert_eq!(proxy.metric("pgrouting_proxy_query_seconds_count{target=\"replica\"}"), 0);
    assert!(proxy.metric("pgrouting_proxy_wait_seconds_count") >= 10);
}

#[test]
fn a_user_has_a_share_of_the_server_connections_and_the_others_have_the_rest() {
    let database = Database::create();
    let other = Database::create();
    let mut config = pool_of(3);
    config.pooling.max_server_connections_per_user = Some(2);
    config.pooling.checkout_timeout = DurationText::from_secs(20);
    let mut proxy = Proxy::start(config);
    let as_user = |proxy: &Proxy, user: &str, database: &Database| {
        Login::new(proxy.port, user, &database.name).connect()
    };
    let mut holders: Vec<_> =
        [&database, &other].into_iter().map(|database| as_user(&proxy, "app", database)).collect();
    holders.iter_mut().for_each(|holder| drop(holder.run("BEGIN; SELECT 1")));
    let mut waiting = as_user(&proxy, "app", &database);
    waiting.send(&query("SELECT 'mine'"));
    proxy.await_waiting(1);
    // There is one connection left, and it is another user's, who passes by whoever waits for its own share.
    let mut neighbour = as_user(&proxy, "app_b", &database);
    assert_eq!(neighbour.column("SELECT 1"), ["1"]);
    neighbour.run("BEGIN; SELECT 1");
    holders[1].run("COMMIT");
    assert_eq!(waiting.ready().column(), ["mine"], "the place of the other database's connection");
    // A larger share counts for whoever waits already.
    waiting.run("BEGIN; SELECT 1");
    let mut more = as_user(&proxy, "app", &database);
    more.send(&query("SELECT 'more'"));
    proxy.await_waiting(1);
    proxy.change(|config| {
        config.pooling.max_server_connections = 4;
        config.pooling.max_server_connections_per_user = Some(3);
    });
    assert_eq!(more.ready().column(), ["more"]);
    // A smaller one closes what is over it.
    proxy.change(|config| config.pooling.max_server_connections_per_user = Some(1));
    waiting.run("COMMIT");
    holders[0].run("COMMIT");
    assert_eq!(more.column("SELECT 1"), ["1"]);
    poll("one connection of app", || {
        let mine = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND datname IN \
                    (current_database(), 'OTHER') AND application_name <> 'pgrouting-proxy'";
        let mine = mine.replace("OTHER", &other.name);
        (database.admin().value(&mine).unwrap() == "1").then_some(())
    });
}

#[test]
fn whoever_guesses_passwords_is_slowed_down_and_nobody_else() {
    let database = Database::create();
    let proxy = with(|_| {});
    let guess = || proxy.login(&database).password("wrong").refused();
    (0..6).for_each(|_| assert_eq!(guess(), "28P01"));
    assert_eq!(proxy.metric("pgrouting_proxy_logins_delayed_total"), 0);
    // At the same time, each gets its turn or is turned away.
    let refusals: Vec<String> = std::thread::scope(|scope| {
        let guesses: Vec<_> = (0..12).map(|_| scope.spawn(guess)).collect();
        guesses.into_iter().map(|guess| guess.join().unwrap()).collect()
    });
    let turned_away = refusals.iter().filter(|refusal| *refusal == "53300").count();
    assert!(turned_away > 0 && refusals.iter().all(|refusal| ["28P01", "53300"].contains(&&**refusal)));
    assert_eq!(proxy.metric("pgrouting_proxy_logins_delayed_total"), 12);
    let mut other = Login::new(proxy.port, "app_b", &database.name).connect();
    assert_eq!(other.column("SELECT 1"), ["1"]);
    // An unknown user is no different.
    let unknown = || Login::new(proxy.port, "nobody", &database.name).refused();
    (0..6).for_each(|_| assert_eq!(unknown(), "28P01"));
    assert_eq!(proxy.metric("pgrouting_proxy_logins_delayed_total"), 12);
    unknown();
    assert_eq!(proxy.metric("pgrouting_proxy_logins_delayed_total"), 13);
    // Whoever knows the password waits for its turn too, and then has a clean slate.
    let mut client = poll("the password is right", || {
        super::support::client::Client::connect(&proxy.login(&database)).ok()
    });
    assert_eq!(client.column("SELECT 1"), ["1"]);
    let delayed = proxy.metric("pgrouting_proxy_logins_delayed_total");
    proxy.client(&database);
    assert_eq!(proxy.metric("pgrouting_proxy_logins_delayed_total"), delayed);
}

#[test]
fn sockets_that_say_nothing_take_no_client_s_place() {
    let database = Database::create();
    let proxy = with(|config| config.pooling.max_client_connections = 3);
    let silent: Vec<_> =
        (0..105).map(|_| std::net::TcpStream::connect(("127.0.0.1", proxy.port)).unwrap()).collect();
    // A hundred are spare; two are too many, and closed.
    proxy.await_metric("pgrouting_proxy_logins_failed_total", 2);
    drop(silent);
    let mut client =
        poll("a client", || super::support::client::Client::connect(&proxy.login(&database)).ok());
    assert_eq!(client.column("SELECT 1"), ["1"]);
}

//! Many clients on few server connections: sharing, waiting, limits, and clients that leave in the middle.

use pgrouting_contract::config::AuthConfig;
use pgrouting_contract::duration::DurationText;

use super::support::client::Login;
use super::support::message::{
    bind, copy_data, copy_done, copy_fail, execute, parse, query, sync, terminate, unnamed,
};
use super::support::poll;
use super::support::proxy::{Proxy, pool_of, session_pool_of, user};
use super::support::server::{Database, password_of};

#[test]
fn many_clients_share_few_server_connections() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(3));
    database.direct().run("CREATE TABLE tally(n int); INSERT INTO tally VALUES (0)");
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let mut client = proxy.client(&database);
                for _ in 0..10 {
                    client.run("BEGIN");
                    client.run("UPDATE tally SET n = n + 1");
                    client.run("COMMIT");
                }
            });
        }
    });
    assert_eq!(database.admin().value("SELECT n FROM tally").unwrap(), "120");
    assert!(database.backends().len() <= 3, "{:?}", database.backends());
}

#[test]
fn clients_are_served_in_the_order_of_arrival() {
    let database = Database::create();
    let mut config = pool_of(1);
    config.process.workers = 1;
    let proxy = Proxy::start(config);
    let mut holder = proxy.client(&database);
    holder.run("CREATE TABLE arrival(n serial, name text)");
    holder.run("BEGIN; SELECT 1");
    let mut clients: Vec<_> = (0..6).map(|_| proxy.client(&database)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(&query(&format!("INSERT INTO arrival(name) VALUES ('{number}')")));
        proxy.await_waiting(number as u64 + 1);
    }
    holder.run("COMMIT");
    clients.iter_mut().for_each(|client| assert_eq!(client.ready().sqlstate(), None));
    assert_eq!(holder.column("SELECT name FROM arrival ORDER BY n"), ["0", "1", "2", "3", "4", "5"]);
}

#[test]
fn a_client_that_gives_up_waiting_leaves_the_line() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut holder = proxy.client(&database);
    let mut gone = proxy.client(&database);
    let mut patient = proxy.client(&database);
    holder.run("CREATE TABLE mark(n int)");
    holder.run("BEGIN; SELECT 1");
    gone.send(&query("INSERT INTO mark VALUES (1)"));
    proxy.await_waiting(1);
    patient.send(&query("SELECT 'served'"));
    proxy.await_waiting(2);
    drop(gone);
    holder.run("COMMIT");
    assert_eq!(patient.ready().column(), ["served"]);
}

#[test]
fn case_095_pool_timeout_in_extended_protocol() {
    let database = Database::create();
    let mut config = pool_of(1);
    config.pooling.checkout_timeout = DurationText::from_millis(300);
    let proxy = Proxy::start(config);
    let mut holder = proxy.client(&database);
    let mut client = proxy.client(&database);
    holder.run("BEGIN; SELECT 1");
    let refused = client.ask(&[unnamed("SELECT 1"), sync()].concat());
    assert_eq!((refused.types().as_str(), refused.status()), ("EZ", 'I'));
    assert_eq!(refused.sqlstate().as_deref(), Some("53300"));
    // All of a pipeline is refused, batch by batch, and nothing of it is run later.
    let batches = [unnamed("SELECT 1"), sync(), parse("a", "SELECT 1"), sync()].concat();
    client.send(&batches);
    assert_eq!(client.ready_times(2).types(), "EZEZ");
    holder.run("COMMIT");
    assert_eq!(client.ask(&[unnamed("SELECT 2"), sync()].concat()).column(), ["2"]);
    let unknown = client.ask(&[bind("", "a", &[]), execute("", 0), sync()].concat());
    assert_eq!(unknown.sqlstate().as_deref(), Some("26000"), "the refused Parse defined nothing");
}

#[test]
fn pool_timeout_in_the_simple_protocol_leaves_the_session() {
    let database = Database::create();
    let mut config = pool_of(1);
    config.pooling.checkout_timeout = DurationText::from_millis(300);
    let proxy = Proxy::start(config);
    let mut holder = proxy.client(&database);
    let mut client = proxy.client(&database);
    holder.run("BEGIN; SELECT 1");
    let refused = client.try_query("SELECT 1");
    assert_eq!((refused.types().as_str(), refused.status()), ("EZ", 'I'));
    assert_eq!(refused.sqlstate().as_deref(), Some("53300"));
    holder.run("COMMIT");
    assert_eq!(client.column("SELECT 2"), ["2"]);
}

#[test]
fn too_many_clients_are_refused_with_53300() {
    let database = Database::create();
    let mut config = pool_of(2);
    config.pooling.max_client_connections = 2;
    let proxy = Proxy::start(config);
    let (first, mut second) = (proxy.client(&database), proxy.client(&database));
    assert_eq!(proxy.login(&database).refused(), "53300");
    first.leave();
    poll("room for a client", || super::support::client::Client::connect(&proxy.login(&database)).ok());
    assert_eq!(second.column("SELECT 1"), ["1"]);
}

#[test]
fn case_118_a_copy_holds_its_connection_while_it_pauses() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let (mut slow, mut other) = (proxy.client(&database), proxy.client(&database));
    other.run("CREATE TABLE reading(id int, val text)");
    slow.send(&query("COPY reading FROM STDIN"));
    slow.until('G');
    for _ in 0..5 {
        assert_eq!(other.column("SELECT count(*) FROM reading"), ["0"]);
    }
    let done = slow.ask(&[copy_data(b"10\tten\n11\televen\n"), copy_done()].concat());
    assert_eq!((done.tags(), done.status()), (vec!["COPY 2".to_owned()], 'I'));
    assert_eq!(slow.column("SELECT count(*) FROM reading"), ["2"]);
}

#[test]
fn case_120_a_client_that_vanishes_in_a_copy_leaves_nothing() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let (mut client, mut vanishing) = (proxy.client(&database), proxy.client(&database));
    client.run("CREATE TABLE reading(id int, val text)");
    client.send(&query("COPY reading FROM STDIN"));
    client.until('G');
    let failed = client.ask(&[copy_data(b"20\tx\n"), copy_fail("client gave up")].concat());
    assert_eq!(failed.sqlstate().as_deref(), Some("57014"));
    assert!(failed.error().contains("client gave up"));
    vanishing.send(&query("COPY reading FROM STDIN"));
    vanishing.until('G');
    vanishing.send(&copy_data(b"30\ty\n"));
    drop(vanishing);
    assert_eq!(client.column("SELECT count(*) FROM reading"), ["0"]);
}

#[test]
fn case_124_a_client_that_vanishes_in_a_result_frees_its_connection() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut client = proxy.client(&database);
    for sql in [
        "COPY (SELECT n, repeat('x', 100) FROM generate_series(1, 20000000) n) TO STDOUT",
        "SELECT n, repeat('x', 100) FROM generate_series(1, 20000000) n",
    ] {
        let mut vanishing = proxy.client(&database);
        vanishing.send(&query(sql));
        vanishing.read_until(|message| "dD".contains(message.kind()));
        drop(vanishing);
        assert_eq!(client.column("SELECT 1"), ["1"]);
        database.await_value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
             AND query LIKE '%20000000%' AND pid <> pg_backend_pid()",
            "0",
        );
    }
}

#[test]
fn case_125_a_goodbye_in_a_transaction_rolls_back() {
    let database = Database::create();
    for config in [pool_of(1), session_pool_of(2)] {
        let proxy = Proxy::start(config);
        let (mut leaving, mut client) = (proxy.client(&database), proxy.client(&database));
        leaving.run("DROP TABLE IF EXISTS reading");
        leaving.run("CREATE TABLE reading(id int, val text); INSERT INTO reading VALUES (1, 'a')");
        leaving.run("BEGIN");
        leaving.run("UPDATE reading SET val = 'z' WHERE id = 1");
        leaving.send(&terminate());
        assert_eq!(client.run("UPDATE reading SET val = val || 'b' WHERE id = 1").tags(), ["UPDATE 1"]);
        assert_eq!(client.column("SELECT val FROM reading"), ["ab"]);
    }
}

#[test]
fn a_client_that_vanishes_in_a_transaction_rolls_back_and_leaks_nothing() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let (mut vanishing, mut client) = (proxy.client(&database), proxy.client(&database));
    client.run("CREATE TABLE reading(id int)");
    vanishing.run("BEGIN; SET LOCAL TimeZone = 'Asia/Tokyo'; INSERT INTO reading VALUES (1)");
    drop(vanishing);
    let answer = client.try_query("SELECT count(*), current_setting('TimeZone') FROM reading");
    assert_eq!(answer.rows(), [[Some("0".to_owned()), Some("UTC".to_owned())]]);
    assert_eq!(answer.status(), 'I');
    proxy.await_metric("pgrouting_proxy_server_connections{server=\"one\",state=\"active\"}", 0);
}

#[test]
fn case_160_half_a_message_and_a_close_hurt_nobody() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut client = proxy.client(&database);
    let before = client.backend();
    for half in [&query("SELECT 'half of it'")[..9], &parse("a", "SELECT 1"), &[unnamed("SELECT 1")].concat()]
    {
        let mut vanishing = proxy.client(&database);
        vanishing.run("SELECT 1");
        vanishing.send(half);
        vanishing.hang_up();
        assert_eq!(vanishing.rest().messages, []);
        assert_eq!(client.column("SELECT 2"), ["2"]);
    }
    assert_eq!(client.backend(), before, "the server never saw the halves");
}

#[test]
fn a_connection_that_is_old_is_closed_between_transactions_and_nobody_notices() {
    let database = Database::create();
    let mut config = pool_of(1);
    config.pooling.server_lifetime = DurationText::from_secs(2);
    let proxy = Proxy::start(config);
    let mut client = proxy.client(&database);
    // In the middle of a transaction nothing is old.
    client.run("BEGIN");
    let first = client.backend();
    client.run("SELECT pg_sleep(4)");
    assert_eq!(client.backend(), first);
    client.run("COMMIT");
    let second = client.backend();
    assert_ne!(second, first, "it was old when the transaction ended");
    // One that nobody uses is closed by itself.
    database.await_value(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {second}"), "0");
    assert_eq!(client.column("SELECT 1"), ["1"]);
}

#[test]
fn case_252_the_rest_of_an_answer_never_reaches_another_client() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut client = proxy.client(&database);
    for _ in 0..5 {
        let mut vanishing = proxy.client(&database);
        vanishing.send(
            &[query("SELECT 'a1'"), query("SELECT 'a2', pg_sleep(0.05)"), query("SELECT 'a3'")].concat(),
        );
        vanishing.ready();
        drop(vanishing);
        for text in ["b1", "b2"] {
            let answer = client.run(&format!("SELECT '{text}'"));
            assert_eq!((answer.types().as_str(), answer.column()), ("TDCZ", vec![text.to_owned()]));
        }
    }
}

#[test]
fn case_162_a_transaction_that_the_server_ended_is_not_gone_on_with() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let (mut client, mut other) = (proxy.client(&database), proxy.client(&database));
    other.run("CREATE TABLE ledger(i int)");
    client.run("SET idle_in_transaction_session_timeout = 50");
    client.run("BEGIN");
    client.run("INSERT INTO ledger VALUES (1)");
    assert_eq!(client.ended_with(), "25P03");
    assert_eq!(other.column("SELECT count(*) FROM ledger"), ["0"]);
}

#[test]
fn case_165_begin_is_not_put_off() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let (mut client, mut other) = (proxy.client(&database), proxy.client(&database));
    other.run("CREATE TABLE ledger(i int)");
    assert_eq!(client.try_query("BEGIN ISOLATION LEVEL NONSENSE").sqlstate().as_deref(), Some("42601"));
    client.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
    other.run("INSERT INTO ledger VALUES (1)");
    assert_eq!(client.column("SELECT count(*) FROM ledger"), ["1"], "the snapshot is the first query's");
    other.run("INSERT INTO ledger VALUES (2)");
    assert_eq!(client.column("SELECT count(*) FROM ledger"), ["1"]);
    client.run("COMMIT");
}

#[test]
fn case_166_users_never_share_connections() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut clients =
        ["app", "app_b"].map(|user| (user, Login::new(proxy.port, user, &database.name).connect()));
    for _ in 0..3 {
        for (user, client) in &mut clients {
            let answer = client.run("SELECT session_user, current_user");
            assert_eq!(answer.rows(), [[Some((*user).to_owned()), Some((*user).to_owned())]]);
        }
    }
}

#[test]
fn databases_never_share_connections() {
    let (first, second) = (Database::create(), Database::create());
    let proxy = Proxy::start(pool_of(1));
    let mut clients = [&first, &second].map(|database| (&database.name, proxy.client(database)));
    for _ in 0..3 {
        for (name, client) in &mut clients {
            assert_eq!(client.column("SELECT current_database()"), [name.as_str()]);
        }
    }
}

#[test]
fn a_database_can_be_dropped_though_connections_to_it_were_kept() {
    let database = Database::create();
    let name = &database.name;
    let mut config = pool_of(4);
    if let AuthConfig::UserList { users } = &mut config.auth {
        users.push(user("postgres", &password_of("postgres")));
    }
    let proxy = Proxy::start(config);
    let mut admin = Login::new(proxy.port, "postgres", "postgres").connect();
    admin.run(&format!("CREATE DATABASE \"{name} two\" TEMPLATE {name}"));
    let two = Login::new(proxy.port, "app", &format!("{name} two"));
    two.connect().run("SELECT 1");
    admin.run(&format!("ALTER DATABASE \"{name} two\" RENAME TO {name}_three"));
    Login::new(proxy.port, "app", &format!("{name}_three")).connect().run("SELECT 1");
    admin.ask(
        &[parse("", &format!("DROP DATABASE {name}_three")), bind("", "", &[]), execute("", 0), sync()]
            .concat(),
    );
    assert!(admin.column(&format!("SELECT 1 FROM pg_database WHERE datname = '{name}_three'")).is_empty());
}

//! What commands at the console do to clients that are at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use pgrouting_contract::config::{PoolMode, ProxyConfig};
use pgrouting_contract::duration::DurationText;
use pgrouting_contract::stage::Stage;

use super::split::{To, went};
use super::support::client::{Client, Login};
use super::support::console::{await_shown, console, document_with_console, rows, show};
use super::support::message::query;
use super::support::poll;
use super::support::proxy::{Proxy, server};
use super::support::server::{Database, primary, standby};

/// Clients that run transactions one after the other, which must all succeed.
struct Load {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(login: &Login, clients: usize) -> Self {
        let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |_| {
            let (mut client, is_over, done) = (login.connect(), Arc::clone(&is_over), Arc::clone(&done));
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    client.run("BEGIN");
                    client.run("SELECT pg_sleep(0.001)");
                    client.run("COMMIT");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let clients = (0..clients).map(client).collect();
        let load = Self { is_over, done, clients };
        load.await_more();
        load
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until more transactions have ended.
    fn await_more(&self) {
        let before = self.done();
        poll("transactions to go on", || (self.done() > before + 20).then_some(()));
    }

    /// Ends it; each transaction must have succeeded.
    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().unwrap());
    }
}

#[test]
fn a_pause_holds_every_request_and_no_transaction_fails() {
    let database = Database::create();
    let proxy = Proxy::start(document_with_console());
    let load = Load::start(&proxy.login(&database), 8);
    let mut admin = console(&proxy);
    for which in ["", &database.name] {
        admin.run(&format!("PAUSE {which}"));
        // All connections are closed when it comes back, and nothing runs from then on.
        assert!(show(&mut admin, "SERVERS").is_empty());
        let done = load.done();
        await_shown(&mut admin, "POOLS", ("database", &database.name), "cl_waiting", "8");
        assert_eq!(show(&mut admin, "DATABASES")[0]["paused"], "1");
        database.await_value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app'",
            "0",
        );
        // Those that had ended at that moment had not all been counted.
        assert!(load.done() <= done + 8);
        admin.run(&format!("RESUME {which}"));
        load.await_more();
        assert_eq!(show(&mut admin, "DATABASES")[0]["paused"], "0");
    }
    load.end();
}

#[test]
fn a_pause_waits_for_transactions_and_only_for_those_of_its_database() {
    let (database, other) = (Database::create(), Database::create());
    let proxy = Proxy::start(document_with_console());
    let (mut client, mut elsewhere) = (proxy.client(&database), proxy.client(&other));
    client.run("BEGIN");
    elsewhere.run("BEGIN");
    let mut admin = console(&proxy);
    admin.send(&query(&format!("PAUSE {}", database.name)));
    let mut second = console(&proxy);
    await_shown(&mut second, "DATABASES", ("name", &database.name), "paused", "1");
    // What has begun goes on.
    client.run("SELECT 1");
    elsewhere.run("COMMIT");
    elsewhere.run("SELECT 1");
    admin.set_patience(std::time::Duration::from_millis(1));
    assert!(admin.try_next().is_err(), "the transaction is not over");
    admin.set_patience(super::support::PATIENCE);
    client.run("COMMIT");
    assert_eq!(admin.ready().tags(), ["PAUSE"]);
    client.send(&query("SELECT 'let go'"));
    await_shown(&mut second, "POOLS", ("database", &database.name), "cl_waiting", "1");
    elsewhere.run("SELECT 1");
    admin.run(&format!("RESUME {}", database.name));
    assert_eq!(client.ready().column(), ["let go"]);
}

#[test]
fn a_pause_that_is_cancelled_or_left_is_over() {
    let database = Database::create();
    let proxy = Proxy::start(document_with_console());
    let mut client = proxy.client(&database);
    client.run("BEGIN");
    let mut second = console(&proxy);
    for is_cancelled in [true, false] {
        let mut admin = console(&proxy);
        admin.send(&query("PAUSE"));
        await_shown(&mut second, "STATE", ("key", "paused"), "value", "yes");
        if is_cancelled {
            admin.cancel();
            assert_eq!(admin.ready().sqlstate().as_deref(), Some("57014"));
        } else {
            drop(admin);
        }
        await_shown(&mut second, "STATE", ("key", "paused"), "value", "no");
        proxy.client(&database).run("SELECT 1");
    }
}

#[test]
fn in_session_mode_a_pause_waits_until_clients_have_left() {
    let database = Database::create();
    let mut config = document_with_console();
    config.pooling.mode = PoolMode::Session;
    let proxy = Proxy::start(config);
    let mut client = proxy.client(&database);
    let mut admin = console(&proxy);
    admin.send(&query("PAUSE"));
    let mut second = console(&proxy);
    await_shown(&mut second, "STATE", ("key", "paused"), "value", "yes");
    client.run("SELECT 1");
    client.leave();
    assert_eq!(admin.ready().tags(), ["PAUSE"]);
    // A new client waits in its login.
    let login = proxy.login(&database);
    let waiting = std::thread::spawn(move || login.connect().run("SELECT 1").column());
    await_shown(&mut second, "POOLS", ("database", &database.name), "cl_waiting", "1");
    second.run("RESUME");
    assert_eq!(waiting.join().unwrap(), ["1"]);
}

#[test]
fn a_request_waits_for_a_paused_database_as_long_as_the_document_says() {
    let database = Database::create();
    let mut config = document_with_console();
    config.console.as_mut().unwrap().pause_timeout = DurationText::from_millis(300);
    let proxy = Proxy::start(config);
    let mut client = proxy.client(&database);
    console(&proxy).run("PAUSE");
    assert_eq!(client.try_query("SELECT 1").sqlstate().as_deref(), Some("57P03"));
    console(&proxy).run("RESUME");
    client.run("SELECT 1");
}

#[test]
fn who_was_held_longer_than_a_wait_for_a_connection_may_last_gets_one() {
    let database = Database::create();
    let mut config = document_with_console();
    config.pooling.checkout_timeout = DurationText::from_millis(400);
    config.pooling.max_server_connections = 1;
    let proxy = Proxy::start(config);
    let mut clients: Vec<_> = (0..6).map(|_| proxy.client(&database)).collect();
    let mut admin = console(&proxy);
    admin.run("PAUSE");
    clients.iter_mut().for_each(|client| client.send(&query("SELECT pg_sleep(0.02)")));
    await_shown(&mut admin, "POOLS", ("database", &database.name), "cl_waiting", "6");
    poll("them to have waited long", || {
        let row = rows(&mut admin, "POOLS", "database", &database.name).remove(0);
        let waited =
            row["maxwait"].parse::<u64>().unwrap() * 1_000_000 + row["maxwait_us"].parse::<u64>().unwrap();
        (waited > 600_000).then_some(())
    });
    admin.run("RESUME");
    for client in &mut clients {
        assert_eq!(client.ready().sqlstate(), None);
    }
}

#[test]
fn reconnect_gives_each_client_a_new_connection_when_its_transaction_is_over() {
    let (database, other) = (Database::create(), Database::create());
    let proxy = Proxy::start(document_with_console());
    let (mut client, mut elsewhere) = (proxy.client(&database), proxy.client(&other));
    let kept = elsewhere.backend();
    client.run("BEGIN");
    let before = client.backend();
    let mut admin = console(&proxy);
    let load = Load::start(&proxy.login(&database), 2);
    admin.run(&format!("RECONNECT {}", database.name));
    assert_eq!(client.backend(), before, "its transaction goes on where it is");
    let close_needed =
        |admin: &mut Client| rows(admin, "SERVERS", "remote_pid", &before)[0]["close_needed"].clone();
    assert_eq!(close_needed(&mut admin), "1");
    admin.send(&query("WAIT_CLOSE"));
    load.await_more();
    client.run("COMMIT");
    assert_eq!(admin.ready().tags(), ["WAIT_CLOSE"]);
    assert_ne!(client.backend(), before);
    assert_eq!(elsewhere.backend(), kept, "the other database is left alone");
    admin.run("RECONNECT");
    assert_ne!(elsewhere.backend(), kept);
    load.end();
}

#[test]
fn kill_ends_the_clients_of_a_database_and_leaves_it_paused() {
    let (database, other) = (Database::create(), Database::create());
    let proxy = Proxy::start(document_with_console());
    let mut idle = proxy.client(&database);
    let mut busy = proxy.client(&database);
    let mut elsewhere = proxy.client(&other);
    idle.run("SELECT 1");
    busy.send(&query("SELECT pg_sleep(60)"));
    database.await_sleeping("1");
    let mut admin = console(&proxy);
    admin.run(&format!("KILL {}", database.name));
    assert_eq!(rows(&mut admin, "CLIENTS", "database", &database.name).len(), 0);
    assert_eq!(rows(&mut admin, "SERVERS", "database", &database.name).len(), 0);
    assert_eq!(idle.ended_with(), "57P01");
    assert_eq!(busy.ended_with(), "57P01");
    elsewhere.run("SELECT 1");
    // Whoever comes waits.
    let login = proxy.login(&database);
    let waiting = std::thread::spawn(move || login.connect().run("SELECT 1").column());
    await_shown(&mut admin, "POOLS", ("database", &database.name), "cl_waiting", "1");
    admin.run(&format!("RESUME {}", database.name));
    assert_eq!(waiting.join().unwrap(), ["1"]);
    // Without a name it is all of them.
    admin.run("KILL");
    assert_eq!(elsewhere.ended_with(), "57P01");
    assert_eq!(show(&mut admin, "CLIENTS").len(), 1, "the console's own client stays");
    admin.run("RESUME");
    proxy.client(&other).run("SELECT 1");
}

#[test]
fn kill_client_ends_that_one_alone() {
    let database = Database::create();
    let proxy = Proxy::start(document_with_console());
    let mut first = proxy.login(&database).with("application_name", "first").connect();
    let mut second = proxy.client(&database);
    let mut admin = console(&proxy);
    let id =
        |admin: &mut Client, name: &str| rows(admin, "CLIENTS", "application_name", name)[0]["id"].clone();
    let first_id = id(&mut admin, "first");
    admin.run(&format!("KILL_CLIENT {first_id}"));
    let end = first.rest();
    assert_eq!(end.sqlstate().as_deref(), Some("57P01"));
    assert!(end.of('E').next().unwrap().field('H').unwrap().contains("KILL"));
    second.run("SELECT 1");
    assert_eq!(admin.try_query(&format!("KILL_CLIENT {first_id}")).sqlstate().as_deref(), Some("42704"));
    assert_eq!(admin.try_query("KILL_CLIENT x").sqlstate().as_deref(), Some("42601"));
    // Sessions still end as they should when all have to.
    proxy.stop();
    assert_eq!(second.ended_with(), "57P01");
}

#[test]
fn a_disabled_database_takes_nobody_new() {
    let (database, other) = (Database::create(), Database::create());
    let proxy = Proxy::start(document_with_console());
    let mut client = proxy.client(&database);
    let mut admin = console(&proxy);
    admin.run(&format!("DISABLE {}", database.name));
    assert_eq!(proxy.login(&database).refused(), "57P03");
    client.run("SELECT 1");
    proxy.client(&other).run("SELECT 1");
    await_shown(&mut admin, "DATABASES", ("name", &database.name), "disabled", "1");
    admin.run(&format!("ENABLE {}", database.name));
    proxy.client(&database).run("SELECT 1");
    await_shown(&mut admin, "DATABASES", ("name", &database.name), "disabled", "0");
    // Nobody can lock everybody out.
    assert_eq!(admin.try_query("DISABLE pgbouncer").sqlstate().as_deref(), Some("0A000"));
    console(&proxy).run("SHOW STATE");
}

#[test]
fn a_database_that_nobody_has_used_can_be_stopped_with_a_warning() {
    let database = Database::create();
    let proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    let answer = admin.run(&format!("DISABLE {}", database.name));
    assert_eq!(answer.of('N').count(), 1);
    assert_eq!(proxy.login(&database).refused(), "57P03");
    admin.run(&format!("ENABLE {}", database.name));
    proxy.client(&database).run("SELECT 1");
    assert_eq!(admin.run(&format!("DISABLE {}", database.name)).of('N').count(), 0);
}

#[test]
fn a_pinned_session_is_waited_for() {
    let database = Database::create();
    let proxy = Proxy::start(document_with_console());
    let mut client = proxy.client(&database);
    client.run("CREATE TEMP TABLE scratch (n int)");
    let mut admin = console(&proxy);
    admin.send(&query("PAUSE"));
    let mut second = console(&proxy);
    await_shown(&mut second, "STATE", ("key", "paused"), "value", "yes");
    client.run("INSERT INTO scratch VALUES (1)");
    let server = rows(&mut second, "SERVERS", "database", &database.name).remove(0);
    let linked = rows(&mut second, "CLIENTS", "database", &database.name).remove(0);
    assert_eq!((&server["link"], &linked["link"]), (&linked["ptr"], &server["ptr"]));
    client.run("DISCARD ALL");
    assert_eq!(admin.ready().tags(), ["PAUSE"]);
}

#[test]
fn reads_of_a_pinned_session_that_could_run_elsewhere_go_on_during_a_pause() {
    let database = Database::create();
    let mut config = document_with_console();
    config.servers = vec![server("one", primary().port), server("two", standby().port)];
    config.stage = Stage::Split;
    let proxy = Proxy::start(config);
    let (mut admin, mut second) = (console(&proxy), console(&proxy));
    poll("the replica to take part", || {
        (show(&mut second, "HOSTS").get(1)?["rotation"] == "In").then_some(())
    });
    let mut client = proxy.client(&database);
    client.run("LISTEN depot");
    poll("its reads to run elsewhere", || {
        client.run("SELECT 'before'");
        (went(&mut client) == To::Replica).then_some(())
    });
    admin.send(&query("PAUSE"));
    await_shown(&mut second, "STATE", ("key", "paused"), "value", "yes");
    client.run("SELECT 'meanwhile'");
    assert_eq!(went(&mut client), To::Primary);
    client.run("UNLISTEN *");
    assert_eq!(admin.ready().tags(), ["PAUSE"]);
}

/// The document with one thread more, so that commands have to reach all of them.
fn many_threads() -> ProxyConfig {
    let mut config = document_with_console();
    config.process.workers = 3;
    config
}

#[test]
fn commands_reach_the_clients_of_all_threads() {
    let database = Database::create();
    let proxy = Proxy::start(many_threads());
    let mut clients: Vec<_> = (0..9).map(|_| proxy.client(&database)).collect();
    clients.iter_mut().for_each(|client| drop(client.run("SELECT 1")));
    let mut admin = console(&proxy);
    admin.run("PAUSE");
    clients.iter_mut().for_each(|client| client.send(&query("SELECT 1")));
    await_shown(&mut admin, "POOLS", ("database", &database.name), "cl_waiting", "9");
    admin.run("RESUME");
    clients.iter_mut().for_each(|client| assert_eq!(client.ready().column(), ["1"]));
    admin.run("KILL");
    clients.iter_mut().for_each(|client| assert_eq!(client.ended_with(), "57P01"));
}

//! A mirror that is slow, hangs, dies or refuses: clients notice nothing, and what is left out is left out whole.

use std::thread::scope;

use pgrouting_contract::config::PoolingConfig;
use pgrouting_contract::duration::DurationText;
use pgrouting_contract::mirror::{MirrorConfig, MirrorState, MirrorStatements};
use pgrouting_contract::stage::Stage;

use super::mirror::{Pair, pair};
use super::support::message::{batch, query};
use super::support::proxy::{Proxy, document};
use super::support::server::{Database, Server, own_primary};
use super::support::{free_port, poll};

/// Each transaction moves an amount from one table to the other: their sums are opposite, or it was torn.
const ACCOUNTS: &str = "CREATE TABLE one(v int); CREATE TABLE two(v int)";

const TORN: &str = "SELECT (SELECT coalesce(sum(v), 0) FROM one) + (SELECT coalesce(sum(v), 0) FROM two)";

/// So many transactions by each of some clients; none of them sees an error.
fn move_amounts(pair: &Pair, clients: usize, transactions: usize) {
    scope(|threads| {
        for seed in 0..clients {
            threads.spawn(move || {
                let mut client = pair.client();
                for number in 0..transactions {
                    let padding = "x".repeat(number % 500);
                    client.run("BEGIN");
                    client.ask(&batch(&format!("INSERT INTO one VALUES ({number}) /* {padding} */")));
                    if seed % 2 == 0 {
                        client.ask(&query(&format!("INSERT INTO two VALUES (-{number})")));
                    } else {
                        client.ask(&batch(&format!("INSERT INTO two VALUES (-{number})")));
                    }
                    client.run("COMMIT");
                }
            });
        }
    });
}

#[test]
fn case_184_a_slow_mirror_holds_up_nobody_and_fills_no_memory() {
    let table = "CREATE TABLE order_line(id int PRIMARY KEY, qty int, note text)";
    let pair = pair(table, |mirror| mirror.queue_bytes = 64 * 1024);
    pair.client().run("SELECT 1");
    pair.settled(1);
    let before = pair.proxy.resident_kib();
    let mut holder = pair.target.direct();
    holder.run("BEGIN; LOCK TABLE order_line");
    let mut client = pair.client();
    for id in 0..2000 {
        client.run(&format!("INSERT INTO order_line VALUES ({id}, 1, 'x')"));
    }
    assert_eq!(client.column("SELECT count(*) FROM order_line"), ["2000"]);
    let grown = pair.proxy.resident_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB");
    holder.run("COMMIT");
    let report = pair.settled(2002);
    let dropped = report.dropped["queue_full"];
    assert!(dropped > 0 && report.diverged_since.is_some(), "{report:?}");
    let there: u64 = pair.target.direct().value("SELECT count(*) FROM order_line").unwrap().parse().unwrap();
    // The last read may be one of those that were dropped.
    assert!((2000..=2001).contains(&(there + dropped)), "{there} rows, {dropped} dropped");
    client.run("INSERT INTO order_line VALUES (5000, 1, 'goes on')");
    pair.target.await_value("SELECT count(*) FROM order_line WHERE id = 5000", "1");
}

#[test]
fn case_198_the_mirror_has_a_limit_of_its_own() {
    let table = "CREATE TABLE order_line(id int PRIMARY KEY, qty int, note text)";
    let pair = pair(table, |mirror| mirror.max_connections = 3);
    let watch = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgrouting-mirror' AND datname = current_database()";
    let mut admin = pair.target.admin();
    scope(|threads| {
        let clients: Vec<_> = (0..20)
            .map(|_| {
                threads.spawn(|| {
                    let mut client = pair.client();
                    for _ in 0..30 {
                        client.run("INSERT INTO order_line SELECT 1, 1, 'x' WHERE false");
                    }
                })
            })
            .collect();
        let mut most = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            most = most.max(admin.value(watch).unwrap().parse::<u32>().unwrap());
        }
        assert!(most <= 3, "{most} connections");
    });
    let report = pair.settled(600);
    assert_eq!(report.mirrored, 600, "{report:?}");
}

#[test]
fn no_torn_transaction_reaches_a_mirror_that_has_to_drop_some() {
    let pair = pair(ACCOUNTS, |mirror| {
        mirror.queue_bytes = 4 * 1024;
        mirror.budget_bytes = 10 * 1024;
        mirror.max_connections = 1;
    });
    move_amounts(&pair, 8, 150);
    let report = pair.settled(8 * 150);
    assert!(report.dropped.values().sum::<u64>() > 0, "{report:?}");
    assert_eq!(pair.target.direct().column(TORN), ["0"]);
    let there: u64 = pair.target.direct().value("SELECT count(*) FROM one").unwrap().parse().unwrap();
    assert_eq!(there, report.mirrored);
    assert_eq!(report.queued_bytes, 0);
}

/// A pair whose mirror is a server of its own.
fn apart(change: impl FnOnce(&mut MirrorConfig)) -> (Pair, Server) {
    let server = own_primary();
    let (source, target) = (Database::create(), Database::create());
    source.direct().run(ACCOUNTS);
    server.admin("postgres").run(&format!("CREATE DATABASE {} OWNER app", source.name));
    server.admin(&source.name).run(ACCOUNTS);
    server.admin(&source.name).run("GRANT ALL ON one, two TO app");
    let mut config = document();
    config.stage = Stage::Mirror;
    config.pooling = PoolingConfig { max_server_connections: 8, ..PoolingConfig::default() };
    let mut mirror = MirrorConfig::at("127.0.0.1".to_owned(), server.port);
    mirror.statements = MirrorStatements::All;
    mirror.transaction_timeout = DurationText::from_millis(500);
    change(&mut mirror);
    config.mirror = Some(mirror);
    (Pair { source, target, proxy: Proxy::start(config) }, server)
}

#[test]
fn a_mirror_that_hangs_or_is_gone_is_left_alone_and_found_again() {
    let (pair, mut server) = apart(|_| {});
    move_amounts(&pair, 4, 10);
    assert_eq!(pair.settled(40).mirrored, 40);
    server.freeze(true);
    poll("the breaker to open", || {
        move_amounts(&pair, 4, 5);
        (pair.report().state == MirrorState::Broken).then_some(())
    });
    move_amounts(&pair, 4, 50);
    let report = pair.report();
    assert!(report.dropped["breaker"] > 0 && !report.message.is_empty(), "{report:?}");
    server.freeze(false);
    poll("transactions to be run there again", || {
        let before = pair.report().mirrored;
        move_amounts(&pair, 1, 2);
        let report = pair.report();
        // What waited before may still be given up.
        (report.mirrored > before && report.state == MirrorState::Running).then_some(())
    });
    server.crash();
    move_amounts(&pair, 4, 50);
    server.start();
    poll("transactions to be run there once more", || {
        let before = pair.report().mirrored;
        move_amounts(&pair, 1, 2);
        (pair.report().mirrored > before).then_some(())
    });
    pair.settled(1);
    assert_eq!(server.admin(&pair.source.name).column(TORN), ["0"]);
    assert_eq!(pair.source.direct().column(TORN), ["0"]);
}

#[test]
fn a_mirror_that_hangs_before_the_first_login_is_left_alone_too() {
    let (pair, mut server) = apart(|_| {});
    server.freeze(true);
    poll("the breaker to open", || {
        move_amounts(&pair, 2, 2);
        (pair.report().state == MirrorState::Broken).then_some(())
    });
    let report = pair.report();
    assert_eq!((report.mirrored, report.dropped.contains_key("deadline")), (0, true), "{report:?}");
    server.freeze(false);
}

#[test]
fn a_mirror_that_was_never_there_costs_no_error() {
    let pair = pair(ACCOUNTS, |mirror| mirror.port = free_port());
    move_amounts(&pair, 4, 50);
    let report = pair.settled(200);
    assert_eq!(report.mirrored, 0);
    assert!(report.dropped.contains_key("breaker") && report.message.contains("refused"), "{report:?}");
    assert_eq!(pair.source.direct().column("SELECT count(*) FROM one"), ["200"]);
}

#[test]
fn a_user_that_the_mirror_does_not_know_is_told_in_the_report() {
    let (pair, server) = apart(|_| {});
    server.admin("postgres").run("ALTER ROLE app NOLOGIN");
    move_amounts(&pair, 2, 20);
    let report = pair.settled(40);
    assert_eq!(report.mirrored, 0);
    assert!(report.message.contains("28000"), "{report:?}");
}

#[test]
fn the_mirror_is_switched_off_at_once_with_everything_that_waits() {
    let mut pair = pair(ACCOUNTS, |_| {});
    let mut holder = pair.target.direct();
    holder.run("BEGIN; LOCK TABLE one");
    move_amounts(&pair, 4, 20);
    assert!(pair.report().queued_bytes > 0);
    pair.proxy.change(|config| config.stage = Stage::Split);
    poll("nothing to wait any more", || (pair.report().queued_bytes == 0).then_some(()));
    assert_eq!(pair.report().state, MirrorState::Inactive);
    holder.run("COMMIT");
    pair.target.await_value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgrouting-mirror' AND datname = current_database()", "0");
    assert_eq!(pair.target.direct().column(TORN), ["0"]);
    move_amounts(&pair, 1, 5);
}

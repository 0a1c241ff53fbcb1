//! What the gates of a rollout are judged by: each transaction in its group, with its errors and its time, and what
//! replicas refuse.

use std::collections::BTreeSet;

use pgrouting_contract::measures::{Arm, Measures};
use pgrouting_contract::mirror::{MirrorConfig, MirrorStatements};
use pgrouting_contract::split::{Cohort, Transactions};
use pgrouting_contract::stage::Stage;

use super::mirror::pair;
use super::split::To::{Primary, Replica};
use super::split::{CRATE, Split, went};
use super::support::message::{batch, bind, describe, execute, parse, query, sync};
use super::support::poll;
use super::support::proxy::{Proxy, document, pool_of, session_pool_of};
use super::support::server::{Database, primary};

/// What a proxy reports once that is so; a transaction is counted when its client has the answer already.
fn measured(proxy: &Proxy, what: &str, is_so: impl Fn(&Measures) -> bool) -> Measures {
    poll(what, || Some(proxy.report().measures).filter(|measures| is_so(measures)))
}

/// The report once both groups of reads have so many transactions together.
fn reads(proxy: &Proxy, count: u64) -> Measures {
    measured(proxy, &format!("{count} reads"), |measures| {
        measures.cohort.transactions + measures.control.transactions >= count
    })
}

/// What is there once the catalog is known and a read was counted.
fn begun(split: &Split) -> Measures {
    let before = split.proxy.report().measures.cohort;
    split.client().run("SELECT 1");
    reads(&split.proxy, before.transactions + 1)
}

fn numbers(arm: &Arm) -> (u64, u64) {
    (arm.transactions, arm.errors)
}

/// Half of the transactions are split, each by lot.
fn half() -> Split {
    Split::of(&CRATE, |config| (config.split.percent, config.split.cohort) = (50, Cohort::Transaction))
}

/// A function that writes and is said to read.
const CLAIMS: &str =
    "CREATE FUNCTION claims(int) RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('ticket_no') $$";

fn with_claims(rescues: bool) -> Split {
    Split::of(&[CRATE[0], CRATE[1], CRATE[2], CLAIMS], |config| {
        config.split.read_functions = vec!["claims".to_owned()];
        config.split.rescue = rescues;
    })
}

/// What replicas refused: the server, the statement, and how often.
fn refused(measures: &Measures) -> Vec<(&str, &str, u64)> {
    measures.refused.iter().map(|r| (r.server.as_str(), r.statement.as_str(), r.count)).collect()
}

#[test]
fn reads_are_counted_where_the_lot_put_them_with_their_times() {
    let split = half();
    let before = begun(&split);
    assert!(!before.process.is_empty());
    let mut client = split.client();
    let (mut there, mut here) = (0, 0);
    for number in 0..60 {
        let form =
            if number % 2 == 0 { query("SELECT pg_sleep(0.003)") } else { batch("SELECT pg_sleep(0.003)") };
        client.ask(&form);
        *(if went(&mut client) == Replica { &mut there } else { &mut here }) += 1;
        // None of these is compared with anything.
        client.run("UPDATE crate SET qty = qty WHERE id = 1");
        client.run("/* route: replica */ SELECT 1");
    }
    let found = reads(&split.proxy, before.cohort.transactions + before.control.transactions + 60);
    assert_eq!(found.process, before.process);
    let found = found.since(&before);
    assert_eq!(numbers(&found.cohort), (there, 0));
    assert_eq!(numbers(&found.control), (here, 0));
    assert!(there > 5 && here > 5, "{there} {here}");
    for arm in [&found.cohort, &found.control] {
        // So few are timed each, and none is quicker than its statement.
        assert_eq!(arm.latency.count(), arm.transactions);
        assert!(arm.latency.quantile_micros(1).is_some_and(|micros| micros >= 2_900), "{arm:?}");
    }
    assert_eq!((found.mirrored, found.unmirrored), (Arm::default(), Arm::default()));
    let metric =
        |name: &str| split.proxy.metric(&format!("pgrouting_proxy_rollout_{name}{{arm=\"cohort\"}}"));
    assert_eq!(metric("transactions_total"), before.cohort.transactions + there);
    assert_eq!(metric("latency_seconds_count"), before.cohort.latency.count() + there);
}

#[test]
fn a_read_that_its_sessions_writes_keep_on_the_primary_is_where_the_lot_put_it() {
    let split = Split::of(&CRATE, |config| {
        config.split.consistency = pgrouting_contract::split::Consistency::Session;
    });
    let before = begun(&split);
    let mut client = split.client();
    for _ in 0..5 {
        client.run("BEGIN");
        client.run("UPDATE crate SET qty = qty + 1 WHERE id = 1");
        client.run("COMMIT");
        client.run("SELECT qty FROM crate WHERE id = 1");
    }
    let found = reads(&split.proxy, before.cohort.transactions + 5).since(&before);
    assert_eq!((numbers(&found.cohort), numbers(&found.control)), ((5, 0), (0, 0)));
    let on_primary = split.proxy.report().split.primary;
    assert!(on_primary.get("freshness").is_some_and(|count| *count > 0), "{on_primary:?}");
}

#[test]
fn errors_count_for_the_group_of_their_read() {
    let split = half();
    let before = begun(&split);
    let mut client = split.client();
    let (mut there, mut here) = (0, 0);
    for number in 0..40 {
        let form = if number % 2 == 0 { query("SELECT 1/0") } else { batch("SELECT 1/0") };
        assert_eq!(client.ask(&form).sqlstate().as_deref(), Some("22012"));
        *(if went(&mut client) == Replica { &mut there } else { &mut here }) += 1;
        client.try_query("UPDATE crate SET qty = 1/0");
    }
    let found = reads(&split.proxy, before.cohort.transactions + before.control.transactions + 40);
    let found = found.since(&before);
    assert_eq!((numbers(&found.cohort), numbers(&found.control)), ((there, there), (here, here)));
    assert!(there > 2 && here > 2, "{there} {here}");
    assert_eq!((found.misrouted, found.refused.len()), (0, 0));
}

#[test]
fn an_error_of_the_proxy_counts_too() {
    let split = Split::of(&CRATE, |config| {
        config.split.when_no_replica = pgrouting_contract::split::WhenNoReplica::Fail;
        config.pooling.max_server_connections = 1;
        config.pooling.checkout_timeout = pgrouting_contract::duration::DurationText::from_secs(1);
    });
    let before = begun(&split);
    let (mut one, mut other) = (split.client(), split.client());
    one.send(&query("SELECT 'holds', pg_sleep(2)"));
    poll("the connection to be taken", || {
        let name = "pgrouting_proxy_server_connections{server=\"two\",state=\"active\"}";
        (split.proxy.metric(name) == 1).then_some(())
    });
    assert_eq!(other.try_query("SELECT 1").sqlstate().as_deref(), Some("53300"));
    one.ready();
    let found = reads(&split.proxy, before.cohort.transactions + 2).since(&before);
    assert_eq!(numbers(&found.cohort), (2, 1));
    assert!(found.waits.quantile_micros(1000).is_some_and(|micros| micros > 900_000), "{:?}", found.waits);
    assert!(found.cohort.latency.quantile_micros(1).is_some_and(|micros| micros > 900_000));
}

#[test]
fn of_requests_in_one_write_the_first_is_compared() {
    let split = Split::new(&CRATE);
    let before = begun(&split);
    let mut client = split.client();
    client.send(&[query("SELECT 1"), query("SELECT 1/0"), query("SELECT 3")].concat());
    (0..3).for_each(|_| drop(client.ready()));
    client.send(&[query("SELECT 1/0"), query("SELECT 2")].concat());
    (0..2).for_each(|_| drop(client.ready()));
    let found = reads(&split.proxy, before.cohort.transactions + 2).since(&before);
    assert_eq!(numbers(&found.cohort), (2, 1));
}

#[test]
fn a_transaction_that_may_move_is_in_no_group() {
    let split = Split::of(&CRATE, |config| config.split.transactions = Transactions::ReadOnlyPrefix);
    let before = begun(&split);
    let mut client = split.client();
    for begin in ["BEGIN", "BEGIN READ ONLY"] {
        client.run(begin);
        client.run("SELECT count(*) FROM crate");
        client.run("COMMIT");
    }
    client.run("SELECT 1");
    let found = reads(&split.proxy, before.cohort.transactions + 2).since(&before);
    assert_eq!((numbers(&found.cohort), numbers(&found.control)), ((2, 0), (0, 0)));
}

#[test]
fn at_the_first_stage_the_reads_of_the_forecast_are_the_control() {
    let split = Split::of(&CRATE, |config| config.stage = Stage::PoolingOnly);
    let mut run = 0;
    // Few sessions are looked at, and none before the catalog is known.
    let (measures, forecast) = poll("reads of the forecast", || {
        for _ in 0..20 {
            let mut client = split.client();
            for _ in 0..4 {
                client.run("SELECT count(*) FROM crate");
                client.run("UPDATE crate SET qty = qty WHERE id = 1");
                run += 2;
            }
        }
        let report = split.proxy.report();
        let forecast = report.split.forecast.get("read").copied().filter(|count| *count > 0)?;
        (report.measures.control.transactions >= forecast).then_some((report.measures, forecast))
    });
    assert_eq!((numbers(&measures.control), numbers(&measures.cohort)), ((forecast, 0), (0, 0)));
    assert!(measures.control.latency.count() > 0);
    // Nearly all of them found a connection at once.
    assert!(measures.waits.count() >= run, "{run}: {:?}", measures.waits);
    assert!(
        measures.waits.0.get(&0).is_some_and(|count| *count >= run * 3 / 4),
        "{run}: {:?}",
        measures.waits
    );
}

#[test]
fn a_refusal_that_reaches_the_client_is_misrouted_and_named() {
    let split = with_claims(false);
    let before = begun(&split);
    let mut client = split.client();
    let forms: [Vec<u8>; 3] = [
        query("SELECT claims(1) /* call */"),
        batch("SELECT claims(2)"),
        [parse("n", "SELECT claims(3)"), bind("", "n", &[]), describe('P', ""), execute("", 0), sync()]
            .concat(),
    ];
    for form in &forms {
        assert_eq!(client.ask(form).sqlstate().as_deref(), Some("25006"));
    }
    let found = measured(&split.proxy, "the refusals", |measures| measures.misrouted == 3);
    assert_eq!(refused(&found), [("two", "SELECT claims(?)", 3)]);
    assert_eq!(numbers(&found.since(&before).cohort), (3, 3));
    assert_eq!(split.proxy.metric("pgrouting_proxy_misrouted_total"), 3);
    // What the client asks for itself is none, nor what it declares to be READ ONLY.
    client.run("SET SERVER ROLE = 'replica'");
    assert_eq!(client.try_query("SELECT claims(4)").sqlstate().as_deref(), Some("25006"));
    client.run("SET SERVER ROLE = 'auto'");
    assert_eq!(
        client.try_query("/* route: replica */ SELECT claims(5)").sqlstate().as_deref(),
        Some("25006")
    );
    client.run("BEGIN READ ONLY");
    assert_eq!(client.try_query("SELECT claims(6)").sqlstate().as_deref(), Some("25006"));
    client.run("ROLLBACK");
    client.run("SET default_transaction_read_only = on");
    assert_eq!(client.try_query("SELECT claims(7)").sqlstate().as_deref(), Some("25006"));
    client.run("SET default_transaction_read_only = off");
    assert_eq!(client.try_query("SELECT claims(8)").sqlstate().as_deref(), Some("25006"));
    let found = measured(&split.proxy, "the last refusal", |measures| measures.misrouted >= 4);
    assert_eq!((found.misrouted, refused(&found)), (4, vec![("two", "SELECT claims(?)", 4)]));
}

#[test]
fn a_refusal_behind_rows_is_misrouted_whatever_may_be_rescued() {
    let split = with_claims(true);
    let mut client = split.client();
    // Much has been sent before a row is refused.
    let sql = "SELECT CASE WHEN g = 90000 THEN claims(1) ELSE g END FROM generate_series(1, 100000) g";
    assert_eq!(client.try_query(sql).sqlstate().as_deref(), Some("25006"));
    let found = measured(&split.proxy, "the refusal", |measures| measures.misrouted == 1);
    let expected = "SELECT CASE WHEN g=? THEN claims(?) ELSE g END FROM generate_series(?, ?) g";
    assert_eq!(refused(&found), [("two", expected, 1)]);
}

#[test]
fn a_refusal_that_is_rescued_is_named_and_counts_once() {
    let split = with_claims(true);
    let before = begun(&split);
    let mut client = split.client();
    assert_eq!(client.column("SELECT claims(1)"), ["1"]);
    assert_eq!(went(&mut client), Primary);
    // It is known now, and goes to the primary whatever the lot says.
    assert_eq!(client.column("SELECT claims(2)"), ["2"]);
    client.run("SELECT 1");
    let found = reads(&split.proxy, before.cohort.transactions + 2);
    assert_eq!((found.misrouted, refused(&found)), (0, vec![("two", "SELECT claims(?)", 1)]));
    let found = found.since(&before);
    assert_eq!((numbers(&found.cohort), numbers(&found.control)), ((2, 0), (0, 0)));
}

#[test]
fn what_is_copied_is_compared_with_what_is_not() {
    let pair = pair("CREATE TABLE order_line(id int)", |mirror| mirror.percent = 50);
    pair.client().run("SELECT 1");
    poll("the catalog", || pair.proxy.report().split.catalogs.get(&pair.source.name)?.then_some(()));
    let before = pair.proxy.report();
    for number in 0..40 {
        let mut client = pair.client();
        client.run(&format!("INSERT INTO order_line VALUES ({number})"));
        client.try_query("SELECT 1/0");
    }
    let found = measured(&pair.proxy, "80 transactions", |measures| {
        measures.mirrored.transactions + measures.unmirrored.transactions >= 81
    });
    let offered = pair.report().offered - before.mirror.map_or(0, |mirror| mirror.offered);
    let found = found.since(&before.measures);
    for arm in [&found.mirrored, &found.unmirrored] {
        assert!(arm.transactions > 10, "{arm:?}");
        assert_eq!((arm.errors * 2, arm.transactions % 2), (arm.transactions, 0), "{arm:?}");
        assert!(arm.latency.count() > 0, "{arm:?}");
    }
    assert_eq!(found.mirrored.transactions, offered, "those that were offered to the mirror");
    // Reads are in both comparisons: there is no replica, and the lot says that they would go there.
    assert_eq!(numbers(&found.cohort), (40, 40));
}

#[test]
fn sessions_that_keep_their_connection_are_compared_at_the_mirror() {
    let (source, target) = (Database::create(), Database::create());
    let mut config = session_pool_of(4);
    config.stage = Stage::Mirror;
    let mut mirror = MirrorConfig::at("127.0.0.1".to_owned(), primary().port);
    (mirror.database, mirror.statements) = (Some(target.name.clone()), MirrorStatements::All);
    config.mirror = Some(mirror);
    let proxy = Proxy::start(config);
    let mut client = proxy.client(&source);
    for _ in 0..10 {
        client.run("SELECT pg_sleep(0.003)");
    }
    client.try_query("SELECT 1/0");
    let found = measured(&proxy, "11 transactions", |measures| measures.mirrored.transactions >= 11);
    assert_eq!((numbers(&found.mirrored), numbers(&found.unmirrored)), ((11, 1), (0, 0)));
    assert!(found.mirrored.latency.count() >= 10, "{found:?}");
    assert!(found.mirrored.latency.quantile_micros(500).is_some_and(|micros| micros >= 2_500), "{found:?}");
    // One that only waits has nothing to be counted.
    drop(client);
    assert_eq!(numbers(&proxy.report().measures.mirrored), (11, 1));
}

#[test]
fn who_gives_up_waiting_has_waited() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let (mut one, mut other) = (proxy.client(&database), proxy.client(&database));
    one.run("SELECT 1");
    let before = measured(&proxy, "a transaction", |measures| measures.waits.count() > 0);
    one.send(&query("SELECT pg_sleep(30)"));
    database.await_sleeping("1");
    other.send(&query("SELECT 2"));
    proxy.await_waiting(1);
    other.cancel();
    assert_eq!(other.ready().sqlstate().as_deref(), Some("57014"));
    proxy.await_waiting(0);
    one.cancel();
    assert_eq!(one.ready().sqlstate().as_deref(), Some("57014"));
    let found = measured(&proxy, "the wait", |measures| measures.waits.since(&before.waits).count() >= 2);
    // The one that has run, and the one that has not.
    let found = found.since(&before).waits;
    assert_eq!((found.count(), found.0.get(&0).copied()), (2, Some(1)), "{found:?}");
}

#[test]
fn each_process_has_a_name_of_its_own() {
    let names: BTreeSet<_> = (0..2).map(|_| Proxy::start(document()).report().measures.process).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn who_waits_for_a_connection_is_counted_with_the_time() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let (mut one, mut other) = (proxy.client(&database), proxy.client(&database));
    one.run("SELECT 1");
    let before = measured(&proxy, "a transaction", |measures| measures.waits.count() > 0);
    one.send(&query("SELECT pg_sleep(0.5)"));
    database.await_sleeping("1");
    other.run("SELECT 2");
    one.ready();
    other.run("SELECT 3");
    let found = measured(&proxy, "the waits", |measures| measures.waits.since(&before.waits).count() >= 3);
    let found = found.since(&before).waits;
    assert_eq!((found.count(), found.0.get(&0).copied()), (3, Some(2)), "{found:?}");
    assert!(found.quantile_micros(1000).is_some_and(|micros| (10_000..5_000_000).contains(&micros)));
}

//! What clients read from a standby that applies late: their own writes, what a bound allows, what a token asks for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use pgrouting_contract::duration::DurationText;
use pgrouting_contract::split::Consistency;
use tokio::time::Instant;

use super::failover::Set;
use super::split::To::{Primary, Replica};
use super::split::{went, why};
use super::support::client::{Client, Login};
use super::support::message::{batch, query};
use super::support::proxy::{Proxy, local};
use super::support::random::number_in;
use super::support::{free_port, poll};

/// Reads of one run after a write; `PGROUTING_TEST_READS` makes others.
const USUAL: u64 = 3000;

const CLIENTS: u64 = 6;

/// The standby applies each commit that much later, in milliseconds.
fn apply_late(set: &Set, millis: u64) {
    let mut standby = set.servers[1].admin("postgres");
    standby.run(&format!("ALTER SYSTEM SET recovery_min_apply_delay = {millis}"));
    standby.run("SELECT pg_reload_conf()");
}

/// What reads saw of what their sessions had written.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    reads: u64,
    stale: u64,
    on_replica: u64,
}

/// Each client writes to a row of its own and reads it back, at once and a little later.
fn read_back(set: &Set, reads: u64) -> Seen {
    let login = Login::new(set.proxy.port, "app", "postgres");
    let one = |id: u64| {
        let mut client = Client::connect(&login).unwrap();
        let mut seen = Seen::default();
        let mut number = 0;
        while seen.reads < reads / CLIENTS {
            number += 1;
            client.run(&format!("UPDATE gauge SET v = {number} WHERE id = {id}"));
            for pause in [0, 0, number % 40, 0] {
                sleep(Duration::from_millis(pause));
                let read = format!("SELECT v FROM gauge WHERE id = {id}");
                let form = if number % 2 == 0 { query(&read) } else { batch(&read) };
                let value = client.ask(&form).column();
                seen.reads += 1;
                seen.stale += u64::from(value != [number.to_string()]);
                seen.on_replica += u64::from(went(&mut client) == Replica);
            }
        }
        seen
    };
    scope(|scope| {
        let clients: Vec<_> = (1..=CLIENTS).map(|id| scope.spawn(move || one(id))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).fold(Seen::default(), |all, seen| Seen {
            reads: all.reads + seen.reads,
            stale: all.stale + seen.stale,
            on_replica: all.on_replica + seen.on_replica,
        })
    })
}

#[test]
fn a_session_sees_its_own_writes_and_whoever_does_not_ask_for_it_may_not() {
    let reads = number_in("PGROUTING_TEST_READS", USUAL);
    let mut set = Set::of(1, |config| config.split.consistency = Consistency::Session);
    apply_late(&set, 10);
    let session = read_back(&set, reads);
    eprintln!("Session: {session:?}");
    assert_eq!(session.stale, 0, "{session:?}");
    assert!(session.on_replica > 0, "{session:?}");
    set.proxy.change(|config| config.split.consistency = Consistency::Eventual);
    let eventual = read_back(&set, reads.min(USUAL));
    eprintln!("Eventual: {eventual:?}");
    assert!(eventual.stale > 0 && eventual.on_replica > 0, "{eventual:?}");
}

#[test]
fn a_bounded_read_misses_nothing_that_is_older_than_the_bound() {
    const BOUND: Duration = Duration::from_millis(300);
    let set = Set::of(1, |config| {
        config.split.consistency = Consistency::Bounded;
        config.split.max_staleness = Some(DurationText::from_millis(300));
    });
    apply_late(&set, 60);
    let (acknowledged, is_over) = (Mutex::new(Vec::<(Instant, u64)>::new()), AtomicBool::new(false));
    let login = Login::new(set.proxy.port, "app", "postgres");
    let write = || {
        let mut client = Client::connect(&login).unwrap();
        for number in 1.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            client.run(&format!("UPDATE gauge SET v = {number} WHERE id = 1"));
            acknowledged.lock().unwrap().push((Instant::now(), number));
            sleep(Duration::from_millis(3));
        }
    };
    let read = |client: &mut Client| {
        let asked = Instant::now();
        let value: u64 = client.value("SELECT v FROM gauge WHERE id = 1").unwrap().parse().unwrap();
        let to = went(client);
        let known = acknowledged.lock().unwrap();
        let due = known.iter().rev().find(|(at, _)| *at + BOUND <= asked).map_or(0, |(_, number)| *number);
        assert!(value >= due, "{value} of {due}, {to:?}");
        // Whether something is missing at all, so that the test says something.
        (to, known.last().is_some_and(|(_, latest)| value < *latest))
    };
    scope(|scope| {
        scope.spawn(write);
        let mut client = Client::connect(&login).unwrap();
        let (mut on_replica, mut behind) = (0, 0);
        for _ in 0..400 {
            let (to, is_behind) = read(&mut client);
            on_replica += u64::from(to == Replica);
            behind += u64::from(is_behind);
        }
        apply_late(&set, 2000);
        poll("reads to leave the replica", || (read(&mut client).0 == Primary).then_some(()));
        assert_eq!(why(&mut client), "freshness");
        for _ in 0..100 {
            assert_eq!(read(&mut client).0, Primary);
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(on_replica > 0 && behind > 0, "{on_replica} {behind}");
    });
}

#[test]
fn a_token_takes_a_write_to_another_session_at_another_proxy() {
    let set = Set::new(1);
    let mut config = set.proxy.config.clone();
    let listen = || local(free_port());
    (config.process.listen, config.process.admin_listen, config.process.probe_listen) =
        (listen(), listen(), listen());
    let other = Proxy::start(config);
    let login = Login::new(other.port, "app", "postgres");
    apply_late(&set, 50);
    let (mut writer, mut bystander) = (set.client(), login.connect());
    poll("the other proxy to read from the replica", || {
        bystander.run("SELECT 1");
        (went(&mut bystander) == Replica).then_some(())
    });
    let (mut stale, mut on_replica) = (0, 0);
    for number in 0..40 {
        writer.run(&format!("UPDATE gauge SET v = {number} WHERE id = 1"));
        let form = if number % 2 == 0 { query } else { batch };
        let token = writer.ask(&form("SHOW pgrouting.causal_token")).column().remove(0);
        stale +=
            u64::from(bystander.value("SELECT v FROM gauge WHERE id = 1").unwrap() != number.to_string());
        let mut reader = if number % 3 == 0 {
            Login::new(other.port, "app", "postgres")
                .with("options", &format!("-c pgrouting.causal_token={token}"))
                .connect()
        } else {
            let mut reader = login.connect();
            assert_eq!(reader.ask(&form(&format!("SET pgrouting.causal_token = '{token}'"))).tags(), ["SET"]);
            assert_eq!(reader.column("SHOW pgrouting.causal_token"), [token]);
            reader
        };
        for pause in [0, 100] {
            sleep(Duration::from_millis(pause));
            assert_eq!(reader.column("SELECT v FROM gauge WHERE id = 1"), [number.to_string()]);
            on_replica += u64::from(went(&mut reader) == Replica);
        }
    }
    assert!(stale > 0 && on_replica > 0, "{stale} {on_replica}");
    assert_eq!(login.connect().column("SHOW pgrouting.causal_token"), ["0:0/0"], "it has written nothing");
    for bad in ["x", "1:2", "1:0/123456789"] {
        let answer = bystander.try_query(&format!("SET pgrouting.causal_token TO '{bad}'"));
        assert_eq!(answer.sqlstate().as_deref(), Some("22023"), "{bad}");
    }
    // One of a timeline that is over, or not known here, stands for what the primary has now.
    bystander.run("SET pgrouting.causal_token TO '9:0/1'");
    bystander.run("SELECT 1");
    assert_eq!((went(&mut bystander), why(&mut bystander).as_str()), (Primary, "freshness"));
}

#[test]
fn after_a_failover_a_session_reads_nothing_older_than_it_wrote() {
    let mut set = Set::of(2, |config| config.split.consistency = Consistency::Session);
    let mut client = set.client();
    client.run("UPDATE gauge SET v = 1 WHERE id = 1");
    poll("reads to go to a replica", || {
        assert_eq!(client.column("SELECT v FROM gauge WHERE id = 1"), ["1"]);
        (went(&mut client) == Replica).then_some(())
    });
    // The third server stays on the old timeline.
    set.servers[0].stop();
    set.servers[1].promote();
    client.run("UPDATE gauge SET v = 2 WHERE id = 1");
    for _ in 0..200 {
        assert_eq!(client.column("SELECT v FROM gauge WHERE id = 1"), ["2"]);
    }
    set.come_back();
    poll("reads to go to the one that came back", || {
        assert_eq!(client.column("SELECT v FROM gauge WHERE id = 1"), ["2"]);
        (client.run("SHOW ROUTE LAST").rows()[0][0].as_deref() == Some("one")).then_some(())
    });
}

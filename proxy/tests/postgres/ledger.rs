//! Numbered writes through a crash, a promotion, a comeback and a switchover: what was acknowledged is there once, what was
//! not is there at most once, and reads go on all the time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use pgrouting_contract::report::{Role, Rotation};
use tokio::time::Instant;

use super::failover::Set;
use super::support::client::{Client, Login};
use super::support::poll;
use super::support::random::number_in;
use super::support::server::catch_up;

/// Writes of one run; `PGROUTING_TEST_LEDGER` makes others.
const USUAL: u64 = 8000;

const WRITERS: u64 = 4;

/// What the writers tell.
#[derive(Default)]
struct Ledger {
    next: AtomicU64,
    acknowledged: AtomicU64,
    /// Nothing more happens to the servers.
    is_calm: AtomicBool,
    is_over: AtomicBool,
}

/// Writes numbers until there are enough, and the servers have been through all: gives those that were acknowledged, those of which nothing is known, and the
/// longest time between two acknowledgements.
fn write(login: &Login, ledger: &Ledger, all: u64) -> (Vec<u64>, u64, Duration) {
    let (mut acknowledged, mut unknown, mut longest) = (Vec::new(), 0, Duration::ZERO);
    let mut client: Option<Client> = None;
    let mut last = Instant::now();
    loop {
        let number = ledger.next.fetch_add(1, Ordering::Relaxed);
        if number >= all && ledger.is_calm.load(Ordering::Relaxed) {
            return (acknowledged, unknown, longest);
        }
        let session = client.get_or_insert_with(|| poll("a login", || Client::connect(login).ok()));
        let insert = format!("INSERT INTO ledger VALUES ({number})");
        let statements: &[&str] =
            if number.is_multiple_of(3) { &["BEGIN", &insert, "COMMIT"] } else { &[&insert] };
        let mut is_done = false;
        for sql in statements {
            session.send(&super::support::message::query(sql));
            let answer = session.ready_or_end();
            is_done = answer.sqlstate().is_none() && !answer.tags().is_empty();
            if !is_done {
                break;
            }
        }
        if is_done {
            acknowledged.push(number);
            ledger.acknowledged.fetch_add(1, Ordering::Relaxed);
            longest = longest.max(last.elapsed());
            last = Instant::now();
        } else {
            unknown += 1;
            client = None;
        }
    }
}

/// Waits for the next acknowledgement, and tells how long that took.
fn goes_on(ledger: &Ledger, when: &str) {
    let (began, before) = (Instant::now(), ledger.acknowledged.load(Ordering::Relaxed));
    // Finer than a poll, because this is a measurement.
    while ledger.acknowledged.load(Ordering::Relaxed) == before && began.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(1));
    }
    assert!(ledger.acknowledged.load(Ordering::Relaxed) > before, "writes do not go on {when}");
    eprintln!("{when}: the first write {} ms after pg_promote() had returned", began.elapsed().as_millis());
}

/// Reads until all is over: none may fail.
fn read(login: &Login, ledger: &Ledger) -> u64 {
    let mut client = Client::connect(login).unwrap();
    let mut reads = 0;
    while !ledger.is_over.load(Ordering::Relaxed) {
        assert_eq!(client.column("SELECT count(*) FROM gauge"), ["1000"]);
        reads += 1;
        sleep(Duration::from_millis(2));
    }
    reads
}

#[test]
fn no_acknowledged_write_is_lost_and_none_is_made_twice() {
    let all = number_in("PGROUTING_TEST_LEDGER", USUAL);
    let mut set = Set::of(2, |config| config.pooling.max_server_connections = 20);
    let mut admin = set.servers[0].admin("postgres");
    admin.run("CREATE TABLE ledger (number bigint); ALTER TABLE ledger OWNER TO app");
    for standby in &set.servers[1..] {
        catch_up(&mut admin, &mut standby.admin("postgres"));
    }
    // The third server goes with the first: only what the second has counts as written.
    set.servers[2].stop();
    admin.run("ALTER SYSTEM SET synchronous_standby_names = '*'");
    admin.run("SELECT pg_reload_conf()");
    let login = Login::new(set.proxy.port, "app", "postgres");
    let ledger = Ledger::default();
    let reached = |share: u64| {
        poll("writes to go on", || (ledger.next.load(Ordering::Relaxed) >= all * share / 4).then_some(()));
    };
    let (outcomes, reads) = scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(|| write(&login, &ledger, all))).collect();
        let reader = scope.spawn(|| read(&login, &ledger));
        reached(1);
        set.servers[0].crash();
        set.servers[1].promote();
        goes_on(&ledger, "after the promotion of a standby");
        reached(2);
        let [one, two, ..] = &mut set.servers[..] else { unreachable!() };
        one.copy(two);
        one.start();
        set.await_server("one", |s| s.role == Role::Replica && s.rotation == Rotation::In);
        reached(3);
        set.servers[1].stop();
        set.servers[0].promote();
        goes_on(&ledger, "after a switchover");
        let [one, two, ..] = &mut set.servers[..] else { unreachable!() };
        two.follow(one);
        two.start();
        ledger.is_calm.store(true, Ordering::Relaxed);
        let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        ledger.is_over.store(true, Ordering::Relaxed);
        (outcomes, reader.join().unwrap())
    });
    let mut there: BTreeMap<u64, u32> = BTreeMap::new();
    for number in set.servers[0].admin("postgres").column("SELECT number FROM ledger") {
        *there.entry(number.parse().unwrap()).or_default() += 1;
    }
    let acknowledged: Vec<u64> = outcomes.iter().flat_map(|(numbers, ..)| numbers.iter().copied()).collect();
    let unknown: u64 = outcomes.iter().map(|(_, unknown, _)| unknown).sum();
    let longest = outcomes.iter().map(|(.., longest)| *longest).max().unwrap();
    eprintln!(
        "ledger: at least {all} writes, {} acknowledged, {unknown} of unknown outcome, {} there; {reads} reads; \
         longest pause {} ms",
        acknowledged.len(),
        there.len(),
        longest.as_millis()
    );
    let lost: Vec<_> = acknowledged.iter().filter(|number| !there.contains_key(number)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let twice: Vec<_> = there.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert!(reads > 0 && unknown < 20 * WRITERS);
}

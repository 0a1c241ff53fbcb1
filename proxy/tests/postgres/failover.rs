//! Servers that are promoted, come back, hang, or both say that they are the primary.

use std::time::Duration;

use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::duration::DurationText;
use pgrouting_contract::report::{Health, Role, Rotation, ServerReport};
use pgrouting_contract::split::Consistency;
use pgrouting_contract::stage::Stage;

use super::split::To::{Primary, Replica};
use super::split::went;
use super::support::client::{Client, Login};
use super::support::message::query;
use super::support::poll;
use super::support::proxy::{Proxy, pool_of, server, user};
use super::support::server::{Server, catch_up, own_primary, password_of};

/// A primary with standbys of its own, and a proxy before them.
pub struct Set {
    pub proxy: Proxy,
    /// Named as they stand here: "one", "two", "three". The first is the primary at first.
    pub servers: Vec<Server>,
}

const NAMES: [&str; 3] = ["one", "two", "three"];

const GAUGE: [&str; 2] = [
    "CREATE TABLE gauge(id int PRIMARY KEY, v int)",
    "INSERT INTO gauge SELECT g, g FROM generate_series(1, 1000) g",
];

impl Set {
    pub fn of(standbys: usize, change: impl FnOnce(&mut ProxyConfig)) -> Self {
        let mut servers = vec![own_primary()];
        let mut admin = servers[0].admin("postgres");
        admin.run("GRANT CREATE ON SCHEMA public TO app; GRANT ALL ON DATABASE postgres TO app");
        // The servers of the tests do without it otherwise, and connections are kept.
        admin.run("ALTER ROLE app SET synchronous_commit = on");
        for _ in 0..standbys {
            let standby = servers[0].own_standby();
            servers.push(standby);
        }
        GAUGE.iter().for_each(|sql| drop(admin.run(sql)));
        admin.run("ALTER TABLE gauge OWNER TO app");
        for standby in &servers[1..] {
            catch_up(&mut admin, &mut standby.admin("postgres"));
        }
        let mut config = pool_of(12);
        config.stage = Stage::Split;
        config.servers = servers.iter().zip(NAMES).map(|(own, name)| server(name, own.port)).collect();
        config.split.consistency = Consistency::Eventual;
        config.split.slow_start = DurationText::from_millis(1);
        config.pooling.checkout_timeout = DurationText::from_secs(25);
        // One that sees timelines and the identity of the cluster.
        config.probe.user = Some(user("probe", &password_of("probe")));
        change(&mut config);
        let this = Self { proxy: Proxy::start(config), servers };
        for (index, name) in NAMES.into_iter().enumerate().take(this.servers.len()) {
            this.await_server(name, |s| {
                s.rotation == Rotation::In && (s.role == Role::Primary) == (index == 0)
            });
        }
        let mut client = this.client();
        if standbys > 0 && this.proxy.config.stage == Stage::Split {
            poll("reads to go to a replica", || {
                client.run("SELECT 1");
                (went(&mut client) == Replica).then_some(())
            });
        }
        this
    }

    pub fn new(standbys: usize) -> Self {
        Self::of(standbys, |_| {})
    }

    pub fn client(&self) -> Client {
        Login::new(self.proxy.port, "app", "postgres").connect()
    }

    pub fn await_server(&self, name: &str, is_so: impl Fn(&ServerReport) -> bool) {
        poll(&format!("{name} to be so"), || {
            self.proxy.report().servers.iter().any(|s| s.name == name && is_so(s)).then_some(())
        });
    }

    /// Where rows of `gauge` with these ids are, on a server, past the proxy.
    fn count_at(&self, index: usize, condition: &str) -> u32 {
        let sql = format!("SELECT count(*) FROM gauge WHERE {condition}");
        self.servers[index].admin("postgres").value(&sql).unwrap().parse().unwrap()
    }

    /// Promotes the second server in place of the first, which ends before.
    fn switch_over(&mut self) {
        self.servers[0].stop();
        self.servers[1].promote();
    }

    /// The first server follows the second.
    pub fn come_back(&mut self) {
        let [one, two, ..] = &mut self.servers[..] else { unreachable!() };
        one.follow(two);
        one.start();
    }
}

#[test]
fn case_199_writes_follow_the_primary_and_the_old_one_comes_back_as_a_replica() {
    let mut set = Set::new(1);
    let mut client = set.client();
    let mut held = set.client();
    client.run("UPDATE gauge SET v = 0 WHERE id = 1");
    set.servers[0].stop();
    held.send(&query("UPDATE gauge SET v = -1 WHERE id = 2"));
    set.servers[1].promote();
    assert_eq!(held.ready().tags(), ["UPDATE 1"], "what nobody had been sent waits");
    client.run("UPDATE gauge SET v = 1 WHERE id = 1");
    assert_eq!(set.count_at(1, "v = 1 AND id = 1 OR v = -1"), 2);
    set.come_back();
    set.await_server("one", |s| s.role == Role::Replica && s.rotation == Rotation::In);
    poll("reads to go to the one that was the primary", || {
        client.run("SELECT count(*) FROM gauge");
        (client.run("SHOW ROUTE LAST").rows()[0][0].as_deref() == Some("one")).then_some(())
    });
    client.run("UPDATE gauge SET v = 2 WHERE id = 1");
    assert_eq!(set.count_at(1, "v = 2 AND id = 1"), 1);
    assert_eq!(set.proxy.report().conflict, None);
}

#[test]
fn a_write_that_its_server_refuses_makes_the_proxy_look_at_it() {
    // Probes would take an hour to find it out.
    let mut set = Set::of(1, |config| config.probe.interval = DurationText::from_secs(3600));
    let mut client = set.client();
    client.run("UPDATE gauge SET v = 0 WHERE id = 1");
    set.servers[0].stop();
    set.servers[1].promote();
    set.come_back();
    poll("the write to be taken", || {
        let answer = client.try_query("UPDATE gauge SET v = 1 WHERE id = 1");
        if answer.sqlstate().as_deref() == Some("08006") {
            // It was the connection that the restart had ended.
            client = set.client();
        }
        (answer.tags() == ["UPDATE 1"]).then_some(())
    });
    assert_eq!(set.count_at(1, "v = 1 AND id = 1"), 1);
}

#[test]
fn case_200_a_new_client_is_greeted_as_by_the_primary_of_the_day() {
    let mut set = Set::new(1);
    let greeting = |set: &Set| {
        let client = set.client();
        let found = |name: &str| client.parameters.iter().find(|pair| pair.0 == name).unwrap().1.clone();
        [found("in_hot_standby"), found("default_transaction_read_only")]
    };
    let of_a_primary = ["off", "off"];
    assert_eq!(greeting(&set), of_a_primary);
    set.switch_over();
    set.come_back();
    set.await_server("one", |s| s.role == Role::Replica && s.rotation == Rotation::In);
    assert_eq!(greeting(&set), of_a_primary);
    let mut client = set.client();
    client.run("BEGIN");
    assert_eq!(client.column("SHOW transaction_read_only"), ["off"]);
}

#[test]
fn case_201_of_two_primaries_the_later_one_is_taken_and_never_both() {
    let mut set = Set::new(1);
    let (mut client, mut pinned, mut open) = (set.client(), set.client(), set.client());
    pinned.run("SELECT pg_advisory_lock(1)");
    open.run("BEGIN; INSERT INTO gauge VALUES (9999, 0)");
    set.servers[1].promote();
    let mut unknown = Vec::new();
    for number in 2000..2200 {
        client.send(&query(&format!("INSERT INTO gauge VALUES ({number}, 0)")));
        let answer = client.ready_or_end();
        if answer.tags().is_empty() {
            // It was under way when the primary changed.
            assert_eq!(answer.sqlstate().as_deref(), Some("57P01"));
            unknown.push(number);
            client = set.client();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(unknown.len() <= 1, "{unknown:?}");
    // What is at neither end of the change is at one place only, and the change was made once.
    let at = |index| -> Vec<u32> {
        let known = (2000..2200).filter(|number| !unknown.contains(number));
        known.map(|number| set.count_at(index, &format!("id = {number}"))).collect()
    };
    let (at_one, at_two) = (at(0), at(1));
    let change = at_one.iter().position(|count| *count == 0).unwrap();
    assert!(at_one[change..].iter().all(|count| *count == 0), "{at_one:?}");
    assert!(at_two[change..].iter().all(|count| *count == 1), "{at_two:?}");
    let report = set.proxy.report();
    let conflict = report.conflict.unwrap();
    assert!(conflict.contains("one") && conflict.contains("two"), "{conflict}");
    assert_eq!((report.servers[0].rotation, report.servers[1].rotation), (Rotation::Fenced, Rotation::In));
    // Whoever still has a connection to the old one sends it nothing more.
    for mut client in [pinned, open] {
        client.send(&query("INSERT INTO gauge VALUES (9998, 0); COMMIT"));
        assert_eq!(client.ended_with(), "57P01");
    }
    for index in [0, 1] {
        for id in [9998, 9999] {
            assert_eq!(set.count_at(index, &format!("id = {id}")), 0, "{index} {id}");
        }
    }
    // Not even while there is no other.
    set.servers[1].stop();
    set.await_server("two", |s| s.health == Health::Down);
    set.proxy.change(|config| config.pooling.checkout_timeout = DurationText::from_millis(200));
    assert_eq!(client.try_query("UPDATE gauge SET v = -7").sqlstate().as_deref(), Some("57P03"));
    assert_eq!(set.count_at(0, "v = -7"), 0);
}

#[test]
fn case_202_a_replica_that_refuses_connections_takes_no_reads() {
    let mut set = Set::new(2);
    let mut client = set.client();
    set.servers[2].stop();
    for _ in 0..200 {
        assert_eq!(client.column("SELECT count(*) FROM gauge"), ["1000"]);
    }
    set.await_server("three", |s| s.rotation == Rotation::Down);
    set.servers[2].start();
    poll("the replica to take reads again", || {
        client.run("SELECT count(*) FROM gauge");
        (client.run("SHOW ROUTE LAST").rows()[0][0].as_deref() == Some("three")).then_some(())
    });
}

#[test]
fn case_203_without_replicas_the_primary_reads_and_gives_it_up_again() {
    let mut set = Set::new(2);
    let mut client = set.client();
    for index in [1, 2] {
        set.servers[index].stop();
    }
    for _ in 0..50 {
        assert_eq!(client.column("SELECT count(*) FROM gauge"), ["1000"]);
    }
    set.await_server("two", |s| s.rotation == Rotation::Down);
    set.await_server("three", |s| s.rotation == Rotation::Down);
    client.run("SELECT 1");
    assert_eq!(went(&mut client), Primary);
    assert!(set.proxy.metric("pgrouting_proxy_routed_total{reason=\"no_replica\",target=\"primary\"}") > 0);
    for index in [1, 2] {
        set.servers[index].start();
    }
    poll("a replica to take reads again", || {
        assert_eq!(client.column("SELECT count(*) FROM gauge"), ["1000"]);
        (went(&mut client) == Replica).then_some(())
    });
}

#[test]
fn case_204_a_replica_that_lags_takes_no_reads_and_an_idle_primary_is_no_lag() {
    let set = Set::of(1, |config| config.split.eject_lag = DurationText::from_secs(2));
    let mut client = set.client();
    let mut standby = set.servers[1].admin("postgres");
    // Nothing is written for longer than the limit.
    std::thread::sleep(Duration::from_secs(4));
    client.run("SELECT count(*) FROM gauge");
    assert_eq!(went(&mut client), Replica);
    set.await_server("two", |s| s.rotation == Rotation::In && s.lag_ms == Some(0) && s.lag_bytes == Some(0));
    standby.run("SELECT pg_wal_replay_pause()");
    client.run("INSERT INTO gauge SELECT g, g FROM generate_series(10001, 60000) g");
    set.await_server("two", |s| s.lag_bytes.is_some_and(|bytes| bytes > 1_000_000));
    set.await_server("two", |s| s.rotation == Rotation::Lagging && s.lag_ms.is_some_and(|lag| lag > 2000));
    assert_eq!(client.column("SELECT count(*) FROM gauge"), ["51000"]);
    assert_eq!(went(&mut client), Primary);
    standby.run("SELECT pg_wal_replay_resume()");
    set.await_server("two", |s| s.rotation == Rotation::In);
    poll("the replica to take reads again", || {
        assert_eq!(client.column("SELECT count(*) FROM gauge"), ["51000"]);
        (went(&mut client) == Replica).then_some(())
    });
}

#[test]
fn a_standby_that_applies_late_lags_by_as_much() {
    let set = Set::new(1);
    let mut standby = set.servers[1].admin("postgres");
    standby.run("ALTER SYSTEM SET recovery_min_apply_delay = '1500ms'");
    standby.run("SELECT pg_reload_conf()");
    let mut client = set.client();
    poll("the lag to show", || {
        client.run("UPDATE gauge SET v = v + 1 WHERE id = 1");
        let report = set.proxy.report();
        // One probe in a second: what it shows may be that much more.
        report.servers[1].lag_ms.filter(|lag| (1400..4000).contains(lag))
    });
}

#[test]
fn case_209_a_write_waits_for_a_primary_that_is_starting_up() {
    let mut set = Set::new(0);
    let mut client = set.client();
    client.run("INSERT INTO gauge VALUES (5999, 1)");
    set.servers[0].stop();
    client.send(&query("INSERT INTO gauge VALUES (6000, 1)"));
    std::thread::sleep(Duration::from_secs(2));
    set.servers[0].start();
    assert_eq!(client.ready().tags(), ["INSERT 0 1"]);
    assert_eq!(set.count_at(0, "id = 6000"), 1);
}

#[test]
fn case_212_a_commit_whose_outcome_is_unknown_is_told_as_that() {
    let mut set = Set::new(0);
    let mut admin = set.servers[0].admin("postgres");
    // A commit then waits for somebody who never comes.
    admin.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    admin.run("SELECT pg_reload_conf()");
    for form in ["COMMIT", "INSERT INTO gauge VALUES (7001, 1)"] {
        let mut client = set.client();
        client.run("SET synchronous_commit = on");
        if form == "COMMIT" {
            client.run("BEGIN");
            client.run("INSERT INTO gauge VALUES (7000, 1)");
        }
        client.send(&query(form));
        let mut admin = set.servers[0].admin("postgres");
        poll("the commit to wait", || {
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            admin.value(waiting).filter(|count| count == "1")
        });
        set.servers[0].crash();
        let answer = client.rest();
        let code = answer.sqlstate().unwrap_or_default();
        assert!(["08006", "57P01", "57P02"].contains(&code.as_str()), "{code} {}", answer.error());
        assert!(answer.tags().is_empty(), "{:?}", answer.tags());
        set.servers[0].start();
    }
    // It had been committed, and is there once: nothing was sent again.
    assert_eq!(set.count_at(0, "id IN (7000, 7001)"), 2);
}

#[test]
fn case_213_a_replica_that_hangs_holds_nobody_up_for_long() {
    let mut set = Set::new(1);
    let mut client = set.client();
    client.run("SELECT 1");
    set.servers[1].freeze(true);
    let mut failed = 0;
    for _ in 0..20 {
        let answer = client.try_query("SELECT count(*) FROM gauge");
        failed += usize::from(answer.sqlstate().is_some());
        assert!(answer.sqlstate().is_some() || answer.column() == ["1000"]);
    }
    assert!(failed <= 1, "{failed}");
    set.await_server("two", |s| s.rotation == Rotation::Down);
    set.servers[1].freeze(false);
    poll("the replica to take reads again", || {
        client.try_query("SELECT count(*) FROM gauge");
        (went(&mut client) == Replica).then_some(())
    });
}

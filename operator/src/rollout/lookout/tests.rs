//! What one look sees, and what is remembered until the next.

use pgrouting_contract::report::{ClientReport, ConfigReport, ProxyState, SplitReport, Totals};
use pgrouting_crds::spec::PgRoutingPool;

use super::*;
use crate::fixtures::{SMALL, at, pool};
use crate::observe::{PodState, PodSync, ServerView};

fn report(process: &str, transactions: u64, forecast: &[(&str, u64)]) -> ProxyReport {
    ProxyReport {
        proxy_version: String::new(),
        state: ProxyState::Serving,
        config: ConfigReport {
            generation: pgrouting_contract::config::Generation(1),
            hash: pgrouting_contract::config::ConfigHash::default(),
            stage: pgrouting_contract::stage::Stage::Split,
            refused: None,
        },
        servers: Vec::new(),
        conflict: None,
        credentials: Vec::new(),
        clients: ClientReport::default(),
        totals: Totals { transactions, ..Totals::default() },
        pinned: BTreeMap::new(),
        halts: None,
        split: SplitReport {
            forecast: forecast.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect(),
            forecast_stale: 5,
            ..SplitReport::default()
        },
        mirror: None,
        tls: Vec::new(),
        measures: pgrouting_contract::measures::Measures {
            process: process.to_owned(),
            ..Default::default()
        },
        session_state: Vec::new(),
    }
}

fn observation(primary: &str, timeline: u32) -> Observation {
    let server = |name: &str, role| ServerView {
        name: name.to_owned(),
        address: String::new(),
        role,
        state: ServerState::Up,
        is_probed: true,
        message: String::new(),
        timeline: Some(timeline),
    };
    Observation {
        replicas: 2,
        ready_replicas: 2,
        pods: vec![PodState { name: "a".into(), is_ready: true, sync: PodSync::Applied, is_drained: None }],
        servers: vec![server(primary, ServerRole::Primary), server("other", ServerRole::Replica)],
        ..Observation::default()
    }
}

/// One pool and one proxy.
struct World {
    pool: PgRoutingPool,
    rollout: RolloutStatus,
    lookout: Lookout,
    is_updated: bool,
}

impl World {
    fn new() -> Self {
        Self {
            pool: pool(&format!("{SMALL}rollout: {{stage: Split, minSamples: 0}}")),
            rollout: RolloutStatus { target_stage: Stage::Split, ..RolloutStatus::default() },
            lookout: Lookout::default(),
            is_updated: true,
        }
    }

    fn look(
        &mut self,
        second: i64,
        uptime: u64,
        observation: &Observation,
        report: Option<&ProxyReport>,
    ) -> Seen {
        let reports: Vec<_> = report.map(|report| ("a", report)).into_iter().collect();
        self.lookout.look(&View {
            spec: &self.pool.spec,
            rollout: &self.rollout,
            reports: &reports,
            observation,
            replicas_wanted: 2,
            is_updated: self.is_updated,
            external: &BTreeMap::new(),
            now: at(second),
            uptime: Duration::from_secs(uptime),
        })
    }
}

#[test]
fn clock_that_leaps_is_noticed_and_its_spans_begin_anew() {
    let (mut world, well, report) = (World::new(), observation("pg-0", 1), report("1", 0, &[]));
    let mut look = |second, uptime| world.look(second, uptime, &well, Some(&report));
    assert_eq!(look(0, 0).leap, Duration::ZERO);
    assert_eq!(look(10, 9).leap, Duration::ZERO);
    let leapt = look(3_620, 20);
    assert_eq!((leapt.leap, leapt.spans.moments.is_over), (Duration::from_secs(3_599), false));
    assert!(look(3_640, 40).spans.moments.is_over);
    // Backward: nothing is over for a while, and then it is.
    assert!(!look(40, 55).spans.moments.is_over);
    assert!(look(60, 75).spans.moments.is_over);
}

#[test]
fn pool_that_is_to_stay_at_the_beginning_is_judged_by_nothing() {
    let (mut world, well, report) = (World::new(), observation("pg-0", 1), report("1", 0, &[]));
    world.rollout.target_stage = Stage::PoolingOnly;
    for second in [0, 60] {
        let seen = world.look(second, second.unsigned_abs(), &well, Some(&report));
        assert_eq!((seen.readings.len(), seen.spans.moments.is_over), (0, false));
    }
    // And what came before it was asked to move does not count.
    world.rollout.target_stage = Stage::Split;
    assert!(!world.look(61, 61, &well, Some(&report)).spans.moments.is_over);
    assert!(world.look(80, 80, &well, Some(&report)).spans.moments.is_over);
}

#[test]
fn other_primary_is_looked_past_for_two_periods() {
    let (mut world, report) = (World::new(), report("1", 0, &[]));
    let mut look = |second: i64, primary: &str, timeline| {
        let uptime = u64::try_from(second).unwrap();
        world.look(second, uptime, &observation(primary, timeline), Some(&report)).obstacle
    };
    let changed = |name: &str| Some(Obstacle::PrimaryChanged(format!("{name} has become the primary")));
    assert_eq!(look(0, "pg-0", 1), None);
    assert_eq!(look(10, "pg-1", 2), changed("pg-1"));
    assert_eq!(look(39, "pg-1", 2), changed("pg-1"));
    assert_eq!(look(40, "pg-1", 2), None);
    // The same server on a new timeline has been promoted too.
    assert_eq!(look(50, "pg-1", 3), changed("pg-1"));
}

#[test]
fn fleet_that_is_not_whole_is_an_obstacle() {
    let report = report("1", 0, &[]);
    let obstacle = |change: fn(&mut Observation), is_updated, has_report: bool| {
        let (mut world, mut seen) = (World::new(), observation("pg-0", 1));
        world.is_updated = is_updated;
        change(&mut seen);
        world.look(0, 0, &seen, has_report.then_some(&report)).obstacle
    };
    let deployment = |why: &str| Some(Obstacle::Deployment(why.to_owned()));
    assert_eq!(obstacle(|_| {}, true, true), None);
    assert_eq!(obstacle(|_| {}, true, false), Some(Obstacle::Silent));
    assert_eq!(obstacle(|_| {}, false, true), deployment("pods are being replaced"));
    assert_eq!(obstacle(|seen| seen.ready_replicas = 1, true, true), deployment("1 of 2 proxies are ready"));
    let behind = |seen: &mut Observation| {
        seen.pods[0].sync = PodSync::Behind { hash: String::new(), reason: String::new() };
    };
    assert_eq!(obstacle(behind, true, true), deployment("0 of 1 proxies run the document"));
}

#[test]
fn most_traffic_of_an_hour_is_known() {
    let mut world = World::new();
    let mut look = |second: u64, process, transactions| {
        let report = report(process, transactions, &[]);
        world.look(i64::try_from(second).unwrap(), second, &observation("pg-0", 1), Some(&report)).peak_qps
    };
    assert_eq!(look(0, "1", 1_000_000), 0);
    assert_eq!(look(10, "1", 1_005_000), 500);
    assert_eq!(look(20, "1", 1_006_000), 500);
    // Another process begins at zero.
    assert_eq!(look(30, "2", 90), 500);
    for minute in 1..=61 {
        look(30 + minute * 61, "2", 90 + minute * 61);
    }
    assert_eq!(look(30 + 62 * 61, "2", 90 + 62 * 61), 1);
}

#[test]
fn forecast_tells_the_shares_and_why_the_rest_stays() {
    let counts = [("read", 70), ("write", 20), ("unparsed", 6), ("unknown_function", 4)];
    let report = report("1", 0, &counts);
    let made = forecast(None, &[("a", &report), ("b", &report)], at(0)).unwrap();
    assert_eq!(
        (made.read_share_percent, made.unknown_share_percent, made.stale_share_percent, made.samples),
        (70, 10, 7, 200)
    );
    assert_eq!(made.top_reasons, ["write 20 %", "unparsed 6 %", "unknown_function 4 %"]);
    // It is not renewed for a while, nor where it would say the same.
    assert_eq!(forecast(Some(&made), &[("a", &report)], at(599)), Some(made.clone()));
    assert_eq!(forecast(Some(&made), &[("a", &report), ("b", &report)], at(601)), Some(made.clone()));
    assert_eq!(forecast(Some(&made), &[("a", &report)], at(601)).unwrap().samples, 100);
    assert_eq!(forecast(None, &[], at(0)), None);

    let spec = pool(&format!("{SMALL}rollout: {{stage: Split}}")).spec;
    assert_eq!(
        first_step_text(&spec, &made, 10).as_deref(),
        Some("at 10 transactions a second the step of 1 % needs 3 h 58 min for its 1000 reads")
    );
    assert_eq!(first_step_text(&spec, &made, 100_000), None);
    assert_eq!(first_step_text(&spec, &made, 0), None);
}

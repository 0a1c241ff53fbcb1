//! Each gate as a table: what was measured, what it says.

use std::collections::BTreeMap;
use std::time::Duration;

use pgrouting_contract::histogram::{BUCKETS, Histogram, bucket_of};
use pgrouting_contract::measures::{Arm, Measures};
use pgrouting_crds::duration::PoolDuration;
use pgrouting_crds::spec::gates::GATES;
use pgrouting_crds::spec::gates::Gates;
use pgrouting_crds::status::rollout::Baseline;

use super::*;
use crate::fixtures::at;
use crate::position::Position;
use crate::rollout::figures::{Figures, MirrorFigures, Moment};
use crate::time::whole_seconds;

fn times(micros: &[(u64, u64)]) -> Histogram {
    let mut counts = vec![0; BUCKETS];
    for (time, count) in micros {
        counts[bucket_of(*time)] += count;
    }
    Histogram::from_counts(counts)
}

fn arm(transactions: u64, errors: u64, p99: u64) -> Arm {
    Arm { transactions, errors, latency: times(&[(500, 950), (p99, 50)]) }
}

fn span(figures: Figures, is_over: bool) -> Span {
    let worst = Moment { lag_ms_max: Some(40), replicas: 2, primary_use_percent: Some(12), proxies: 2 };
    Span { figures, worst, is_over, age: Duration::from_secs(20) }
}

fn split(cohort: Arm, control: Arm, is_over: bool) -> Spans {
    let measures = Measures { cohort, control, ..Measures::default() };
    let figures = Figures { measures, ..Figures::default() };
    Spans { split: span(figures, is_over), moments: span(Figures::default(), true), ..Spans::default() }
}

struct Case {
    position: Position,
    gates: Gates,
    min_samples: u64,
    is_done: bool,
    baseline: Option<Baseline>,
    is_to_split: bool,
    needs_replica: bool,
    external: BTreeMap<String, ExternalValue>,
    waiting: Option<String>,
    known: Vec<String>,
}

impl Case {
    fn split(percent: u8) -> Self {
        Self {
            position: Position { stage: Stage::Split, split_percent: percent, mirror_percent: 0, salt: 0 },
            gates: Gates::default(),
            min_samples: 1000,
            is_done: false,
            baseline: None,
            is_to_split: true,
            needs_replica: false,
            external: BTreeMap::new(),
            waiting: None,
            known: GATES.map(str::to_owned).to_vec(),
        }
    }

    fn mirror(percent: u8) -> Self {
        let position =
            Position { stage: Stage::Mirror, split_percent: 100, mirror_percent: percent, salt: 0 };
        Self { position, ..Self::split(100) }
    }

    fn all(&self, spans: &Spans) -> Vec<Reading> {
        let stand = Stand {
            position: self.position,
            gates: &self.gates,
            min_samples: self.min_samples,
            threshold: 3,
            is_done: self.is_done,
            baseline: self.baseline.as_ref(),
            mirror_baseline: self.baseline.as_ref(),
            is_to_split: self.is_to_split,
            needs_replica: self.needs_replica,
            external: &self.external,
            waiting: self.waiting.as_deref(),
            known: &self.known,
        };
        readings(&stand, spans)
    }

    fn one(&self, name: &str, spans: &Spans) -> Reading {
        self.all(spans).into_iter().find(|reading| reading.name == name).unwrap()
    }
}

fn said(reading: &Reading) -> &'static str {
    match reading.outcome {
        Outcome::Open { .. } => "open",
        Outcome::Error(_) => "error",
        Outcome::NoData { .. } => "no data",
        Outcome::Judged { passes: true, .. } => "pass",
        Outcome::Judged { passes: false, .. } => "fail",
    }
}

fn baseline(errors_per_million: i64, p99: i64) -> Baseline {
    Baseline {
        captured_at: whole_seconds(at(0)),
        errors_per_million,
        latency_p99_micros: p99,
        queries_per_second: 1,
    }
}

#[test]
fn gates_of_a_stage_are_those_that_act_there() {
    let names = |case: &Case| -> Vec<String> {
        case.all(&Spans::default()).into_iter().map(|reading| reading.name).collect()
    };
    assert_eq!(
        names(&Case::split(5)),
        [
            "clientErrors",
            "latencyP99",
            "misroutedWrites",
            "rescuedStatements",
            "replicaLag",
            "healthyReplicas",
            "primaryConnections",
            "poolWaitP99"
        ]
    );
    assert_eq!(
        names(&Case::mirror(5)),
        [
            "clientErrors",
            "misroutedWrites",
            "primaryConnections",
            "poolWaitP99",
            "mirrorDivergence",
            "mirrorDrops",
            "mirrorImpact"
        ]
    );
    let pooling = Case { position: Position::default(), ..Case::split(0) };
    assert_eq!(names(&pooling), ["replicaLag", "healthyReplicas", "primaryConnections", "poolWaitP99"]);
    // With a share of nothing, nothing is compared.
    assert_eq!(names(&Case::split(0)), ["primaryConnections", "poolWaitP99"]);
    assert_eq!(names(&Case::mirror(0)), ["misroutedWrites", "primaryConnections", "poolWaitP99"]);
    // A pool that is never to split needs no replica to go on to its mirror.
    let mirror_only = Case { position: Position::default(), is_to_split: false, ..Case::split(0) };
    assert_eq!(names(&mirror_only), ["primaryConnections", "poolWaitP99"]);
    let mut disabled = Case::split(5);
    disabled.gates.latency_p99.mode = GateMode::Disabled;
    assert!(!names(&disabled).contains(&"latencyP99".to_owned()));
}

#[test]
fn errors_are_those_over_the_other_group() {
    let at_5 = Case::split(5);
    for (cohort, control, is_over, expected) in [
        ((10_000, 5), (10_000, 0), true, "pass"),
        ((10_000, 6), (10_000, 0), true, "fail"),
        // Errors that everybody has are not the split's.
        ((10_000, 105), (10_000, 100), true, "pass"),
        ((999, 0), (99_999, 0), false, "open"),
        // A burst is told before the span is over; the same of both is none.
        ((300, 10), (5_000, 0), false, "fail"),
        ((300, 9), (5_000, 0), false, "open"),
        ((300, 30), (300, 30), false, "open"),
        // With nobody in the other group there is nothing to compare with.
        ((300, 30), (0, 0), false, "open"),
    ] {
        let spans = split(arm(cohort.0, cohort.1, 600), arm(control.0, control.1, 600), is_over);
        let reading = at_5.one("clientErrors", &spans);
        assert_eq!(said(&reading), expected, "{cohort:?} {control:?} {reading:?}");
        assert_eq!(reading.threshold, if expected == "fail" && !is_over { 1 } else { 3 });
    }
    let reading = at_5.one("clientErrors", &split(arm(10_000, 6, 600), arm(20_000, 2, 600), true));
    let Outcome::Judged { value, samples, .. } = reading.outcome else { panic!("judged") };
    assert_eq!((value.as_str(), samples), ("0.0600 % (6 of 10000), others 0.0100 %", 10_000));
    assert_eq!(reading.limit, "+0.0500 % over the others");
}

#[test]
fn where_all_are_split_the_baseline_is_the_other_group() {
    let all = Case { baseline: Some(baseline(100, 1_000)), ..Case::split(100) };
    let spans = |errors, p99| split(arm(10_000, errors, p99), Arm::default(), true);
    assert_eq!(said(&all.one("clientErrors", &spans(6, 600))), "pass");
    assert_eq!(said(&all.one("clientErrors", &spans(7, 600))), "fail");
    assert_eq!(said(&all.one("latencyP99", &spans(0, 5_500))), "pass");
    assert_eq!(said(&all.one("latencyP99", &spans(0, 9_000))), "fail");
    // No figures never pass.
    let none = Case::split(100);
    assert_eq!(said(&none.one("clientErrors", &spans(0, 600))), "open");
    assert_eq!(said(&none.one("latencyP99", &spans(0, 600))), "open");
    // A pool that was put there and has nothing to compare with is not held by that.
    let put = Case { is_done: true, ..Case::split(100) };
    let names: Vec<_> = put.all(&spans(0, 600)).into_iter().map(|reading| reading.name).collect();
    assert!(
        !names.contains(&"latencyP99".to_owned()) && !names.contains(&"clientErrors".to_owned()),
        "{names:?}"
    );
    assert_eq!(Case { baseline: Some(baseline(100, 1_000)), ..put }.all(&spans(0, 600)).len(), 8);
    // But where nobody asks for any.
    let any = Case { min_samples: 0, ..Case::split(100) };
    assert_eq!(said(&any.one("latencyP99", &spans(0, 600))), "pass");
}

#[test]
fn slower_is_both_in_share_and_in_time() {
    let at_5 = Case::split(5);
    for (cohort, control, expected) in [
        (600, 600, "pass"),
        // Five times, and not by 5 ms.
        (3_000, 600, "pass"),
        // By 10 ms, and not by a fifth.
        (110_000, 100_000, "pass"),
        (20_000, 10_000, "fail"),
        // Faster is fine.
        (600, 90_000, "pass"),
    ] {
        let spans = split(arm(5000, 0, cohort), arm(5000, 0, control), true);
        assert_eq!(said(&at_5.one("latencyP99", &spans)), expected, "{cohort} {control}");
    }
    let few = Arm { latency: times(&[(600, 99)]), ..arm(5000, 0, 600) };
    assert_eq!(said(&at_5.one("latencyP99", &split(few, arm(5000, 0, 600), true))), "open");
}

#[test]
fn one_refused_write_fails_at_once_and_is_named() {
    let mut spans = split(arm(50, 0, 600), arm(50, 0, 600), false);
    assert_eq!(said(&Case::split(5).one("misroutedWrites", &spans)), "open");
    spans.split.figures.measures.misrouted = 1;
    spans.split.figures.measures.refused = vec![RefusedStatement {
        server: "pg-2".into(),
        statement: "SELECT touch_session($1)".into(),
        count: 1,
    }];
    let reading = Case::split(5).one("misroutedWrites", &spans);
    assert_eq!((said(&reading), reading.threshold, reading.is_of_split), ("fail", 1, true));
    let Outcome::Judged { value, .. } = reading.outcome else { panic!("judged") };
    assert_eq!(
        value,
        "1 statement refused by a replica reached clients, of 50 reads; most often \"SELECT touch_session($1)\" at pg-2"
    );
    let mut lenient = Case::split(5);
    lenient.gates.misrouted_writes.max_total = 1;
    assert_eq!(said(&lenient.one("misroutedWrites", &spans)), "open");
}

#[test]
fn rescued_statements_are_a_rate() {
    let spans = |rescued, is_over| {
        let mut spans = split(arm(100_000, 0, 600), arm(100_000, 0, 600), is_over);
        spans.split.figures.rescued = rescued;
        spans
    };
    let case = Case::split(5);
    assert_eq!(said(&case.one("rescuedStatements", &spans(100, true))), "pass");
    assert_eq!(said(&case.one("rescuedStatements", &spans(101, true))), "fail");
    assert_eq!(said(&case.one("rescuedStatements", &spans(101, false))), "open");
}

#[test]
fn moments_are_judged_by_the_worst() {
    let case = Case::split(5);
    let moments = |change: fn(&mut Moment)| {
        let mut moments = span(Figures::default(), true);
        change(&mut moments.worst);
        Spans { moments, ..Spans::default() }
    };
    for (name, change, expected) in [
        ("replicaLag", (|m| m.lag_ms_max = Some(10_000)) as fn(&mut Moment), "pass"),
        ("replicaLag", |m| m.lag_ms_max = Some(10_001), "fail"),
        ("replicaLag", |m| m.lag_ms_max = None, "no data"),
        ("replicaLag", |m| m.proxies = 0, "open"),
        ("healthyReplicas", |m| m.replicas = 1, "pass"),
        ("healthyReplicas", |m| m.replicas = 0, "fail"),
        ("primaryConnections", |m| m.primary_use_percent = Some(85), "pass"),
        ("primaryConnections", |m| m.primary_use_percent = Some(86), "fail"),
        ("primaryConnections", |m| m.primary_use_percent = None, "no data"),
    ] {
        assert_eq!(said(&case.one(name, &moments(change))), expected, "{name}");
    }
    let mut none = moments(|m| m.replicas = 0);
    none.moments.is_over = false;
    assert_eq!(said(&case.one("healthyReplicas", &none)), "open");
    // Reads fail where the pool says so: that cannot wait.
    let urgent = Case { needs_replica: true, ..Case::split(5) }.one("healthyReplicas", &none);
    assert_eq!((said(&urgent), urgent.threshold), ("fail", 1));
}

#[test]
fn a_lag_that_passes_is_told_in_quarters_of_the_limit() {
    let value = |max_ms: u64, lag: u64| {
        let mut case = Case::split(5);
        case.gates.replica_lag.max = PoolDuration::from_millis(max_ms);
        let mut moments = span(Figures::default(), true);
        moments.worst.lag_ms_max = Some(lag);
        match case.one("replicaLag", &Spans { moments, ..Spans::default() }).outcome {
            Outcome::Judged { value, .. } => value,
            other => format!("{other:?}"),
        }
    };
    assert_eq!([0, 40, 2999, 3000].map(|lag| value(10_000, lag)), ["at most 3 s"; 4].map(str::to_owned));
    assert_eq!(
        [3001, 9001, 10_000].map(|lag| value(10_000, lag)),
        ["at most 6 s", "at most 10 s", "at most 10 s"].map(str::to_owned)
    );
    assert_eq!((value(500, 1), value(1000, 900)), ("at most 500 ms".to_owned(), "at most 1 s".to_owned()));
    assert_eq!(value(10_000, 12_345), "12 s");
}

#[test]
fn waits_for_connections_are_judged_by_their_tail() {
    let spans = |waits: &[(u64, u64)], is_over| {
        let measures = Measures { waits: times(waits), ..Measures::default() };
        let figures = Figures { measures, transactions: 400, ..Figures::default() };
        Spans { pool: span(figures, is_over), ..Spans::default() }
    };
    let case = Case::split(5);
    assert_eq!(said(&case.one("poolWaitP99", &spans(&[(0, 9_910), (300_000, 90)], true))), "pass");
    assert_eq!(said(&case.one("poolWaitP99", &spans(&[(0, 9_000), (300_000, 1_000)], true))), "fail");
    let reading = case.one("poolWaitP99", &spans(&[(0, 400)], false));
    let Outcome::Open { wait, .. } = reading.outcome else { panic!("open") };
    assert_eq!(wait, "400 of 1000 transactions, 30 s at this pace");
}

#[test]
fn mirror_is_judged_by_answers_drops_and_what_it_costs() {
    let spans = |mirror: MirrorFigures, mirrored: Arm, unmirrored: Arm| {
        let measures = Measures { mirrored, unmirrored, ..Measures::default() };
        let figures = Figures { measures, mirror, transactions: 9_000, ..Figures::default() };
        let all = span(figures, true);
        Spans { mirror: all.clone(), pool: all, ..Spans::default() }
    };
    let case = Case::mirror(50);
    let mirror =
        |dropped, diverging| MirrorFigures { offered: 100_000, dropped, compared: 100_000, diverging };
    for (dropped, diverging, name, expected) in [
        (0, 10, "mirrorDivergence", "pass"),
        (0, 11, "mirrorDivergence", "fail"),
        (5_000, 0, "mirrorDrops", "pass"),
        // What is left is no sample: it holds, and does not roll back.
        (5_001, 0, "mirrorDrops", "no data"),
    ] {
        let spans = spans(mirror(dropped, diverging), arm(9_000, 0, 600), arm(9_000, 0, 600));
        assert_eq!(said(&case.one(name, &spans)), expected, "{dropped} {diverging}");
    }
    let impact =
        |mirrored, unmirrored| {
            said(&case.one(
                "mirrorImpact",
                &spans(mirror(0, 0), arm(9_000, 0, mirrored), arm(9_000, 0, unmirrored)),
            ))
        };
    assert_eq!((impact(1_500, 600), impact(1_900, 600), impact(30_000, 29_800)), ("pass", "fail", "pass"));
}

#[test]
fn figure_of_a_prometheus_is_within_its_limits_or_none() {
    let gate = |min: Option<&str>, max: Option<&str>| ExternalGate {
        name: "cpu".into(),
        mode: GateMode::Enforce,
        query: "q".into(),
        max: max.map(str::to_owned),
        min: min.map(str::to_owned),
    };
    let spans = Spans { moments: span(Figures::default(), true), ..Spans::default() };
    for (value, expected) in [
        (Some(ExternalValue::Number(80.0)), "pass"),
        (Some(ExternalValue::Number(80.5)), "fail"),
        (Some(ExternalValue::Number(-1.0)), "fail"),
        (Some(ExternalValue::Nothing("none".into())), "no data"),
        (Some(ExternalValue::Failed("refused".into())), "error"),
        (None, "open"),
    ] {
        let mut case = Case::split(5);
        case.gates.external = vec![gate(Some("0"), Some("80"))];
        case.external = value.clone().map(|value| ("cpu".to_owned(), value)).into_iter().collect();
        let reading = case.one("external/cpu", &spans);
        assert_eq!((said(&reading), reading.limit.as_str()), (expected, "0 to 80"), "{value:?}");
    }
}

#[test]
fn proxies_that_crash_fail_at_once() {
    let mut case = Case::split(5);
    assert!(case.all(&Spans::default()).iter().all(|reading| reading.name != "proxies"));
    case.waiting = Some("orders-1 waits: CrashLoopBackOff".into());
    let reading = case.one("proxies", &Spans::default());
    assert_eq!((said(&reading), reading.threshold), ("fail", 1));
}

#[test]
fn what_a_newer_operator_adds_is_only_shown_until_the_attempt_is_over() {
    let mut case = Case::split(5);
    let is_enforced = |case: &Case, name: &str| case.one(name, &Spans::default()).mode == GateMode::Enforce;
    assert!(is_enforced(&case, "latencyP99") && is_enforced(&case, "clientErrors"));
    case.known.retain(|known| known != "latencyP99");
    assert_eq!(case.one("latencyP99", &Spans::default()).mode, GateMode::DryRun);
    assert!(is_enforced(&case, "clientErrors"));
    case.gates.latency_p99.mode = GateMode::Disabled;
    assert!(case.all(&Spans::default()).iter().all(|reading| reading.name != "latencyP99"));
    // Somebody has just written an external one into the spec.
    let query =
        ExternalGate { name: "cpu".into(), mode: GateMode::Enforce, query: "q".into(), max: None, min: None };
    case.gates.external = vec![query];
    assert!(is_enforced(&case, "external/cpu"));
}

#[test]
fn every_gate_that_can_be_said_is_in_the_list_of_the_api() {
    let mut cases = [Case::split(5), Case::mirror(5)];
    for case in &mut cases {
        case.waiting = Some("orders-1 waits: CrashLoopBackOff".into());
        for reading in case.all(&Spans::default()) {
            assert!(GATES.contains(&reading.name.as_str()), "{}", reading.name);
        }
    }
}

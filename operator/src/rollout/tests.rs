//! The decision, as a walk and as laws that hold whatever happens.

use std::time::Duration;

use jiff::Timestamp;
use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::spec::gates::GateMode;
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::ConditionStatus;
use pgrouting_crds::status::rollout::Baseline;
use proptest::prelude::*;

use super::*;
use crate::fixtures::{SMALL, at, pool};
use crate::position::{Position, enter};
use crate::rollout::progress::Word;
use crate::rollout::reading::{Outcome, Reading};
use crate::rollout::sight::{Obstacle, Turn};
use crate::time::whole_seconds;

const STEPS: &str = "splitSteps: [{percent: 5, soak: 1m}, {percent: 100, soak: 2m}], \
                     mirrorSteps: [{percent: 50, soak: 1m}, {percent: 100, soak: 1m}]";

fn wanted(rollout: &str) -> PgRoutingPool {
    pool(&format!("{SMALL}rollout: {{{STEPS}, {rollout}}}\nmirror: {{target: {{host: m}}}}\n"))
}

fn gate(name: &str, outcome: Outcome) -> Reading {
    Reading {
        name: name.to_owned(),
        mode: GateMode::Enforce,
        outcome,
        limit: "1".to_owned(),
        threshold: if name == "misroutedWrites" { 1 } else { 3 },
        is_of_split: name == "misroutedWrites",
        remedy: "mend it".to_owned(),
    }
}

fn passes() -> Outcome {
    Outcome::Judged { passes: true, value: "0".to_owned(), samples: 1000 }
}

fn fails() -> Outcome {
    Outcome::Judged { passes: false, value: "9".to_owned(), samples: 1000 }
}

fn open() -> Outcome {
    Outcome::Open { samples: 3, wait: "3 of 1000 reads".to_owned() }
}

fn baseline() -> Baseline {
    Baseline {
        captured_at: whole_seconds(at(0)),
        errors_per_million: 5,
        latency_p99_micros: 900,
        queries_per_second: 100,
    }
}

/// A pool and what happens to it.
struct World {
    pool: PgRoutingPool,
    rollout: Option<RolloutStatus>,
    now: i64,
    were_all_over: bool,
    obstacle: Option<Obstacle>,
    turn: Turn,
    has_baseline: bool,
    leap: Duration,
}

impl World {
    fn new(rollout: &str) -> Self {
        Self {
            pool: wanted(rollout),
            rollout: None,
            now: 0,
            were_all_over: true,
            obstacle: None,
            turn: Turn::Mine,
            has_baseline: true,
            leap: Duration::ZERO,
        }
    }

    fn edit(&mut self, rollout: &str) {
        self.pool = wanted(rollout);
    }

    fn look(&mut self, seconds: i64, readings: &[Reading]) -> Progress {
        self.now += seconds;
        let now: Timestamp = at(self.now);
        let entered = enter(self.rollout.as_ref(), None, &self.pool.spec, now);
        let sight = Sight {
            readings,
            were_all_over: self.were_all_over,
            obstacle: self.obstacle.clone(),
            turn: self.turn.clone(),
            baseline: self.has_baseline.then(baseline),
            mirror_baseline: self.has_baseline.then(baseline),
            leap: self.leap,
            may_refresh: true,
            now,
        };
        let Decision { rollout, progress } = decide(&entered, &self.pool.spec, &sight);
        self.rollout = Some(rollout);
        progress
    }

    fn place(&self) -> String {
        Position::of(self.rollout.as_ref().unwrap()).text()
    }

    /// All gates of the stage pass.
    fn well(&mut self, seconds: i64) -> Progress {
        self.look(seconds, &[gate("clientErrors", passes()), gate("misroutedWrites", passes())])
    }

    /// Up to this place, everything well.
    fn walk_to(&mut self, place: &str) {
        for _ in 0..40 {
            if self.rollout.is_some() && self.place() == place {
                return;
            }
            self.well(15);
        }
        panic!("{place} is not reached: {:?}", self.rollout);
    }
}

#[test]
fn walk_takes_each_step_after_its_time_and_ends_at_the_target() {
    let mut world = World::new("stage: Mirror");
    let mut seen = Vec::new();
    let mut last = String::new();
    for _ in 0..60 {
        let progress = world.well(10);
        if world.place() != last {
            last = world.place();
            seen.push((world.now, last.clone()));
        }
        if progress.word == Word::StageReached {
            break;
        }
    }
    let expected = [
        (10, "Split 5 %"),
        // A minute from the look after the step's begin.
        (80, "Split 100 %"),
        (210, "Mirror 50 %"),
        (280, "Mirror 100 %"),
    ];
    assert_eq!(seen, expected.map(|(second, place)| (second, place.to_owned())));
    assert_eq!(world.now, 350);
    let rollout = world.rollout.unwrap();
    assert_eq!((rollout.step_summary.as_str(), rollout.moving_to, rollout.soak_left), ("4/4", None, None));
    assert_eq!(rollout.baseline, Some(baseline()));
    assert_eq!(rollout.history.len(), 4);
    assert!(rollout.history.iter().all(|made| made.reason == "StepAdvanced" && made.actor == "controller"));
}

#[test]
fn enforced_failure_rolls_back_says_why_and_stays_until_asked() {
    let mut world = World::new("stage: Split");
    world.walk_to("Split 5 %");
    let failing = [gate("clientErrors", fails())];
    for _ in 0..2 {
        assert_eq!(world.look(15, &failing).word, Word::Evaluating);
        assert_eq!(world.place(), "Split 5 %");
    }
    let progress = world.look(15, &failing);
    assert_eq!(progress.word, Word::Failed("clientErrors".into()));
    let rollout = world.rollout.clone().unwrap();
    assert_eq!(world.place(), "PoolingOnly");
    let rollback = rollout.last_rollback.unwrap();
    assert_eq!(
        (rollback.from.as_str(), rollback.to.as_str(), rollback.attempt),
        ("Split 5 %", "PoolingOnly", 1)
    );
    assert!(
        progress.message.contains("rolled back from Split 5 % to PoolingOnly at")
            && progress.message.contains("clientErrors: 9 (limit 1, 1000 samples); mend it"),
        "{}",
        progress.message
    );
    assert_eq!(rollout.gates[0].verdict.as_str(), "Fail");
    // It stays, whatever the gates say now.
    for _ in 0..20 {
        assert_eq!(world.well(60).word, Word::Failed("clientErrors".into()));
        assert_eq!(world.place(), "PoolingOnly");
    }
    world.edit("stage: Split, attempt: 1");
    world.walk_to("Split 100 %");
    let rollout = world.rollout.unwrap();
    assert_eq!((rollout.attempt, rollout.hold), (2, None));
}

#[test]
fn failure_goes_to_where_the_spec_says() {
    for (rollout, place, gate_name, expected) in [
        ("stage: Split, rollbackTo: PreviousStep", "Split 100 %", "clientErrors", "Split 5 %"),
        ("stage: Split, rollbackTo: PreviousStep", "Split 5 %", "clientErrors", "PoolingOnly"),
        ("stage: Split, onFailure: Hold", "Split 5 %", "clientErrors", "Split 5 %"),
        ("stage: Mirror", "Mirror 100 %", "mirrorDivergence", "Split 100 %"),
        ("stage: Mirror, rollbackTo: PreviousStep", "Mirror 100 %", "mirrorDivergence", "Mirror 50 %"),
        // A wrong route is one of the split, wherever it is seen.
        ("stage: Mirror", "Mirror 50 %", "misroutedWrites", "PoolingOnly"),
        ("stage: Mirror, rollbackTo: PreviousStep", "Mirror 50 %", "misroutedWrites", "PoolingOnly"),
    ] {
        let mut world = World::new(rollout);
        world.walk_to(place);
        for _ in 0..3 {
            world.look(1, &[gate(gate_name, fails())]);
        }
        assert_eq!(world.place(), expected, "{rollout} at {place}");
        assert!(world.rollout.unwrap().hold.is_some());
    }
}

#[test]
fn no_figures_hold_and_the_time_of_the_step_stands_still() {
    let mut world = World::new("stage: Split");
    world.walk_to("Split 5 %");
    world.well(10);
    world.well(20);
    let progress =
        world.look(10, &[gate("mirrorDrops", Outcome::NoData { value: "7 %".into(), samples: 5 })]);
    assert_eq!(progress.word, Word::NoData);
    let left = world.rollout.as_ref().unwrap().soak_left.unwrap().get();
    assert_eq!((left, world.rollout.as_ref().unwrap().soak_until.is_none()), (Duration::from_secs(30), true));
    for _ in 0..5 {
        let progress = world.look(3600, &[gate("latencyP99", open())]);
        assert_eq!(progress.word, Word::InsufficientSamples);
        assert!(progress.message.contains("3 of 1000 reads (latencyP99)"), "{}", progress.message);
        let progress = world.look(3600, &[gate("external/cpu", Outcome::Error("refused".into()))]);
        assert_eq!(progress.word, Word::MetricsUnavailable);
        assert_eq!(progress.word.status(), ConditionStatus::Unknown);
    }
    assert_eq!(world.place(), "Split 5 %");
    world.well(1);
    assert_eq!(world.well(29).word, Word::Soaking);
    world.well(1);
    assert_eq!(world.place(), "Split 100 %");
}

#[test]
fn one_more_that_says_the_same_is_not_written() {
    let mut world = World::new("stage: Split");
    world.walk_to("Split 5 %");
    let lag = |value: &str, samples| {
        [gate("replicaLag", Outcome::Judged { passes: true, value: value.to_owned(), samples })]
    };
    let shown = |world: &World| {
        let gate = &world.rollout.as_ref().unwrap().gates[0];
        (gate.value.clone(), gate.samples)
    };
    world.look(1, &lag("0 s", 1));
    world.look(1, &lag("0 s", 2));
    assert_eq!(shown(&world), ("0 s".to_owned(), 1));
    world.look(1, &lag("1 s", 2));
    assert_eq!(shown(&world), ("1 s".to_owned(), 2));
}

#[test]
fn dry_run_is_shown_and_holds_nothing() {
    let mut world = World::new("stage: Split");
    world.walk_to("Split 5 %");
    let dry = Reading { mode: GateMode::DryRun, ..gate("clientErrors", fails()) };
    for _ in 0..8 {
        world.look(15, std::slice::from_ref(&dry));
    }
    assert_eq!(world.place(), "Split 100 %");
    assert_eq!(world.rollout.unwrap().gates[0].verdict.as_str(), "DryRunFail");
    let mut world = World::new("stage: Split, mode: Immediate");
    for _ in 0..8 {
        assert_eq!(world.look(15, &[gate("misroutedWrites", fails())]).word, Word::StageReached);
    }
    assert_eq!(
        (world.place().as_str(), world.rollout.unwrap().gates[0].verdict.as_str()),
        ("Split 100 %", "DryRunFail")
    );
}

#[test]
fn step_waits_for_approval_pause_deployment_primary_and_turn() {
    let mut world = World::new("stage: Split, mode: StepApproval, approvedStep: 0");
    let progress = world.well(10);
    assert_eq!(progress.word, Word::AwaitingApproval);
    assert!(
        progress.message.contains("set spec.rollout.approvedStep to 1 to go on to Split 5 %"),
        "{}",
        progress.message
    );
    world.edit("stage: Split, mode: StepApproval, approvedStep: 1");
    for _ in 0..20 {
        world.well(10);
    }
    assert_eq!(world.place(), "Split 5 %");
    world.edit("stage: Split, mode: Paused");
    for _ in 0..20 {
        assert_eq!(world.well(60).word, Word::Paused);
    }
    // Gates are in force there too.
    let mut paused =
        World { rollout: world.rollout.clone(), now: world.now, ..World::new("stage: Split, mode: Paused") };
    assert_eq!(
        paused.look(1, &[gate("misroutedWrites", fails())]).word,
        Word::Failed("misroutedWrites".into())
    );
    assert_eq!(paused.place(), "PoolingOnly");

    world.edit("stage: Split");
    for (obstacle, word) in [
        (Obstacle::Deployment("1 of 2 proxies are ready".into()), Word::WaitingForDeployment),
        (Obstacle::PrimaryChanged("pg-1 has become the primary".into()), Word::PrimaryChanged),
        (Obstacle::Silent, Word::MetricsUnavailable),
    ] {
        world.obstacle = Some(obstacle);
        assert_eq!(world.well(600).word, word);
    }
    world.obstacle = None;
    for (turn, word) in [
        (Turn::After("billing".into()), Word::WaitingForWave),
        (Turn::Halted("billing".into()), Word::WaveHalted),
    ] {
        world.turn = turn;
        assert_eq!(world.well(600).word, word);
    }
    assert_eq!(world.place(), "Split 5 %");
    world.turn = Turn::Mine;
    world.well(1);
    assert_eq!(world.place(), "Split 100 %");
}

#[test]
fn last_step_needs_something_to_compare_with() {
    let mut world = World::new("stage: Split");
    world.walk_to("Split 5 %");
    world.has_baseline = false;
    for _ in 0..10 {
        world.well(60);
    }
    let progress = world.well(1);
    assert_eq!((progress.word, world.place().as_str()), (Word::InsufficientSamples, "Split 5 %"));
    assert!(progress.message.contains("1000 reads to compare with"), "{}", progress.message);
    world.has_baseline = true;
    world.well(1);
    assert_eq!(world.place(), "Split 100 %");
}

#[test]
fn pool_that_has_arrived_goes_back_for_what_is_plainly_wrong_only() {
    let mut world = World::new("stage: Split");
    world.walk_to("Split 100 %");
    for _ in 0..20 {
        world.well(15);
    }
    let mut progress = world.well(1);
    assert_eq!((&progress.word, &progress.failing), (&Word::StageReached, &None));
    for _ in 0..5 {
        progress = world.look(15, &[gate("replicaLag", fails())]);
    }
    assert_eq!((&progress.word, progress.failing.as_deref()), (&Word::StageReached, Some("replicaLag")));
    assert!(progress.needs_person(), "somebody should look");
    assert_eq!(world.place(), "Split 100 %");
    world.look(15, &[gate("misroutedWrites", fails())]);
    assert_eq!(world.place(), "PoolingOnly");
}

#[test]
fn before_the_first_step_a_failing_gate_waits_and_needs_nobody() {
    let mut world = World::new("stage: Split");
    let progress = world.look(1, &[gate("healthyReplicas", fails()), gate("poolWaitP99", open())]);
    assert_eq!(progress.word, Word::Blocked("healthyReplicas".into()));
    for _ in 0..10 {
        world.look(60, &[gate("healthyReplicas", fails())]);
    }
    assert_eq!(world.rollout.as_ref().unwrap().hold, None);
    // A quiet pool may take its first step.
    world.look(1, &[gate("healthyReplicas", passes()), gate("poolWaitP99", open())]);
    assert_eq!(world.place(), "Split 5 %");
}

#[test]
fn after_a_restart_what_was_judged_before_is_not_enough() {
    let mut world = World::new("stage: Split");
    world.walk_to("Split 5 %");
    world.well(15);
    world.were_all_over = false;
    assert_eq!(world.look(3600, &[gate("clientErrors", open())]).word, Word::Soaking);
    assert_eq!(world.place(), "Split 5 %");
    world.were_all_over = true;
    world.well(15);
    assert_eq!(world.place(), "Split 100 %");
}

#[test]
fn clock_that_leaps_ahead_gives_no_time_away() {
    let mut world = World::new("stage: Split");
    world.walk_to("Split 5 %");
    world.well(1);
    world.leap = Duration::from_secs(86_400);
    assert_eq!(world.well(86_400).word, Word::Soaking);
    world.leap = Duration::ZERO;
    assert_eq!((world.well(59).word, world.place().as_str()), (Word::Soaking, "Split 5 %"));
    world.well(2);
    assert_eq!(world.place(), "Split 100 %");
    // Backward it only takes longer.
    let mut world = World::new("stage: Split");
    world.walk_to("Split 5 %");
    world.well(1);
    assert_eq!((world.well(-3600).word, world.place().as_str()), (Word::Soaking, "Split 5 %"));
}

/// Something that may happen.
#[derive(Debug, Clone)]
enum Happening {
    Look { seconds: i64, outcomes: Vec<u8>, were_all_over: bool, obstacle: u8, leaps: bool },
    Edit { stage: u8, mode: u8, attempt: i32, on_failure: bool },
    Restart,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => (-5_i64..120, prop::collection::vec(0_u8..5, 2), any::<bool>(), 0_u8..8, 0_u8..20).prop_map(
            |(seconds, outcomes, were_all_over, obstacle, leaps)| Happening::Look {
                seconds,
                outcomes,
                were_all_over,
                obstacle,
                leaps: leaps == 0,
            }
        ),
        1 => (0_u8..3, 0_u8..3, 0_i32..3, any::<bool>()).prop_map(|(stage, mode, attempt, on_failure)| {
            Happening::Edit { stage, mode, attempt, on_failure }
        }),
        1 => Just(Happening::Restart),
    ]
}

fn outcome(kind: u8) -> Outcome {
    match kind {
        0 => fails(),
        1 => open(),
        2 => Outcome::Error("e".into()),
        3 => Outcome::NoData { value: "v".into(), samples: 0 },
        _ => passes(),
    }
}

fn spec_text(stage: u8, mode: u8, attempt: i32, on_failure: bool) -> String {
    let stage = ["PoolingOnly", "Split", "Mirror"][usize::from(stage)];
    let mode = ["Automatic", "Paused", "StepApproval"][usize::from(mode)];
    let failure = if on_failure { "Hold" } else { "Rollback" };
    format!("stage: {stage}, mode: {mode}, approvedStep: 1, attempt: {attempt}, onFailure: {failure}")
}

fn share(rollout: &RolloutStatus) -> (Stage, i32, i32) {
    (rollout.stage, rollout.split_percent, rollout.mirror_percent)
}

proptest! {
    /// Whatever happens: forward only from gates that all pass, one step at a time and never past the target; a stage that is
    /// asked for is never exceeded; and a restart, which keeps nothing but the status as it is stored, changes nothing.
    #[test]
    fn laws(happenings in prop::collection::vec(happening(), 1..80)) {
        let mut world = World::new("stage: Split");
        // Seconds since the step began that came after a look at which all was well.
        let mut soaked = 0_i64;
        let mut was_soaking = false;
        for happening in happenings {
            match happening {
                Happening::Edit { stage, mode, attempt, on_failure } => {
                    world.edit(&spec_text(stage, mode, attempt, on_failure));
                }
                Happening::Restart => {
                    let stored = serde_json::to_string(&world.rollout).unwrap();
                    let read: Option<RolloutStatus> = serde_json::from_str(&stored).unwrap();
                    prop_assert_eq!(&read, &world.rollout);
                    world.rollout = read;
                    world.were_all_over = false;
                }
                Happening::Look { seconds, outcomes, were_all_over, obstacle, leaps } => {
                    let readings = [gate("clientErrors", outcome(outcomes[0])), gate("replicaLag", outcome(outcomes[1]))];
                    world.were_all_over = were_all_over;
                    world.obstacle = (obstacle == 0).then(|| Obstacle::Deployment("d".into()));
                    world.leap = if leaps { Duration::from_secs(100_000) } else { Duration::ZERO };
                    let before = world.rollout.clone();
                    if was_soaking {
                        soaked += seconds;
                    }
                    let progress = world.look(if leaps { seconds + 100_000 } else { seconds }, &readings);
                    world.leap = Duration::ZERO;
                    let now = world.rollout.clone().unwrap();
                    prop_assert!(now.stage <= world.pool.spec.rollout.stage);
                    // Decided again on what is stored, with nothing new to say, nothing moves.
                    let entered = enter(Some(&now), None, &world.pool.spec, at(world.now));
                    prop_assert_eq!(share(&entered), share(&now));
                    let Some(before) = before else { continue };
                    let has_advanced = share(&now) > share(&before);
                    if has_advanced {
                        let is_fine = readings.iter().all(|reading| {
                            // What was judged before counts until something else is.
                            let known = before.gates.iter().find(|gate| gate.name == reading.name);
                            match reading.outcome {
                                Outcome::Judged { passes, .. } => passes,
                                Outcome::Open { .. } => known.is_some_and(|gate| gate.verdict.as_str() == "Pass"),
                                Outcome::Error(_) | Outcome::NoData { .. } => false,
                            }
                        });
                        prop_assert!(is_fine, "{:?} after {:?}", readings, before);
                        prop_assert!(were_all_over && world.obstacle.is_none());
                        prop_assert!(now.step - before.step <= 1);
                        prop_assert_eq!(&progress.word, &Word::StepAdvanced);
                        prop_assert!(before.hold.is_none() || before.observed_attempt != now.observed_attempt || before.target_stage != now.target_stage);
                        if before.step > 0 && before.moving_to == Some(before.stage) {
                            prop_assert!(soaked >= 60, "only {} s", soaked);
                        }
                    }
                    if (before.step, before.attempt) != (now.step, now.attempt) || share(&now) != share(&before) {
                        soaked = 0;
                    }
                    was_soaking = now.soak_until.is_some();
                }
            }
        }
    }

    /// Going back is always allowed, whatever the state, and is there after one look.
    #[test]
    fn demotion_is_always_allowed(happenings in prop::collection::vec(happening(), 0..40), mode in 0_u8..3, target in 0_u8..2) {
        let mut world = World::new("stage: Mirror");
        for happening in happenings {
            if let Happening::Look { seconds, outcomes, .. } = happening {
                let readings = [gate("clientErrors", outcome(outcomes[0].max(outcomes[1])))];
                world.look(seconds, &readings);
            }
        }
        let before = world.rollout.as_ref().map_or(Stage::PoolingOnly, |rollout| rollout.stage);
        world.edit(&spec_text(target, mode, 0, true));
        world.obstacle = Some(Obstacle::Silent);
        world.look(0, &[gate("clientErrors", fails())]);
        let wanted = world.pool.spec.rollout.stage;
        let now = world.rollout.unwrap().stage;
        prop_assert_eq!(now, before.min(wanted));
    }
}

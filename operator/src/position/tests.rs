//! What an edit of the spec changes at once, and what it does not.

use pgrouting_crds::spec::PgRoutingPool;

use super::*;
use crate::fixtures::{SMALL, at, built, pool};

const STEPS: &str = "splitSteps: [{percent: 5, soak: 1m}, {percent: 50, soak: 1m}, {percent: 100, soak: 1h}], \
                     mirrorSteps: [{percent: 10, soak: 1m}, {percent: 100, soak: 1h}]";
const MIRROR: &str = "mirror: {target: {host: m}}";

fn spec(rollout: &str, rest: &str) -> PgRoutingPool {
    pool(&format!("{SMALL}rollout: {{{STEPS}, {rollout}}}\n{rest}\n"))
}

fn places(pool: &PgRoutingPool) -> Vec<String> {
    let ladder = Ladder::of(&pool.spec);
    (0..=ladder.end_of(Stage::Mirror)).map(|number| ladder.rung(number).position.text()).collect()
}

fn standing(stage: Stage, split: i32, mirror: i32, spec: &PgRoutingPool) -> RolloutStatus {
    let mut rollout = RolloutStatus {
        stage,
        split_percent: split,
        mirror_percent: mirror,
        target_stage: spec.spec.rollout.stage,
        observed_attempt: spec.spec.rollout.attempt,
        attempt: 1,
        ..RolloutStatus::default()
    };
    rollout.steps_hash = Ladder::of(&spec.spec).hash();
    rollout
}

fn entered(before: &RolloutStatus, pool: &PgRoutingPool) -> RolloutStatus {
    enter(Some(before), None, &pool.spec, at(0))
}

fn text(rollout: &RolloutStatus) -> String {
    Position::of(rollout).text()
}

#[test]
fn ladder_has_each_step_up_to_the_limit() {
    assert_eq!(
        places(&spec("stage: Mirror", MIRROR)),
        ["PoolingOnly", "Split 5 %", "Split 50 %", "Split 100 %", "Mirror 10 %", "Mirror 100 %"]
    );
    assert_eq!(places(&spec("stage: Split", "")), ["PoolingOnly", "Split 5 %", "Split 50 %", "Split 100 %"]);
    assert_eq!(
        places(&spec("stage: Split", "split: {maxPercent: 20}")),
        ["PoolingOnly", "Split 5 %", "Split 20 %"]
    );
    assert_eq!(places(&spec("stage: Split", "split: {maxPercent: 0}")), ["PoolingOnly", "Split 0 %"]);
    assert_eq!(places(&spec("stage: Split", "pooling: {mode: Session}")), ["PoolingOnly", "Split 0 %"]);
    let limited = spec("stage: Mirror", "mirror: {target: {host: m}, maxPercent: 10}");
    assert_eq!(places(&limited)[4..], ["Mirror 10 %"]);
}

/// Case 230, but for the connections on the mirror: no stage is skipped on the way forward, and back is at once.
#[test]
fn forward_is_never_at_once_and_back_always() {
    let to_split = spec("stage: Split", "");
    let new = enter(None, None, &to_split.spec, at(0));
    assert_eq!((text(&new).as_str(), new.attempt, new.step_summary.as_str()), ("PoolingOnly", 1, "0/3"));
    assert_eq!(new.moving_to, Some(Stage::Split));

    let at_end = standing(Stage::Mirror, 100, 100, &spec("stage: Mirror", MIRROR));
    let to_split = entered(&at_end, &spec("stage: Split", MIRROR));
    assert_eq!((text(&to_split).as_str(), to_split.mirror_percent), ("Split 100 %", 0));
    assert_eq!(
        (to_split.history[0].reason.as_str(), to_split.history[0].actor.as_str()),
        ("SpecEdit", "spec edit")
    );
    let to_pooling = entered(&at_end, &spec("stage: PoolingOnly", MIRROR));
    assert_eq!((text(&to_pooling).as_str(), to_pooling.split_percent), ("PoolingOnly", 0));
    // On the way up at 5 %, back is back too.
    let early = standing(Stage::Split, 5, 0, &spec("stage: Mirror", MIRROR));
    assert_eq!(text(&entered(&early, &spec("stage: PoolingOnly", MIRROR))), "PoolingOnly");
    // A stage that is asked for in the same breath as its mirror goes is not kept.
    assert_eq!(text(&entered(&at_end, &spec("stage: Split", ""))), "Split 100 %");
}

#[test]
fn lower_limit_is_in_effect_at_once_and_a_higher_one_is_walked_to() {
    let wide = spec("stage: Split", "");
    let full = standing(Stage::Split, 100, 0, &wide);
    let narrow = entered(&full, &spec("stage: Split", "split: {maxPercent: 20}"));
    assert_eq!(text(&narrow), "Split 20 %");
    let widened = entered(&narrow, &wide);
    assert_eq!((text(&widened).as_str(), widened.moving_to), ("Split 20 %", Some(Stage::Split)));
    assert_eq!(text(&entered(&full, &spec("stage: Split", "pooling: {mode: Session}"))), "Split 0 %");
}

#[test]
fn edited_steps_keep_the_share_and_go_on_at_the_next_larger_one() {
    let before = standing(Stage::Split, 50, 0, &spec("stage: Split", ""));
    let edited = pool(&format!(
        "{SMALL}rollout: {{stage: Split, splitSteps: [{{percent: 1, soak: 1m}}, {{percent: 40, soak: 1m}}, {{percent: 60, soak: 1m}}]}}"
    ));
    let rollout = entered(&before, &edited);
    assert_eq!((text(&rollout).as_str(), rollout.step_summary.as_str()), ("Split 50 %", "2/3"));
    assert_ne!(rollout.steps_hash, before.steps_hash);
    let ladder = Ladder::of(&edited.spec);
    assert_eq!(ladder.rung(ladder.place(&Position::of(&rollout)).next).position.text(), "Split 60 %");
}

#[test]
fn immediate_is_at_the_end_and_nothing_else_is() {
    let rollout = enter(None, None, &spec("stage: Mirror, mode: Immediate", MIRROR).spec, at(0));
    assert_eq!((text(&rollout).as_str(), rollout.split_percent), ("Mirror 100 %", 100));
    assert_eq!((rollout.moving_to, &rollout.soak_until, rollout.soak_left), (None, &None, None));
    // What has been reached so stays when the mode changes.
    let rollout = entered(&rollout, &spec("stage: Mirror", MIRROR));
    assert_eq!((text(&rollout).as_str(), rollout.moving_to), ("Mirror 100 %", None));
}

#[test]
fn pool_of_an_operator_of_before_stays_where_it_was() {
    let full = spec("stage: Split", "");
    // Its status knew the stage and the share.
    let known = RolloutStatus { stage: Stage::Split, split_percent: 100, ..RolloutStatus::default() };
    let rollout = entered(&known, &full);
    assert_eq!((text(&rollout).as_str(), rollout.moving_to, rollout.attempt), ("Split 100 %", None, 0));
    // One whose status is lost has its document.
    let document = built(&format!("{SMALL}rollout: {{stage: Split}}\nsplit: {{maxPercent: 50}}")).document;
    let rollout = enter(None, Some(&document.config), &full.spec, at(0));
    assert_eq!((text(&rollout).as_str(), rollout.moving_to), ("Split 50 %", Some(Stage::Split)));
}

#[test]
fn hold_is_over_when_stage_or_attempt_change_and_not_before() {
    let spec_of = |rest: &str| spec(rest, MIRROR);
    let mut held = standing(Stage::PoolingOnly, 0, 0, &spec_of("stage: Split"));
    held.hold = Some(pgrouting_crds::status::rollout::Hold {
        gate: "clientErrors".into(),
        target_stage: Stage::Split,
        observed_attempt: 0,
        rolled_back: true,
        since: whole_seconds(at(0)),
        message: String::new(),
    });
    let again = |rest: &str| entered(&held, &spec_of(rest));
    assert!(again("stage: Split").hold.is_some());
    assert!(again("stage: Split, mode: Paused, minSamples: 5").hold.is_some());
    for rest in
        ["stage: Split, attempt: 1", "stage: Mirror", "stage: PoolingOnly", "stage: Split, mode: Immediate"]
    {
        assert!(again(rest).hold.is_none(), "{rest}");
    }
    assert_eq!(again("stage: Split, attempt: 1").attempt, 2);
    // There is nothing to try.
    assert_eq!(again("stage: PoolingOnly").attempt, 1);
}

#[test]
fn other_limits_make_what_was_judged_worthless() {
    let pool = spec("stage: Split", "");
    let mut rollout = enter(None, None, &pool.spec, at(0));
    rollout.gates.push(pgrouting_crds::status::rollout::GateStatus {
        name: "replicaLag".into(),
        verdict: pgrouting_crds::status::rollout::GateVerdict::Pass,
        value: String::new(),
        limit: String::new(),
        samples: 0,
        consecutive_failures: 0,
        last_transition_time: whole_seconds(at(0)),
    });
    assert_eq!(entered(&rollout, &pool).gates.len(), 1);
    let stricter = spec("stage: Split, gates: {replicaLag: {max: 1s}}", "");
    assert!(entered(&rollout, &stricter).gates.is_empty());
}

#[test]
fn gates_are_those_of_the_beginning_of_the_attempt() {
    let pool = spec("stage: Split", "");
    let before =
        RolloutStatus { known_gates: vec!["clientErrors".into()], ..standing(Stage::Split, 5, 0, &pool) };
    let before = RolloutStatus { moving_to: Some(Stage::Split), ..before };
    assert_eq!(entered(&before, &pool).known_gates, ["clientErrors"], "an attempt under way");
    let again = spec("stage: Split, attempt: 2", "");
    assert_eq!(entered(&before, &again).known_gates, GATES, "the next attempt");
    let arrived = RolloutStatus { moving_to: None, ..before.clone() };
    assert_eq!(entered(&arrived, &pool).known_gates, GATES, "nothing is under way");
    let old = RolloutStatus { known_gates: Vec::new(), ..before };
    assert_eq!(entered(&old, &pool).known_gates, GATES, "of an operator without a list");
}

#[test]
fn each_attempt_is_tried_on_another_part() {
    let pool = spec("stage: Split", "");
    let first = entered(&standing(Stage::Split, 5, 0, &pool), &pool);
    assert_eq!(Position::of(&first).salt_of(5), 0);
    let second = entered(&first, &spec("stage: Split, attempt: 2", ""));
    assert_eq!((second.attempt, Position::of(&second).salt_of(5)), (2, 1));
    // With all of them or none there is no other part.
    assert_eq!((Position::of(&second).salt_of(0), Position::of(&second).salt_of(100)), (0, 0));
}

#[test]
fn next_attempt_begins_its_step_anew_also_where_it_waited_for_an_approval_only() {
    let pool = spec("stage: Split, attempt: 1, mode: StepApproval, approvedStep: 1", "");
    let waiting = RolloutStatus { observed_attempt: 0, ..standing(Stage::Split, 5, 0, &pool) };
    let again = entered(&waiting, &pool);
    assert_eq!((again.attempt, again.soak_left), (2, Some(PoolDuration::from_secs(60))));
    // The end of a stage that went well is not waited for again.
    let pool = spec("stage: Mirror, attempt: 1", MIRROR);
    let waiting = RolloutStatus { observed_attempt: 0, ..standing(Stage::Split, 100, 0, &pool) };
    let again = entered(&waiting, &pool);
    assert_eq!((again.attempt, again.soak_left), (2, None));
}

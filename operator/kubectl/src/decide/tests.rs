//! The table of what `promote` and `rollback` change.

use super::*;

/// A pool of this spec.rollout and status.rollout, with Progressing of this reason.
fn pool(rollout: &str, has_mirror: bool, status: &str, reason: &str) -> PgRoutingPool {
    let mirror = "mirror: {target: {host: new-db}}";
    let text = format!(
        "
apiVersion: pgrouting.dev/v1alpha1
kind: PgRoutingPool
metadata: {{name: shop, namespace: acme, resourceVersion: '7'}}
spec:
  backends: {{type: Static, static: {{servers: [{{name: pg-0, host: pg-0.pg}}]}}}}
  rollout: {{{rollout}}}
  {}
status:
  conditions:
  - {{type: Progressing, status: 'False', reason: {reason}, message: m, lastTransitionTime: '2026-05-01T12:00:00Z'}}
  rollout: {{{status}}}
",
        if has_mirror { mirror } else { "" }
    );
    serde_yaml::from_str(&text).unwrap()
}

const HOLD: &str = "stage: PoolingOnly, targetStage: Split, hold: {gate: latencyP99, targetStage: Split, \
                    observedAttempt: 2, rolledBack: true, since: '2026-05-01T12:00:00Z', \
                    message: 'rolled back: 9 ms; look at the replicas'}";

/// The patch of spec.rollout, or the sentence.
fn outcome(decision: Decision) -> String {
    match decision {
        Ok(change) => serde_json::to_string(&change.fields).unwrap(),
        Err(text) => text,
    }
}

#[test]
fn promote_asks_for_what_comes_next() {
    use Promotion::{Next, Retry, To};
    let at = "stage: Split, step: 2, stepCount: 5";
    let held = "pool shop is held since gate latencyP99 failed: rolled back: 9 ms; look at the replicas. When that is \
                done, `kubectl pgrp promote shop --retry` tries again";
    let no_mirror =
        "stage Mirror needs spec.mirror, which pool shop does not have: name the other database there first";
    let approval = "stage: Split, mode: StepApproval, approvedStep: 2";
    for (spec, has_mirror, status, reason, promotion, expected) in [
        ("", false, "stage: PoolingOnly", "StageReached", Next, r#"{"stage":"Split"}"#),
        ("stage: Split", true, at, "Soaking", Next, r#"{"stage":"Mirror"}"#),
        ("stage: Split", false, at, "Soaking", Next, no_mirror),
        ("", true, "stage: PoolingOnly", "StageReached", To(Stage::Mirror), r#"{"stage":"Mirror"}"#),
        ("", false, "stage: PoolingOnly", "StageReached", To(Stage::Mirror), no_mirror),
        (
            "stage: Mirror",
            true,
            at,
            "Soaking",
            Next,
            "pool shop is asked to go to Mirror already, and there is no stage after it",
        ),
        ("stage: Split", true, at, "Soaking", To(Stage::Split), "pool shop is asked to go to Split already"),
        (
            "stage: Split",
            true,
            at,
            "Soaking",
            To(Stage::PoolingOnly),
            "PoolingOnly is before Split, which pool shop is asked to go to: `kubectl pgrp rollback shop --to \
             PoolingOnly` goes back",
        ),
        (approval, true, at, "AwaitingApproval", Next, r#"{"approvedStep":3}"#),
        (approval, true, at, "Soaking", Next, r#"{"stage":"Mirror"}"#),
        (approval, true, at, "AwaitingApproval", To(Stage::Mirror), r#"{"stage":"Mirror"}"#),
        (
            "stage: Split, mode: StepApproval, approvedStep: 3",
            true,
            at,
            "AwaitingApproval",
            Next,
            "step 3 of pool shop is approved already, and the operator has not come to it yet",
        ),
        ("stage: Split, attempt: 2", true, HOLD, "LatencyP99", Next, held),
        ("stage: Split, attempt: 2", true, HOLD, "LatencyP99", To(Stage::Mirror), held),
        ("stage: Split, attempt: 2", true, HOLD, "LatencyP99", Retry, r#"{"attempt":3}"#),
        // The edit that lifts the hold has been made, and the operator has not come to it yet.
        (
            "stage: Split, attempt: 3",
            true,
            HOLD,
            "LatencyP99",
            Retry,
            "pool shop is not held, so that there is nothing to try again",
        ),
    ] {
        let pool = pool(spec, has_mirror, status, reason);
        assert_eq!(outcome(promote(&pool, promotion)), expected, "{spec} {status} {promotion:?}");
    }
}

#[test]
fn rollback_goes_one_stage_back_from_what_is_in_effect() {
    let (nothing, split, mirror) = ("stage: PoolingOnly", "stage: Split", "stage: Mirror");
    for (asked, in_effect, to, expected) in [
        (mirror, mirror, None, r#"{"stage":"Split"}"#),
        (mirror, split, None, r#"{"stage":"PoolingOnly"}"#),
        (split, split, None, r#"{"stage":"PoolingOnly"}"#),
        (split, nothing, None, r#"{"stage":"PoolingOnly"}"#),
        (mirror, split, Some(Stage::Split), r#"{"stage":"Split"}"#),
        // The edit of before has not come into effect.
        (split, mirror, None, r#"{"stage":"PoolingOnly"}"#),
        (
            nothing,
            split,
            None,
            "pool shop is asked to be at PoolingOnly already, and there is no stage before it",
        ),
        (split, split, Some(Stage::Split), "pool shop is asked to be at Split already"),
        (
            split,
            split,
            Some(Stage::Mirror),
            "Mirror is after Split, which pool shop is asked to be at: `kubectl pgrp promote shop --to Mirror` goes there",
        ),
    ] {
        let pool = pool(asked, true, in_effect, "Soaking");
        assert_eq!(outcome(rollback(&pool, to)), expected, "{asked} {in_effect} {to:?}");
    }
}

#[test]
fn what_is_done_is_said() {
    let waiting = pool(
        "stage: Split, mode: StepApproval, approvedStep: 2",
        true,
        "stage: Split, step: 2, stepCount: 5",
        "AwaitingApproval",
    );
    let said = |decision: Decision| decision.unwrap().text;
    assert_eq!(said(promote(&waiting, Promotion::Next)), "pool shop: step 3 of 5 is approved");
    assert_eq!(
        said(rollback(&waiting, None)),
        "pool shop: stage PoolingOnly is asked for, it was Split; Split ends at once; steps up to 2 stay approved \
         (spec.rollout.approvedStep)"
    );
    let fresh = pool("", false, "stage: PoolingOnly", "StageReached");
    assert_eq!(
        said(promote(&fresh, Promotion::Next)),
        "pool shop: stage Split is asked for, it was PoolingOnly; it goes there step by step while the gates pass"
    );
    let held = pool("stage: Split, attempt: 2", false, HOLD, "LatencyP99");
    assert_eq!(
        said(promote(&held, Promotion::Retry)),
        "pool shop: tries again to go to Split (spec.rollout.attempt 3); gate latencyP99 has to pass this time"
    );
}

#[test]
fn patch_has_exactly_the_field_and_the_version() {
    let pool = pool("", false, "stage: PoolingOnly", "StageReached");
    let change = promote(&pool, Promotion::Next).unwrap();
    assert_eq!(
        change.fields.patch(&pool),
        json!({"metadata": {"resourceVersion": "7"}, "spec": {"rollout": {"stage": "Split"}}})
    );
}

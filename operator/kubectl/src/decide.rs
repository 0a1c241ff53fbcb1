//! What `promote` and `rollback` change in a pool's spec, or why they change nothing; pure.

use kube::ResourceExt as _;
use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::spec::rollout::RolloutMode;
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::{Hold, RolloutStatus};
use serde::Serialize;
use serde_json::json;

/// What is asked for with `promote`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promotion {
    /// Whatever comes next.
    Next,
    /// This stage.
    To(Stage),
    /// The same again.
    Retry,
}

/// A change of a spec, and what to say of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The fields of spec.rollout.
    pub fields: Fields,
    /// What it does.
    pub text: String,
}

/// The fields of spec.rollout that are written; others stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fields {
    /// The stage to reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// The last step that may begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_step: Option<i32>,
    /// Which attempt it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
}

impl Fields {
    /// The merge patch, which fails where the pool is another one by now.
    #[must_use]
    pub fn patch(&self, pool: &PgRoutingPool) -> serde_json::Value {
        json!({
            "metadata": {"resourceVersion": pool.resource_version()},
            "spec": {"rollout": self},
        })
    }
}

/// The change, or the sentence that says why there is none.
pub type Decision = Result<Change, String>;

/// What `promote` changes.
///
/// # Errors
/// Why it changes nothing.
pub fn promote(pool: &PgRoutingPool, promotion: Promotion) -> Decision {
    let name = pool.name_any();
    match (hold(pool), promotion) {
        (Some(hold), Promotion::Retry) => return retry(pool, hold),
        (None, Promotion::Retry) => {
            return Err(format!("pool {name} is not held, so that there is nothing to try again"));
        }
        (Some(hold), Promotion::Next | Promotion::To(_)) => {
            // The message has the remedy in it.
            let gate = &hold.gate;
            return Err(format!(
                "pool {name} is held since gate {gate} failed: {}. When that is done, `kubectl pgrp promote {name} \
                 --retry` tries again",
                hold.message.trim_end_matches('.')
            ));
        }
        (None, Promotion::Next | Promotion::To(_)) => {}
    }
    match promotion {
        Promotion::To(stage) => raise(pool, stage),
        Promotion::Next | Promotion::Retry => match awaiting_approval(pool) {
            Some(rollout) => approve(pool, rollout),
            None => match pool.spec.rollout.stage {
                Stage::PoolingOnly => raise(pool, Stage::Split),
                Stage::Split => raise(pool, Stage::Mirror),
                Stage::Mirror => Err(format!(
                    "pool {name} is asked to go to Mirror already, and there is no stage after it"
                )),
            },
        },
    }
}

/// What `rollback` changes: to the stage before the one in effect, or before the one asked for where that is earlier.
///
/// # Errors
/// Why it changes nothing.
pub fn rollback(pool: &PgRoutingPool, to: Option<Stage>) -> Decision {
    let name = pool.name_any();
    let asked = pool.spec.rollout.stage;
    let in_effect = rollout(pool).map(|rollout| rollout.stage);
    let to = match (to, in_effect.unwrap_or(asked).min(asked)) {
        (Some(to), _) => to,
        (None, Stage::PoolingOnly | Stage::Split) => Stage::PoolingOnly,
        (None, Stage::Mirror) => Stage::Split,
    };
    if to == asked {
        let before = if to == Stage::PoolingOnly { ", and there is no stage before it" } else { "" };
        return Err(format!("pool {name} is asked to be at {} already{before}", to.as_str()));
    }
    if to > asked {
        return Err(format!(
            "{} is after {}, which pool {name} is asked to be at: `kubectl pgrp promote {name} --to {}` goes there",
            to.as_str(),
            asked.as_str(),
            to.as_str()
        ));
    }
    let effect = match in_effect {
        Some(stage) if stage > to => format!("{} ends at once", stage.as_str()),
        Some(_) | None => "no further step begins".to_owned(),
    };
    let spec = &pool.spec.rollout;
    let approved = match (spec.mode, spec.approved_step) {
        (RolloutMode::StepApproval, Some(step)) if step > 0 => {
            format!("; steps up to {step} stay approved (spec.rollout.approvedStep)")
        }
        _ => String::new(),
    };
    Ok(Change {
        fields: Fields { stage: Some(to), ..Fields::default() },
        text: format!(
            "pool {name}: stage {} is asked for, it was {}; {effect}{approved}",
            to.as_str(),
            asked.as_str()
        ),
    })
}

fn raise(pool: &PgRoutingPool, to: Stage) -> Decision {
    let name = pool.name_any();
    let asked = pool.spec.rollout.stage;
    if to == asked {
        return Err(format!("pool {name} is asked to go to {} already", to.as_str()));
    }
    if to < asked {
        return Err(format!(
            "{} is before {}, which pool {name} is asked to go to: `kubectl pgrp rollback {name} --to {}` goes back",
            to.as_str(),
            asked.as_str(),
            to.as_str()
        ));
    }
    if to == Stage::Mirror && pool.spec.mirror.is_none() {
        return Err(format!(
            "stage Mirror needs spec.mirror, which pool {name} does not have: name the other database there first"
        ));
    }
    let how = match pool.spec.rollout.mode {
        RolloutMode::Automatic => "it goes there step by step while the gates pass",
        RolloutMode::StepApproval => "it goes there step by step, each of which has to be approved",
        RolloutMode::Paused => "nothing moves until spec.rollout.mode is no longer Paused",
        RolloutMode::Immediate => "it goes there at once, since spec.rollout.mode is Immediate",
    };
    Ok(Change {
        fields: Fields { stage: Some(to), ..Fields::default() },
        text: format!("pool {name}: stage {} is asked for, it was {}; {how}", to.as_str(), asked.as_str()),
    })
}

fn approve(pool: &PgRoutingPool, rollout: &RolloutStatus) -> Decision {
    let name = pool.name_any();
    let next = rollout.step.saturating_add(1);
    if pool.spec.rollout.approved_step.is_some_and(|approved| approved >= next) {
        return Err(format!(
            "step {next} of pool {name} is approved already, and the operator has not come to it yet"
        ));
    }
    Ok(Change {
        fields: Fields { approved_step: Some(next), ..Fields::default() },
        text: format!("pool {name}: step {next} of {} is approved", rollout.step_count),
    })
}

fn retry(pool: &PgRoutingPool, hold: &Hold) -> Decision {
    let name = pool.name_any();
    let Some(attempt) = pool.spec.rollout.attempt.checked_add(1) else {
        return Err(format!("spec.rollout.attempt of pool {name} cannot grow any more: set it to 0"));
    };
    Ok(Change {
        fields: Fields { attempt: Some(attempt), ..Fields::default() },
        text: format!(
            "pool {name}: tries again to go to {} (spec.rollout.attempt {attempt}); gate {} has to pass this time",
            pool.spec.rollout.stage.as_str(),
            hold.gate
        ),
    })
}

fn rollout(pool: &PgRoutingPool) -> Option<&RolloutStatus> {
    pool.status.as_ref()?.rollout.as_ref()
}

/// Why the pool stays where it is. What a later edit of stage or attempt is about to lift counts no more.
fn hold(pool: &PgRoutingPool) -> Option<&Hold> {
    let spec = &pool.spec.rollout;
    rollout(pool)?
        .hold
        .as_ref()
        .filter(|hold| hold.target_stage == spec.stage && hold.observed_attempt == spec.attempt)
}

/// The rollout, where it waits for somebody to approve of its next step.
fn awaiting_approval(pool: &PgRoutingPool) -> Option<&RolloutStatus> {
    if pool.spec.rollout.mode != RolloutMode::StepApproval {
        return None;
    }
    let status = pool.status.as_ref()?;
    let progressing = status.conditions.iter().find(|condition| condition.kind == "Progressing")?;
    status.rollout.as_ref().filter(|_| progressing.reason == "AwaitingApproval")
}

#[cfg(test)]
mod tests;

//! How far the pool may go, and how it gets there.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::PoolDuration;
use crate::spec::gates::Gates;
use crate::stage::Stage;

/// How far the pool may go, and how it gets there. Forward step by step, each of them gated; backward at once.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[x_kube(validation = Rule::new("self.mode != 'StepApproval' || has(self.approvedStep)")
    .message("mode StepApproval needs approvedStep").field_path(".approvedStep"))]
#[x_kube(validation = Rule::new("duration(self.evaluationPeriod) >= duration('5s')")
    .message("evaluationPeriod must be at least 5s").field_path(".evaluationPeriod"))]
#[x_kube(validation = Rule::new("self.splitSteps.map(step, step.percent).isSorted()")
    .message("splitSteps must be in the order of percent").field_path(".splitSteps"))]
#[x_kube(validation = Rule::new("self.mirrorSteps.map(step, step.percent).isSorted()")
    .message("mirrorSteps must be in the order of percent").field_path(".mirrorSteps"))]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// The stage to reach. A later one is walked to in steps; an earlier one is in effect at once.
    #[serde(default)]
    pub stage: Stage,
    /// Who says when the next step begins.
    #[serde(default)]
    pub mode: RolloutMode,
    /// With mode StepApproval: the last step that may begin. Steps are counted from 1 over the whole walk, first those
    /// of Split, then those of Mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 40))]
    pub approved_step: Option<i32>,
    /// Any change of it means: try again now.
    #[serde(default)]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub attempt: i32,
    /// What happens when a gate fails.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// With onFailure Rollback: where to.
    #[serde(default)]
    pub rollback_to: RollbackTo,
    /// The shortest time over which the gates are judged.
    #[serde(default = "default_evaluation_period")]
    pub evaluation_period: PoolDuration,
    /// How many times in a row a gate has to fail.
    #[serde(default = "default_failure_threshold")]
    #[schemars(range(min = 1, max = 100))]
    pub failure_threshold: i32,
    /// How many transactions each of two compared groups must have; the time over which the gates are judged grows until
    /// it has them. With 0 any number will do, none too.
    #[serde(default = "default_min_samples")]
    #[schemars(range(min = 0, max = 100_000_000))]
    pub min_samples: i32,
    /// How long a step may wait for figures before a person is called.
    #[serde(default = "default_progress_deadline")]
    pub progress_deadline: PoolDuration,
    /// The steps of the stage Split.
    #[serde(default = "default_split_steps")]
    #[schemars(length(min = 1, max = 20))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["percent".into()]))]
    pub split_steps: Vec<Step>,
    /// The steps of the stage Mirror.
    #[serde(default = "default_mirror_steps")]
    #[schemars(length(min = 1, max = 20))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["percent".into()]))]
    pub mirror_steps: Vec<Step>,
    /// The pools that this one takes turns with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<Wave>,
    /// What is looked at before the next step.
    #[serde(default)]
    pub gates: Gates,
}

/// Who says when the next step begins.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RolloutMode {
    /// The gates and the time.
    #[default]
    Automatic,
    /// They, and approvedStep.
    StepApproval,
    /// Nobody: the pool stays where it is. Gates are judged, and what fails is rolled back.
    Paused,
    /// Nobody is asked: the pool goes to the end of its stage at once. For tests and emergencies.
    Immediate,
}

/// What happens when a gate fails.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The pool goes back, and stays there until stage or attempt is changed.
    #[default]
    Rollback,
    /// The pool stays at its share until stage or attempt is changed.
    Hold,
}

/// Where a rollback goes.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RollbackTo {
    /// To the stage before: from Mirror to Split, from Split to PoolingOnly.
    #[default]
    PreviousStage,
    /// To the step before.
    PreviousStep,
}

/// One step: a share of the traffic, and how long it has to go well.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The share, in percent.
    #[schemars(with = "i32", range(min = 1, max = 100))]
    pub percent: u8,
    /// How long all gates have to pass at it.
    pub soak: PoolDuration,
}

/// The pools of a namespace that move one at a time.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Wave {
    /// Their common name.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub group: String,
    /// The place of this pool in the order. Where it is absent, and among pools of the same place, the one with the least
    /// traffic comes first; pools without a place come after all that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub order: Option<i32>,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            stage: Stage::PoolingOnly,
            mode: RolloutMode::Automatic,
            approved_step: None,
            attempt: 0,
            on_failure: OnFailure::Rollback,
            rollback_to: RollbackTo::PreviousStage,
            evaluation_period: default_evaluation_period(),
            failure_threshold: default_failure_threshold(),
            min_samples: default_min_samples(),
            progress_deadline: default_progress_deadline(),
            split_steps: default_split_steps(),
            mirror_steps: default_mirror_steps(),
            wave: None,
            gates: Gates::default(),
        }
    }
}

const fn default_evaluation_period() -> PoolDuration {
    PoolDuration::from_secs(15)
}

const fn default_failure_threshold() -> i32 {
    3
}

const fn default_min_samples() -> i32 {
    1000
}

const fn default_progress_deadline() -> PoolDuration {
    PoolDuration::from_secs(24 * 3600)
}

fn steps(steps: &[(u8, u64)]) -> Vec<Step> {
    let step = |(percent, minutes): &(u8, u64)| Step {
        percent: *percent,
        soak: PoolDuration::from_secs(minutes * 60),
    };
    steps.iter().map(step).collect()
}

fn default_split_steps() -> Vec<Step> {
    steps(&[(1, 10), (5, 10), (25, 30), (50, 60), (100, 24 * 60)])
}

fn default_mirror_steps() -> Vec<Step> {
    steps(&[(1, 10), (10, 10), (50, 30), (100, 24 * 60)])
}

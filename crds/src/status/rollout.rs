//! How far the pool has come, why it is there, and what it waits for. All that the operator knows of a rollout: another
//! operator, or the same one after a restart, goes on from here.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::PoolDuration;
use crate::stage::Stage;
use crate::time::time_schema;

/// How far the pool has come.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// The stage that is decided on. Condition ConfigApplied says whether every proxy runs it.
    pub stage: Stage,
    /// The stage that the spec asks for.
    #[serde(default)]
    pub target_stage: Stage,
    /// The stage that is being walked to, or through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_to: Option<Stage>,
    /// How many times a move has been tried.
    #[serde(default)]
    pub attempt: i32,
    /// The spec's attempt that it is about.
    #[serde(default)]
    pub observed_attempt: i32,
    /// The step in effect, from 1 over the steps of Split and then those of Mirror; 0 before the first.
    #[serde(default)]
    pub step: i32,
    /// The steps to the end of the stage that the spec asks for.
    #[serde(default)]
    pub step_count: i32,
    /// Both, as `3/5`.
    #[serde(default)]
    pub step_summary: String,
    /// Which steps there are, as the first digits of a hash.
    #[serde(default)]
    pub steps_hash: String,
    /// Which gates with which limits there are, as the first digits of a hash.
    #[serde(default)]
    pub gate_policy_hash: String,
    /// The gates that the operator knew of when the attempt began. What a newer one has beside them is only shown until the
    /// attempt is over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub known_gates: Vec<String>,
    /// The share of sessions or transactions whose reads go to replicas, in percent.
    #[serde(default)]
    pub split_percent: i32,
    /// The share of sessions whose transactions are copied, in percent.
    #[serde(default)]
    pub mirror_percent: i32,
    /// When the step began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub step_started_at: Option<Time>,
    /// When it has gone well for long enough, if it goes on so; absent while it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub soak_until: Option<Time>,
    /// How much longer it has to go well, while it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_left: Option<PoolDuration>,
    /// What is looked at, in the order of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub gates: Vec<GateStatus>,
    /// What reads on the primary were like, taken before all of them were split; what later steps are compared to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
    /// What transactions that are not copied were like, taken before all of them were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_baseline: Option<Baseline>,
    /// At the stage PoolingOnly: what the split would do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
    /// The place among the pools that it takes turns with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<WaveStatus>,
    /// Why it stays where it is until stage or attempt is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// The last time that the operator went back by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_rollback: Option<Rollback>,
    /// The last moves, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub history: Vec<Move>,
}

impl RolloutStatus {
    /// Whether a step is under way: its time passes, or stands still.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        self.soak_until.is_some() || self.soak_left.is_some()
    }
}

/// What is looked at, and what came of it.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GateStatus {
    /// Its name in the spec; `external/` and the name for a figure of a Prometheus.
    pub name: String,
    /// What came of it.
    pub verdict: GateVerdict,
    /// What was measured, with its unit; it is refreshed once a minute at most while the verdict stays.
    #[serde(default)]
    pub value: String,
    /// What is allowed.
    #[serde(default)]
    pub limit: String,
    /// How many were measured.
    #[serde(default)]
    pub samples: i64,
    /// How many times in a row it has failed.
    #[serde(default)]
    pub consecutive_failures: i32,
    /// When the verdict last changed.
    #[schemars(schema_with = "time_schema")]
    pub last_transition_time: Time,
}

/// What came of a gate.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GateVerdict {
    /// It lets the rollout go on.
    Pass,
    /// It does not.
    Fail,
    /// There are not enough figures, which holds the rollout.
    NoData,
    /// The figures could not be had, which holds the rollout.
    Error,
    /// It would not let it go on if it were enforced.
    DryRunFail,
}

impl GateVerdict {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pass, Self::Fail, Self::NoData, Self::Error, Self::DryRunFail];

    /// The word as it stands in the status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "Pass",
            Self::Fail => "Fail",
            Self::NoData => "NoData",
            Self::Error => "Error",
            Self::DryRunFail => "DryRunFail",
        }
    }
}

/// What a later step is compared to, where no group is left to compare with.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Baseline {
    /// When it was taken.
    #[schemars(schema_with = "time_schema")]
    pub captured_at: Time,
    /// Errors in a million transactions.
    pub errors_per_million: i64,
    /// The time that 99 of 100 took at most, in microseconds.
    #[serde(rename = "latencyP99Micros")]
    pub latency_p99_micros: i64,
    /// Transactions in a second.
    pub queries_per_second: i64,
}

/// What the split would do.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// Transactions that would go to replicas, in percent.
    pub read_share_percent: i32,
    /// Those of which nobody knows what they are, in percent.
    pub unknown_share_percent: i32,
    /// Reads that would go to the primary since their session has just written, in percent of reads.
    pub stale_share_percent: i32,
    /// Why the others would stay on the primary, the most frequent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub top_reasons: Vec<String>,
    /// How many transactions were looked at.
    pub samples: i64,
    /// When that was. The figures are renewed once in ten minutes at most.
    #[schemars(schema_with = "time_schema")]
    pub taken_at: Time,
}

/// The place of a pool among those that it takes turns with.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WaveStatus {
    /// Their common name.
    pub group: String,
    /// Its place, from 1.
    pub rank: i32,
    /// How many of them have somewhere to go.
    pub of: i32,
    /// The most transactions in a second in the hour before its move was asked for, which decides on its place.
    pub frozen_qps: i64,
    /// The pool that has to be there first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
}

/// Why a pool stays where it is.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// The gate that failed.
    pub gate: String,
    /// The stage that the spec asked for then.
    pub target_stage: Stage,
    /// The spec's attempt then.
    pub observed_attempt: i32,
    /// Whether it went back.
    pub rolled_back: bool,
    /// Since when.
    #[schemars(schema_with = "time_schema")]
    pub since: Time,
    /// What happened, and what to do.
    #[schemars(length(max = 2048))]
    pub message: String,
}

/// A move back that nobody asked for.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Rollback {
    /// When.
    #[schemars(schema_with = "time_schema")]
    pub time: Time,
    /// From where, as `Split 5 %`.
    pub from: String,
    /// To where.
    pub to: String,
    /// The gate that failed.
    pub gate: String,
    /// Which attempt it was.
    pub attempt: i32,
    /// What happened, with figures.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// What to do.
    #[schemars(length(max = 1024))]
    pub remedy: String,
}

/// One move.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Move {
    /// When.
    #[schemars(schema_with = "time_schema")]
    pub time: Time,
    /// From where, as `Split 5 %`.
    pub from: String,
    /// To where.
    pub to: String,
    /// Why, in a word: StepAdvanced, SpecEdit, Immediate, or the gate that failed.
    pub reason: String,
    /// Who: `spec edit` or `controller`.
    pub actor: String,
}

//! What is looked at before a rollout goes on.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::PoolDuration;

/// The names of the gates that every pool has. A gate that a later version adds goes to the end.
pub const GATES: [&str; 12] = [
    "clientErrors",
    "latencyP99",
    "misroutedWrites",
    "rescuedStatements",
    "replicaLag",
    "healthyReplicas",
    "primaryConnections",
    "poolWaitP99",
    "mirrorDivergence",
    "mirrorDrops",
    "mirrorImpact",
    "proxies",
];

/// What is looked at before the next step. Each gate passes, fails, or has no figures yet, which holds the step.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Gates {
    /// Errors that clients get: those whose reads are split (at stage Mirror: whose traffic is copied) against the others.
    #[serde(default)]
    pub client_errors: ClientErrorsGate,
    /// The time that 99 of 100 reads take at most: those that are split against those that are not. At stage Split.
    #[serde(default, rename = "latencyP99")]
    pub latency_p99: LatencyGate,
    /// Statements that a replica refused, and the client was told so.
    #[serde(default)]
    pub misrouted_writes: MisroutedGate,
    /// Statements that a replica refused or cancelled and that ran on the primary instead. At stage Split.
    #[serde(default)]
    pub rescued_statements: RescuedGate,
    /// How far the replicas that take reads are behind. At stage Split.
    #[serde(default)]
    pub replica_lag: LagGate,
    /// How many replicas take reads. At stage Split.
    #[serde(default)]
    pub healthy_replicas: ReplicasGate,
    /// How much of maxServerConnections is in use on the primary.
    #[serde(default)]
    pub primary_connections: ConnectionsGate,
    /// The time that 99 of 100 transactions wait for a server connection at most.
    #[serde(default, rename = "poolWaitP99")]
    pub pool_wait_p99: WaitGate,
    /// Answers of the mirror that differ in error or number of rows. At stage Mirror.
    #[serde(default)]
    pub mirror_divergence: DivergenceGate,
    /// Transactions that were to be copied and were not. More than that hold the step, since the rest does not show enough.
    /// At stage Mirror.
    #[serde(default)]
    pub mirror_drops: DropsGate,
    /// The time that 99 of 100 transactions take at most: of sessions that are copied against others. At stage Mirror.
    #[serde(default)]
    pub mirror_impact: ImpactGate,
    /// Figures of a Prometheus, such as the CPU of the primary. The operator must have been told where that is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub external: Vec<ExternalGate>,
}

/// What a gate does.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GateMode {
    /// It holds the rollout, and fails it.
    #[default]
    Enforce,
    /// It is judged and shown.
    DryRun,
    /// It is not judged.
    Disabled,
}

/// Errors that clients get.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ClientErrorsGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// The most errors in a million transactions over those of the other group.
    #[serde(default = "default_errors")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_increase_per_million: i32,
}

/// The time that reads take.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LatencyGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// How much longer they may take, in percent.
    #[serde(default = "default_latency_percent")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_increase_percent: i32,
    /// And how much longer in time: a gate fails where both are exceeded.
    #[serde(default = "default_latency_floor")]
    pub floor: PoolDuration,
}

/// Statements that a replica refused.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MisroutedGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// The most of them while the gates are judged once. One time is enough to fail.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_total: i32,
}

/// Statements that ran on the primary instead.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RescuedGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// The most of them in a million reads that are split.
    #[serde(default = "default_rescued")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_per_million: i32,
}

/// How far the replicas are behind.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LagGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// The largest lag of a replica that takes reads.
    #[serde(default = "default_lag")]
    pub max: PoolDuration,
}

/// How many replicas take reads.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReplicasGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// The least number.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 64))]
    pub min: i32,
}

/// How much of the connections to the primary is in use.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionsGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// The largest share in use, in percent.
    #[serde(default = "default_connections")]
    #[schemars(range(min = 1, max = 100))]
    pub max_percent: i32,
}

/// How long transactions wait for a connection.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WaitGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// The longest wait of 99 in 100.
    #[serde(default = "default_wait")]
    pub max: PoolDuration,
}

/// Answers of the mirror that differ.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DivergenceGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// The most of them in a million that were compared.
    #[serde(default = "default_divergence")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_per_million: i32,
}

/// Transactions that were not copied.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DropsGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// The largest share of those that were to be copied, in percent.
    #[serde(default = "default_drops")]
    #[schemars(range(min = 0, max = 100))]
    pub max_percent: i32,
}

/// The time that transactions take while they are copied.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ImpactGate {
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// How much longer they may take, in percent.
    #[serde(default = "default_impact_percent")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_increase_percent: i32,
    /// And how much longer in time: the gate fails where both are exceeded.
    #[serde(default = "default_impact_floor")]
    pub floor: PoolDuration,
}

/// A figure of a Prometheus.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[x_kube(validation = Rule::new("has(self.max) || has(self.min)").message("give max, min or both"))]
#[serde(rename_all = "camelCase")]
pub struct ExternalGate {
    /// The name of the gate.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// What the gate does.
    #[serde(default)]
    pub mode: GateMode,
    /// An instant query of PromQL whose answer is one number. No number, or more than one, is no figure.
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,
    /// The largest number that passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^-?[0-9]+(\.[0-9]+)?$"))]
    pub max: Option<String>,
    /// The smallest number that passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^-?[0-9]+(\.[0-9]+)?$"))]
    pub min: Option<String>,
}

impl Default for ClientErrorsGate {
    fn default() -> Self {
        Self { mode: GateMode::Enforce, max_increase_per_million: default_errors() }
    }
}

impl Default for LatencyGate {
    fn default() -> Self {
        Self {
            mode: GateMode::Enforce,
            max_increase_percent: default_latency_percent(),
            floor: default_latency_floor(),
        }
    }
}

impl Default for RescuedGate {
    fn default() -> Self {
        Self { mode: GateMode::Enforce, max_per_million: default_rescued() }
    }
}

impl Default for LagGate {
    fn default() -> Self {
        Self { mode: GateMode::Enforce, max: default_lag() }
    }
}

impl Default for ReplicasGate {
    fn default() -> Self {
        Self { mode: GateMode::Enforce, min: default_replicas() }
    }
}

impl Default for ConnectionsGate {
    fn default() -> Self {
        Self { mode: GateMode::Enforce, max_percent: default_connections() }
    }
}

impl Default for WaitGate {
    fn default() -> Self {
        Self { mode: GateMode::Enforce, max: default_wait() }
    }
}

impl Default for DivergenceGate {
    fn default() -> Self {
        Self { mode: GateMode::Enforce, max_per_million: default_divergence() }
    }
}

impl Default for DropsGate {
    fn default() -> Self {
        Self { mode: GateMode::Enforce, max_percent: default_drops() }
    }
}

impl Default for ImpactGate {
    fn default() -> Self {
        Self {
            mode: GateMode::Enforce,
            max_increase_percent: default_impact_percent(),
            floor: default_impact_floor(),
        }
    }
}

const fn default_errors() -> i32 {
    500
}

const fn default_latency_percent() -> i32 {
    20
}

const fn default_latency_floor() -> PoolDuration {
    PoolDuration::from_millis(5)
}

const fn default_rescued() -> i32 {
    1000
}

const fn default_lag() -> PoolDuration {
    PoolDuration::from_secs(10)
}

const fn default_replicas() -> i32 {
    1
}

const fn default_connections() -> i32 {
    85
}

const fn default_wait() -> PoolDuration {
    PoolDuration::from_millis(50)
}

const fn default_divergence() -> i32 {
    100
}

const fn default_drops() -> i32 {
    5
}

const fn default_impact_percent() -> i32 {
    5
}

const fn default_impact_floor() -> PoolDuration {
    PoolDuration::from_millis(1)
}

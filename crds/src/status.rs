//! What the operator says of a pool: counts, names, and conditions that a person can act on.
//!
//! No figure here changes while nothing happens (no lag, no countdown), or an idle pool would be written for ever.

#![expect(unreachable_pub, reason = "KubeSchema repeats each struct inside a function")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::rollout::RolloutStatus;
use crate::time::time_schema;

pub mod rollout;

/// The status of a pool.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PgRoutingPoolStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Proxy pods there are.
    #[serde(default)]
    pub replicas: i32,
    /// Proxy pods that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// The label selector of the pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// What is true of the pool.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<PoolCondition>,
    /// The config document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigStatus>,
    /// The proxies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxies: Option<ProxiesStatus>,
    /// The PostgreSQL servers as the proxies see them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends: Option<BackendsStatus>,
    /// How far the pool has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// What comes of the copied traffic; absent without spec.mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorStatus>,
}

/// One condition.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PoolCondition {
    /// What it is about.
    #[serde(rename = "type")]
    #[schemars(length(max = 316))]
    pub kind: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// The generation of the spec that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Why, in one CamelCase word out of a closed list.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
    /// What, with figures, and the next step.
    #[schemars(length(max = 32768))]
    pub message: String,
    /// When `status` last changed.
    #[schemars(schema_with = "time_schema")]
    pub last_transition_time: Time,
}

/// Whether a condition holds.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody can tell now.
    Unknown,
}

impl ConditionStatus {
    /// The word as it stands in the condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The config document.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigStatus {
    /// Its SHA-256.
    pub hash: String,
    /// The first eight digits of it.
    pub short_hash: String,
    /// Its number.
    pub generation: i64,
    /// Pods that run it.
    pub pods_applied: i32,
    /// Pods that should.
    pub pods_total: i32,
    /// When it was first rendered.
    #[schemars(schema_with = "time_schema")]
    pub rendered_at: Time,
}

/// The proxies.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProxiesStatus {
    /// Ready and wanted, as `4/4`.
    pub summary: String,
    /// The image that is asked for.
    pub image: String,
    /// Pods that do not run the document, at most ten of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["pod".into()]))]
    pub out_of_sync: Vec<OutOfSyncPod>,
}

/// A pod that does not run the document.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OutOfSyncPod {
    /// Its name.
    pub pod: String,
    /// The hash of the document that it runs, when it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_hash: Option<String>,
    /// Why, in one word.
    pub reason: String,
    /// Why, for a person.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Since when.
    #[schemars(schema_with = "time_schema")]
    pub since: Time,
}

/// The PostgreSQL servers as the proxies see them.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BackendsStatus {
    /// Replicas that are up, and replicas there are, as `2/3`.
    pub replicas_summary: String,
    /// The server that is the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// The timeline of the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<i64>,
    /// All of them.
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub servers: Vec<ServerStatus>,
}

/// One PostgreSQL server.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// `host:port`.
    pub address: String,
    /// What it is.
    pub role: ServerRole,
    /// Whether it is in use.
    pub state: ServerState,
    /// Why it is not up, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
    /// Since when role and state have been so.
    #[schemars(schema_with = "time_schema")]
    pub since: Time,
}

/// What a server is in its replication set.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServerRole {
    /// It takes writes.
    Primary,
    /// It follows a primary.
    Replica,
    /// The proxies do not know or do not agree.
    Unknown,
}

/// Whether a server is in use.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServerState {
    /// It answers.
    Up,
    /// It does not answer, or nobody has asked it yet.
    Down,
    /// It is a replica that takes no reads because it is too far behind.
    Lagging,
    /// It is a replica that takes no reads for another reason.
    Ejected,
    /// It says that it is the primary, and another server is.
    Fenced,
}

/// What comes of the copied traffic. Each figure is the sum of what the proxies that are there have counted since they
/// started or the mirror was changed.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MirrorStatus {
    /// Where it goes, as `host:port`.
    pub target: String,
    /// Whether it is sent: the worst that a proxy says.
    pub state: MirrorState,
    /// Transactions of sessions that are copied.
    #[serde(default)]
    pub offered: i64,
    /// Those that were run there to their end.
    #[serde(default)]
    pub mirrored: i64,
    /// Those that were to be run there and were not.
    #[serde(default)]
    pub dropped: i64,
    /// Those that are not of the kind that is copied.
    #[serde(default)]
    pub skipped: i64,
    /// Requests whose two answers were compared.
    #[serde(default)]
    pub compared: i64,
    /// Those whose answers differ in more than the order of rows.
    #[serde(default)]
    pub differing: i64,
    /// Errors there that were none here.
    #[serde(default)]
    pub errors: i64,
    /// The time that compared requests took here, in microseconds.
    #[serde(default)]
    pub source_micros: i64,
    /// The time that they took there.
    #[serde(default)]
    pub mirror_micros: i64,
    /// With statements All: since when rows there may differ because a transaction was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub diverged_since: Option<Time>,
    /// The last failure to run a transaction there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// When the figures were taken. It stays while they do, and they are taken twice a minute at most.
    #[schemars(schema_with = "time_schema")]
    pub taken_at: Time,
}

/// Whether copied traffic is sent.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MirrorState {
    /// By every proxy.
    Running,
    /// By some proxy not, since the stage or the share says no.
    Inactive,
    /// By some proxy not, since the other database failed too often.
    Broken,
}

impl MirrorState {
    /// The word as it stands in the status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Inactive => "Inactive",
            Self::Broken => "Broken",
        }
    }
}

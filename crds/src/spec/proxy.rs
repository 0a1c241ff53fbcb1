//! The proxies' pods.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::duration::PoolDuration;

/// The proxies' pods.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Proxy {
    /// How many there are; leave it out when an autoscaler owns it.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 200))]
    pub replicas: i32,
    /// Their image; the operator's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,
    /// What becomes of pods that run the operator's default image when that changes.
    #[serde(default)]
    pub image_updates: ImageUpdates,
    /// When the image is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Secrets for the registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 253)))]
    pub image_pull_secrets: Vec<String>,
    /// Requests and limits of the container, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "untyped_schema")]
    pub resources: Option<serde_json::Value>,
    /// How long clients have to reach a transaction boundary when a pod stops.
    #[serde(default = "default_drain_timeout")]
    pub drain_timeout: PoolDuration,
    /// A partial pod template that is merged under the operator's own fields; the container's name is `proxy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "untyped_schema")]
    pub pod_template: Option<serde_json::Value>,
    /// Protection against evictions.
    #[serde(default)]
    pub disruption: Disruption,
    /// The pods' ServiceAccount; absent, one without a token is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_account_name: Option<String>,
}

/// What becomes of pods that run the operator's default image when that changes.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageUpdates {
    /// They are replaced, one pool at a time.
    #[default]
    Automatic,
    /// They stay as they are, and the status says that there is another image.
    Manual,
}

/// When an image is pulled.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImagePullPolicy {
    /// At each start.
    Always,
    /// When it is not there.
    IfNotPresent,
    /// Never.
    Never,
}

impl ImagePullPolicy {
    /// The name as it stands in a pod.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Protection against evictions.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// Whether there is a PodDisruptionBudget.
    #[serde(default)]
    pub budget: DisruptionBudget,
    /// The most pods that may be evicted at once.
    #[serde(default = "default_max_unavailable")]
    #[schemars(range(min = 1, max = 100))]
    pub max_unavailable: i32,
}

/// Whether there is a PodDisruptionBudget.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DisruptionBudget {
    /// The operator keeps one.
    #[default]
    Managed,
    /// There is none.
    None,
}

impl Default for Proxy {
    fn default() -> Self {
        Self {
            replicas: default_replicas(),
            image: None,
            image_updates: ImageUpdates::Automatic,
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            resources: None,
            drain_timeout: default_drain_timeout(),
            pod_template: None,
            disruption: Disruption::default(),
            service_account_name: None,
        }
    }
}

impl Default for Disruption {
    fn default() -> Self {
        Self { budget: DisruptionBudget::Managed, max_unavailable: default_max_unavailable() }
    }
}

fn untyped_schema(_: &mut SchemaGenerator) -> Schema {
    // A typed PodTemplateSpec would make the definition larger than `kubectl apply` can annotate.
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

const fn default_replicas() -> i32 {
    2
}

const fn default_drain_timeout() -> PoolDuration {
    PoolDuration::from_secs(60)
}

const fn default_max_unavailable() -> i32 {
    1
}

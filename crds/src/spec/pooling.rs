//! How connections are shared.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::duration::PoolDuration;

/// How connections are shared.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.queryTimeout) || duration(self.queryTimeout) >= duration('100ms')")
    .message("queryTimeout must be at least 100ms; leave it out for none").field_path(".queryTimeout"))]
#[x_kube(validation = Rule::new("!has(self.transactionTimeout) || duration(self.transactionTimeout) >= duration('100ms')")
    .message("transactionTimeout must be at least 100ms; leave it out for none").field_path(".transactionTimeout"))]
#[x_kube(validation = Rule::new("!has(self.idleTransactionTimeout) || duration(self.idleTransactionTimeout) >= duration('100ms')")
    .message("idleTransactionTimeout must be at least 100ms; leave it out for none").field_path(".idleTransactionTimeout"))]
#[x_kube(validation = Rule::new("!has(self.clientIdleTimeout) || duration(self.clientIdleTimeout) >= duration('100ms')")
    .message("clientIdleTimeout must be at least 100ms; leave it out for none").field_path(".clientIdleTimeout"))]
pub struct Pooling {
    /// When a server connection goes back to the pool.
    #[serde(default)]
    pub mode: PoolMode,
    /// What becomes of a client, in transaction mode, that does what keeps it on its server connection (temporary
    /// tables, LISTEN, session-level advisory locks and the like).
    #[serde(default)]
    pub pin_policy: PinPolicy,
    /// The most connections to each server, over the whole fleet; it is divided by the number of proxies.
    #[serde(default = "default_max_server_connections")]
    #[schemars(with = "i32", range(min = 1, max = 10_000))]
    pub max_server_connections: u32,
    /// The most clients of each proxy.
    #[serde(default = "default_max_client_connections")]
    #[schemars(with = "i32", range(min = 1, max = 1_000_000))]
    pub max_client_connections_per_proxy: u32,
    /// The most clients of one user at each proxy; as many as there may be at all where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 1_000_000))]
    pub max_client_connections_per_user: Option<u32>,
    /// The most clients of one database at each proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 1_000_000))]
    pub max_client_connections_per_database: Option<u32>,
    /// The most connections of one user to each server, over the whole fleet; it is divided as maxServerConnections is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 10_000))]
    pub max_server_connections_per_user: Option<u32>,
    /// A statement that a server has been running for longer is cancelled there; never where this is absent, as for the next
    /// three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_timeout: Option<PoolDuration>,
    /// A transaction that has been open for longer is rolled back, and its client disconnected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction_timeout: Option<PoolDuration>,
    /// The same for one in which the client has asked for nothing for longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_transaction_timeout: Option<PoolDuration>,
    /// A client that has asked for nothing for longer, outside a transaction, is disconnected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_idle_timeout: Option<PoolDuration>,
    /// A request that takes longer is written to the log of its proxy; none is where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_query_threshold: Option<PoolDuration>,
    /// The longest wait for a server connection.
    #[serde(default = "default_checkout_timeout")]
    pub checkout_timeout: PoolDuration,
    /// A server connection that has been idle for longer is closed.
    #[serde(default = "default_server_idle_timeout")]
    pub server_idle_timeout: PoolDuration,
    /// A server connection that has been open for longer is closed when nobody uses it, by lot up to a fifth earlier; 0s is
    /// never.
    #[serde(default = "default_server_lifetime")]
    pub server_lifetime: PoolDuration,
    /// PostgreSQL settings that every server connection starts with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "settings_schema")]
    pub parameters: BTreeMap<String, String>,
    /// Whether clients are served. While it is Paused, transactions under way end and clients stay connected; what they
    /// send waits.
    #[serde(default)]
    pub traffic: Traffic,
}

/// Whether clients are served.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Traffic {
    /// They are.
    #[default]
    Open,
    /// Transactions under way end; what comes next waits.
    Paused,
}

/// When a server connection goes back to the pool.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolMode {
    /// When the transaction ends.
    #[default]
    Transaction,
    /// When the client leaves.
    Session,
}

/// What becomes of a client whose state cannot move to another connection.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PinPolicy {
    /// It keeps its connection while the state lasts.
    #[default]
    Pin,
    /// The statement is refused.
    Reject,
}

impl Default for Pooling {
    fn default() -> Self {
        Self {
            mode: PoolMode::Transaction,
            pin_policy: PinPolicy::Pin,
            max_server_connections: default_max_server_connections(),
            max_client_connections_per_proxy: default_max_client_connections(),
            max_client_connections_per_user: None,
            max_client_connections_per_database: None,
            max_server_connections_per_user: None,
            query_timeout: None,
            transaction_timeout: None,
            idle_transaction_timeout: None,
            client_idle_timeout: None,
            slow_query_threshold: None,
            checkout_timeout: default_checkout_timeout(),
            server_idle_timeout: default_server_idle_timeout(),
            server_lifetime: default_server_lifetime(),
            parameters: BTreeMap::new(),
            traffic: Traffic::Open,
        }
    }
}

pub(crate) fn settings_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": 1024}
    })
}

const fn default_max_server_connections() -> u32 {
    100
}

const fn default_max_client_connections() -> u32 {
    10_000
}

const fn default_checkout_timeout() -> PoolDuration {
    PoolDuration::from_secs(5)
}

const fn default_server_lifetime() -> PoolDuration {
    PoolDuration::from_secs(3600)
}

const fn default_server_idle_timeout() -> PoolDuration {
    PoolDuration::from_secs(600)
}

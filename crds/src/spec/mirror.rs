//! Another database that gets a copy of the traffic, at the stage Mirror.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::PoolDuration;
use crate::spec::credentials::CredentialsSecret;
use crate::spec::pooling::settings_schema;
use crate::spec::tls::MirrorTls;

/// Another database that gets a copy of the traffic, at the stage Mirror. Clients neither wait for it nor see its answers.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[x_kube(validation = Rule::new("self.queueBytes <= self.budgetBytes")
    .message("queueBytes must be at most budgetBytes").field_path(".queueBytes"))]
#[x_kube(validation = Rule::new("duration(self.transactionTimeout) >= duration('10ms')")
    .message("transactionTimeout must be at least 10ms").field_path(".transactionTimeout"))]
#[serde(rename_all = "camelCase")]
pub struct Mirror {
    /// Where the other database is.
    pub target: MirrorTarget,
    /// Who the proxies log in as there; each client's own role, with what it logged in with, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<CredentialsSecret>,
    /// TLS to the other database.
    #[serde(default)]
    pub tls: MirrorTls,
    /// The share of sessions whose transactions are copied, in percent. With 0 nothing is.
    #[serde(default = "default_max_percent")]
    #[schemars(with = "i32", range(min = 0, max = 100))]
    pub max_percent: u8,
    /// Which transactions are copied, and what becomes of what they write there.
    #[serde(default)]
    pub statements: MirrorStatements,
    /// The most that waits there of one client, in bytes. A transaction that does not fit is left out as a whole.
    #[serde(default = "default_queue_bytes")]
    #[schemars(with = "i64", range(min = 1, max = 17_179_869_184_i64))]
    pub queue_bytes: u64,
    /// The most that waits there of all clients of one proxy, in bytes.
    #[serde(default = "default_budget_bytes")]
    #[schemars(with = "i64", range(min = 1, max = 17_179_869_184_i64))]
    pub budget_bytes: u64,
    /// The most connections to the other database, over the whole fleet; it is divided by the number of proxies, and each
    /// has one at least.
    #[serde(default = "default_max_connections")]
    #[schemars(with = "i32", range(min = 1, max = 10_000))]
    pub max_connections: u32,
    /// The longest that a transaction may wait and run there. One that takes longer is given up with its connection.
    #[serde(default = "default_transaction_timeout")]
    pub transaction_timeout: PoolDuration,
    /// PostgreSQL settings that every connection there starts with, to try them out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "settings_schema")]
    pub parameters: BTreeMap<String, String>,
}

/// Where the other database is.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MirrorTarget {
    /// The host name or address of its server.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
    /// The port.
    #[serde(default = "default_port")]
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
    /// Its name; that of each client's own database when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub database: Option<String>,
}

/// Which transactions are copied, and what becomes of what they write there.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MirrorStatements {
    /// Those that only read; the other database is told to refuse anything else.
    #[default]
    ReadsOnly,
    /// All, and what they write is rolled back there.
    RolledBackWrites,
    /// All, as they are: what they write stays there.
    All,
}

const fn default_max_percent() -> u8 {
    100
}

const fn default_queue_bytes() -> u64 {
    1024 * 1024
}

const fn default_budget_bytes() -> u64 {
    64 * 1024 * 1024
}

const fn default_max_connections() -> u32 {
    20
}

const fn default_transaction_timeout() -> PoolDuration {
    PoolDuration::from_secs(30)
}

const fn default_port() -> u16 {
    5432
}

//! How connections are shared: limits and waits of one process.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::faults::parameter_faults;
use crate::duration::DurationText;

/// When a server connection goes back to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PoolMode {
    /// When the transaction ends.
    #[default]
    Transaction,
    /// When the client leaves.
    Session,
}

/// What becomes of a client, in transaction mode, that does what keeps it on its server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PinPolicy {
    /// It keeps its connection while the state lasts.
    #[default]
    Pin,
    /// The statement is refused, where its text shows what it would do.
    Reject,
}

/// As PgBouncer's.
const SERVER_LIFETIME: DurationText = DurationText::from_secs(3600);

/// The shortest time after which a session is stopped: clocks of sessions are looked at that often.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);

fn is_usual_lifetime(lifetime: &DurationText) -> bool {
    *lifetime == SERVER_LIFETIME
}

/// Whether clients are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Traffic {
    /// They are.
    #[default]
    Open,
    /// Transactions under way end; new ones wait.
    Paused,
}

/// Limits and waits of this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PoolingConfig {
    /// When a server connection goes back to the pool.
    pub mode: PoolMode,
    /// What becomes of a client, in transaction mode, whose state cannot move.
    pub pin_policy: PinPolicy,
    /// The most connections to each server, over all users and databases, in this process. The monitor's are not
    /// counted.
    pub max_server_connections: u32,
    /// The most clients of this process.
    pub max_client_connections: u32,
    /// The most clients of one user; no limit of its own where this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_client_connections_per_user: Option<u32>,
    /// The most clients of one database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_client_connections_per_database: Option<u32>,
    /// The most connections of one user to each server, over all databases, in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_server_connections_per_user: Option<u32>,
    /// The longest wait for a server connection.
    pub checkout_timeout: DurationText,
    /// A statement that a server has been running for longer is cancelled there; `0s` is never, as for the next three.
    #[serde(skip_serializing_if = "DurationText::is_zero")]
    pub query_timeout: DurationText,
    /// A transaction that has been open for longer is rolled back, and its client disconnected.
    #[serde(skip_serializing_if = "DurationText::is_zero")]
    pub transaction_timeout: DurationText,
    /// The same for one in which the client has asked for nothing for longer.
    #[serde(skip_serializing_if = "DurationText::is_zero")]
    pub idle_transaction_timeout: DurationText,
    /// A client that has asked for nothing for longer, outside a transaction, is disconnected.
    #[serde(skip_serializing_if = "DurationText::is_zero")]
    pub client_idle_timeout: DurationText,
    /// A request that takes longer is written to the log; `0s` is none.
    #[serde(skip_serializing_if = "DurationText::is_zero")]
    pub slow_query_threshold: DurationText,
    /// A server connection that has been idle for longer is closed.
    pub server_idle_timeout: DurationText,
    /// A server connection that has been open for longer, by lot up to a fifth less, is closed when nobody uses it; `0s` is
    /// never.
    #[serde(skip_serializing_if = "is_usual_lifetime")]
    pub server_lifetime: DurationText,
    /// The longest wait for a server to accept a connection and a login.
    pub connect_timeout: DurationText,
    /// The longest time from a client's connect to its login.
    pub client_login_timeout: DurationText,
    /// The largest message that a client may send, in bytes.
    pub max_message_bytes: u64,
    /// The texts of all statements that clients have prepared, each distinct one counted once, in bytes.
    pub max_prepared_bytes: u64,
    /// Settings that every server connection starts with.
    pub parameters: BTreeMap<String, String>,
    /// Whether clients are served.
    pub traffic: Traffic,
}

impl Default for PoolingConfig {
    fn default() -> Self {
        Self {
            mode: PoolMode::Transaction,
            pin_policy: PinPolicy::Pin,
            max_server_connections: 20,
            max_client_connections: 10_000,
            max_client_connections_per_user: None,
            max_client_connections_per_database: None,
            max_server_connections_per_user: None,
            query_timeout: DurationText::ZERO,
            transaction_timeout: DurationText::ZERO,
            idle_transaction_timeout: DurationText::ZERO,
            client_idle_timeout: DurationText::ZERO,
            slow_query_threshold: DurationText::ZERO,
            checkout_timeout: DurationText::from_secs(5),
            server_idle_timeout: DurationText::from_secs(600),
            server_lifetime: SERVER_LIFETIME,
            connect_timeout: DurationText::from_secs(5),
            client_login_timeout: DurationText::from_secs(15),
            max_message_bytes: 1024 * 1024 * 1024,
            max_prepared_bytes: 256 * 1024 * 1024,
            parameters: BTreeMap::new(),
            traffic: Traffic::Open,
        }
    }
}

impl PoolingConfig {
    /// The four times after which a session is stopped, each with its name: of a statement, a transaction, one in which
    /// nothing happens, and a client that asks for nothing.
    #[must_use]
    pub const fn timeouts(&self) -> [(&'static str, DurationText); 4] {
        [
            ("queryTimeout", self.query_timeout),
            ("transactionTimeout", self.transaction_timeout),
            ("idleTransactionTimeout", self.idle_transaction_timeout),
            ("clientIdleTimeout", self.client_idle_timeout),
        ]
    }

    pub(crate) fn faults(&self, faults: &mut Vec<String>) {
        if self.max_server_connections == 0 || self.max_server_connections > 10_000 {
            faults.push("pooling.maxServerConnections: must be 1 to 10000".to_owned());
        }
        if self.max_client_connections == 0 || self.max_client_connections > 1_000_000 {
            faults.push("pooling.maxClientConnections: must be 1 to 1000000".to_owned());
        }
        for (name, limit) in [
            ("maxClientConnectionsPerUser", self.max_client_connections_per_user),
            ("maxClientConnectionsPerDatabase", self.max_client_connections_per_database),
            ("maxServerConnectionsPerUser", self.max_server_connections_per_user),
        ] {
            if limit == Some(0) {
                faults.push(format!("pooling.{name}: must be at least 1, or absent"));
            }
        }
        for (name, limit) in self.timeouts() {
            if !limit.is_zero() && limit.get() < TIMEOUT_MIN {
                faults.push(format!("pooling.{name}: must be 0s or at least {TIMEOUT_MIN:?}"));
            }
        }
        if self.max_message_bytes < 8192 || self.max_message_bytes > 0x7fff_ffff {
            faults.push("pooling.maxMessageBytes: must be 8192 to 2147483647".to_owned());
        }
        for (name, wait) in [
            ("checkoutTimeout", self.checkout_timeout),
            ("connectTimeout", self.connect_timeout),
            ("clientLoginTimeout", self.client_login_timeout),
        ] {
            if wait.get().is_zero() {
                faults.push(format!("pooling.{name}: must not be zero"));
            }
        }
        parameter_faults("pooling.parameters", &self.parameters, faults);
    }
}

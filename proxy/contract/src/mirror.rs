//! The copy of the traffic: to which database it goes, how much of it, and what came of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::UserConfig;
use crate::config::faults::parameter_faults;
use crate::duration::DurationText;
use crate::split::is_zero;
use crate::tls::ServerTlsConfig;

/// The mirror; in effect at the stage `Mirror`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MirrorConfig {
    /// The host name or address of the other server.
    pub host: String,
    /// Its port.
    #[serde(default = "default_port")]
    pub port: u16,
    /// The database there; that of the client where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// Who to log in as there; each client's own role where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserConfig>,
    /// The share of sessions whose transactions are copied, 0 to 100. Whoever is in at a lower share is in at a higher one.
    #[serde(default = "all")]
    pub percent: u8,
    /// Another number has another part of the sessions in at the same share, where that is below 100.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub salt: u32,
    /// Which transactions are copied.
    #[serde(default)]
    pub statements: MirrorStatements,
    /// The transactions of one client that wait to be run there, in bytes. A transaction that does not fit is left out as a whole.
    #[serde(default = "default_queue_bytes")]
    pub queue_bytes: u64,
    /// The same for all clients of this process together.
    #[serde(default = "default_budget_bytes")]
    pub budget_bytes: u64,
    /// The most connections to the other server in this process.
    #[serde(default = "default_connections")]
    pub max_connections: u32,
    /// The longest that a transaction may wait and run there. One that takes longer is given up with its connection.
    #[serde(default = "default_transaction_timeout")]
    pub transaction_timeout: DurationText,
    /// Settings that every connection there starts with, to try them out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// TLS with the other server; none where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ServerTlsConfig>,
}

/// Which transactions are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MirrorStatements {
    /// Those that are proved to be reads, or declared READ ONLY; the other server is told to refuse anything else.
    #[default]
    ReadsOnly,
    /// All, and what they write is rolled back there.
    RolledBackWrites,
    /// All, as they are.
    All,
}

const fn default_port() -> u16 {
    5432
}

const fn all() -> u8 {
    100
}

const fn default_queue_bytes() -> u64 {
    1024 * 1024
}

const fn default_budget_bytes() -> u64 {
    64 * 1024 * 1024
}

const fn default_connections() -> u32 {
    10
}

const fn default_transaction_timeout() -> DurationText {
    DurationText::from_secs(30)
}

impl MirrorConfig {
    /// The mirror of a database at that address, with the defaults.
    #[must_use]
    pub const fn at(host: String, port: u16) -> Self {
        Self {
            host,
            port,
            database: None,
            user: None,
            percent: all(),
            salt: 0,
            statements: MirrorStatements::ReadsOnly,
            queue_bytes: default_queue_bytes(),
            budget_bytes: default_budget_bytes(),
            max_connections: default_connections(),
            transaction_timeout: default_transaction_timeout(),
            parameters: BTreeMap::new(),
            tls: None,
        }
    }

    pub(crate) fn faults(&self, faults: &mut Vec<String>) {
        if self.host.is_empty() || self.host.len() > 253 {
            faults.push("mirror.host: must have 1 to 253 characters".to_owned());
        }
        if self.port == 0 {
            faults.push("mirror.port: must be 1 to 65535".to_owned());
        }
        if self.database.as_ref().is_some_and(|name| name.is_empty() || name.len() > 63) {
            faults.push("mirror.database: must have 1 to 63 bytes".to_owned());
        }
        if let Some(user) = &self.user {
            user.faults("mirror.user", faults);
        }
        if self.percent > 100 {
            faults.push(format!("mirror.percent: {} is over 100", self.percent));
        }
        if self.queue_bytes == 0 || self.queue_bytes > self.budget_bytes {
            faults.push("mirror.queueBytes: must be 1 to mirror.budgetBytes".to_owned());
        }
        if self.budget_bytes > 1 << 34 {
            faults.push("mirror.budgetBytes: more than 16 GiB".to_owned());
        }
        if self.max_connections == 0 || self.max_connections > 10_000 {
            faults.push("mirror.maxConnections: must be 1 to 10000".to_owned());
        }
        if self.transaction_timeout.get().as_millis() < 10 {
            faults.push("mirror.transactionTimeout: must be at least 10ms".to_owned());
        }
        parameter_faults("mirror.parameters", &self.parameters, faults);
        if let Some(tls) = &self.tls {
            tls.faults("mirror.tls", faults);
        }
    }
}

/// What came of the copies so far, since the process started or the mirror was changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MirrorReport {
    /// Where they go, `host:port`.
    pub target: String,
    /// Whether they are being sent there.
    pub state: MirrorState,
    /// The last failure to run one there, for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Transactions of sessions that are copied.
    pub offered: u64,
    /// Those that were run there to their end.
    pub mirrored: u64,
    /// Those that were to be run there and were not, by cause.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped: BTreeMap<String, u64>,
    /// Those that are not of the kind that is copied, by cause.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub skipped: BTreeMap<String, u64>,
    /// Requests, by what the two answers are to each other.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub verdicts: BTreeMap<String, u64>,
    /// Errors there that were none here, by SQLSTATE.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// The time that requests took here, in microseconds; those that failed on one side, or in another way, are left out.
    pub source_micros: u64,
    /// The time that they took there.
    pub mirror_micros: u64,
    /// Bytes that wait.
    pub queued_bytes: u64,
    /// With statements `All`: since when rows there may differ because a transaction was left out, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged_since: Option<String>,
    /// By text without constants, those first that differ most, then the slowest there; at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<MirrorStatement>,
}

/// Verdicts that are none of a difference. Any other one is, those of a newer proxy too.
const ALIKE: [&str; 2] = ["match", "order"];

/// How many of these verdicts somebody should look at.
#[must_use]
pub fn differing(verdicts: &BTreeMap<String, u64>) -> u64 {
    let differences = verdicts.iter().filter(|(verdict, _)| !ALIKE.contains(&verdict.as_str()));
    differences.map(|(_, count)| *count).fold(0, u64::saturating_add)
}

/// Whether copies are being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MirrorState {
    /// The stage or the share says no.
    #[default]
    Inactive,
    /// They are.
    Running,
    /// The other server failed too often: nothing is sent for a while.
    Broken,
}

impl MirrorState {
    /// All of them, for metrics.
    pub const ALL: [Self; 3] = [Self::Inactive, Self::Running, Self::Broken];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inactive => "Inactive",
            Self::Running => "Running",
            Self::Broken => "Broken",
        }
    }
}

/// One statement, with what came of it on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MirrorStatement {
    /// Its text without constants, cut off where it is long.
    pub statement: String,
    /// How often it was compared.
    pub count: u64,
    /// By what the two answers are to each other.
    pub verdicts: BTreeMap<String, u64>,
    /// How often its rows were not compared, since they need not be the same twice.
    #[serde(default)]
    pub uncompared: u64,
    /// The time that it took here, in microseconds, all together, where it failed on neither side alone.
    pub source_micros: u64,
    /// The same there.
    pub mirror_micros: u64,
    /// The last difference, for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub difference: String,
}

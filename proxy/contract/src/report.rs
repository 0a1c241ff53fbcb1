//! What a proxy says of itself: the config it runs, its servers, its load.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigHash, Generation};
use crate::measures::Measures;
use crate::mirror::MirrorReport;
use crate::stage::Stage;
use crate::tls::TlsReport;

/// The header of `PUT /config` that carries the writer's lease epoch, a decimal number that only grows.
pub const EPOCH_HEADER: &str = "x-pgrouting-epoch";

/// The answer to `PUT /config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigAnswer {
    /// What became of the document.
    pub outcome: ConfigOutcome,
    /// The generation that runs now.
    pub generation: Generation,
    /// The hash of the document that runs now.
    pub hash: ConfigHash,
    /// Why the document was refused; empty otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// What became of a document that was offered to a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigOutcome {
    /// It runs now (HTTP 200).
    Applied,
    /// It ran already (HTTP 200).
    Unchanged,
    /// A later generation runs, or a later leader has spoken (HTTP 409).
    Stale,
    /// It is not valid; the one before runs on (HTTP 422).
    Refused,
}

/// The answer to `GET /report`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyReport {
    /// The version of the proxy's binary.
    pub proxy_version: String,
    /// Whether it serves.
    pub state: ProxyState,
    /// The document that it runs.
    pub config: ConfigReport,
    /// One entry a server of the document, in the document's order.
    pub servers: Vec<ServerReport>,
    /// Servers that all say that they are the primary, in a sentence for a person; absent where there is one at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
    /// Whether logins with the configured credentials work, one entry a credential.
    pub credentials: Vec<CredentialReport>,
    /// The clients' side.
    pub clients: ClientReport,
    /// Counters since the process started.
    pub totals: Totals,
    /// Clients that keep their server connection between transactions now, by reason; reasons without any are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pinned: BTreeMap<String, u64>,
    /// What the console has stopped; absent where that is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halts: Option<HaltReport>,
    /// The read/write split.
    #[serde(default)]
    pub split: SplitReport,
    /// The copy of the traffic; absent where the document has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorReport>,
    /// The files of TLS that the document names, one entry a side.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls: Vec<TlsReport>,
    /// What the gates of a rollout are judged by.
    #[serde(default)]
    pub measures: Measures,
    /// What clients do that ties them to one server connection, or relies on one; the most frequent first, at most 256
    /// entries since the process started. In session mode this is what to look at before a pool is taken to transaction
    /// mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub session_state: Vec<SessionStateUse>,
}

/// What the console has stopped in this process, until it is let go on there or the process ends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HaltReport {
    /// Requests to all databases wait.
    #[serde(default)]
    pub is_all_paused: bool,
    /// Databases whose requests wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused: Vec<String>,
    /// Databases that take no new clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<String>,
}

/// What a proxy knows and counts of the read/write split.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SplitReport {
    /// The databases that clients use, and whether their catalogs are known; while one is not, its reads stay on the
    /// primary.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub catalogs: BTreeMap<String, bool>,
    /// Transactions since the process started, by where they went and why; reasons that were not met are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub primary: BTreeMap<String, u64>,
    /// The same for those that went to a replica.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replica: BTreeMap<String, u64>,
    /// Requests that a replica refused and that were run on the primary, by cause.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rescued: BTreeMap<String, u64>,
    /// At a stage that does not split: what a sample of the transactions was judged to be.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub forecast: BTreeMap<String, u64>,
    /// Reads of that sample that would not have seen what their session wrote, from any replica.
    #[serde(default)]
    pub forecast_stale: u64,
    /// Where clients read shortly after they have written, before a replica could show it; the most frequent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads_after_writes: Vec<ReadAfterWrite>,
}

/// A statement that reads after its session has written, before any replica could show that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadAfterWrite {
    /// The call site: the statement's sqlcommenter tags, else the client's `application_name`.
    pub call_site: String,
    /// The statement without its constants and comments, cut off where it is long.
    pub statement: String,
    /// How often it was seen; at a stage that does not split, in the sample.
    pub count: u64,
}

/// One statement of one application that leaves state in its session, or reads what is the session's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionStateUse {
    /// The kind of state: `setting` goes with its client in transaction mode; `temp_table`, `cursor`, `listen`,
    /// `prepare`, `advisory_lock`, `load` and `opaque` keep the client on its connection; `anything` is a DO, whose
    /// effect is asked for; `reads_session` (`currval`, `lastval`, `pg_backend_pid`) may find another session.
    pub kind: String,
    /// The client's `application_name`.
    pub application_name: String,
    /// The statement without its constants and comments, cut off where it is long.
    pub statement: String,
    /// How often it was seen.
    pub count: u64,
}

/// Whether a proxy serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyState {
    /// No primary has been reached yet.
    Starting,
    /// Clients are served.
    Serving,
    /// It has been told to stop; clients leave at their transaction boundaries.
    Draining,
}

/// The document that a proxy runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigReport {
    /// Its generation.
    pub generation: Generation,
    /// Its hash.
    pub hash: ConfigHash,
    /// Its stage.
    pub stage: Stage,
    /// The last document that was refused since the running one was taken, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedConfig>,
}

/// A document that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedConfig {
    /// Its generation, when it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Why it was refused.
    pub reasons: Vec<String>,
}

/// What a proxy's monitor knows of one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerReport {
    /// The name in the document.
    pub name: String,
    /// `host:port`.
    pub address: String,
    /// What it is.
    pub role: Role,
    /// Whether it answers.
    pub health: Health,
    /// Whether it takes part, and why not.
    #[serde(default)]
    pub rotation: Rotation,
    /// How long ago the primary's log was no longer than what this replica has replayed, in milliseconds, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<u64>,
    /// What this replica has yet to replay of what the primary has on disk, in bytes, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_bytes: Option<u64>,
    /// Why it is not `Up`, for a person; empty when it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The timeline that it is on, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u32>,
    /// The identity of its database cluster, once known, as decimal text (it has 64 bits).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_identifier: Option<String>,
    /// Server connections that a client holds now.
    pub connections_active: u32,
    /// Server connections that wait for a client.
    pub connections_idle: u32,
    /// The most server connections that this proxy may hold to it.
    pub connections_max: u32,
}

/// What a server is in its replication set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// It takes writes.
    Primary,
    /// It is in recovery and follows a primary.
    Replica,
    /// Nobody could ask it yet.
    Unknown,
}

/// Whether a server takes part: the primary, or a replica that reads may go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum Rotation {
    /// It does.
    In,
    /// It does not answer.
    Down,
    /// It was down lately and has yet to show that it stays.
    Settling,
    /// Nobody knows how far behind it is, or what it is.
    #[default]
    Unmeasured,
    /// It is too far behind.
    Lagging,
    /// It follows a timeline that is over, is ahead of the primary, or belongs to another database cluster.
    Diverged,
    /// It says that it is a primary, and another one is.
    Fenced,
}

impl Rotation {
    /// All of them, for metrics.
    pub const ALL: [Self; 7] =
        [Self::In, Self::Down, Self::Settling, Self::Unmeasured, Self::Lagging, Self::Diverged, Self::Fenced];

    /// Its name in metrics and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::In => "In",
            Self::Down => "Down",
            Self::Settling => "Settling",
            Self::Unmeasured => "Unmeasured",
            Self::Lagging => "Lagging",
            Self::Diverged => "Diverged",
            Self::Fenced => "Fenced",
        }
    }
}

/// Whether a server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Health {
    /// The last probe was answered.
    Up,
    /// Probes fail.
    Down,
    /// Not probed yet.
    Unknown,
}

/// Whether a configured credential works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialReport {
    /// The user, or the file that should name it.
    pub user: String,
    /// What was seen of it.
    pub state: CredentialState,
    /// What is wrong, for a person; empty when nothing is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What was seen of a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CredentialState {
    /// A server accepted it.
    Valid,
    /// A server refused it.
    Rejected,
    /// Its file is missing or empty.
    Missing,
    /// It has not been used yet.
    Unused,
}

/// The clients' side, now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientReport {
    /// Clients that have logged in and have not left.
    pub connected: u64,
    /// Those that hold a server connection.
    pub active: u64,
    /// Those that wait for one.
    pub waiting: u64,
}

/// Counters since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Transactions that ended, committed or not.
    pub transactions: u64,
    /// Requests (Query, or a batch to Sync) that were answered.
    pub queries: u64,
    /// Errors that servers answered and that were passed on.
    pub server_errors: u64,
    /// Errors that the proxy made itself.
    pub proxy_errors: u64,
}

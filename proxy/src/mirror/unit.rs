//! What is copied: requests with their answers, in units of what a session does from one rest to the next.

use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::mirror::MirrorStatements;
use tokio::time::Instant;

use crate::mirror::answer::Answer;
use crate::server::connection::Identity;
use crate::server::prepared::Statement;
use crate::server::settings::Settings;

/// One request and its answer.
#[derive(Debug)]
pub struct Step {
    /// The client's messages to the one that the server answers with `ReadyForQuery`, and the data of a COPY behind it.
    pub messages: Vec<u8>,
    /// What each `Parse`, `Bind` and `Describe` of a statement names, in their order, as far as it is known.
    pub uses: Vec<Option<Arc<Statement>>>,
    /// Whether its data of a COPY come to an end.
    pub ends_copy: bool,
    /// A Sync follows these data, and one before them was swallowed.
    pub syncs_twice: bool,
    /// The client's answer.
    pub answer: Answer,
    /// The time from the request to the end of its answer.
    pub took: Duration,
    /// When its last byte was there.
    pub sent_at: Instant,
}

/// What a session did in one exchange: its transactions from one rest to the next.
#[derive(Debug)]
pub struct Unit {
    /// The client's role and database.
    pub identity: Arc<Identity>,
    /// Its settings when it began.
    pub settings: Arc<Settings>,
    /// Which transactions are copied, as it was said then.
    pub statements: MirrorStatements,
    /// Whether names of statements are ours at the servers.
    pub is_tracked: bool,
    /// The requests.
    pub steps: Vec<Step>,
    /// Whether it may have written.
    pub may_write: bool,
    /// It began with state of the session on its connection, which it may need.
    pub needs_state: bool,
    /// It leaves state of the session on its connection.
    pub keeps: bool,
    /// It may have changed settings.
    pub touches: bool,
    /// What it weighs, in bytes.
    pub bytes: usize,
    /// When it was over.
    pub offered_at: Instant,
}

//! Runs one unit on a connection of the mirror, request by request, and gives what the mirror answered.

use std::future::poll_fn;
use std::time::Duration;

use pgrouting_contract::mirror::MirrorStatements;
use tokio::time::Instant;

use crate::mirror::answer::{Answer, Digest, Met};
use crate::mirror::compare::name;
use crate::mirror::rewrite::{RolledBack, is_extended, put_step, rolled_back};
use crate::mirror::unit::{Step, Unit};
use crate::server::connect::ConnectError;
use crate::server::connection::ServerConnection;
use crate::server::settings::LIFT_TIMEOUT;
use crate::transaction::TransactionStatus;
use crate::wire::codec::{put_cstr, put_message};
use crate::wire::frontend::{COPY_FAIL, SYNC_MESSAGE};

/// Why a unit was not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
    /// The mirror ended the connection with this code.
    #[error("the mirror ended the connection: {0}")]
    Ended(String),
    /// The mirror does not take the session's settings.
    #[error("the mirror does not take the session's settings: {0}")]
    Settings(ConnectError),
    /// A statement of ours failed.
    #[error("{0}")]
    Own(ConnectError),
}

/// What the mirror answered to a request, and how long that took; `None` for one that was not run as it was.
pub type Answered = Option<(Answer, Duration)>;

/// Gives the connection the session's settings.
///
/// # Errors
/// When the mirror refuses them.
pub async fn give_settings(server: &mut ServerConnection, unit: &Unit) -> Result<(), Failure> {
    let sql = server.settings.change_to(&unit.settings);
    if !sql.is_empty() {
        if server.settings.has_other_timeout(&unit.settings) {
            server.run(LIFT_TIMEOUT).await.map_err(Failure::Own)?;
        }
        server.run(&sql).await.map_err(Failure::Settings)?;
        server.settings = std::sync::Arc::clone(&unit.settings);
    }
    Ok(())
}

/// Runs a unit. The connection is at rest then.
///
/// # Errors
/// When it could not be run to its end: the connection is of no use any more.
pub async fn run(server: &mut ServerConnection, unit: &Unit) -> Result<Vec<Answered>, Failure> {
    let mut answers = Vec::with_capacity(unit.steps.len());
    let mut status = b'I';
    let rolls_back = unit.statements == MirrorStatements::RolledBackWrites;
    for step in &unit.steps {
        if rolls_back {
            if rolled_back(step) == RolledBack::Ends {
                own(server, "ROLLBACK").await?;
                status = b'I';
                answers.push(None);
                continue;
            }
            if status == b'I' {
                own(server, "BEGIN").await?;
            }
        }
        let began = Instant::now();
        let fresh = put_step(server, step, unit.is_tracked);
        let answer = exchange(server, step).await?;
        note(server, &answer, &fresh);
        status = answer.status;
        answers.push(Some((answer, began.elapsed())));
    }
    if status != b'I' {
        own(server, "ROLLBACK").await?;
    }
    server.transaction = TransactionStatus::Idle;
    Ok(answers)
}

async fn own(server: &mut ServerConnection, sql: &str) -> Result<(), Failure> {
    server.run(sql).await.map(|_| ()).map_err(Failure::Own)
}

/// What an answer tells of the statements that the connection has.
fn note(server: &mut ServerConnection, answer: &Answer, fresh: &[u64]) {
    if answer.error.is_some() {
        fresh.iter().for_each(|id| server.prepared.remove(*id));
        server.unnamed = None;
    }
    if answer.results.iter().any(|result| matches!(&*result.tag, "DISCARD ALL" | "DEALLOCATE ALL")) {
        server.prepared.clear();
        server.unnamed = None;
    }
    if answer.results.iter().any(|result| &*result.tag == "DISCARD ALL") {
        server.settings = std::sync::Arc::clone(&server.identity.settings);
    }
}

/// Sends a request and reads its answer; both at once, so that neither side waits for the other.
async fn exchange(server: &mut ServerConnection, step: &Step) -> Result<Answer, Failure> {
    let mut digest = Digest::default();
    // Where the COPY does not begin here, its first Sync is answered too.
    let mut is_second_owed = step.syncs_twice;
    let mut first = None;
    loop {
        let read = poll_fn(|cx| {
            if let std::task::Poll::Ready(Err(error)) = server.outbox.poll_send(&mut server.stream, cx) {
                // The server may have said why it closed.
                server.outbox.clear();
                tracing::debug!(%error, "a request cannot be sent to the mirror");
            }
            server.poll_read(cx)
        })
        .await?;
        if read == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        while let Some((met, taken)) = digest.take(&server.inbox) {
            server.inbox.advance(taken);
            match met {
                Met::Answer(answer) if is_second_owed => {
                    is_second_owed = false;
                    first = Some(answer);
                }
                Met::Answer(answer) => return Ok(first.unwrap_or(answer)),
                Met::Fatal(code) => return Err(Failure::Ended(name(&code))),
                Met::CopyIn if step.ends_copy => is_second_owed = false,
                Met::CopyIn => {
                    // The client had nothing to send, since it was refused here.
                    put_message(server.outbox.bytes(), COPY_FAIL, |body| put_cstr(body, b"not copied here"));
                    if is_extended(step) {
                        server.outbox.bytes().extend_from_slice(&SYNC_MESSAGE);
                    }
                }
            }
        }
        let rest = server.inbox.len();
        server.inbox.advance(rest);
    }
}

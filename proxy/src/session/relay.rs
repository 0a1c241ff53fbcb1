//! From the server to the client: bytes as they are, walked by message headers.
//!
//! Rows are never looked into and never collected: what a read brought is written to the client from the same buffer.
//! Only messages that change what is known of the connection are looked at whole. What the proxy asked for itself is
//! left out, and what it answers in the server's place is put in, which costs a copy and happens rarely.

use crate::classify::tags::{TagEffect, tag_effect};
use crate::route::Refusal;
use crate::server::connection::{SERVER_MESSAGE_MAX, ServerConnection};
use crate::server::prepared::NAME_PREFIX;
use crate::server::replies::{Owed, SkipsUntil};
use crate::session::client::Client;
use crate::session::outdated;
use crate::session::overdue;
use crate::session::rescue::{Shown, examine, refusal};
use crate::transaction::TransactionStatus;
use crate::wire::backend::{
    self, BIND_COMPLETE, CLOSE_COMPLETE, CLOSE_COMPLETE_MESSAGE, COMMAND_COMPLETE, COPY_BOTH_RESPONSE,
    COPY_IN_RESPONSE, DATA_ROW, EMPTY_QUERY_RESPONSE, ERROR_RESPONSE, NO_DATA, NOTICE_RESPONSE,
    NOTIFICATION_RESPONSE, PARAMETER_STATUS, PARSE_COMPLETE, PARSE_COMPLETE_MESSAGE, PORTAL_SUSPENDED,
    READY_FOR_QUERY, ROW_DESCRIPTION, error_field,
};
use crate::wire::frame::{HEADER_LEN, Header, header};
use crate::wire::sqlstate;

/// A message that would have to be looked at but is longer is passed on unseen, in bytes.
const LOOKED_AT_MAX: usize = 1024 * 1024;

/// What was seen of the server's answers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Requests that were answered.
    pub queries: u64,
    /// Transactions that ended.
    pub transactions: u64,
    /// Errors of servers.
    pub errors: u64,
    /// Errors that went to the client, of servers and of ours.
    pub told: u64,
    /// Those of the first transaction.
    pub first_told: u64,
    /// Those that say that a standby cannot do it, of what the client had not declared to be READ ONLY, at a server that
    /// only takes reads.
    pub misroutes: u64,
    /// Whether the server has said that it ends the connection.
    pub is_fatal: bool,
    /// Whether the client was notified of something.
    pub is_notified: bool,
    /// Whether the server has refused to write.
    pub is_read_only: bool,
}

impl Seen {
    /// Whether there is nothing to be seen to but the numbers.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        !self.is_fatal && !self.is_notified && !self.is_read_only && self.misroutes == 0
    }

    const fn note_told(&mut self) {
        self.told += 1;
        if self.transactions == 0 {
            self.first_told += 1;
        }
    }
}

/// The server does not answer what it was asked: nothing of what it sends can be trusted to be for this client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server sent a message of type {kind:#04x} that it does not owe")]
pub struct OutOfStep {
    kind: u8,
}

/// What to do with a message.
enum Fate {
    /// It goes to the client.
    Pass,
    /// It stays here.
    Keep,
    /// The client gets this in its place.
    Replace(Vec<u8>),
}

/// Walks the messages in the server's inbox: clears what may go to the client, takes out what may not.
///
/// # Errors
/// When the server sends what it does not owe.
pub fn walk(client: &mut Client, server: &mut ServerConnection, seen: &mut Seen) -> Result<(), OutOfStep> {
    loop {
        if server.passing > 0 {
            let there = server.passing.min(server.inbox.len() - server.cleared);
            server.cleared += there;
            server.passing -= there;
            if server.passing > 0 {
                break;
            }
        }
        if client.routing.rescue.is_armed() && !server.replies.front().is_some_and(Owed::is_hidden) {
            match examine(server) {
                Shown::Nothing => break,
                Shown::Answer => client.routing.rescue.show(),
                Shown::Refusal(refusal) => client.routing.rescue.refuse(refusal),
            }
        }
        if server.replies.has_local() {
            put_local(client, server);
        }
        if !client.routing.rescue.is_dropping() {
            pass_plain(server);
        }
        let rest = server.inbox.get(server.cleared..).unwrap_or_default();
        let Ok(found) = header(rest, SERVER_MESSAGE_MAX) else {
            return Err(OutOfStep { kind: rest.first().copied().unwrap_or_default() });
        };
        let Some(found) = found else { break };
        let is_there = rest.len() >= found.total;
        if !is_there && is_looked_at(server, found) && found.total <= LOOKED_AT_MAX {
            let missing = found.total - rest.len();
            server.inbox.reserve(missing);
            break;
        }
        let fate = take(client, server, seen, found)?;
        // What a replica says of a request that runs elsewhere now is nobody's business.
        let fate = if client.routing.rescue.is_dropping() { Fate::Keep } else { fate };
        match fate {
            Fate::Keep if !is_there => return Err(OutOfStep { kind: found.kind }),
            Fate::Pass if is_there => server.cleared += found.total,
            Fate::Pass => server.passing = found.total,
            Fate::Keep => leave_out(client, server, found.total),
            Fate::Replace(message) => {
                leave_out(client, server, found.total);
                client.outbox.bytes().extend_from_slice(&message);
            }
        }
    }
    if !client.outbox.is_empty() {
        // One write for all of it.
        leave_out(client, server, 0);
    }
    Ok(())
}

/// Clears whole messages that change nothing of what is known: rows, of which there may be many, their description
/// where no Describe asked for it, and the tags of the most frequent commands.
fn pass_plain(server: &mut ServerConnection) {
    let (is_execute, is_query) = match server.replies.front() {
        Some(Owed::Query(_)) => (false, true),
        Some(Owed::Execute) => (true, false),
        _ => return,
    };
    let inbox: &[u8] = &server.inbox;
    let mut cleared = server.cleared;
    while let Some((&[kind, a, b, c, d], body)) =
        inbox.get(cleared..).and_then(<[u8]>::split_first_chunk::<HEADER_LEN>)
    {
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        // The length counts itself.
        let is_there = length >= 4 && length - 4 <= body.len();
        let is_plain = match kind {
            DATA_ROW => true,
            ROW_DESCRIPTION => is_query,
            COMMAND_COMPLETE => !is_execute && is_plain_tag(body),
            _ => false,
        };
        if !is_there || !is_plain {
            break;
        }
        cleared += 1 + length;
    }
    server.cleared = cleared;
}

/// Whether a command's tag, at the front of these bytes, is one that changes nothing of the session.
#[must_use]
pub fn is_plain_tag(body: &[u8]) -> bool {
    matches!(body.first_chunk(), Some(b"SELECT " | b"INSERT " | b"UPDATE " | b"DELETE "))
}

/// Whether a message's body matters, so that all of it must be there.
fn is_looked_at(server: &ServerConnection, header: Header) -> bool {
    let is_hidden = server.replies.front().is_some_and(Owed::is_hidden);
    is_hidden
        || matches!(
            header.kind,
            COMMAND_COMPLETE | ERROR_RESPONSE | NOTICE_RESPONSE | PARAMETER_STATUS | READY_FOR_QUERY
        )
}

/// Moves what is cleared to the client's outbox and drops `count` bytes behind it.
fn leave_out(client: &mut Client, server: &mut ServerConnection, count: usize) {
    client.outbox.bytes().extend_from_slice(server.inbox.get(..server.cleared).unwrap_or_default());
    server.inbox.advance(server.cleared + count.min(server.inbox.len() - server.cleared));
    server.cleared = 0;
}

/// Puts in the answers that we owe in the server's place and whose turn it is. Not while a message is passing.
pub fn put_local(client: &mut Client, server: &mut ServerConnection) {
    if client.routing.rescue.is_armed() {
        return;
    }
    while let Some(owed) = server.replies.pop_local() {
        if client.routing.rescue.is_dropping() {
            continue;
        }
        leave_out(client, server, 0);
        let answer = match owed {
            Owed::LocalClose(_) => CLOSE_COMPLETE_MESSAGE,
            _ => PARSE_COMPLETE_MESSAGE,
        };
        client.outbox.bytes().extend_from_slice(&answer);
    }
}

fn take(
    client: &mut Client,
    server: &mut ServerConnection,
    seen: &mut Seen,
    header: Header,
) -> Result<Fate, OutOfStep> {
    let out_of_step = OutOfStep { kind: header.kind };
    let is_hidden = server.replies.front().is_some_and(Owed::is_hidden);
    let fate = if is_hidden { Fate::Keep } else { Fate::Pass };
    match header.kind {
        PARSE_COMPLETE => match server.replies.pop() {
            Some(
                Owed::Parse(_)
                | Owed::PlainParse
                | Owed::UnnamedParse(_)
                | Owed::HiddenParse(_)
                | Owed::HiddenUnnamedParse(_),
            ) => {}
            _ => return Err(out_of_step),
        },
        BIND_COMPLETE => match server.replies.pop() {
            Some(Owed::Bind(_)) => {}
            _ => return Err(out_of_step),
        },
        CLOSE_COMPLETE => match server.replies.pop() {
            Some(Owed::Close | Owed::HiddenClose(_) | Owed::HiddenUnnamedClose(_)) => {}
            _ => return Err(out_of_step),
        },
        ROW_DESCRIPTION | NO_DATA => {
            if matches!(server.replies.front(), Some(Owed::Describe(_))) {
                server.replies.pop();
            }
        }
        EMPTY_QUERY_RESPONSE if matches!(server.replies.front(), Some(Owed::Rejected(_))) => {
            // It stands for a command that we have answered ourselves.
            let Some(Owed::Rejected(rejection)) = server.replies.front_mut() else { return Err(out_of_step) };
            return Ok(Fate::Replace(std::mem::take(&mut rejection.error)));
        }
        COMMAND_COMPLETE | EMPTY_QUERY_RESPONSE | PORTAL_SUSPENDED => {
            if header.kind == COMMAND_COMPLETE && !is_hidden {
                note_tag(client, server);
            }
            if matches!(server.replies.front(), Some(Owed::Execute)) {
                server.replies.pop();
            }
        }
        COPY_IN_RESPONSE | COPY_BOTH_RESPONSE => {
            server.is_copying_in = server.replies.begin_copy();
        }
        PARAMETER_STATUS => note_parameter(server),
        NOTIFICATION_RESPONSE => {
            seen.is_notified = true;
            return Ok(Fate::Pass);
        }
        ERROR_RESPONSE => return Ok(take_error(client, server, seen)),
        READY_FOR_QUERY => {
            take_ready(server, seen, out_of_step)?;
            if server.transaction == TransactionStatus::Idle {
                client.state.end_definitions();
            }
        }
        _ => {}
    }
    Ok(fate)
}

fn take_ready(
    server: &mut ServerConnection,
    seen: &mut Seen,
    out_of_step: OutOfStep,
) -> Result<(), OutOfStep> {
    let status = server.inbox.get(server.cleared + HEADER_LEN).copied().unwrap_or_default();
    server.transaction = TransactionStatus::from_byte(status).ok_or(out_of_step)?;
    server.is_copying_in = false;
    match server.replies.pop() {
        Some(Owed::Query(_) | Owed::FunctionCall | Owed::Sync) => {
            server.is_retried = false;
            seen.queries += 1;
            seen.transactions += u64::from(server.transaction == TransactionStatus::Idle);
            Ok(())
        }
        Some(Owed::Rejected(_)) => {
            seen.queries += 1;
            Ok(())
        }
        Some(Owed::HiddenQuery | Owed::HiddenSync) => Ok(()),
        _ => Err(out_of_step),
    }
}

/// Tells the client of settings that it has reset: it believes those of the server, and gets those that it came with.
pub fn tell_restored(client: &mut Client, server: &mut ServerConnection) {
    leave_out(client, server, 0);
    for (name, _) in server.parameters.iter() {
        let lower = String::from_utf8_lossy(name).to_ascii_lowercase();
        let wanted = client.state.settings.value(&lower);
        if let Some(value) = wanted.filter(|_| server.settings.value(&lower).is_none()) {
            backend::put_parameter_status(client.outbox.bytes(), name, value.as_bytes());
        }
    }
}

fn note_parameter(server: &mut ServerConnection) {
    let Some((name, value)) = server
        .message_at(server.cleared)
        .and_then(backend::parameter_status)
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
    else {
        return;
    };
    server.parameters.set(&name, &value);
}

fn note_tag(client: &mut Client, server: &mut ServerConnection) {
    let Some(message) = server.message_at(server.cleared) else { return };
    let effect = tag_effect(backend::command_tag(message));
    client.state.note_tag(effect);
    match effect {
        TagEffect::None | TagEffect::Begins(_) | TagEffect::Ends(_) => {}
        TagEffect::DiscardsAll => {
            forget_statements(client, server);
            // The connection has the settings that it was opened with; this client's are given again with its next
            // request, as PostgreSQL would have gone back to those of its startup packet.
            server.settings = std::sync::Arc::clone(&server.identity.settings);
            tell_restored(client, server);
        }
        TagEffect::DeallocatesAll => forget_statements(client, server),
    }
}

/// All prepared statements are gone, but for those that the server is still to come to.
fn forget_statements(client: &mut Client, server: &mut ServerConnection) {
    server.prepared.clear();
    client.statements.clear();
    for owed in server.replies.iter() {
        match owed {
            Owed::Parse(definition) => {
                client.statements.define(&definition.name, definition.statement.clone());
                if let Some(statement) = &definition.statement {
                    server.prepared.insert(statement);
                }
            }
            Owed::LocalParse(definition) | Owed::LocalClose(definition) => {
                client.statements.define(&definition.name, definition.statement.clone());
            }
            Owed::HiddenParse(statement) => {
                server.prepared.insert(statement);
            }
            _ => {}
        }
    }
}

fn take_error(client: &mut Client, server: &mut ServerConnection, seen: &mut Seen) -> Fate {
    let message = server.message_at(server.cleared).map(<[u8]>::to_vec);
    if message.as_deref().is_some_and(outdated::is_outdated) && outdated::take(client, server) {
        return Fate::Keep;
    }
    let rejection = match server.replies.front_mut() {
        Some(Owed::Rejected(rejection)) => Some(std::mem::take(&mut rejection.error)),
        _ => None,
    };
    seen.errors += u64::from(rejection.is_none());
    seen.is_read_only |=
        message.as_deref().is_some_and(|m| error_field(m, b'C') == Some(sqlstate::READ_ONLY.as_bytes()));
    seen.is_fatal |= message.as_deref().is_some_and(backend::is_fatal);
    let failed = match server.replies.front() {
        Some(Owed::Parse(definition)) => Some(definition.name.clone()),
        _ => None,
    };
    let is_our_query = matches!(server.replies.front(), Some(Owed::HiddenQuery));
    let (skipped, until) = server.replies.skip_to_sync();
    server.is_copying_in = false;
    if until == SkipsUntil::NextSync {
        server.is_skipping = true;
    }
    let skipped_count = skipped.len();
    for (index, owed) in skipped.into_iter().enumerate() {
        take_back(client, server, owed, index + 1 == skipped_count);
    }
    if is_our_query {
        // The settings could not be given: they were good at the login, so this is for a person to see, and the
        // connection is of no use to this client.
        seen.is_fatal = true;
    }
    if let Some(error) = rejection {
        seen.note_told();
        return Fate::Replace(error);
    }
    if seen.is_fatal && (client.routing.gate.is_proved() || is_nobodys(client, server)) {
        // The server goes, and not the session.
        return Fate::Keep;
    }
    if !client.routing.rescue.is_dropping() {
        seen.note_told();
        let is_misroute = message.as_deref().and_then(refusal) == Some(Refusal::Misroute);
        seen.misroutes += u64::from(is_misroute && client.routing.promises_reads());
    }
    let message = message.unwrap_or_default();
    if client.pace.is_cancelled() && error_field(&message, b'C') == Some(sqlstate::QUERY_CANCELED.as_bytes())
    {
        let mut told = Vec::new();
        overdue::cancelled().put(&mut told);
        return Fate::Replace(told);
    }
    with_client_names(client, &message, failed.as_deref()).map_or(Fate::Pass, Fate::Replace)
}

/// Whether a connection has done all that its client asked for, and nothing of it is the client's any more.
fn is_nobodys(client: &Client, server: &ServerConnection) -> bool {
    server.replies.is_empty()
        && server.transaction == TransactionStatus::Idle
        && !server.is_unsynced
        && client.state.is_free()
}

/// Takes back what a message that the server did not come to would have changed. `is_failed` is the one that failed.
fn take_back(client: &mut Client, server: &mut ServerConnection, owed: Owed, is_failed: bool) {
    match owed {
        Owed::Parse(definition) => {
            let is_redefined = definition.replaced.is_some();
            if let Some(statement) = definition.statement.as_ref().filter(|_| !is_redefined) {
                server.prepared.remove(statement.id);
            }
            client.statements.undo(*definition);
        }
        // A Parse that failed has ended the unnamed statement before it; one that was skipped has not.
        Owed::UnnamedParse(_) if is_failed => {
            server.unnamed = None;
            client.statements.define_unnamed(None);
        }
        Owed::UnnamedParse(before) | Owed::Query(before) => {
            server.unnamed = before.server;
            client.statements.define_unnamed(before.client);
        }
        Owed::LocalParse(definition) | Owed::LocalClose(definition) => client.statements.undo(*definition),
        Owed::HiddenParse(statement) => server.prepared.remove(statement.id),
        Owed::HiddenUnnamedParse(before) => server.unnamed = if is_failed { None } else { before },
        Owed::HiddenUnnamedClose(before) => server.unnamed = Some(before),
        Owed::HiddenClose(id) => server.prepared.restore(id),
        Owed::Bind(_)
        | Owed::PlainParse
        | Owed::Describe(_)
        | Owed::Execute
        | Owed::Close
        | Owed::CopyEnd
        | Owed::FunctionCall
        | Owed::Sync
        | Owed::Rejected(_)
        | Owed::HiddenSync
        | Owed::HiddenQuery => {}
    }
}

/// The error with the client's name of a statement in place of ours; `None` where none of ours is in it. `failed` is
/// the name that a failed Parse gave; a client may have several names for one text.
fn with_client_names(client: &Client, message: &[u8], failed: Option<&[u8]>) -> Option<Vec<u8>> {
    let prefix = NAME_PREFIX.as_bytes();
    let at = message.windows(prefix.len()).position(|window| window == prefix)?;
    let digits = message.get(at + prefix.len()..)?.iter().take_while(|b| b.is_ascii_digit()).count();
    let ours = message.get(at..at + prefix.len() + digits)?;
    let theirs = failed.or_else(|| client.statements.client_name(std::str::from_utf8(ours).ok()?))?;
    let mut body = Vec::with_capacity(message.len());
    let mut rest = message.get(HEADER_LEN..)?;
    while let Some(at) = rest.windows(ours.len()).position(|window| window == ours) {
        body.extend_from_slice(rest.get(..at)?);
        body.extend_from_slice(theirs);
        rest = rest.get(at + ours.len()..)?;
    }
    body.extend_from_slice(rest);
    let mut renamed = Vec::with_capacity(body.len() + HEADER_LEN);
    crate::wire::codec::put_message(&mut renamed, ERROR_RESPONSE, |out| out.extend_from_slice(&body));
    Some(renamed)
}

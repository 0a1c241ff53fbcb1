//! From the client to the server: messages as they are, but for the names of prepared statements.
//!
//! Only `Parse`, `Bind`, `Describe` and `Close` are looked into, and of them only the names.

use std::sync::Arc;

use crate::classify::touches::touches;
use crate::error::{ClientError, ErrorKind};
use crate::fleet::View;
use crate::mirror::loss::Loss;
use crate::server::connection::ServerConnection;
use crate::server::prepared::{Standing, Statements};
use crate::server::replies::{Owed, UnnamedBefore};
use crate::server::settings::{LIFT_TIMEOUT, or_exit};
use crate::session::client::Client;
use crate::session::gate::{begin_put_off, may_pass, take_command};
use crate::session::refusal::{Limits, REFUSED_BY_ANY_SERVER, refuse_parse, reject_pin, rejection};
use crate::session::request::{RequestFault, client_header, is_streamed};
use crate::session::supply::{close, give_unnamed, make_room, prepare, send_parse};
use crate::transaction::TransactionStatus;
use crate::wire::frame::Header;
use crate::wire::frontend::{
    BIND, CLOSE, COPY_DATA, COPY_DONE, COPY_FAIL, DESCRIBE, EXECUTE, FLUSH, FUNCTION_CALL, PARSE, QUERY,
    SYNC, TERMINATE, Target, bind_names, parse, put_bind, put_describe_statement, put_query, query_text,
    target,
};
use crate::wire::sqlstate;

/// Bytes on their way to the server beyond which the client is not read further.
const BACKLOG_MAX: usize = 256 * 1024;

/// What became of the client's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarded {
    /// Nothing was there to take.
    Nothing,
    /// Something was taken.
    Something,
    /// The client says goodbye.
    Terminate,
}

/// Takes the whole messages at the front of the client's inbox, and what is there of a large one, into the server's
/// outbox.
///
/// # Errors
/// When a message is one that no client may send, or its body is not what its type says.
pub fn forward(
    client: &mut Client,
    server: &mut ServerConnection,
    statements: &Statements,
    limits: Limits,
    view: &View,
) -> Result<Forwarded, RequestFault> {
    // Taken out while its messages are walked, since what they change is the client's too.
    let mut inbox = std::mem::take(&mut client.inbox);
    let mut walk = Walk { statements, limits, view, at: 0 };
    let forwarded = walk.run(client, server, &inbox);
    inbox.advance(walk.at);
    client.inbox = inbox;
    forwarded
}

/// A walk through the messages of an inbox.
struct Walk<'a> {
    statements: &'a Statements,
    limits: Limits,
    view: &'a View,
    /// Bytes that have been taken.
    at: usize,
}

impl Walk<'_> {
    fn run(
        &mut self,
        client: &mut Client,
        server: &mut ServerConnection,
        inbox: &[u8],
    ) -> Result<Forwarded, RequestFault> {
        let mut forwarded = Forwarded::Nothing;
        while server.outbox.len() < BACKLOG_MAX {
            let rest = inbox.get(self.at..).unwrap_or_default();
            if client.discarding > 0 {
                let count = client.discarding.min(rest.len());
                client.discarding -= count;
                self.at += count;
                if client.discarding > 0 {
                    break;
                }
                continue;
            }
            if client.streaming > 0 {
                let count = client.streaming.min(rest.len());
                if count == 0 {
                    break;
                }
                let more = rest.get(..count).unwrap_or_default();
                server.outbox.bytes().extend_from_slice(more);
                client.recorder.append(more);
                client.streaming -= count;
                self.at += count;
                forwarded = Forwarded::Something;
                continue;
            }
            let Some(header) = client_header(rest, self.limits.message_bytes_max)? else { break };
            if rest.len() < header.total && !is_streamed(header, rest.len()) {
                break;
            }
            if header.kind == TERMINATE {
                return Ok(Forwarded::Terminate);
            }
            let is_watched = client.routing.gate.is_watched;
            if must_wait(client, server, header.kind)
                || (is_watched && !may_pass(client, server, rest, header.kind))
            {
                break;
            }
            forwarded = Forwarded::Something;
            if server.is_skipping && header.kind != SYNC {
                // The server ignores everything to the next Sync, and so do we: nothing of it has an effect.
                client.discarding = header.total;
                continue;
            }
            give_settings(client, server);
            if client.routing.is_put_off() {
                begin_put_off(client, server);
            }
            let message = rest.get(..header.total).unwrap_or(rest);
            client.streaming = header.total - message.len();
            self.at += message.len();
            if header.kind != QUERY || !take_command(client, server, self.view, message, header) {
                take(client, server, self.statements, self.limits, message, header);
                if client.recorder.is_on() {
                    record(client, message);
                }
            }
            if matches!(header.kind, QUERY | FUNCTION_CALL | SYNC | FLUSH) {
                client.routing.gate.is_open = false;
            }
        }
        Ok(forwarded)
    }
}

/// Offers a message that is sent to the mirror too.
pub fn record(client: &mut Client, message: &[u8]) {
    let Client { recorder, statements, routing, .. } = client;
    recorder.take(message, routing.gate.is_watched, |name| statements.find(name));
}

/// Whether a message has to wait until earlier requests are answered, because what a name stands for, or whether it may
/// be defined at all, depends on them. Pipelines that define nothing never wait.
const fn must_wait(client: &Client, server: &ServerConnection, kind: u8) -> bool {
    // COPY data is what the server waits for.
    if server.is_copying_in || matches!(kind, COPY_DATA | COPY_DONE | COPY_FAIL) {
        return false;
    }
    if !server.replies.is_unsure() {
        return false;
    }
    let has_unnamed = client.statements.has_unnamed() || server.unnamed.is_some();
    let defines = matches!(kind, PARSE | CLOSE) || (kind == QUERY && has_unnamed);
    defines || server.replies.is_defining()
}

/// Gives the connection this client's settings, where it has others, before its first message.
fn give_settings(client: &Client, server: &mut ServerConnection) {
    let settings = &client.state.settings;
    if Arc::ptr_eq(settings, &server.settings) || !server.is_at_rest() {
        return;
    }
    let sql = server.settings.change_to(settings);
    if !sql.is_empty() {
        if server.settings.has_other_timeout(settings) {
            // The time-out of another client must not end what follows; it is in force from a message's start.
            put_query(server.outbox.bytes(), LIFT_TIMEOUT);
            server.replies.push(Owed::HiddenQuery);
        }
        put_query(server.outbox.bytes(), &or_exit(&sql));
        server.replies.push(Owed::HiddenQuery);
        // A simple query ends the unnamed statement.
        server.unnamed = None;
    }
    server.settings = Arc::clone(settings);
}

/// Takes one message, which is whole or large.
fn take(
    client: &mut Client,
    server: &mut ServerConnection,
    statements: &Statements,
    limits: Limits,
    message: &[u8],
    header: Header,
) {
    match header.kind {
        PARSE => client.statements.note_parse(),
        BIND => client.statements.note_bind(),
        _ => {}
    }
    let understood = match header.kind {
        PARSE | BIND | DESCRIBE | CLOSE if !client.state.is_tracked => {
            take_as_it_is(client, server, message, header.kind);
            Some(())
        }
        PARSE => take_parse(client, server, statements, limits, message),
        BIND => take_bind(client, server, message, header),
        DESCRIBE => take_describe(client, server, message),
        CLOSE => take_close(client, server, message),
        _ => {
            take_plain(client, server, limits, message, header);
            return;
        }
    };
    if understood.is_none() {
        // The server judges a body that does not fit; it defines nothing and will not be answered as if it did.
        pass(server, message, Some(Owed::Bind(0)));
    }
    server.is_unsynced = true;
}

/// Takes a message of a client that has its connection for itself: names are its own.
fn take_as_it_is(client: &mut Client, server: &mut ServerConnection, message: &[u8], kind: u8) {
    if kind == PARSE
        && let Some(sql) = parse(message).and_then(|parsed| parsed.text())
    {
        client.state.note(&touches(sql), sql);
    }
    let owed = match kind {
        PARSE => {
            server.parses += 1;
            Owed::PlainParse
        }
        BIND => Owed::Bind(0),
        DESCRIBE => Owed::Describe(0),
        _ => Owed::Close,
    };
    pass(server, message, Some(owed));
}

/// Takes a message that names no statement.
fn take_plain(
    client: &mut Client,
    server: &mut ServerConnection,
    limits: Limits,
    message: &[u8],
    header: Header,
) {
    match header.kind {
        QUERY => {
            let client_before = client.statements.define_unnamed(None);
            let server_before = server.unnamed.take();
            let owed = match note_query(client, limits, message, header) {
                Ok(discards) => {
                    pass(server, message, None);
                    Owed::Query(UnnamedBefore { client: client_before, server: server_before, discards })
                }
                Err(error) => {
                    client.recorder.lose(Loss::Unsupported);
                    // In its place goes what no server takes, so that it is refused in its turn, transaction and all.
                    put_query(server.outbox.bytes(), REFUSED_BY_ANY_SERVER);
                    rejection(&error, true)
                }
            };
            server.replies.push(owed);
            // It ends with ReadyForQuery, as a Sync does.
            server.is_unsynced = false;
        }
        FUNCTION_CALL => {
            client.state.note_unread();
            pass(server, message, Some(Owed::FunctionCall));
            server.is_unsynced = false;
        }
        EXECUTE => pass(server, message, Some(Owed::Execute)),
        SYNC => {
            server.is_skipping = false;
            server.is_unsynced = false;
            // A server that is being sent COPY data ignores a Sync.
            let owed = (!server.is_copying_in).then_some(Owed::Sync);
            pass(server, message, owed);
        }
        COPY_DONE | COPY_FAIL => {
            server.is_copying_in = false;
            server.replies.end_copy();
            pass(server, message, None);
        }
        // CopyData and Flush.
        _ => pass(server, message, None),
    }
    if matches!(header.kind, EXECUTE | FLUSH) {
        server.is_unsynced = true;
    }
}

/// What a simple query may do to the session: tells whether it may end all prepared statements.
///
/// # Errors
/// When the pool does not take it.
fn note_query(
    client: &mut Client,
    limits: Limits,
    message: &[u8],
    header: Header,
) -> Result<bool, ClientError> {
    if message.len() < header.total {
        client.state.note_unread();
        return Ok(false);
    }
    let sql = query_text(message);
    if client.routing.gate.is_proved() {
        return Ok(false);
    }
    let touches = touches(sql);
    if let Some(error) = reject_pin(client, limits, &touches) {
        return Err(error);
    }
    client.state.note(&touches, sql);
    // DISCARD and DEALLOCATE among others.
    Ok(!touches.ends.is_empty())
}

fn pass(server: &mut ServerConnection, message: &[u8], owed: Option<Owed>) {
    server.outbox.bytes().extend_from_slice(message);
    if let Some(owed) = owed {
        server.replies.push(owed);
    }
}

fn take_parse(
    client: &mut Client,
    server: &mut ServerConnection,
    statements: &Statements,
    limits: Limits,
    message: &[u8],
) -> Option<()> {
    let parsed = parse(message)?;
    if limits.rejects_pins {
        let sql = parsed.text()?;
        if let Some(error) = reject_pin(client, limits, &touches(sql)) {
            client.recorder.lose(Loss::Unsupported);
            refuse_parse(server, &error);
            return Some(());
        }
    }
    if parsed.name.is_empty() {
        let statement = statements.anonymous(parsed.definition);
        let server_before = server.unnamed.replace(statement.id);
        let client_before = client.statements.define_unnamed(Some(statement));
        let before = UnnamedBefore { client: client_before, server: server_before, discards: false };
        server.parses += 1;
        pass(server, message, Some(Owed::UnnamedParse(before)));
        return Some(());
    }
    if let Some(existing) = client.statements.find(parsed.name).cloned() {
        // PostgreSQL refuses a second statement of one name; so that it does, it must have the first.
        prepare(server, &existing);
        send_parse(server, existing.name.as_bytes(), parsed.definition);
        let definition = client.statements.define(parsed.name, Some(existing));
        server.replies.push(Owed::Parse(definition));
        return Some(());
    }
    let plan_id = client.state.settings.plan_id;
    let Some(statement) = statements.intern(parsed.definition, plan_id, limits.prepared_bytes_max) else {
        let error = ClientError::error(
            ErrorKind::Limit,
            sqlstate::CONFIGURATION_LIMIT_EXCEEDED,
            "the texts of prepared statements have reached this proxy's limit",
        );
        client.recorder.lose(Loss::Unsupported);
        refuse_parse(
            server,
            &error.with_hint("Close statements that are not needed, or raise pooling.maxPreparedBytes."),
        );
        return Some(());
    };
    let definition = client.statements.define(parsed.name, Some(Arc::clone(&statement)));
    let standing = server.prepared.touch(&statement);
    if standing == Standing::Ready && server.transaction != TransactionStatus::Failed {
        server.replies.push(Owed::LocalParse(definition));
        return Some(());
    }
    if standing != Standing::Absent {
        // In a failed transaction the server refuses most of what is parsed, which only it can judge.
        close(server, &statement);
    }
    make_room(server, &statement);
    send_parse(server, statement.name.as_bytes(), parsed.definition);
    server.replies.push(Owed::Parse(definition));
    Some(())
}

fn take_bind(
    client: &mut Client,
    server: &mut ServerConnection,
    message: &[u8],
    header: Header,
) -> Option<()> {
    let (portal, name) = bind_names(message)?;
    let found = client.statements.find(name);
    if let Some(statement) = found
        && let Some(touches) = &statement.touches
        && !client.routing.gate.is_proved()
    {
        client.state.note(touches, statement.text());
        if !touches.ends.is_empty() {
            server.replies.end_state();
        }
    }
    match found {
        Some(statement) if !name.is_empty() => {
            prepare(server, statement);
            put_bind(
                server.outbox.bytes(),
                message,
                header.total,
                (portal, name),
                statement.name.as_bytes(),
            )?;
            server.replies.push(Owed::Bind(statement.id));
        }
        found => {
            if name.is_empty() {
                give_unnamed(server, found);
            }
            pass(server, message, Some(Owed::Bind(0)));
        }
    }
    Some(())
}

fn take_describe(client: &Client, server: &mut ServerConnection, message: &[u8]) -> Option<()> {
    match target(message)? {
        Target::Statement(b"") => {
            give_unnamed(server, client.statements.find(b""));
            pass(server, message, Some(Owed::Describe(0)));
        }
        Target::Statement(name) => match client.statements.find(name) {
            Some(statement) => {
                prepare(server, statement);
                put_describe_statement(server.outbox.bytes(), statement.name.as_bytes());
                server.replies.push(Owed::Describe(statement.id));
            }
            None => pass(server, message, Some(Owed::Describe(0))),
        },
        Target::Portal(_) => pass(server, message, Some(Owed::Describe(0))),
    }
    Some(())
}

fn take_close(client: &mut Client, server: &mut ServerConnection, message: &[u8]) -> Option<()> {
    match target(message)? {
        // The server keeps it for whoever else has prepared the same.
        Target::Statement(name) if client.statements.find(name).is_some() => {
            let definition = client.statements.define(name, None);
            server.replies.push(Owed::LocalClose(definition));
        }
        Target::Statement(_) | Target::Portal(_) => pass(server, message, Some(Owed::Close)),
    }
    Some(())
}

//! The usual request, and the usual answer: each is dealt with at one look where it is nothing else, and left alone where
//! it is.

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::classify::plain::is_plain;
use crate::server::connection::ServerConnection;
use crate::server::replies::{Owed, UnnamedBefore};
use crate::session::client::Client;
use crate::session::forward::record;
use crate::session::relay::{Seen, is_plain_tag};
use crate::session::request::COLLECTED_MAX;
use crate::transaction::TransactionStatus;
use crate::wire::backend::{
    BIND_COMPLETE, COMMAND_COMPLETE, DATA_ROW, NO_DATA, PARSE_COMPLETE, READY_FOR_QUERY, ROW_DESCRIPTION,
};
use crate::wire::frame::{HEADER_LEN, header};
use crate::wire::frontend::{QUERY, query_text};

/// Sends the usual request from where it lies: one whole simple query that touches nothing of the session, to a connection
/// that needs nothing before it. Tells whether it was one; else nothing has been done.
pub fn forward_usual(client: &mut Client, server: &mut ServerConnection, cx: &mut Context<'_>) -> bool {
    let gate = client.routing.gate;
    let is_whole = matches!(header(&client.inbox, COLLECTED_MAX), Ok(Some(found))
        if found.kind == QUERY && found.total == client.inbox.len());
    let is_usual = is_whole
        && client.streaming == 0
        && client.discarding == 0
        && server.is_at_rest()
        && server.unnamed.is_none()
        && !client.statements.has_unnamed()
        && !client.routing.is_put_off()
        && Arc::ptr_eq(&client.state.settings, &server.settings)
        && if gate.is_watched {
            gate.is_open && gate.is_proved()
        } else {
            is_plain(query_text(&client.inbox))
        };
    if !is_usual {
        return false;
    }
    if client.recorder.is_on() {
        let inbox = std::mem::take(&mut client.inbox);
        record(client, &inbox);
        client.inbox = inbox;
    }
    let sent = match server.stream.poll_write(cx, &client.inbox) {
        Poll::Ready(Ok(sent)) => sent,
        // What is wrong shows when the rest is sent.
        Poll::Ready(Err(_)) | Poll::Pending => 0,
    };
    if let Some(rest @ [_, ..]) = client.inbox.get(sent..) {
        server.outbox.bytes().extend_from_slice(rest);
    }
    client.inbox.advance(client.inbox.len());
    client.routing.gate.is_open = false;
    server.replies.push(Owed::Query(UnnamedBefore::default()));
    true
}

/// Clears the usual answer at one go: all that is owed is there to the last byte, it is no error, and it changes nothing
/// of what is known of the connection. Tells whether it was one; else nothing has been done.
pub fn clear_usual(client: &mut Client, server: &mut ServerConnection, seen: &mut Seen) -> bool {
    if server.cleared > 0 || server.passing > 0 || client.routing.rescue.is_dropping() || !is_usual(server) {
        return false;
    }
    client.routing.rescue.end();
    client.state.end_definitions();
    server.cleared = server.inbox.len();
    server.replies.pop_all();
    server.transaction = TransactionStatus::Idle;
    server.is_copying_in = false;
    server.is_retried = false;
    seen.queries += 1;
    seen.transactions += 1;
    true
}

/// Whether the inbox holds all that is owed for one request, which ends no transaction of several requests but its own.
fn is_usual(server: &ServerConnection) -> bool {
    let mut owed = server.replies.iter();
    let Some(mut next) = owed.next() else { return false };
    let mut rest: &[u8] = &server.inbox;
    while let Some((&[kind, a, b, c, d], body)) = rest.split_first_chunk::<HEADER_LEN>() {
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        // The length counts itself.
        let Some((body, behind)) = length.checked_sub(4).and_then(|length| body.split_at_checked(length))
        else {
            return false;
        };
        rest = behind;
        let is_answered = match (kind, next) {
            (DATA_ROW, Owed::Query(_) | Owed::Execute) | (ROW_DESCRIPTION, Owed::Query(_)) => continue,
            (COMMAND_COMPLETE, Owed::Query(_)) if is_plain_tag(body) => continue,
            (COMMAND_COMPLETE, Owed::Execute) => is_plain_tag(body),
            (PARSE_COMPLETE, Owed::UnnamedParse(_)) | (BIND_COMPLETE, Owed::Bind(_)) => true,
            (ROW_DESCRIPTION | NO_DATA, Owed::Describe(_)) => true,
            (READY_FOR_QUERY, Owed::Query(_) | Owed::Sync) => {
                return body == b"I" && behind.is_empty() && owed.next().is_none();
            }
            _ => false,
        };
        match owed.next() {
            Some(owed) if is_answered => next = owed,
            _ => return false,
        }
    }
    false
}

//! What may be sent to the server of an exchange: where it only takes reads, nothing but what is proved to be one, or belongs
//! to a transaction that goes there as a whole; and what the proxy puts in between.

use crate::classify::commands::{Command, command};
use crate::fleet::View;
use crate::mirror::loss::Loss;
use crate::server::connection::ServerConnection;
use crate::server::replies::{Owed, Rejection};
use crate::session::client::Client;
use crate::session::command::answer_query;
use crate::transaction::TransactionStatus;
use crate::wire::codec::split_cstr;
use crate::wire::frame::{HEADER_LEN, Header};
use crate::wire::frontend::{
    COPY_DATA, COPY_DONE, COPY_FAIL, QUERY, SYNC, SYNC_MESSAGE, put_query, query_text,
};

/// Whether a message may go to a server that only takes reads, which is watched: it belongs to a request that was judged to be one, or to a
/// READ ONLY transaction.
pub fn may_pass(client: &mut Client, server: &mut ServerConnection, rest: &[u8], kind: u8) -> bool {
    let gate = &mut client.routing.gate;
    if gate.is_open || server.is_skipping {
        return true;
    }
    // The end of what has passed already, or what no server listens to.
    if (kind == SYNC && server.is_unsynced) || matches!(kind, COPY_DATA | COPY_DONE | COPY_FAIL) {
        return true;
    }
    if gate.is_in_block {
        // Only the answers tell whether the transaction goes on.
        let goes_on = server.replies.is_empty() && server.transaction != TransactionStatus::Idle;
        return goes_on && may_pass_in_block(client, server, rest);
    }
    let Some(segment) = client.routing.judge.segment(rest, &client.statements) else { return false };
    if client.routing.lets_pass(&segment, rest, &client.statements) {
        client.routing.gate.is_open = true;
        let rescue = &mut client.routing.rescue;
        rescue.disarm();
        // What came before has been answered, or this is not kept.
        if rescue.is_in_use() && server.replies.is_empty() {
            rescue.keep(&segment, rest, &client.statements);
        }
        return true;
    }
    if server.is_unsynced && server.replies.is_empty() {
        // What came before a Flush only prepared something: it is ended, so that the rest can go elsewhere.
        server.outbox.bytes().extend_from_slice(&SYNC_MESSAGE);
        server.replies.push(Owed::HiddenSync);
        server.is_unsynced = false;
    }
    false
}

/// Whether a request may go on in the transaction that is open on a replica. One that has begun there with reads, without
/// being declared READ ONLY, moves to the primary before anything else.
fn may_pass_in_block(client: &mut Client, server: &mut ServerConnection, rest: &[u8]) -> bool {
    let routing = &mut client.routing;
    let query = rest.strip_prefix(&[QUERY]).and_then(|after| after.get(HEADER_LEN - 1..));
    let is_command = query.and_then(split_cstr).is_some_and(|(sql, _)| command(sql).is_some());
    let is_prefix = routing.is_prefix() && server.transaction == TransactionStatus::Open;
    let mut passes = true;
    if is_prefix && !is_command {
        let Some(segment) = routing.judge.segment(rest, &client.statements) else { return false };
        passes = routing.lets_pass_in_prefix(&segment, rest, &client.statements);
    }
    routing.gate.is_open = passes;
    if !passes {
        put_query(server.outbox.bytes(), "ROLLBACK");
        server.replies.push(Owed::HiddenQuery);
        server.unnamed = None;
        routing.move_on();
    }
    passes
}

/// Begins the transaction at the server that its first statement goes to.
pub fn begin_put_off(client: &mut Client, server: &mut ServerConnection) {
    if server.transaction == TransactionStatus::Idle
        && let Some(begin) = client.routing.take_put_off()
    {
        // The client's own BEGIN was answered here.
        client.recorder.lose(Loss::Unsupported);
        put_query(server.outbox.bytes(), begin);
        server.replies.push(Owed::HiddenQuery);
        server.unnamed = None;
    }
}

/// Answers a command to the proxy that comes while there is a connection: the server gets an empty query, so that the
/// answer has its turn.
pub fn take_command(
    client: &mut Client,
    server: &mut ServerConnection,
    view: &View,
    message: &[u8],
    header: Header,
) -> bool {
    let sql = query_text(message.get(..header.total).unwrap_or_default());
    let Some(command) = command(sql) else { return false };
    client.recorder.lose(Loss::Unsupported);
    if command == Command::ShowToken {
        // What this transaction writes has no position yet.
        client.routing.freshness.forget_token();
    }
    let mut answer = Vec::new();
    answer_query(&command, &mut client.routing, view, &mut answer);
    client.statements.define_unnamed(None);
    server.unnamed = None;
    put_query(server.outbox.bytes(), "");
    server.replies.push(Owed::Rejected(Box::new(Rejection { error: answer, is_query: true })));
    server.is_unsynced = false;
    true
}

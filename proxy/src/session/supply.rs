//! Makes sure that a server has the statements that a client's messages name.

use std::sync::Arc;

use crate::server::connection::ServerConnection;
use crate::server::prepared::{Standing, Statement, server_name};
use crate::server::replies::Owed;
use crate::wire::frontend::{put_close_statement, put_parse};

/// Makes sure that the server has a statement of ours, in the version that fits its tables.
pub fn prepare(server: &mut ServerConnection, statement: &Arc<Statement>) {
    match server.prepared.touch(statement) {
        Standing::Ready => return,
        Standing::Outdated => close(server, statement),
        Standing::Absent => {}
    }
    make_room(server, statement);
    send_parse(server, statement.name.as_bytes(), &statement.definition);
    server.replies.push(Owed::HiddenParse(Arc::clone(statement)));
}

/// Sends a `Parse`, which is counted.
pub fn send_parse(server: &mut ServerConnection, name: &[u8], definition: &[u8]) {
    server.parses += 1;
    put_parse(server.outbox.bytes(), name, definition);
}

/// Closes a statement at the server, which is to be prepared anew.
pub fn close(server: &mut ServerConnection, statement: &Statement) {
    server.prepared.remove(statement.id);
    put_close_statement(server.outbox.bytes(), statement.name.as_bytes());
    server.replies.push(Owed::HiddenClose(statement.id));
}

/// Counts a statement as prepared, and closes another for it where there are too many.
pub fn make_room(server: &mut ServerConnection, statement: &Statement) {
    if let Some(evicted) = server.prepared.insert(statement) {
        put_close_statement(server.outbox.bytes(), server_name(evicted).as_bytes());
        server.replies.push(Owed::HiddenClose(evicted));
    }
}

/// Makes sure that the server's unnamed statement is this client's, or none.
pub fn give_unnamed(server: &mut ServerConnection, statement: Option<&Arc<Statement>>) {
    match statement {
        Some(statement) if server.unnamed != Some(statement.id) => {
            let before = server.unnamed.replace(statement.id);
            send_parse(server, b"", &statement.definition);
            server.replies.push(Owed::HiddenUnnamedParse(before));
        }
        None => {
            if let Some(before) = server.unnamed.take() {
                put_close_statement(server.outbox.bytes(), b"");
                server.replies.push(Owed::HiddenUnnamedClose(before));
            }
        }
        Some(_) => {}
    }
}

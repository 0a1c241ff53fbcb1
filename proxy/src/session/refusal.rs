//! What the pool does not take from its clients, and how it says so: the server is sent what it refuses, so that the
//! refusal comes in its turn and fails the transaction as any error would; the client gets ours in its place.

use std::time::Duration;

use crate::classify::touches::Touches;
use crate::error::{ClientError, ErrorKind};
use crate::server::connection::ServerConnection;
use crate::server::replies::{Owed, Rejection};
use crate::session::client::Client;
use crate::wire::frontend::put_describe_statement;
use crate::wire::sqlstate;

/// A query that every server refuses, with an error of syntax, in any state.
pub const REFUSED_BY_ANY_SERVER: &str = "refused by the pool";

/// The name of a statement that no server has.
const NO_STATEMENT: &[u8] = b"__pgrouting_none";

/// What clients may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest message, in bytes.
    pub message_bytes_max: usize,
    /// The texts of all prepared statements of the process, in bytes.
    pub prepared_bytes_max: usize,
    /// Requests that take longer are written to the log.
    pub slow: Option<Duration>,
    /// Whether statements are refused that would keep their client on its connection.
    pub rejects_pins: bool,
}

/// Why a statement is not taken that would keep its client on its connection, where the pool does not want that.
pub fn reject_pin(client: &Client, limits: Limits, touches: &Touches) -> Option<ClientError> {
    if !limits.rejects_pins || !client.state.is_tracked {
        return None;
    }
    let what = client.state.would_pin(touches)?;
    let error = ClientError::error(
        ErrorKind::Policy,
        sqlstate::FEATURE_NOT_SUPPORTED,
        format!("this pool does not keep {what} from one transaction to the next"),
    );
    Some(error.with_hint("Use a pool with pooling.mode Session, or pooling.pinPolicy Pin."))
}

/// What is owed for a message that is not taken.
pub fn rejection(error: &ClientError, is_query: bool) -> Owed {
    let mut message = Vec::new();
    error.put(&mut message);
    Owed::Rejected(Box::new(Rejection { error: message, is_query }))
}

/// Lets the server refuse a Parse in its turn.
pub fn refuse_parse(server: &mut ServerConnection, error: &ClientError) {
    put_describe_statement(server.outbox.bytes(), NO_STATEMENT);
    server.replies.push(rejection(error, false));
}

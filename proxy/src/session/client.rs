//! One client's end of a session: its socket, what it has sent, what it is to get.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::mirror::recorder::Recorder;
use crate::pace::Pace;
use crate::roster::Seat;
use crate::session::clocked::Clocked;
use crate::session::prepared::ClientStatements;
use crate::session::routing::Routing;
use crate::session::state::State;
use crate::socket::stream::Stream;
use crate::socket::{Inbox, Outbox};

/// Bytes that the first read of a request may bring: most requests fit, and a buffer of that size costs the allocator
/// next to nothing.
const FIRST_READ_BYTES: usize = 1000;

/// Bytes that a further read may bring.
const READ_BYTES: usize = 8 * 1024;

/// A client that is logged in.
#[derive(Debug)]
pub struct Client {
    /// Its socket.
    pub stream: Stream,
    /// What it has sent and nobody has taken yet. Holds no memory while it is empty and the client idle.
    pub inbox: Inbox,
    /// What it is to get.
    pub outbox: Outbox,
    /// What it has prepared.
    pub statements: ClientStatements,
    /// What it has set, and what ties it to a connection.
    pub state: State,
    /// Where its transactions go.
    pub routing: Routing,
    /// Its end of the mirror.
    pub recorder: Recorder,
    /// Its number on the roster.
    pub number: u64,
    /// What it does, and since when.
    pub pace: Arc<Pace>,
    /// How long the request at hand takes.
    pub clocked: Clocked,
    /// Bytes of a large message, still to come, that go to the server as they are.
    pub streaming: usize,
    /// Bytes of a large message, still to come, that nobody wants.
    pub discarding: usize,
    /// After an error of ours in the extended protocol: everything to the next Sync is ignored.
    pub is_skipping: bool,
}

impl Client {
    /// A client whose first bytes, if it sent any with its login, are in `inbox`.
    #[must_use]
    pub fn new(
        stream: Stream,
        inbox: Inbox,
        state: State,
        routing: Routing,
        recorder: Recorder,
        seat: &Seat,
    ) -> Self {
        Self {
            stream,
            inbox,
            outbox: Outbox::default(),
            statements: ClientStatements::default(),
            state,
            routing,
            recorder,
            number: seat.id,
            pace: Arc::clone(&seat.pace),
            clocked: Clocked::default(),
            streaming: 0,
            discarding: 0,
            is_skipping: false,
        }
    }

    /// Reads what it has sent into the inbox. `Ready(Ok(0))` is the end of the stream.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let count = if self.inbox.is_at_rest() { FIRST_READ_BYTES } else { READ_BYTES };
        self.inbox.poll_read(&mut self.stream, cx, count)
    }

    /// Sends what it is to get. `Ready` means all of it.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbox.poll_send(&mut self.stream, cx)
    }

    /// Gives the buffers' memory back while there is nothing in them.
    pub fn rest(&mut self) {
        self.inbox.rest();
        self.statements.rest();
        self.outbox.rest();
        self.stream.rest();
    }

    /// Drops what nobody wants from the front of the inbox. Tells whether there is more to be dropped.
    pub fn discard(&mut self) -> bool {
        let dropped = self.discarding.min(self.inbox.len());
        self.inbox.advance(dropped);
        self.discarding -= dropped;
        self.discarding > 0
    }
}

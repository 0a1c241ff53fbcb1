//! Moves bytes both ways between a client and its server connection until nothing is under way.
//!
//! One poll loop serves both directions, and neither waits for the other: a client that sends without reading, or
//! reads slowly, holds up only itself. Every round does what can be done without waiting; a request that fits one read
//! costs one read and one write on either side.

use std::io;
use std::task::{Context, Poll, ready};

use crate::server::connection::ServerConnection;
use crate::session::client::Client;
use crate::session::forward::{Forwarded, forward};
use crate::session::refusal::Limits;
use crate::session::relay::{OutOfStep, Seen, put_local, walk};
use crate::session::request::RequestFault;
use crate::session::tenancy::Tenancy;
use crate::session::turns::Turns;
use crate::session::usual::{clear_usual, forward_usual};
use crate::session::waiting::{Next, next};

/// Bytes of a client that are read ahead of the server.
const READ_AHEAD_MAX: usize = 256 * 1024;

/// Why an exchange stops.
#[derive(Debug)]
pub enum Stop {
    /// Nothing is under way: the connection is between transactions, and the client has everything.
    AtRest,
    /// The client has sent a whole request, of which the server has nothing yet.
    Asked,
    /// The client has said goodbye.
    Terminated,
    /// The client has gone without a word.
    ClientGone(io::Error),
    /// The client sent what no client may send.
    ClientFault(RequestFault),
    /// The server is not the primary any more, though it says so: nothing more is sent there; and whether anything was.
    Fenced(bool),
    /// The server has gone; what it said last has been passed on.
    ServerGone(Option<io::Error>),
    /// The server's answers are not those that it owes.
    ServerFault(OutOfStep),
}

/// One exchange.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// The client.
    pub client: &'a mut Client,
    /// Its server connection.
    pub server: &'a mut ServerConnection,
    /// The session's claim on the servers.
    pub tenancy: &'a Tenancy,
    /// How far it has come.
    pub progress: &'a mut Progress,
}

/// How far an exchange has come.
#[derive(Debug, Default)]
pub struct Progress {
    /// What was seen of the answers so far.
    pub seen: Seen,
    /// Whether anything has been sent to the server; before that, being at rest means nothing.
    pub is_begun: bool,
    /// Nothing is sent to the server, whose own messages are passed on until the client has sent a whole request: how
    /// much of it has been looked at.
    pub awaited: Option<usize>,
}

impl Exchange<'_> {
    /// Goes on until there is a reason to stop. Cancel-safe: all state is in the client and the connection.
    pub fn poll(&mut self, turns: &mut Turns, cx: &mut Context<'_>) -> Poll<Stop> {
        loop {
            ready!(turns.poll(cx));
            match self.round(cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(stop) => return Poll::Ready(stop),
            }
        }
    }

    /// Sends what can be sent, then reads. Tells whether anything was read, which is then to be sent.
    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, Stop> {
        if let Some(scanned) = &mut self.progress.awaited {
            look(self.client, scanned, self.tenancy.limits)?;
        } else {
            self.push_to_server(cx)?;
        }
        self.push_to_client(cx)?;
        if self.client.clocked.is_on() && self.server.replies.is_empty() && self.progress.is_begun {
            self.client.clocked.finish(self.tenancy, self.server, self.client.number);
        }
        if self.is_at_rest() {
            return Err(Stop::AtRest);
        }
        Ok(self.pull_from_server(cx)? || self.pull_from_client(cx)?)
    }

    fn push_to_server(&mut self, cx: &mut Context<'_>) -> Result<(), Stop> {
        let client = &mut *self.client;
        if self.server.replies.is_empty() && !client.inbox.is_empty() && !client.clocked.is_on() {
            let times = &self.tenancy.worker.metrics.times;
            client.clocked.begin(self.tenancy.limits.slow, times, &client.inbox, &client.statements);
        }
        if !self.progress.is_begun
            && !self.server.held.is_fenced()
            && forward_usual(self.client, self.server, cx)
        {
            self.progress.is_begun = true;
        }
        loop {
            let was_backlogged = !self.server.outbox.is_empty();
            if self.server.held.is_fenced() && (was_backlogged || !self.client.inbox.is_empty()) {
                return Err(Stop::Fenced(self.progress.is_begun));
            }
            let forwarded = if self.client.inbox.is_empty() {
                Forwarded::Nothing
            } else {
                let Tenancy { limits, context, .. } = self.tenancy;
                forward(self.client, self.server, &context.statements, *limits, self.tenancy.view())
                    .map_err(Stop::ClientFault)?
            };
            match forwarded {
                Forwarded::Nothing => {}
                Forwarded::Something => {
                    self.progress.is_begun = true;
                    if self.server.passing == 0 && self.server.replies.has_local() {
                        put_local(self.client, self.server);
                    }
                }
                // A client that leaves in the middle of something leaves the connection in the middle too.
                Forwarded::Terminate => return Err(Stop::Terminated),
            }
            if !self.server.outbox.is_empty() || !self.server.stream.is_flushed() {
                let server = &mut *self.server;
                match server.outbox.poll_send(&mut server.stream, cx) {
                    Poll::Ready(Ok(())) => {}
                    // The server may have said why it closed; that is read below.
                    Poll::Ready(Err(_)) => self.server.outbox.clear(),
                    Poll::Pending => return Ok(()),
                }
            }
            // Behind a backlog nothing was taken; now that it is worked off there may be more to take.
            if (forwarded == Forwarded::Nothing && !was_backlogged) || self.client.inbox.is_empty() {
                return Ok(());
            }
        }
    }

    fn push_to_client(&mut self, cx: &mut Context<'_>) -> Result<(), Stop> {
        if !self.client.outbox.is_empty() {
            let Client { recorder, outbox, stream, .. } = &mut *self.client;
            let before = if recorder.is_on() { outbox.unsent().to_vec() } else { Vec::new() };
            let polled = outbox.poll_send(stream, cx);
            let sent = before.len().saturating_sub(outbox.len());
            recorder.tap(before.get(..sent).unwrap_or_default());
            match polled {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Err(Stop::ClientGone(error)),
                Poll::Pending => return Ok(()),
            }
        }
        while self.server.cleared > 0 {
            let cleared = self.server.inbox.get(..self.server.cleared).unwrap_or_default();
            match self.client.stream.poll_write(cx, cleared) {
                Poll::Ready(Ok(count)) => {
                    self.client.recorder.tap(cleared.get(..count).unwrap_or_default());
                    self.server.inbox.advance(count);
                    self.server.cleared -= count;
                }
                Poll::Ready(Err(error)) => return Err(Stop::ClientGone(error)),
                Poll::Pending => return Ok(()),
            }
        }
        if !self.client.stream.is_flushed()
            && let Poll::Ready(Err(error)) = self.client.stream.poll_flush(cx)
        {
            return Err(Stop::ClientGone(error));
        }
        Ok(())
    }

    fn pull_from_server(&mut self, cx: &mut Context<'_>) -> Result<bool, Stop> {
        // A client that is slow is not read ahead of.
        if self.server.cleared > 0 || !self.client.outbox.is_empty() || !self.client.stream.is_flushed() {
            return Ok(false);
        }
        if self.progress.seen.is_fatal {
            return Err(Stop::ServerGone(None));
        }
        match self.server.poll_read(cx) {
            Poll::Ready(Ok(0) | Err(_)) if self.server.held.is_fenced() => {
                Err(Stop::Fenced(self.progress.is_begun))
            }
            Poll::Ready(Ok(0)) => Err(Stop::ServerGone(None)),
            Poll::Ready(Ok(_)) => {
                let seen = &mut self.progress.seen;
                if !clear_usual(self.client, self.server, seen) {
                    walk(self.client, self.server, seen).map_err(Stop::ServerFault)?;
                }
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(Stop::ServerGone(Some(error))),
            Poll::Pending => Ok(false),
        }
    }

    fn pull_from_client(&mut self, cx: &mut Context<'_>) -> Result<bool, Stop> {
        // What is not taken from the inbox, because the server is slow or an answer is waited for first, must not grow
        // without a limit. Either ends by itself, so a message that is only half there is read on then.
        let awaits_answer = self.server.replies.is_unsure() && !self.server.is_copying_in;
        if self.client.inbox.len() >= READ_AHEAD_MAX && (awaits_answer || !self.server.outbox.is_empty()) {
            return Ok(false);
        }
        match self.client.poll_read(cx) {
            Poll::Ready(Ok(0)) => Err(Stop::ClientGone(io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(Ok(_)) => Ok(true),
            Poll::Ready(Err(error)) => Err(Stop::ClientGone(error)),
            Poll::Pending => Ok(false),
        }
    }

    fn is_at_rest(&self) -> bool {
        self.progress.is_begun
            && self.server.is_at_rest()
            && self.client.outbox.is_empty()
            && self.client.stream.is_flushed()
            && self.client.streaming == 0
            && self.client.discarding == 0
    }
}

/// Looks for a whole request; answers what needs no server.
fn look(client: &mut Client, scanned: &mut usize, limits: Limits) -> Result<(), Stop> {
    loop {
        match next(client, scanned, limits.message_bytes_max).map_err(Stop::ClientFault)? {
            Next::Request => return Err(Stop::Asked),
            Next::Terminate => return Err(Stop::Terminated),
            Next::Answered => {}
            Next::Read => return Ok(()),
        }
    }
}

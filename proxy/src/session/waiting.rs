//! Between transactions: waits until the client has sent a whole request, and answers what needs no server.

use std::task::{Context, Poll, ready};

use crate::pace::Doing;
use crate::session::client::Client;
use crate::session::end::{self, End};
use crate::session::request::{Progress, RequestFault, client_header, progress};
use crate::session::signals::Signals;
use crate::session::turns::Turns;
use crate::wire::backend::put_ready;
use crate::wire::frontend::{FLUSH, QUERY, SYNC};

/// Waits for a whole request: what has arrived stays in the inbox, of which so much has been `scanned`.
///
/// # Errors
/// When the client leaves, has to leave, or sends what no client may send.
pub fn poll_request(
    client: &mut Client,
    scanned: &mut usize,
    signals: &mut Signals<'_>,
    message_bytes_max: usize,
    turns: &mut Turns,
    cx: &mut Context<'_>,
) -> Poll<Result<(), End>> {
    let shutdown = || Err(End::Told(end::shutdown()));
    loop {
        ready!(turns.poll(cx));
        match client.poll_send(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return Poll::Ready(Err(End::Left)),
            Poll::Pending => return signals.poll_kill(cx).map(|()| shutdown()),
        }
        match next(client, scanned, message_bytes_max) {
            Ok(Next::Request) => {
                *scanned = 0;
                return Poll::Ready(Ok(()));
            }
            Ok(Next::Terminate) => return Poll::Ready(Err(End::Left)),
            Ok(Next::Answered) => continue,
            Ok(Next::Read) => {}
            Err(fault) => return Poll::Ready(Err(End::Told(end::fault(&fault)))),
        }
        match client.poll_read(cx) {
            Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(End::Left)),
            Poll::Ready(Ok(_)) => {}
            Poll::Pending => {
                client.rest();
                // A transaction that has begun is let come to its end.
                let (doing, leaves) = if client.routing.is_put_off() {
                    (Doing::Open, signals.poll_kill(cx))
                } else {
                    (Doing::Idle, signals.poll_drain(cx))
                };
                let is_overdue = client.pace.note(doing, 0);
                return if is_overdue { Poll::Ready(shutdown()) } else { leaves.map(|()| shutdown()) };
            }
        }
    }
}

/// What the front of the inbox asks for.
#[derive(Debug)]
pub enum Next {
    /// A server.
    Request,
    /// Goodbye.
    Terminate,
    /// Nothing more: it has been answered or dropped.
    Answered,
    /// More bytes.
    Read,
}

/// Looks at the front of the inbox; answers there what needs no server.
///
/// # Errors
/// When there is what no client may send.
pub fn next(
    client: &mut Client,
    scanned: &mut usize,
    message_bytes_max: usize,
) -> Result<Next, RequestFault> {
    if client.inbox.is_empty() {
        return Ok(Next::Read);
    }
    if client.discarding > 0 {
        return Ok(if client.discard() { Next::Read } else { Next::Answered });
    }
    let Some(header) = client_header(&client.inbox, message_bytes_max)? else { return Ok(Next::Read) };
    let is_there = client.inbox.len() >= header.total;
    if header.kind == QUERY && is_there && *scanned == 0 && !client.is_skipping {
        return Ok(Next::Request);
    }
    if *scanned == 0 && is_there && matches!(header.kind, SYNC | FLUSH) {
        client.inbox.advance(header.total);
        if header.kind == SYNC {
            client.is_skipping = false;
            put_ready(client.outbox.bytes(), client.routing.status());
        }
        return Ok(Next::Answered);
    }
    if client.is_skipping {
        client.discarding = header.total;
        return Ok(Next::Answered);
    }
    Ok(match progress(&client.inbox, scanned, message_bytes_max)? {
        Progress::Whole => Next::Request,
        Progress::Partial(_) => Next::Read,
        Progress::Terminate => Next::Terminate,
        Progress::Meaningless(total) => {
            client.discarding = total;
            Next::Answered
        }
    })
}

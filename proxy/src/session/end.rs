//! How sessions end: what the client is told, and what becomes of the connection.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tracing::warn;

use crate::error::{ClientError, ErrorKind};
use crate::pool::lease::Lease;
use crate::session::exchange::Stop;
use crate::session::request::RequestFault;
use crate::socket::stream::Stream;
use crate::socket::{Inbox, Outbox};
use crate::transaction::PinReason;
use crate::wire::sqlstate;

/// The longest that cleaning a connection up for the next client may take.
const RESET_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest that a client may take to read its last message.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a session ends.
#[derive(Debug)]
pub enum End {
    /// The client said goodbye or has gone: there is nobody to tell anything.
    Left,
    /// The client is told why.
    Told(ClientError),
    /// The client is passed what a server said, an ErrorResponse that ends the connection.
    Refused(Vec<u8>),
    /// The client has been told already.
    Closed,
}

/// What a client is told when the proxy stops, as PostgreSQL does.
#[must_use]
pub fn shutdown() -> ClientError {
    ClientError::fatal(
        ErrorKind::Policy,
        sqlstate::ADMIN_SHUTDOWN,
        "terminating connection due to administrator command",
    )
    .with_hint("This proxy is being stopped; connect again to reach another one.")
}

/// What a client is told whose connection the console ends.
#[must_use]
pub fn killed() -> ClientError {
    ClientError::fatal(
        ErrorKind::Policy,
        sqlstate::ADMIN_SHUTDOWN,
        "terminating connection due to administrator command",
    )
    .with_hint("KILL or KILL_CLIENT was run at the console.")
}

/// What a client is told that has waited too long for a database that the console has paused.
#[must_use]
pub fn paused(database: &str) -> ClientError {
    ClientError::error(
        ErrorKind::Limit,
        sqlstate::CANNOT_CONNECT_NOW,
        format!("database \"{database}\" is paused, and the wait is over"),
    )
    .with_hint("RESUME at the console lets it go on; console.pauseTimeout is how long a request waits.")
}

/// What a client is told that cancelled its wait for a connection, as PostgreSQL does for a statement.
#[must_use]
pub fn cancelled() -> ClientError {
    ClientError::error(ErrorKind::Client, sqlstate::QUERY_CANCELED, "canceling statement due to user request")
}

/// What a client is told about a message that no client may send.
#[must_use]
pub fn fault(fault: &RequestFault) -> ClientError {
    match fault {
        RequestFault::Length(_) | RequestFault::Type(_) => {
            ClientError::fatal(ErrorKind::Client, sqlstate::PROTOCOL_VIOLATION, fault.to_string())
        }
        RequestFault::TooLong(_) => ClientError::fatal(
            ErrorKind::Limit,
            sqlstate::PROGRAM_LIMIT_EXCEEDED,
            format!("{fault} is longer than this pool allows"),
        )
        .with_hint("Raise pooling.maxMessageBytes, or send the data with COPY."),
    }
}

/// A replica went away in the middle of an answer to a read.
#[must_use]
pub fn replica_lost() -> ClientError {
    ClientError::error(
        ErrorKind::Server,
        sqlstate::CONNECTION_FAILURE,
        "the replica went away in the middle of its answer",
    )
    .with_hint("Nothing was changed; the statement can be sent again.")
}

/// The server has closed a connection that the session needs.
pub fn lost(lease: &Lease) -> End {
    warn!(server = &*lease.pool().name, "the server closed a connection in use");
    End::Told(
        ClientError::fatal(
            ErrorKind::Server,
            sqlstate::CONNECTION_FAILURE,
            "the server closed the connection unexpectedly",
        )
        .with_hint("Whether a statement under way took effect is not known."),
    )
}

/// Why the session ends after an exchange that did not come to rest. A connection at rest is kept for its cleaning;
/// any other is closed here, which rolls its transaction back.
pub fn of(
    stop: Stop,
    reason: Option<PinReason>,
    lease: Lease,
    kept: &mut Option<(PinReason, Lease)>,
    is_told: bool,
) -> End {
    let end = match stop {
        Stop::AtRest | Stop::Asked | Stop::Terminated | Stop::ClientGone(_) => End::Left,
        Stop::ClientFault(reason) => End::Told(fault(&reason)),
        Stop::Fenced(_) => End::Told(
            ClientError::fatal(
                ErrorKind::Server,
                sqlstate::ADMIN_SHUTDOWN,
                "the server of this session is not the primary any more",
            )
            .with_hint("Connect again. Whether a statement under way took effect is not known."),
        ),
        Stop::ServerGone(_) if is_told => End::Closed,
        Stop::ServerGone(error) => {
            warn!(?error, "the server did not say why");
            lost(&lease)
        }
        Stop::ServerFault(error) => {
            warn!(server = &*lease.pool().name, %error, "a server connection is out of step and is closed");
            End::Told(ClientError::fatal(
                ErrorKind::Server,
                sqlstate::PROTOCOL_VIOLATION,
                "the server broke the protocol",
            ))
        }
    };
    if lease.is_at_rest() && matches!(end, End::Left) {
        *kept = Some((reason.unwrap_or(PinReason::SessionMode), lease));
    }
    end
}

/// Sends what is left to be sent and closes. A client that does not read is not waited for.
pub async fn send_last(stream: &mut Stream, outbox: &mut Outbox) {
    let goodbye = async {
        poll_fn(|cx| outbox.poll_send(stream, cx)).await?;
        stream.end().await?;
        // What the client has sent meanwhile is read: closing over it would reset the connection, and the client
        // might never see its last message.
        let mut rest = Inbox::default();
        while poll_fn(|cx| rest.poll_read(stream, cx, 1024)).await? > 0 {
            rest.advance(rest.len());
        }
        Ok::<(), io::Error>(())
    };
    // A client that has gone, or does not read, loses nothing that it wanted.
    let _ = timeout(GOODBYE_TIMEOUT, goodbye).await;
}

/// Cleans a connection that a session kept, and gives it back; one that cannot be cleaned is closed.
pub async fn reset(mut lease: Lease) {
    if !lease.is_fit() {
        return;
    }
    match timeout(RESET_TIMEOUT, lease.run("DISCARD ALL")).await {
        Ok(Ok(_)) => {
            lease.prepared.clear();
            lease.unnamed = None;
            lease.settings = Arc::clone(&lease.identity.settings);
            lease.give_back();
        }
        Ok(Err(error)) => warn!(%error, "a connection could not be reset and is closed"),
        Err(_) => warn!("a connection could not be reset in time and is closed"),
    }
}

//! What a client is told that did something for longer than the pool allows, in PostgreSQL's words for its own limits.

use crate::error::{ClientError, ErrorKind};
use crate::pace::Overdue;
use crate::wire::sqlstate;

/// The statement was cancelled, and the session goes on.
#[must_use]
pub fn cancelled() -> ClientError {
    ClientError::error(
        ErrorKind::Limit,
        sqlstate::QUERY_CANCELED,
        "canceling statement due to statement timeout",
    )
    .with_hint("The pool's limit is pooling.queryTimeout.")
}

/// The session ends.
#[must_use]
pub fn ended(overdue: Overdue) -> ClientError {
    let (sqlstate, message, hint) = match overdue {
        Overdue::Query => (
            sqlstate::QUERY_CANCELED,
            "terminating connection due to statement timeout",
            "The limit is pooling.queryTimeout. The server did not stop the statement when it was asked to, and whether it \
             takes effect is not known.",
        ),
        Overdue::Transaction => (
            sqlstate::TRANSACTION_TIMEOUT,
            "terminating connection due to transaction timeout",
            "The pool's limit is pooling.transactionTimeout.",
        ),
        Overdue::IdleTransaction => (
            sqlstate::IDLE_IN_TRANSACTION_TIMEOUT,
            "terminating connection due to idle-in-transaction timeout",
            "The pool's limit is pooling.idleTransactionTimeout.",
        ),
        Overdue::ClientIdle => (
            sqlstate::IDLE_SESSION_TIMEOUT,
            "terminating connection due to idle-session timeout",
            "The pool's limit is pooling.clientIdleTimeout.",
        ),
    };
    ClientError::fatal(ErrorKind::Limit, sqlstate, message).with_hint(hint)
}

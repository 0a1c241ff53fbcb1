//! What goes wrong, sorted by whose fault it is, and what a client may see of it.

use std::borrow::Cow;

use crate::wire::backend::put_error;
use crate::wire::sqlstate::SqlState;

/// Whether the session goes on after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It does.
    Error,
    /// The connection is closed.
    Fatal,
}

impl Severity {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
        }
    }
}

/// Whose fault an error of ours is. The label of `pgrouting_proxy_errors_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The client broke the protocol, or is not who it says.
    Client,
    /// A server cannot be reached, or broke off.
    Server,
    /// A limit or a wait ran out.
    Limit,
    /// The proxy is being stopped, or told to.
    Policy,
}

impl ErrorKind {
    /// All kinds, for metrics.
    pub const ALL: [Self; 4] = [Self::Client, Self::Server, Self::Limit, Self::Policy];

    /// The label in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Limit => "limit",
            Self::Policy => "policy",
        }
    }
}

/// An error that the proxy itself answers a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({sqlstate})")]
pub struct ClientError {
    /// Whose fault it is.
    pub kind: ErrorKind,
    /// Whether the session goes on.
    pub severity: Severity,
    /// Its code.
    pub sqlstate: SqlState,
    /// What happened.
    pub message: Cow<'static, str>,
    /// What to do about it.
    pub hint: Option<&'static str>,
}

impl ClientError {
    /// An error after which the session goes on.
    pub fn error(kind: ErrorKind, sqlstate: SqlState, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, severity: Severity::Error, sqlstate, message: message.into(), hint: None }
    }

    /// An error that ends the connection.
    pub fn fatal(kind: ErrorKind, sqlstate: SqlState, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, severity: Severity::Fatal, sqlstate, message: message.into(), hint: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub const fn with_hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Makes it end the connection, as it must where no session has begun.
    #[must_use]
    pub const fn into_fatal(mut self) -> Self {
        self.severity = Severity::Fatal;
        self
    }

    /// Appends it as an `ErrorResponse`.
    pub fn put(&self, out: &mut Vec<u8>) {
        let severity = self.severity.as_str();
        let mut fields =
            vec![(b'S', severity), (b'V', severity), (b'C', self.sqlstate), (b'M', &*self.message)];
        if let Some(hint) = self.hint {
            fields.push((b'H', hint));
        }
        put_error(out, &fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::backend::{error_field, is_fatal};

    #[test]
    fn an_error_carries_its_code_and_hint() {
        let mut out = Vec::new();
        ClientError::error(ErrorKind::Limit, "53300", "no room").with_hint("Wait.").put(&mut out);
        assert_eq!(error_field(&out, b'C'), Some(&b"53300"[..]));
        assert_eq!(error_field(&out, b'H'), Some(&b"Wait."[..]));
        assert!(!is_fatal(&out));
    }
}

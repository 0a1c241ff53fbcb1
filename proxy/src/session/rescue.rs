//! The safety net: a request that a replica refuses, though it belongs on the primary, or that recovery cancels there, is
//! run on the primary, as long as nothing of its answer has reached the client and no transaction was open.

use crate::classify::verdict::Verdict;
use crate::route::Refusal;
use crate::server::connection::{SERVER_MESSAGE_MAX, ServerConnection};
use crate::session::judge::Segment;
use crate::session::prepared::ClientStatements;
use crate::wire::backend::{
    BIND_COMPLETE, CLOSE_COMPLETE, ERROR_RESPONSE, NO_DATA, NOTICE_RESPONSE, PARAMETER_DESCRIPTION,
    PARAMETER_STATUS, PARSE_COMPLETE, ROW_DESCRIPTION, error_field,
};
use crate::wire::frame::header;

/// A longer request is not kept, in bytes.
const KEPT_MAX: usize = 64 * 1024;

/// Why an error of a replica is not the client's; `None` where it is.
#[must_use]
pub fn refusal(message: &[u8]) -> Option<Refusal> {
    let text = error_field(message, b'M').unwrap_or_default();
    let says = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
    match error_field(message, b'C')? {
        b"25006" => Some(Refusal::Misroute),
        b"0A000" | b"55000" | b"XX000" if says(b"recovery") || says(b"standby") => Some(Refusal::Misroute),
        b"40001" | b"40P01" if says(b"recovery") => Some(Refusal::Conflict),
        b"42P01" | b"42883" | b"42703" | b"42704" | b"3F000" => Some(Refusal::Missing),
        b"57P01" | b"57P02" | b"57P03" => Some(Refusal::Gone),
        _ => None,
    }
}

/// What is kept of a request while a replica may still refuse it.
#[derive(Debug, Default)]
pub struct Rescue {
    kept: Option<Box<Kept>>,
    /// What was kept of a request that cannot be run elsewhere any more, to tell what it was.
    shown: Option<Box<Kept>>,
    /// A replica has refused the request, and the rest of its answer is dropped.
    refused: Option<Refusal>,
    is_rescued: bool,
    /// Requests that follow in the same exchange are kept too.
    is_in_use: bool,
}

/// A request and what it may change.
#[derive(Debug)]
struct Kept {
    request: Vec<u8>,
    statements: Option<ClientStatements>,
}

/// What an answer shows so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// It may go to the client.
    Answer,
    /// The next message has to be there first.
    Nothing,
    /// The replica refuses.
    Refusal(Refusal),
}

impl Rescue {
    /// Keeps a request that goes to a replica, where it can be run elsewhere if that refuses it; with the client's
    /// statements where it changes them.
    pub fn keep(&mut self, segment: &Segment, bytes: &[u8], statements: &ClientStatements) {
        let request = bytes.get(..segment.length).unwrap_or_default();
        if segment.verdict == Verdict::Read && !segment.is_open && request.len() <= KEPT_MAX {
            let statements = segment.defines.then(|| statements.clone());
            self.kept = Some(Box::new(Kept { request: request.to_vec(), statements }));
        }
    }

    /// Keeps a request that goes to a replica only to tell what that refused.
    pub fn keep_to_tell(&mut self, segment: &Segment, bytes: &[u8]) {
        let request = bytes.get(..segment.length).unwrap_or_default();
        if request.len() <= KEPT_MAX {
            self.shown = Some(Box::new(Kept { request: request.to_vec(), statements: None }));
        }
    }

    /// Whether requests of this exchange are kept.
    #[must_use]
    pub const fn is_in_use(&self) -> bool {
        self.is_in_use
    }

    /// An exchange begins, whose requests are kept or not.
    pub const fn begin(&mut self, is_in_use: bool) {
        self.is_in_use = is_in_use;
    }

    /// Whether the answer has to be looked at before anything of it is passed on.
    #[must_use]
    pub const fn is_armed(&self) -> bool {
        self.kept.is_some() && self.refused.is_none()
    }

    /// Whether what the replica answers is dropped.
    #[must_use]
    pub const fn is_dropping(&self) -> bool {
        self.refused.is_some()
    }

    /// The answer begins to go to the client.
    pub fn show(&mut self) {
        self.shown = self.kept.take();
    }

    /// The answer has come to its end.
    pub fn end(&mut self) {
        self.kept = None;
    }

    /// There is nothing to run again, and nothing to tell.
    pub fn disarm(&mut self) {
        self.kept = None;
        self.shown = None;
    }

    /// The request whose answer goes to the client, where it was kept.
    #[must_use]
    pub fn shown(&self) -> Option<&[u8]> {
        self.shown.as_ref().map(|kept| &*kept.request)
    }

    /// The replica refuses.
    pub const fn refuse(&mut self, refusal: Refusal) {
        self.refused = Some(refusal);
    }

    /// The exchange is over: gives what is to be run on the primary, with the statements as they were before.
    pub fn take(&mut self) -> Option<(Refusal, Vec<u8>, Option<ClientStatements>)> {
        let refused = self.refused.take();
        let kept = self.kept.take();
        self.shown = None;
        let (refused, kept) = (refused?, kept?);
        self.is_rescued = true;
        Some((refused, kept.request, kept.statements))
    }

    /// Whether the next transaction is one that a replica has refused.
    pub const fn take_rescued(&mut self) -> bool {
        std::mem::replace(&mut self.is_rescued, false)
    }
}

/// Looks at what has come of an answer, from where the server's inbox is not cleared yet.
#[must_use]
pub fn examine(server: &ServerConnection) -> Shown {
    let mut rest = server.inbox.get(server.cleared..).unwrap_or_default();
    loop {
        let Ok(Some(found)) = header(rest, SERVER_MESSAGE_MAX) else { return Shown::Nothing };
        match found.kind {
            PARSE_COMPLETE
            | BIND_COMPLETE
            | CLOSE_COMPLETE
            | NO_DATA
            | ROW_DESCRIPTION
            | PARAMETER_DESCRIPTION
            | NOTICE_RESPONSE
            | PARAMETER_STATUS => {}
            ERROR_RESPONSE => {
                let Some(message) = rest.get(..found.total) else { return Shown::Nothing };
                return refusal(message).map_or(Shown::Answer, Shown::Refusal);
            }
            _ => return Shown::Answer,
        }
        // A description that is longer than what was read is part of an answer that will not be refused any more often
        // than any other; it is not collected.
        let Some(after) = rest.get(found.total..) else { return Shown::Answer };
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::backend::put_error;

    #[test]
    fn errors_of_recovery_are_told_from_the_clients_own() {
        for (code, text, expected) in [
            ("25006", "cannot execute INSERT in a read-only transaction", Some(Refusal::Misroute)),
            (
                "0A000",
                "cannot access temporary or unlogged relations during recovery",
                Some(Refusal::Misroute),
            ),
            ("0A000", "cannot use serializable mode in a hot standby", Some(Refusal::Misroute)),
            ("XX000", "cannot assign TransactionIds during recovery", Some(Refusal::Misroute)),
            ("40001", "canceling statement due to conflict with recovery", Some(Refusal::Conflict)),
            ("42P01", "relation \"t\" does not exist", Some(Refusal::Missing)),
            ("57P01", "terminating connection due to administrator command", Some(Refusal::Gone)),
            ("0A000", "cached plan must not change result type", None),
            ("40001", "could not serialize access due to concurrent update", None),
            ("22012", "division by zero", None),
            ("57014", "canceling statement due to user request", None),
        ] {
            let mut message = Vec::new();
            put_error(&mut message, &[(b'C', code), (b'M', text)]);
            assert_eq!(refusal(&message), expected, "{code} {text}");
        }
    }
}

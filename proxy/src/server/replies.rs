//! What a server still owes for the messages that it was sent, in order.
//!
//! Every message that is forwarded, injected or answered in the server's place has one entry, so that answers of ours
//! come out exactly where the server's would, and what we injected ourselves never reaches the client. After an error
//! in the extended protocol the server skips to the next Sync, and so does the queue
//! (<https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY>).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::server::prepared::Statement;

/// One owed answer.
#[derive(Debug)]
pub enum Owed {
    /// Everything to `ReadyForQuery`, for a `Query`.
    Query,
    /// Everything to `ReadyForQuery`, for a `FunctionCall`.
    FunctionCall,
    /// `ReadyForQuery`.
    Sync,
    /// Everything to `ReadyForQuery`, for a query of ours that the client must not see.
    HiddenQuery,
    /// `ParseComplete` of a named statement of the client's.
    Parse(Box<Definition>),
    /// `ParseComplete` of the client's unnamed statement, and what that was before.
    UnnamedParse {
        /// The statement that was replaced.
        replaced: Option<Arc<Statement>>,
    },
    /// `ParseComplete` of a statement that we prepared again.
    HiddenParse(Arc<Statement>),
    /// `ParseComplete` of the unnamed statement that we parsed again.
    HiddenUnnamedParse,
    /// `ParseComplete` from us: the server had the statement already.
    LocalParse(Box<Definition>),
    /// `BindComplete`
    Bind,
    /// `RowDescription` or `NoData`, after a `ParameterDescription` for a statement.
    Describe,
    /// `CommandComplete`, `EmptyQueryResponse` or `PortalSuspended`, after rows or a COPY.
    Execute,
    /// `CloseComplete` of a portal.
    Close,
    /// `CloseComplete` from us: the server keeps the statement for others.
    LocalClose(Box<Definition>),
    /// `CloseComplete` of a statement that we evicted: its id, or `None` for an unnamed one that was another client's.
    HiddenClose(Option<u64>),
}

/// A change of the client's own statements that is taken back if the server never came to it.
#[derive(Debug)]
pub struct Definition {
    /// The client's name for it.
    pub name: Vec<u8>,
    /// What the name stood for before.
    pub replaced: Option<Arc<Statement>>,
    /// What it stands for now; `None` for a Close.
    pub statement: Option<Arc<Statement>>,
}

impl Owed {
    /// Whether its answers stay with us.
    #[must_use]
    pub const fn is_hidden(&self) -> bool {
        matches!(
            self,
            Self::HiddenQuery | Self::HiddenParse(_) | Self::HiddenUnnamedParse | Self::HiddenClose(_)
        )
    }

    /// Whether an error in it makes the server skip to the next Sync.
    const fn is_extended(&self) -> bool {
        match self {
            Self::Query | Self::FunctionCall | Self::Sync | Self::HiddenQuery => false,
            Self::Parse(_)
            | Self::UnnamedParse { .. }
            | Self::HiddenParse(_)
            | Self::HiddenUnnamedParse
            | Self::LocalParse(_)
            | Self::Bind
            | Self::Describe
            | Self::Execute
            | Self::Close
            | Self::LocalClose(_)
            | Self::HiddenClose(_) => true,
        }
    }
}

/// The answers that are owed, the oldest first.
#[derive(Debug, Default)]
pub struct Replies {
    owed: VecDeque<Owed>,
}

impl Replies {
    /// Whether nothing is owed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }

    /// What is owed next.
    #[must_use]
    pub fn front(&self) -> Option<&Owed> {
        self.owed.front()
    }

    /// Adds what a message that is being sent will bring.
    pub fn push(&mut self, owed: Owed) {
        self.owed.push_back(owed);
    }

    /// Takes what has been answered in full.
    pub fn pop(&mut self) -> Option<Owed> {
        self.owed.pop_front()
    }

    /// Takes the next entry if it is one that we answer ourselves.
    pub fn pop_local(&mut self) -> Option<Owed> {
        match self.owed.front() {
            Some(Owed::LocalParse(_) | Owed::LocalClose(_)) => self.owed.pop_front(),
            _ => None,
        }
    }

    /// After an error: takes everything that the server now skips, up to the next Sync, which stays. The newest comes
    /// first, so that changes are taken back in reverse. Tells whether the server skips at all: it does after an error
    /// in the extended protocol, and then `true` without a Sync in the queue means that the Sync is still to come.
    pub fn skip_to_sync(&mut self) -> (Vec<Owed>, SkipsUntil) {
        if !self.owed.front().is_some_and(Owed::is_extended) {
            return (Vec::new(), SkipsUntil::Nothing);
        }
        let sync = self.owed.iter().position(|owed| matches!(owed, Owed::Sync));
        let mut skipped: Vec<_> = self.owed.drain(..sync.unwrap_or(self.owed.len())).collect();
        skipped.reverse();
        (skipped, if sync.is_some() { SkipsUntil::QueuedSync } else { SkipsUntil::NextSync })
    }

    /// When a COPY IN begins inside an Execute, the server ignores the Syncs that directly follow: no answer comes.
    pub fn forget_syncs_behind_copy(&mut self) {
        if matches!(self.owed.front(), Some(Owed::Execute)) {
            while matches!(self.owed.get(1), Some(Owed::Sync)) {
                self.owed.remove(1);
            }
        }
    }
}

/// How long the server skips messages after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipsUntil {
    /// It does not: the error was in a simple query.
    Nothing,
    /// Until a Sync that it has been sent.
    QueuedSync,
    /// Until a Sync that the client has not sent yet.
    NextSync,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Box<Definition> {
        Box::new(Definition { name: b"s".to_vec(), replaced: None, statement: None })
    }

    #[test]
    fn an_error_skips_to_the_next_sync_only() {
        let mut replies = Replies::default();
        for owed in [Owed::Parse(definition()), Owed::Bind, Owed::Execute, Owed::Sync, Owed::Bind, Owed::Sync]
        {
            replies.push(owed);
        }
        let (skipped, until) = replies.skip_to_sync();
        assert!(matches!(skipped[..], [Owed::Execute, Owed::Bind, Owed::Parse(_)]));
        assert_eq!(until, SkipsUntil::QueuedSync);
        assert!(matches!(replies.pop(), Some(Owed::Sync)));
        assert!(matches!(replies.pop(), Some(Owed::Bind)));
    }

    #[test]
    fn an_error_before_a_sync_was_sent_waits_for_it() {
        let mut replies = Replies::default();
        replies.push(Owed::Bind);
        assert_eq!(replies.skip_to_sync().1, SkipsUntil::NextSync);
        assert!(replies.is_empty());
    }

    #[test]
    fn an_error_in_a_simple_query_skips_nothing() {
        let mut replies = Replies::default();
        replies.push(Owed::Query);
        assert_eq!(replies.skip_to_sync().1, SkipsUntil::Nothing);
        assert!(!replies.is_empty());
    }

    #[test]
    fn local_answers_come_out_in_their_turn() {
        let mut replies = Replies::default();
        replies.push(Owed::Bind);
        replies.push(Owed::LocalClose(definition()));
        assert!(replies.pop_local().is_none());
        replies.pop();
        assert!(matches!(replies.pop_local(), Some(Owed::LocalClose(_))));
    }

    #[test]
    fn syncs_that_a_copy_swallows_are_not_waited_for() {
        let mut replies = Replies::default();
        for owed in [Owed::Execute, Owed::Sync, Owed::Sync, Owed::Bind] {
            replies.push(owed);
        }
        replies.forget_syncs_behind_copy();
        replies.pop();
        assert!(matches!(replies.pop(), Some(Owed::Bind)));
    }
}

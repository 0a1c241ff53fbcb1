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
    /// Everything to `ReadyForQuery`, for a `Query`, which ends the unnamed statement.
    Query(UnnamedBefore),
    /// Everything to `ReadyForQuery`, for a `FunctionCall`.
    FunctionCall,
    /// `ReadyForQuery`.
    Sync,
    /// An error, in place of which the client gets this one: the proxy does not take what it sent. Then
    /// `ReadyForQuery`, where it is for a `Query`.
    Rejected(Box<Rejection>),
    /// Everything to `ReadyForQuery`, for a query of ours that the client must not see.
    HiddenQuery,
    /// `ReadyForQuery` after an error that the client must not see, since its request was sent anew.
    HiddenSync,
    /// `ParseComplete` of a named statement of the client's.
    Parse(Box<Definition>),
    /// `ParseComplete` of a client that has the connection for itself.
    PlainParse,
    /// `ParseComplete` of the client's unnamed statement.
    UnnamedParse(UnnamedBefore),
    /// `ParseComplete` of a statement that we prepared again.
    HiddenParse(Arc<Statement>),
    /// `ParseComplete` of the unnamed statement that we parsed again, and which the server had before.
    HiddenUnnamedParse(Option<u64>),
    /// `ParseComplete` from us: the server had the statement already.
    LocalParse(Box<Definition>),
    /// `BindComplete`, of the statement of ours with this id; 0 for any other.
    Bind(u64),
    /// `RowDescription` or `NoData`, after a `ParameterDescription` for a statement, whose id is here if it is ours.
    Describe(u64),
    /// `CommandComplete`, `EmptyQueryResponse` or `PortalSuspended`, after rows or a COPY.
    Execute,
    /// `CloseComplete` of a portal.
    Close,
    /// `CloseComplete` from us: the server keeps the statement for others.
    LocalClose(Box<Definition>),
    /// `CloseComplete` of a statement that we evicted, by id.
    HiddenClose(u64),
    /// `CloseComplete` of an unnamed statement that was another client's, by id.
    HiddenUnnamedClose(u64),
    /// Nothing: the client has ended its COPY data here.
    CopyEnd,
}

/// What a client gets for a message that the proxy does not take.
#[derive(Debug)]
pub struct Rejection {
    /// What the client gets in the place of the server's error, or of its answer to an empty query.
    pub error: Vec<u8>,
    /// Whether it is for a `Query`.
    pub is_query: bool,
}

/// What the unnamed statement was before a message that is taken back if the server never came to it.
#[derive(Debug, Default)]
pub struct UnnamedBefore {
    /// The client's.
    pub client: Option<Arc<Statement>>,
    /// The id of the server's.
    pub server: Option<u64>,
    /// Whether the query may end all prepared statements.
    pub discards: bool,
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
    /// Whether it is one of those that are counted; the most frequent ones are not.
    const fn counts(&self) -> bool {
        !matches!(self, Self::Bind(_) | Self::Describe(_) | Self::Execute | Self::CopyEnd)
    }

    /// Whether its answers stay with us.
    #[must_use]
    pub const fn is_hidden(&self) -> bool {
        matches!(
            self,
            Self::HiddenQuery
                | Self::HiddenSync
                | Self::HiddenParse(_)
                | Self::HiddenUnnamedParse(_)
                | Self::HiddenClose(_)
                | Self::HiddenUnnamedClose(_)
        )
    }

    /// Whether we answer it in the server's place.
    const fn is_local(&self) -> bool {
        matches!(self, Self::LocalParse(_) | Self::LocalClose(_))
    }

    /// Whether its answer ends with `ReadyForQuery`, for a request of the client's.
    const fn ends(&self) -> bool {
        match self {
            Self::Query(_) | Self::FunctionCall | Self::Sync => true,
            Self::Rejected(rejection) => rejection.is_query,
            _ => false,
        }
    }

    /// Whether it changes what a name stands for, the client's or one of ours at the server.
    const fn defines(&self) -> bool {
        match self {
            Self::Parse(_)
            | Self::UnnamedParse(_)
            | Self::LocalParse(_)
            | Self::LocalClose(_)
            | Self::HiddenParse(_)
            | Self::HiddenUnnamedParse(_)
            | Self::HiddenClose(_)
            | Self::HiddenUnnamedClose(_) => true,
            Self::Query(before) => before.client.is_some() || before.server.is_some() || before.discards,
            _ => false,
        }
    }

    /// Whether an error in it makes the server skip to the next Sync.
    const fn is_extended(&self) -> bool {
        match self {
            Self::Query(_)
            | Self::FunctionCall
            | Self::Sync
            | Self::HiddenQuery
            | Self::HiddenSync
            | Self::CopyEnd => false,
            Self::Rejected(rejection) => !rejection.is_query,
            Self::Parse(_)
            | Self::PlainParse
            | Self::UnnamedParse(_)
            | Self::HiddenParse(_)
            | Self::HiddenUnnamedParse(_)
            | Self::LocalParse(_)
            | Self::Bind(_)
            | Self::Describe(_)
            | Self::Execute
            | Self::Close
            | Self::LocalClose(_)
            | Self::HiddenClose(_)
            | Self::HiddenUnnamedClose(_) => true,
        }
    }
}

/// The answers that are owed, the oldest first.
#[derive(Debug, Default)]
pub struct Replies {
    owed: VecDeque<Owed>,
    /// How many of them change what a name stands for.
    definitions: usize,
    /// How many of them end a request.
    ends: usize,
    /// How many of them we answer ourselves.
    locals: usize,
    /// One of them may end state of the session: what comes after it waits.
    is_ending: bool,
}

impl Replies {
    /// Whether nothing is owed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }

    /// Whether a query of ours comes before anything of the client's.
    #[must_use]
    pub fn is_preparing(&self) -> bool {
        matches!(self.owed.front(), Some(Owed::HiddenQuery))
    }

    /// What is owed next.
    #[must_use]
    pub fn front(&self) -> Option<&Owed> {
        self.owed.front()
    }

    /// Whether a request that changes names has ended and is not answered: what its names stand for is not known yet.
    #[must_use]
    pub const fn is_defining(&self) -> bool {
        (self.definitions > 0 || self.is_ending) && self.ends > 0
    }

    /// Lets what comes after this request wait: it may end state of the session.
    pub const fn end_state(&mut self) {
        self.is_ending = true;
    }

    /// How many requests have ended and are not answered.
    #[must_use]
    pub const fn unanswered(&self) -> usize {
        self.ends
    }

    /// Whether a request has ended and is not answered: whether the transaction failed is not known yet.
    #[must_use]
    pub const fn is_unsure(&self) -> bool {
        self.ends > 0
    }

    /// Forgets what is owed: it will not come.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// What is owed next, to be changed.
    pub fn front_mut(&mut self) -> Option<&mut Owed> {
        self.owed.front_mut()
    }

    /// The id of a statement of ours, if all that is owed is the answer to one Bind of it, its Describe, its Execute
    /// and a Sync.
    #[must_use]
    pub fn single_run(&self) -> Option<u64> {
        match (self.owed.len(), self.owed.front()?, self.owed.get(1)?, self.owed.get(2)?, self.owed.get(3)?) {
            (4, Owed::Bind(id), Owed::Describe(_), Owed::Execute, Owed::Sync) if *id > 0 => Some(*id),
            _ => None,
        }
    }

    /// All that is owed, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Owed> {
        self.owed.iter()
    }

    /// Takes all of it: it has been answered in full.
    pub fn pop_all(&mut self) {
        self.owed.clear();
        (self.definitions, self.ends, self.locals, self.is_ending) = (0, 0, 0, false);
    }

    /// Adds what a message that is being sent will bring.
    pub fn push(&mut self, owed: Owed) {
        if owed.counts() {
            self.definitions += usize::from(owed.defines());
            self.ends += usize::from(owed.ends());
            self.locals += usize::from(owed.is_local());
        }
        self.owed.push_back(owed);
    }

    /// Takes what has been answered in full.
    pub fn pop(&mut self) -> Option<Owed> {
        let owed = self.owed.pop_front()?;
        self.uncount(&owed);
        while matches!(self.owed.front(), Some(Owed::CopyEnd)) {
            self.owed.pop_front();
        }
        self.is_ending &= !self.owed.is_empty();
        Some(owed)
    }

    /// Whether we answer any of it ourselves.
    #[must_use]
    pub const fn has_local(&self) -> bool {
        self.locals > 0
    }

    /// Takes the next entry if it is one that we answer ourselves.
    pub fn pop_local(&mut self) -> Option<Owed> {
        if self.owed.front().is_some_and(Owed::is_local) { self.pop() } else { None }
    }

    fn uncount(&mut self, owed: &Owed) {
        if !owed.counts() {
            return;
        }
        self.definitions -= usize::from(owed.defines());
        self.ends -= usize::from(owed.ends());
        self.locals -= usize::from(owed.is_local());
    }

    /// Notes that the client has ended its COPY data, if anything is owed at all.
    pub fn end_copy(&mut self) {
        if !self.owed.is_empty() {
            self.owed.push_back(Owed::CopyEnd);
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
        skipped.iter().for_each(|owed| self.uncount(owed));
        skipped.reverse();
        (skipped, if sync.is_some() { SkipsUntil::QueuedSync } else { SkipsUntil::NextSync })
    }

    /// A COPY IN begins: in it the server ignores the Syncs that directly follow, so that no answer comes.
    /// Tells whether the client is still to end its data.
    #[must_use]
    pub fn begin_copy(&mut self) -> bool {
        if matches!(self.owed.front(), Some(Owed::Execute | Owed::Query(_))) {
            while matches!(self.owed.get(1), Some(Owed::Sync)) {
                self.owed.remove(1);
                self.ends -= 1;
            }
        }
        !matches!(self.owed.get(1), Some(Owed::CopyEnd))
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
        for owed in
            [Owed::Parse(definition()), Owed::Bind(0), Owed::Execute, Owed::Sync, Owed::Bind(0), Owed::Sync]
        {
            replies.push(owed);
        }
        let (skipped, until) = replies.skip_to_sync();
        assert!(matches!(skipped[..], [Owed::Execute, Owed::Bind(0), Owed::Parse(_)]));
        assert_eq!(until, SkipsUntil::QueuedSync);
        assert!(matches!(replies.pop(), Some(Owed::Sync)));
        assert!(matches!(replies.pop(), Some(Owed::Bind(0))));
    }

    #[test]
    fn an_error_before_a_sync_was_sent_waits_for_it() {
        let mut replies = Replies::default();
        replies.push(Owed::Bind(0));
        assert_eq!(replies.skip_to_sync().1, SkipsUntil::NextSync);
        assert!(replies.is_empty());
    }

    #[test]
    fn an_error_in_a_simple_query_skips_nothing() {
        let mut replies = Replies::default();
        replies.push(Owed::Query(UnnamedBefore::default()));
        assert_eq!(replies.skip_to_sync().1, SkipsUntil::Nothing);
        assert!(!replies.is_empty());
    }

    #[test]
    fn local_answers_come_out_in_their_turn() {
        let mut replies = Replies::default();
        replies.push(Owed::Bind(0));
        replies.push(Owed::LocalClose(definition()));
        assert!(replies.pop_local().is_none());
        replies.pop();
        assert!(matches!(replies.pop_local(), Some(Owed::LocalClose(_))));
    }

    #[test]
    fn syncs_that_a_copy_swallows_are_not_waited_for() {
        let mut replies = Replies::default();
        for owed in [Owed::Execute, Owed::Sync, Owed::Sync, Owed::Bind(0)] {
            replies.push(owed);
        }
        assert!(replies.begin_copy());
        assert!(!replies.is_unsure());
        replies.pop();
        assert!(matches!(replies.pop(), Some(Owed::Bind(0))));
    }

    #[test]
    fn a_sync_behind_the_end_of_the_copy_data_is_answered() {
        let mut replies = Replies::default();
        replies.push(Owed::Execute);
        replies.push(Owed::Sync);
        replies.end_copy();
        replies.push(Owed::Sync);
        assert!(!replies.begin_copy(), "the data has ended already");
        replies.pop();
        assert!(matches!(replies.pop(), Some(Owed::Sync)));
        assert!(replies.is_empty());
    }

    #[test]
    fn a_batch_that_defines_is_waited_for_once_it_has_ended() {
        let mut replies = Replies::default();
        replies.push(Owed::Parse(definition()));
        assert!(!replies.is_defining());
        replies.push(Owed::Sync);
        assert!(replies.is_defining());
        replies.pop();
        assert!(!replies.is_defining() && replies.is_unsure());
    }
}

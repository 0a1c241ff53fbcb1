//! One logged-in connection to a server and all that is known of its state.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use crate::server::cancel_target::CancelTarget;
use crate::server::leash::Held;
use crate::server::prepared::PreparedSet;
use crate::server::replies::Replies;
use crate::server::settings::Settings;
use crate::socket::stream::Stream;
use crate::socket::{Inbox, Outbox};
use crate::transaction::TransactionStatus;
use crate::wire::frame::header;
use crate::wire::frontend::TERMINATE_MESSAGE;

/// Bytes that one read from a server may bring.
pub const READ_BYTES: usize = 16 * 1024;

/// The longest message that a server may send, header included.
pub const SERVER_MESSAGE_MAX: usize = 0x7fff_ffff;

/// Who a server connection is logged in as, and to what.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    /// Unique among the identities of the process.
    pub id: u32,
    /// The role.
    pub user: String,
    /// The database.
    pub database: String,
    /// The settings that its connections are opened with, and go back to by RESET: those of the startup packet where
    /// they are exclusive, none where they are not.
    pub settings: Arc<Settings>,
    /// Whether a connection serves one client from its login to its end: those are never mixed with the others.
    pub is_exclusive: bool,
}

/// A thread that serves clients; a server connection is registered with one of them at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerId(pub u16);

/// One connection.
#[derive(Debug)]
pub struct ServerConnection {
    /// Its socket.
    pub stream: Stream,
    /// Who it is logged in as.
    pub identity: Arc<Identity>,
    /// What cancels its query.
    pub cancel: Arc<CancelTarget>,
    /// The thread that its socket is registered with.
    pub home: WorkerId,
    /// Since when it is open.
    pub opened_at: Instant,
    /// The sweep of its pool after which it was opened.
    pub opened_in: u32,
    /// How much earlier than others it is closed for its age.
    pub lot: u8,
    /// The sweep of its pool after which it became idle; a clock that costs nothing to read.
    pub idle_since: u32,
    /// Whether a sweep came while it was idle, or another thread looks at it: then the system is asked whether it still
    /// stands, since a busy thread hears of its sockets late.
    pub was_idle_long: bool,
    /// Where its transaction stands, by the last `ReadyForQuery`.
    pub transaction: TransactionStatus,
    /// The settings that it was given last.
    pub settings: Arc<Settings>,
    /// The values that the server has reported, in the order of the first report.
    pub parameters: Parameters,
    /// The statements of ours that it has prepared.
    pub prepared: PreparedSet,
    /// The id of the definition that its unnamed statement has.
    pub unnamed: Option<u64>,
    /// `Parse` messages that it was sent and that are not counted yet.
    pub parses: u32,
    /// What it owes.
    pub replies: Replies,
    /// An error in the extended protocol was answered and its Sync is still to come from the client: the server
    /// ignores everything until then.
    pub is_skipping: bool,
    /// Messages of the extended protocol have been sent since the last Sync.
    pub is_unsynced: bool,
    /// The client sends COPY data.
    pub is_copying_in: bool,
    /// The last request was sent anew, with its statement prepared anew.
    pub is_retried: bool,
    /// Bytes received and not passed on yet.
    pub inbox: Inbox,
    /// How many of them, from the front, are whole messages or parts of them that may go to the client as they are.
    pub cleared: usize,
    /// Bytes of the current message that are still to come and may go to the client as they are.
    pub passing: usize,
    /// Bytes to be sent.
    pub outbox: Outbox,
    /// What its pool has of it.
    pub held: Held,
}

impl ServerConnection {
    /// Reads what the server has sent into the inbox. `Ready(Ok(0))` is the end of the stream.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.inbox.poll_read(&mut self.stream, cx, READ_BYTES)
    }

    /// Whether nothing is under way: it is between transactions and everything has been passed on.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.replies.is_empty()
            && self.transaction == TransactionStatus::Idle
            && !self.is_skipping
            && !self.is_unsynced
            && !self.is_copying_in
            && self.passing == 0
            && self.inbox.is_empty()
            && self.outbox.is_empty()
    }

    /// Whether it can serve the next client: it is at rest, and the server has not closed it or said anything. A
    /// server says something to an idle connection when it ends it, so that is no longer fit either. Costs a system
    /// call only where something may have come that this process has not been told of yet.
    pub fn is_fit(&mut self) -> bool {
        self.is_at_rest() && self.stream.is_silent(self.was_idle_long)
    }

    /// The major version of the server; 0 where it did not say.
    #[must_use]
    pub fn major_version(&self) -> u32 {
        let version =
            self.parameters.iter().find(|(name, _)| *name == b"server_version").map(|(_, value)| value);
        let digits = version.unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |number: u32, digit| number.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
    }

    /// Another task has it from now on.
    pub const fn change_owner(&mut self) {
        self.inbox.change_reader();
    }

    /// Registers the socket with the calling thread's runtime.
    ///
    /// # Errors
    /// When the system refuses; the connection is closed then.
    pub fn rehome(self: Box<Self>, home: WorkerId) -> io::Result<Box<Self>> {
        if self.home == home {
            return Ok(self);
        }
        let this = *self;
        let stream = this.stream.reregister()?;
        Ok(Box::new(Self { stream, home, ..this }))
    }

    /// Says goodbye and closes. The server notices the close anyway, so a full socket does not matter.
    pub fn close(mut self: Box<Self>) {
        self.stream.part_with(&TERMINATE_MESSAGE);
    }

    /// The whole message at position `at` of the inbox, if it is there; else `None`.
    #[must_use]
    pub fn message_at(&self, at: usize) -> Option<&[u8]> {
        let rest = self.inbox.get(at..)?;
        let header = header(rest, SERVER_MESSAGE_MAX).ok()??;
        rest.get(..header.total)
    }
}

/// The values that a server reports, which a client is told at its login and whenever they change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    pairs: Vec<Pair>,
}

/// Name and value.
type Pair = (Box<[u8]>, Box<[u8]>);

impl Parameters {
    /// Takes a report. Tells whether it changed anything.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> bool {
        match self.pairs.iter_mut().find(|(known, _)| **known == *name) {
            Some((_, known)) if **known == *value => false,
            Some((_, known)) => {
                *known = value.into();
                true
            }
            None => {
                self.pairs.push((name.into(), value.into()));
                true
            }
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.pairs.iter().map(|(name, value)| (&**name, &**value))
    }
}

/// The process's identities, so that they can be compared by number.
#[derive(Debug, Default)]
pub struct Identities {
    known: std::sync::Mutex<VecDeque<Arc<Identity>>>,
    next_id: std::sync::atomic::AtomicU32,
}

impl Identities {
    /// The identity of this user and database, with these settings to begin with.
    pub fn intern(
        &self,
        user: &str,
        database: &str,
        settings: &Arc<Settings>,
        is_exclusive: bool,
    ) -> Arc<Identity> {
        let mut known = self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_it = |i: &&Arc<Identity>| {
            i.user == user
                && i.database == database
                && i.is_exclusive == is_exclusive
                && Arc::ptr_eq(&i.settings, settings)
        };
        if let Some(identity) = known.iter().find(is_it) {
            return Arc::clone(identity);
        }
        // Those that no client, connection or cache holds any more make room.
        known.retain(|identity| Arc::strong_count(identity) > 1);
        let id = self.next_id.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let identity = Arc::new(Identity {
            id,
            user: user.to_owned(),
            database: database.to_owned(),
            settings: Arc::clone(settings),
            is_exclusive,
        });
        known.push_back(Arc::clone(&identity));
        identity
    }
}

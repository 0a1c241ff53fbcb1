//! What a session does now and since when, and whether it has done that for too long.
//!
//! A session tells with a few stores what it does where that changes; one task looks at all of them. Whoever finds a session
//! overdue marks the very moment that it has seen: a session that does something else meanwhile overwrites the mark and
//! goes on, so that nothing which has just come is broken off.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use futures::task::AtomicWaker;

/// A clock that costs next to nothing to read: the time as whoever keeps it has said last.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Tells the time, since any moment.
    pub fn set(&self, now: Duration) {
        self.0.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn millis(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It has not begun, or is none that is looked at.
    Nothing,
    /// Its client has asked for nothing, outside a transaction.
    Idle,
    /// It waits for a server connection.
    Waiting,
    /// A server has something of it to answer.
    Running,
    /// Its client has asked for nothing, in a transaction.
    Open,
}

impl Doing {
    const ALL: [Self; 5] = [Self::Nothing, Self::Idle, Self::Waiting, Self::Running, Self::Open];

    const fn is_in_transaction(self) -> bool {
        matches!(self, Self::Running | Self::Open)
    }
}

/// What a session has done for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// A statement runs.
    Query,
    /// A transaction is open.
    Transaction,
    /// Nothing happens in a transaction.
    IdleTransaction,
    /// The client asks for nothing.
    ClientIdle,
}

impl Overdue {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 4] = [Self::Query, Self::Transaction, Self::IdleTransaction, Self::ClientIdle];

    /// The label in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Transaction => "transaction",
            Self::IdleTransaction => "idleTransaction",
            Self::ClientIdle => "clientIdle",
        }
    }
}

/// How long each may take; no limit where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// A statement.
    pub query: Option<Duration>,
    /// A transaction.
    pub transaction: Option<Duration>,
    /// Nothing in a transaction.
    pub idle_transaction: Option<Duration>,
    /// Nothing outside one.
    pub client_idle: Option<Duration>,
}

impl Limits {
    /// The shortest of them.
    #[must_use]
    pub fn shortest(&self) -> Option<Duration> {
        let Self { query, transaction, idle_transaction, client_idle } = *self;
        [query, transaction, idle_transaction, client_idle].into_iter().flatten().min()
    }
}

/// A server has so long to stop what it was asked to cancel.
pub const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// What one session does.
#[derive(Debug)]
pub struct Pace {
    clock: Arc<Clock>,
    /// The time in milliseconds, the number of the statement, marks, and what it does.
    word: AtomicU64,
    /// When its transaction began.
    began: AtomicU64,
    waker: AtomicWaker,
}

/// Bits of the word: what it does, then the number of the statement, then marks, then the time.
const DOING_BITS: u32 = 3;
const TAG_BITS: u32 = 12;
const TAG: u64 = (1 << TAG_BITS) - 1;
/// Its statement has been cancelled.
const CANCELLED: u64 = 1 << TAG_BITS;
/// It has to leave.
const EXPIRED: u64 = 1 << (TAG_BITS + 1);
const WHY_SHIFT: u32 = TAG_BITS + 2;
const TIME_SHIFT: u32 = WHY_SHIFT + 2;

/// What was seen of a session in one moment.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    word: u64,
    doing: Doing,
    since: u64,
    began: u64,
}

/// What is to be done about a session that is overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// What takes too long.
    pub overdue: Overdue,
    /// Its server is to be asked to cancel the statement.
    pub is_to_cancel: bool,
    /// It has to leave.
    pub is_to_leave: bool,
}

impl Pace {
    /// Of a session that has not begun.
    #[must_use]
    pub fn new(clock: Arc<Clock>) -> Self {
        Self { clock, word: AtomicU64::new(0), began: AtomicU64::new(0), waker: AtomicWaker::new() }
    }

    /// The task that is to be woken when the session has to leave.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Tells what the session does, and how many statements of it have been answered before. To be called by the session
    /// alone. Tells whether it has done that for so long that it has to leave.
    #[inline]
    pub fn note(&self, doing: Doing, statement: u64) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let tag = ((statement << DOING_BITS) | doing as u64) & TAG;
        if word & TAG == tag {
            return word & EXPIRED != 0;
        }
        let now = self.clock.millis();
        if doing.is_in_transaction() && !doing_of(word).is_in_transaction() {
            self.began.store(now, Ordering::Relaxed);
        }
        self.word.store((now << TIME_SHIFT) | tag, Ordering::Release);
        false
    }

    /// Whether the statement that runs has been cancelled because it took too long.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.word.load(Ordering::Relaxed) & CANCELLED != 0
    }

    /// Why the session has to leave, if it has to.
    #[must_use]
    pub fn expired(&self) -> Option<Overdue> {
        let word = self.word.load(Ordering::Relaxed);
        let why = usize::try_from((word >> WHY_SHIFT) & 0b11).ok()?;
        Overdue::ALL.get(why).copied().filter(|_| word & EXPIRED != 0)
    }

    /// What the session does, for [`Self::mark`].
    #[must_use]
    pub fn look(&self) -> Seen {
        let word = self.word.load(Ordering::Acquire);
        let began = self.began.load(Ordering::Relaxed);
        Seen { word, doing: doing_of(word), since: word >> TIME_SHIFT, began }
    }

    /// Marks what was seen. Tells whether the session still does that; else nothing has been done.
    #[must_use]
    pub fn mark(&self, seen: &Seen, due: Due) -> bool {
        let why = Overdue::ALL.iter().zip(0_u64..).find(|(overdue, _)| **overdue == due.overdue);
        let mut word = seen.word & !(0b11 << WHY_SHIFT) | (why.map_or(0, |(_, index)| index) << WHY_SHIFT);
        if due.is_to_cancel {
            word |= CANCELLED;
        }
        if due.is_to_leave {
            word |= EXPIRED;
        }
        self.word.compare_exchange(seen.word, word, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Has the session look whether it has to leave.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

impl Seen {
    /// What is overdue, if anything is that has not been seen to.
    #[must_use]
    pub fn due(&self, limits: &Limits, clock: &Clock) -> Option<Due> {
        let now = clock.millis();
        let is_over = |from: u64, limit: Option<Duration>| {
            limit.is_some_and(|limit| u128::from(now.saturating_sub(from)) > limit.as_millis().max(1))
        };
        let leave = |overdue, is_to_cancel| Some(Due { overdue, is_to_cancel, is_to_leave: true });
        if self.word & EXPIRED != 0 {
            return None;
        }
        let is_cancelled = self.word & CANCELLED != 0;
        match self.doing {
            Doing::Nothing | Doing::Waiting => None,
            Doing::Idle if is_over(self.since, limits.client_idle) => leave(Overdue::ClientIdle, false),
            Doing::Open if is_over(self.since, limits.idle_transaction) => {
                leave(Overdue::IdleTransaction, false)
            }
            Doing::Running | Doing::Open if is_over(self.began, limits.transaction) => {
                leave(Overdue::Transaction, self.doing == Doing::Running && !is_cancelled)
            }
            Doing::Running if is_cancelled => {
                let limit = limits.query.map(|limit| limit + CANCEL_WITHIN);
                if is_over(self.since, limit) { leave(Overdue::Query, false) } else { None }
            }
            Doing::Running if is_over(self.since, limits.query) => {
                Some(Due { overdue: Overdue::Query, is_to_cancel: true, is_to_leave: false })
            }
            Doing::Idle | Doing::Open | Doing::Running => None,
        }
    }
}

fn doing_of(word: u64) -> Doing {
    let index = usize::try_from(word & ((1 << DOING_BITS) - 1)).unwrap_or_default();
    Doing::ALL.get(index).copied().unwrap_or(Doing::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        query: Some(Duration::from_secs(1)),
        transaction: Some(Duration::from_secs(10)),
        idle_transaction: Some(Duration::from_secs(3)),
        client_idle: Some(Duration::from_secs(60)),
    };

    struct Case {
        clock: Arc<Clock>,
        pace: Pace,
        now: Duration,
    }

    impl Case {
        fn new() -> Self {
            let clock = Arc::<Clock>::default();
            let mut case = Self { pace: Pace::new(Arc::clone(&clock)), clock, now: Duration::ZERO };
            case.pass(1_000);
            case
        }

        fn pass(&mut self, millis: u64) {
            self.now += Duration::from_millis(millis);
            self.clock.set(self.now);
        }

        fn due(&self) -> Option<(Overdue, bool, bool)> {
            let due = self.pace.look().due(&LIMITS, &self.clock)?;
            Some((due.overdue, due.is_to_cancel, due.is_to_leave))
        }

        /// Does what is due.
        fn mark(&self) -> bool {
            let seen = self.pace.look();
            let due = seen.due(&LIMITS, &self.clock).unwrap();
            self.pace.mark(&seen, due)
        }
    }

    #[test]
    fn each_limit_is_for_what_it_is_named_after() {
        for (doing, limit, due) in [
            (Doing::Idle, 60_000, (Overdue::ClientIdle, false, true)),
            (Doing::Running, 1_000, (Overdue::Query, true, false)),
            (Doing::Open, 3_000, (Overdue::IdleTransaction, false, true)),
        ] {
            let mut case = Case::new();
            case.pace.note(doing, 0);
            case.pass(limit);
            assert_eq!(case.due(), None, "{doing:?}");
            case.pass(1);
            assert_eq!(case.due(), Some(due), "{doing:?}");
        }
        for doing in [Doing::Nothing, Doing::Waiting] {
            let mut case = Case::new();
            case.pace.note(doing, 0);
            case.pass(1_000_000);
            assert_eq!(case.due(), None, "{doing:?}");
        }
    }

    #[test]
    fn a_transaction_is_as_old_as_its_first_statement() {
        let mut case = Case::new();
        for statement in 0..20 {
            assert_eq!(case.due(), None);
            case.pace.note(Doing::Running, statement);
            case.pass(500);
            case.pace.note(Doing::Open, statement + 1);
            case.pass(1);
        }
        case.pass(500);
        assert_eq!(case.due(), Some((Overdue::Transaction, false, true)));
        case.pace.note(Doing::Running, 20);
        assert_eq!(case.due(), Some((Overdue::Transaction, true, true)));
        case.pace.note(Doing::Idle, 0);
        case.pace.note(Doing::Running, 0);
        assert_eq!(case.due(), None, "the next one is another");
    }

    #[test]
    fn each_statement_of_a_pipeline_has_its_own_time() {
        let mut case = Case::new();
        for statement in 0..5 {
            case.pace.note(Doing::Running, statement);
            case.pass(900);
            assert_eq!(case.due(), None);
        }
    }

    #[test]
    fn who_does_not_stop_after_a_cancel_has_to_leave() {
        let mut case = Case::new();
        case.pace.note(Doing::Running, 0);
        case.pass(1_001);
        assert!(case.mark() && case.pace.is_cancelled() && case.pace.expired().is_none());
        assert!(!case.pace.note(Doing::Running, 0), "it may go on");
        assert_eq!(case.due(), None, "it is cancelled once");
        case.pass(5_000);
        assert_eq!(case.due(), Some((Overdue::Query, false, true)));
        assert!(case.mark());
        assert!(case.pace.note(Doing::Running, 0), "it has to leave");
        assert_eq!(case.pace.expired(), Some(Overdue::Query));
        assert_eq!(case.due(), None, "it is told once");
    }

    #[test]
    fn what_has_just_come_is_not_broken_off() {
        let mut case = Case::new();
        case.pace.note(Doing::Open, 0);
        case.pass(3_001);
        // The client asks for something between the look and the mark.
        let seen = case.pace.look();
        let due = seen.due(&LIMITS, &case.clock).unwrap();
        case.pace.note(Doing::Running, 0);
        assert!(!case.pace.mark(&seen, due));
        // And between the mark and the moment that the session hears of it.
        case.pace.note(Doing::Open, 1);
        case.pass(3_001);
        assert!(case.mark());
        assert!(!case.pace.note(Doing::Running, 1));
        assert!(case.pace.expired().is_none() && !case.pace.is_cancelled());
    }

    #[test]
    fn the_shortest_limit_says_how_often_to_look() {
        assert_eq!(LIMITS.shortest(), LIMITS.query);
        assert_eq!(Limits::default().shortest(), None);
    }
}

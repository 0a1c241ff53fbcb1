//! How far each server's write-ahead log has come, sampled only while somebody needs to know.
//!
//! The primary tells where its log ends, a standby what it has replayed
//! (<https://www.postgresql.org/docs/current/functions-admin.html>). A session that has written needs the first sample of
//! the primary that was asked for after the answer to its write: everything it wrote is before that position. A replica
//! that has replayed so far shows it. What is behind the last commit may stay in the primary's memory for long (reading
//! cleans pages up, which writes records that nobody waits for), and then no replica comes so far. A commit itself is on
//! disk after three times `wal_writer_delay`, even with `synchronous_commit` off; so what is on disk after that time
//! shows it too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use crate::positions::history::{History, Mark};
use crate::server::connect::ConnectError;
use crate::server::connection::ServerConnection;
use crate::server::endpoint::Endpoint;
use crate::server::own::Own;

pub mod history;

/// The time from one sample to the next while somebody waits.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long a wish for samples lasts, in microseconds.
const WISH_MICROS: u64 = 500_000;

/// The pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// What is asked of either kind of server: the position, what of it is on disk, as numbers, and `wal_writer_delay` in
/// milliseconds. The monitor asks the same.
pub const COLUMNS: &str = "CASE WHEN pg_catalog.pg_is_in_recovery() \
     THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END - '0/0'::pg_catalog.pg_lsn, \
     CASE WHEN pg_catalog.pg_is_in_recovery() \
     THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_flush_lsn() END - '0/0'::pg_catalog.pg_lsn, \
     (EXTRACT(epoch FROM pg_catalog.current_setting('wal_writer_delay')::pg_catalog.interval) * 1000)::pg_catalog.int8";

/// A page of the log and the header that it begins with, in bytes. The end of the log may be told as behind the header of
/// a page that has no record yet, which a standby reports only with the next record.
const PAGE: u64 = 8192;
const PAGE_HEADERS: [u64; 2] = [24, 40];

/// What is known of one server's position.
#[derive(Debug)]
pub struct Position {
    born: Instant,
    lsn: AtomicU64,
    /// What of it is on disk.
    flushed: AtomicU64,
    /// How long a commit may stay in memory, in microseconds.
    delay: AtomicU64,
    /// When the latest sample was asked for, in microseconds after `born`; 0 before the first.
    asked_at: AtomicU64,
    /// When it was answered.
    answered_at: AtomicU64,
    /// Until when samples are wanted.
    wanted_until: AtomicU64,
    wish: Notify,
    /// Where the log was at which moment, in order.
    history: Mutex<History>,
}

/// How far a replica is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lag {
    /// How long ago the primary's log was no longer than what the replica has replayed.
    pub time: Duration,
    /// What it has yet to replay of what was on the primary's disk, in bytes.
    pub bytes: u64,
}

/// What one answer tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The position.
    pub lsn: u64,
    /// What of it is on disk.
    pub flushed: u64,
    /// How long a commit may stay in memory, in microseconds.
    pub delay: u64,
}

impl Default for Position {
    fn default() -> Self {
        Self {
            born: Instant::now(),
            lsn: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            delay: AtomicU64::new(u64::MAX),
            asked_at: AtomicU64::new(0),
            answered_at: AtomicU64::new(0),
            wanted_until: AtomicU64::new(0),
            wish: Notify::new(),
            history: Mutex::default(),
        }
    }
}

impl Sample {
    /// Reads the answers to [`COLUMNS`].
    #[must_use]
    pub fn from_columns(columns: &[Option<String>]) -> Option<Self> {
        let number = |index: usize| columns.get(index)?.as_ref()?.parse::<u64>().ok();
        let delay = number(2).map_or(u64::MAX, |millis| (3 * millis + 100) * 1000);
        Some(Self { lsn: number(0)?, flushed: number(1)?, delay })
    }
}

impl Position {
    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.born).as_micros()).unwrap_or(u64::MAX)
    }

    /// The latest position; 0 where none is known.
    #[must_use]
    pub fn lsn(&self) -> u64 {
        self.lsn.load(Ordering::Acquire)
    }

    /// A position that was asked for after that moment.
    #[must_use]
    pub fn sampled_after(&self, at: Instant) -> Option<u64> {
        // The position is stored before its time.
        let is_later = self.asked_at.load(Ordering::Acquire) > self.micros(at);
        is_later.then(|| self.lsn())
    }

    /// A position that shows what was committed at that moment, because it was on disk long enough after.
    #[must_use]
    pub fn flushed_after(&self, at: Instant) -> Option<u64> {
        let since = self.micros(at).saturating_add(self.delay.load(Ordering::Acquire));
        (self.asked_at.load(Ordering::Acquire) > since).then(|| self.flushed.load(Ordering::Acquire))
    }

    /// Asks for samples for a while.
    pub fn want(&self, now: Instant) {
        let until = self.micros(now) + WISH_MICROS;
        let before = self.wanted_until.swap(until, Ordering::AcqRel);
        if before <= self.micros(now) {
            self.wish.notify_one();
        }
    }

    /// Nothing is known any more: the server has become something else, or is gone.
    pub fn forget(&self) {
        let mut history = self.history();
        history.forget();
        self.asked_at.store(0, Ordering::Release);
        self.lsn.store(0, Ordering::Release);
    }

    /// Takes what was answered to a question of that moment.
    pub fn take(&self, sample: Sample, asked_at: Instant) {
        let mut history = self.history();
        let asked_at = self.micros(asked_at);
        if asked_at <= self.asked_at.load(Ordering::Acquire) {
            return;
        }
        history.add(Mark { at: asked_at, lsn: reachable(sample.lsn), flushed: sample.flushed });
        self.lsn.store(sample.lsn, Ordering::Release);
        self.flushed.store(sample.flushed, Ordering::Release);
        self.delay.store(sample.delay, Ordering::Release);
        self.answered_at.store(self.micros(Instant::now()), Ordering::Release);
        self.asked_at.store(asked_at, Ordering::Release);
    }

    /// How long ago the log of this primary was no longer than `replayed`, and how many bytes on disk are missing now;
    /// `None` where that is not known.
    #[must_use]
    pub fn lag_of(&self, replayed: u64, now: Instant) -> Option<Lag> {
        if replayed == 0 {
            return None;
        }
        let at = self.history().last_within(replayed)?;
        let micros = self.micros(now).saturating_sub(at);
        let bytes = self.flushed.load(Ordering::Acquire).saturating_sub(replayed);
        // What the latest sample showed is all that can be missing.
        let time = if bytes == 0 { Duration::ZERO } else { Duration::from_micros(micros) };
        Some(Lag { time, bytes })
    }

    /// Whether it has come further than another one had later.
    #[must_use]
    pub fn is_ahead_of(&self, other: &Self) -> bool {
        // Each counts from its own beginning.
        let at = |position: &Self, moment: &AtomicU64| {
            let micros = moment.load(Ordering::Acquire);
            (micros != 0).then(|| position.born + Duration::from_micros(micros))
        };
        let (Some(answered), Some(asked)) = (at(self, &self.answered_at), at(other, &other.asked_at)) else {
            return false;
        };
        asked > answered && self.lsn() > other.lsn()
    }

    /// The position that shows all that was committed before `staleness` ago; `None` where none was sampled since.
    #[must_use]
    pub fn floor_within(&self, staleness: Duration, now: Instant) -> Option<u64> {
        let staleness = u64::try_from(staleness.as_micros()).unwrap_or(u64::MAX);
        let since = self.micros(now).saturating_sub(staleness);
        self.history().floor_since(since, self.delay.load(Ordering::Acquire))
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_wanted(&self) -> bool {
        self.wanted_until.load(Ordering::Acquire) > self.micros(Instant::now())
    }
}

/// The position that shows all records before `end`, the end of the log as the primary tells it.
#[must_use]
pub const fn reachable(end: u64) -> u64 {
    let in_page = end % PAGE;
    if in_page == PAGE_HEADERS[0] || in_page == PAGE_HEADERS[1] { end - in_page } else { end }
}

/// Samples one server's position for whoever wants it.
#[derive(Debug)]
pub struct Sampler {
    /// The server.
    pub endpoint: Endpoint,
    /// As whom and to what it connects.
    pub own: Own,
    /// What it tells.
    pub position: Arc<Position>,
}

impl Sampler {
    /// Samples for ever. Ends when it is dropped.
    pub async fn run(self) {
        let question = format!("SELECT {COLUMNS}");
        let mut connection = None;
        loop {
            if !self.position.is_wanted() {
                self.position.wish.notified().await;
                continue;
            }
            let began = Instant::now();
            match timeout(self.own.timeout, self.sample(&question, &mut connection)).await {
                Ok(Ok(sample)) => {
                    self.position.take(sample, began);
                    sleep(INTERVAL.saturating_sub(began.elapsed())).await;
                }
                failed => {
                    debug!(endpoint = %self.endpoint, ?failed, "the position cannot be sampled");
                    connection = None;
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    async fn sample(
        &self,
        question: &str,
        connection: &mut Option<Box<ServerConnection>>,
    ) -> Result<Sample, ConnectError> {
        let connection = match connection {
            Some(connection) => connection,
            None => connection.insert(self.own.connect(&self.endpoint).await?),
        };
        let rows = connection.run(question).await?;
        let row = rows.first().map(Vec::as_slice).unwrap_or_default();
        Sample::from_columns(row).ok_or(ConnectError::Protocol("no position"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sample_that_was_asked_for_later_counts() {
        let position = Position::default();
        let wrote = Instant::now() + Duration::from_millis(1);
        let sample = |lsn, flushed, delay| Sample { lsn, flushed, delay };
        assert_eq!(position.sampled_after(wrote), None);
        position.take(sample(7, 7, u64::MAX), wrote - Duration::from_micros(500));
        assert_eq!(position.sampled_after(wrote), None);
        position.take(sample(9, 8, u64::MAX), wrote + Duration::from_micros(500));
        assert_eq!(position.sampled_after(wrote), Some(9));
        assert_eq!(position.flushed_after(wrote), None, "nobody knows how long a commit may stay in memory");
        position.take(sample(9, 8, 400), wrote + Duration::from_micros(501));
        assert_eq!(position.flushed_after(wrote), Some(8));
        position.take(sample(9, 8, 600), wrote + Duration::from_micros(502));
        assert_eq!(position.flushed_after(wrote), None);
        position.take(sample(1, 1, 400), wrote);
        assert_eq!(position.lsn(), 9, "an answer that comes late");
        position.forget();
        assert_eq!((position.sampled_after(wrote), position.lsn()), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_ahead_must_have_been_so_before_the_other_was_asked() {
        let sample = |lsn| Sample { lsn, flushed: lsn, delay: 0 };
        let (replica, primary) = (Position::default(), Position::default());
        tokio::time::advance(Duration::from_millis(1)).await;
        let asked = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        primary.take(sample(10), Instant::now());
        replica.take(sample(11), asked);
        assert!(!replica.is_ahead_of(&primary), "both were under way");
        tokio::time::advance(Duration::from_millis(1)).await;
        primary.take(sample(10), Instant::now());
        assert!(replica.is_ahead_of(&primary));
        tokio::time::advance(Duration::from_millis(1)).await;
        primary.take(sample(11), Instant::now());
        assert!(!replica.is_ahead_of(&primary));
    }

    #[test]
    fn the_header_of_an_empty_page_is_not_waited_for() {
        assert_eq!(reachable(8192 * 3 + 24), 8192 * 3);
        assert_eq!(reachable(8192 * 3 + 40), 8192 * 3);
        assert_eq!(reachable(8192 * 3 + 48), 8192 * 3 + 48);
    }

    #[test]
    fn a_wish_lasts_for_a_while() {
        let position = Position::default();
        assert!(!position.is_wanted());
        position.want(Instant::now());
        assert!(position.is_wanted());
    }
}

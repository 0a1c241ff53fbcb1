//! How far each server's write-ahead log has come, sampled only while somebody needs to know.
//!
//! The primary tells where its log ends, a standby what it has replayed
//! (<https://www.postgresql.org/docs/current/functions-admin.html>). A session that has written needs the first sample of
//! the primary that was asked for after the answer to its write: everything it wrote is before that position. A replica
//! that has replayed so far shows it. What is behind the last commit may stay in the primary's memory for long (reading
//! cleans pages up, which writes records that nobody waits for), and then no replica comes so far. A commit itself is on
//! disk after three times `wal_writer_delay`, even with `synchronous_commit` off; so what is on disk after that time
//! shows it too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use crate::server::connect::{ConnectError, Endpoint};
use crate::server::connection::ServerConnection;
use crate::server::own::Own;

/// The time from one sample to the next while somebody waits.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long a wish for samples lasts, in microseconds.
const WISH_MICROS: u64 = 500_000;

/// The pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// One question for both: the position, and what of it is on disk, as numbers.
const QUERY: &str = "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() \
     THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END - '0/0'::pg_catalog.pg_lsn, \
     CASE WHEN pg_catalog.pg_is_in_recovery() \
     THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_flush_lsn() END - '0/0'::pg_catalog.pg_lsn";

/// How long a commit may stay in memory, in milliseconds; asked once for each connection.
const DELAY_QUERY: &str = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_writer_delay'";

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
    /// Until when samples are wanted.
    wanted_until: AtomicU64,
    wish: Notify,
}

impl Default for Position {
    fn default() -> Self {
        Self {
            born: Instant::now(),
            lsn: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            delay: AtomicU64::new(u64::MAX),
            asked_at: AtomicU64::new(0),
            wanted_until: AtomicU64::new(0),
            wish: Notify::new(),
        }
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
        self.asked_at.store(0, Ordering::Release);
        self.lsn.store(0, Ordering::Release);
    }

    fn take(&self, (lsn, flushed): (u64, u64), asked_at: Instant) {
        self.lsn.store(lsn, Ordering::Release);
        self.flushed.store(flushed, Ordering::Release);
        self.asked_at.store(self.micros(asked_at), Ordering::Release);
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
        let mut connection = None;
        loop {
            if !self.position.is_wanted() {
                self.position.wish.notified().await;
                continue;
            }
            let began = Instant::now();
            match timeout(self.own.timeout, self.sample(&mut connection)).await {
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
        connection: &mut Option<Box<ServerConnection>>,
    ) -> Result<(u64, u64), ConnectError> {
        let connection = match connection {
            Some(connection) => connection,
            None => {
                let connection = connection.insert(self.own.connect(&self.endpoint).await?);
                let millis = numbers(connection.run(DELAY_QUERY).await?).next();
                let delay = millis.map_or(u64::MAX, |millis: u64| (3 * millis + 100) * 1000);
                self.position.delay.store(delay, Ordering::Release);
                connection
            }
        };
        let mut found = numbers(connection.run(QUERY).await?);
        match (found.next(), found.next()) {
            (Some(lsn), Some(flushed)) => Ok((lsn, flushed)),
            _ => Err(ConnectError::Protocol("no position")),
        }
    }
}

fn numbers(rows: Vec<Vec<Option<String>>>) -> impl Iterator<Item = u64> {
    rows.into_iter().flatten().flatten().filter_map(|text| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sample_that_was_asked_for_later_counts() {
        let position = Position::default();
        let wrote = Instant::now() + Duration::from_millis(1);
        assert_eq!(position.sampled_after(wrote), None);
        position.take((7, 7), wrote - Duration::from_micros(500));
        assert_eq!(position.sampled_after(wrote), None);
        position.take((9, 8), wrote + Duration::from_micros(500));
        assert_eq!(position.sampled_after(wrote), Some(9));
        assert_eq!(position.flushed_after(wrote), None, "nobody knows how long a commit may stay in memory");
        position.delay.store(400, Ordering::Release);
        assert_eq!(position.flushed_after(wrote), Some(8));
        position.delay.store(600, Ordering::Release);
        assert_eq!(position.flushed_after(wrote), None);
        position.forget();
        assert_eq!((position.sampled_after(wrote), position.lsn()), (None, 0));
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

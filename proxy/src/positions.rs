//! How far each server's write-ahead log has come, sampled only while somebody needs to know.
//!
//! The primary tells where its log ends, a standby what it has replayed
//! (<https://www.postgresql.org/docs/current/functions-admin.html>). A session that has written needs the first sample of
//! the primary that was asked for after the answer to its write: everything it wrote is before that position. A replica
//! that has replayed so far shows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::auth::users::Credentials;
use crate::server::connect::{ConnectError, Endpoint, Want, connect};
use crate::server::connection::{Identity, ServerConnection, WorkerId};

/// The time from one sample to the next while somebody waits.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long a wish for samples lasts, in microseconds.
const WISH_MICROS: u64 = 500_000;

/// The pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The longest that one sample may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// One question for both: the position as a number, and whether it is one of a replica.
const QUERY: &str = "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() \
     THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END - '0/0'::pg_catalog.pg_lsn";

/// A page of the log and the header that it begins with, in bytes. The end of the log may be told as behind the header of
/// a page that has no record yet, which a standby reports only with the next record.
const PAGE: u64 = 8192;
const PAGE_HEADERS: [u64; 2] = [24, 40];

/// What is known of one server's position.
#[derive(Debug)]
pub struct Position {
    born: Instant,
    lsn: AtomicU64,
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

    fn take(&self, lsn: u64, asked_at: Instant) {
        self.lsn.store(lsn, Ordering::Release);
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
    /// Where the monitor's user is found.
    pub credentials: Arc<Credentials>,
    /// As whom and to what it connects.
    pub identity: Arc<Identity>,
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
            match timeout(TIMEOUT, self.sample(&mut connection)).await {
                Ok(Ok(lsn)) => {
                    self.position.take(lsn, began);
                    sleep(INTERVAL.saturating_sub(began.elapsed())).await;
                }
                Ok(Err(_)) | Err(_) => {
                    connection = None;
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    async fn sample(&self, connection: &mut Option<Box<ServerConnection>>) -> Result<u64, ConnectError> {
        let connection = match connection {
            Some(connection) => connection,
            None => connection.insert(self.connect().await?),
        };
        let rows = connection.run(QUERY).await?;
        let lsn = rows.into_iter().flatten().flatten().next().and_then(|text| text.parse().ok());
        lsn.ok_or(ConnectError::Protocol("no position"))
    }

    async fn connect(&self) -> Result<Box<ServerConnection>, ConnectError> {
        let user = self.credentials.probe().ok_or(ConnectError::Protocol("the probe user is not known"))?;
        let parameters = [("application_name".to_owned(), "pgrouting-positions".to_owned())];
        connect(Want {
            endpoint: &self.endpoint,
            identity: &self.identity,
            user: &user,
            parameters: &parameters,
            home: WorkerId(u16::MAX),
            timeout: TIMEOUT,
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sample_that_was_asked_for_later_counts() {
        let position = Position::default();
        let wrote = Instant::now() + Duration::from_millis(1);
        assert_eq!(position.sampled_after(wrote), None);
        position.take(7, wrote - Duration::from_micros(500));
        assert_eq!(position.sampled_after(wrote), None);
        position.take(9, wrote + Duration::from_micros(500));
        assert_eq!(position.sampled_after(wrote), Some(9));
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

//! What clients did over time: averages over the last minute, and how long exchanges took.
//!
//! No clock is read for a transaction. Now and then it is looked how many are under way: over time, that number times the
//! time between two looks is the time that all of them took.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::metrics::pools::{PoolTotals, Pools};

/// What the averages are over.
pub const PERIOD: Duration = Duration::from_secs(60);

/// The time from one look to the next while clients are at work.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);

/// The same while nothing has begun since the last look.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// What was counted a while ago.
#[derive(Debug)]
pub struct History {
    pools: Arc<Pools>,
    periods: Mutex<Periods>,
}

/// The last whole period, and when the one began that is not over.
#[derive(Debug)]
struct Periods {
    before: Moment,
    latest: Option<Moment>,
}

/// What was counted at a moment, by database.
#[derive(Debug, Clone)]
struct Moment {
    at: Instant,
    totals: BTreeMap<String, PoolTotals>,
}

/// What was counted in a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Of that, what was there at its begin.
    pub from: PoolTotals,
    /// And at its end.
    pub to: PoolTotals,
    /// How long it is.
    pub time: Duration,
}

impl History {
    /// Begins now.
    #[must_use]
    pub fn new(pools: Arc<Pools>) -> Self {
        let before = Moment { at: Instant::now(), totals: BTreeMap::new() };
        Self { pools, periods: Mutex::new(Periods { before, latest: None }) }
    }

    /// Looks now and then for ever.
    pub async fn run(&self) {
        let mut last = Instant::now();
        let mut begun = 0;
        loop {
            let is_idle = begun == self.look(last.elapsed());
            last = Instant::now();
            begun = self.begun();
            self.turn(last);
            sleep(if is_idle { IDLE_INTERVAL } else { BUSY_INTERVAL }).await;
        }
    }

    /// What was counted of a database in the last whole period; while there is none, since the start.
    #[must_use]
    pub fn last(&self, database: &str, now: &PoolTotals) -> Span {
        let periods = self.lock();
        let of = |moment: &Moment| moment.totals.get(database).copied().unwrap_or_default();
        match &periods.latest {
            None => Span { from: of(&periods.before), to: *now, time: periods.before.at.elapsed() },
            Some(latest) => Span {
                from: of(&periods.before),
                to: of(latest),
                time: latest.at.saturating_duration_since(periods.before.at),
            },
        }
    }

    /// Counts what is under way as if it had been since the last look. Tells how many have ever begun.
    fn look(&self, since: Duration) -> u64 {
        let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        self.pools.for_each(|counts| counts.busy_micros.add(counts.active().saturating_mul(micros)));
        self.begun()
    }

    fn begun(&self) -> u64 {
        let mut begun = 0;
        self.pools.for_each(|counts| begun += counts.begun.value());
        begun
    }

    fn turn(&self, now: Instant) {
        let mut periods = self.lock();
        let since = periods.latest.as_ref().unwrap_or(&periods.before).at;
        if now.saturating_duration_since(since) >= PERIOD {
            let moment = Moment { at: now, totals: self.pools.by(|counts| counts.database.clone()) };
            if let Some(latest) = periods.latest.replace(moment) {
                periods.before = latest;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Periods> {
        self.periods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Span {
    /// How much more there is of something, for each second.
    #[must_use]
    pub fn per_second(&self, of: impl Fn(&PoolTotals) -> u64) -> u64 {
        let micros = u64::try_from(self.time.as_micros()).unwrap_or(u64::MAX);
        share(self.grown(&of).saturating_mul(1_000_000), micros)
    }

    /// How much more there is of something, for each that there is more of something else.
    #[must_use]
    pub fn per(&self, of: impl Fn(&PoolTotals) -> u64, item: impl Fn(&PoolTotals) -> u64) -> u64 {
        share(self.grown(&of), self.grown(&item))
    }

    fn grown(&self, of: &impl Fn(&PoolTotals) -> u64) -> u64 {
        of(&self.to).saturating_sub(of(&self.from))
    }
}

/// The quotient; nothing where nothing is divided by.
fn share(of: u64, by: u64) -> u64 {
    of.checked_div(by).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_counts_by_the_time_between_two_looks() {
        let pools = Arc::new(Pools::default());
        let history = History::new(Arc::clone(&pools));
        let counts = pools.of("app", "shop", 0);
        counts.logins.add_one();
        counts.begun.add(2);
        let watched = tokio::time::timeout(Duration::from_secs(10), history.run());
        assert!(watched.await.is_err());
        let busy = pools.total().busy_micros;
        assert!((18_000_000..=20_000_000).contains(&busy), "two for ten seconds: {busy}");
    }

    #[tokio::test(start_paused = true)]
    async fn averages_are_over_the_last_whole_period() {
        let pools = Arc::new(Pools::default());
        let history = History::new(Arc::clone(&pools));
        let counts = pools.of("app", "shop", 0);
        counts.logins.add_one();
        counts.queries.add(30);
        tokio::time::advance(Duration::from_secs(30)).await;
        let span = |history: &History| history.last("shop", &pools.total());
        assert_eq!(span(&history).per_second(|totals| totals.queries), 1, "since the start");
        tokio::time::advance(Duration::from_secs(30)).await;
        history.turn(Instant::now());
        counts.queries.add(600);
        counts.transactions.add(300);
        assert_eq!(span(&history).per_second(|totals| totals.queries), 0, "30 in a minute");
        tokio::time::advance(PERIOD).await;
        history.turn(Instant::now());
        assert_eq!(span(&history).per_second(|totals| totals.queries), 10);
        assert_eq!(span(&history).per(|totals| totals.queries, |totals| totals.transactions), 2);
        assert_eq!(span(&history).per(|totals| totals.queries, |totals| totals.waits), 0);
    }
}

//! Counts of times, and which of many are taken.
//!
//! Reading the clock costs more than the rest of the counting, so that of many transactions only some are timed: which,
//! is drawn, since a pattern of statements could keep step with any fixed distance.

use pgrouting_contract::histogram::{BUCKETS, Histogram, bucket_of};
use tokio::time::Instant;

use crate::metrics::counter::Counter;

/// Timed transactions that come this much sooner, in microseconds, are too many.
const SOON_MICROS: u64 = 1_000;

/// Those that come this much later are too few.
const LATE_MICROS: u64 = 2_000;

/// The most transactions that are not timed between two that are, on average.
const SKIP_MAX: u64 = 64;

/// The times of logins and requests on one thread.
#[derive(Debug, Default)]
pub struct SessionTimes {
    /// From a client's connect to the end of its login.
    pub logins: Times,
    /// Of requests that the primary answered, from the first byte that is passed on to the last of the answer.
    pub primary: Times,
    /// Of those that a replica answered.
    pub replica: Times,
    sampler: Sampler,
}

impl SessionTimes {
    /// Whether the request that begins now is to be timed.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.sampler.is_due()
    }

    /// The request that was due begins at this moment.
    pub fn draw_next(&self, now: Instant) {
        self.sampler.draw_next(now);
    }
}

/// Counts of times.
#[derive(Debug)]
pub struct Times(Box<[Counter]>);

impl Default for Times {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| Counter::default()).collect())
    }
}

impl Times {
    /// Counts a time.
    pub fn count(&self, time: std::time::Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if let Some(counter) = self.0.get(bucket_of(micros)) {
            counter.add_one();
        }
    }

    /// What was counted.
    #[must_use]
    pub fn histogram(&self) -> Histogram {
        Histogram::from_counts(self.0.iter().map(Counter::value))
    }
}

/// Tells which transactions are timed.
#[derive(Debug)]
pub struct Sampler {
    /// How many are left out before the next.
    left: Counter,
    /// How many are left out on average.
    mean: Counter,
    /// When the last one was timed, in microseconds after `begun`.
    last: Counter,
    begun: Instant,
    random: Counter,
}

impl Default for Sampler {
    fn default() -> Self {
        let random = Counter::default();
        // Of zero, all that follows would be zero.
        random.set(rand::random::<u64>() | 1);
        Self {
            left: Counter::default(),
            mean: Counter::default(),
            last: Counter::default(),
            begun: Instant::now(),
            random,
        }
    }
}

impl Sampler {
    /// Whether what begins now is to be timed. Costs a few instructions where it is not.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let left = self.left.value();
        if left > 0 {
            self.left.set(left - 1);
        }
        left == 0
    }

    /// What was due begins at this moment: draws which is the next.
    pub fn draw_next(&self, now: Instant) {
        let at = u64::try_from(now.saturating_duration_since(self.begun).as_micros()).unwrap_or(u64::MAX);
        let distance = at.saturating_sub(self.last.value());
        self.last.set(at);
        let mean = self.mean.value();
        let mean = if distance < SOON_MICROS {
            (mean * 2).clamp(1, SKIP_MAX)
        } else if distance > LATE_MICROS {
            mean / 2
        } else {
            mean
        };
        self.mean.set(mean);
        self.left.set(self.random() % (2 * mean + 1));
    }

    /// The next number of Marsaglia's xorshift.
    fn random(&self) -> u64 {
        let mut x = self.random.value();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x
    }
}

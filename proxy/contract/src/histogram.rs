//! A histogram of times whose buckets have the same width relative to what they hold.
//!
//! Below 32 µs each microsecond is a bucket; above, each doubling has 16, so that a bucket is at most 6.25 % wide. What a
//! process reports only grows, so that the difference of two reports is the histogram of the time between them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Below this many microseconds a bucket holds one value.
const EXACT: u64 = 32;
/// Buckets of one doubling.
const PARTS: u64 = 16;
/// Times from here on, some 36 minutes, are one bucket.
const MICROS_MAX: u64 = (1 << 31) - 1;
/// How many buckets there are.
pub const BUCKETS: usize = 448;

/// The bucket of a time in microseconds.
#[must_use]
pub fn bucket_of(micros: u64) -> usize {
    let micros = micros.min(MICROS_MAX);
    let index = if micros < EXACT {
        micros
    } else {
        let doubling = u64::from(micros.ilog2());
        let part = (micros >> (doubling - 4)) - PARTS;
        EXACT + (doubling - 5) * PARTS + part
    };
    usize::try_from(index).unwrap_or(BUCKETS - 1)
}

/// The least time of a bucket and of the next, in microseconds.
#[must_use]
pub fn bounds(bucket: usize) -> (u64, u64) {
    let index = u64::try_from(bucket).unwrap_or(u64::MAX);
    let from = |index: u64| match index.checked_sub(EXACT) {
        None => index,
        Some(above) => (PARTS + above % PARTS) << (above / PARTS + 1).min(40),
    };
    (from(index), from(index.saturating_add(1)))
}

/// How many times fell into which bucket; buckets without any are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram(pub BTreeMap<u16, u64>);

impl Histogram {
    /// From counts in order of bucket.
    #[must_use]
    pub fn from_counts(counts: impl IntoIterator<Item = u64>) -> Self {
        let counted = (0..).zip(counts).filter(|(_, count)| *count > 0);
        Self(counted.collect())
    }

    /// How many times there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds what another one holds.
    pub fn add(&mut self, other: &Self) {
        for (bucket, count) in &other.0 {
            let sum = self.0.entry(*bucket).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// What has come since an earlier state of the same process.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let rest = self.0.iter().map(|(bucket, count)| {
            (*bucket, count.saturating_sub(earlier.0.get(bucket).copied().unwrap_or(0)))
        });
        Self(rest.filter(|(_, count)| *count > 0).collect())
    }

    /// The time, in microseconds, that this share of all times (in thousandths) does not exceed; between the bounds of its
    /// bucket in proportion to rank. `None` where there is no time.
    #[must_use]
    pub fn quantile_micros(&self, thousandths: u64) -> Option<u64> {
        let total = u128::from(self.count());
        let rank = (total * u128::from(thousandths.min(1000))).div_ceil(1000).max(1);
        let mut before = 0;
        for (bucket, count) in &self.0 {
            let (from, to) = bounds(usize::from(*bucket));
            if before + u128::from(*count) >= rank {
                let into = u128::from(to - from) * (rank - before) / u128::from((*count).max(1));
                return Some(from + u64::try_from(into).unwrap_or(0).min(to - from - 1));
            }
            before += u128::from(*count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_between_the_bounds_of_its_bucket() {
        let mut last = 0;
        for micros in (0..5_000).chain((5_000..3_000_000_000).step_by(999_983)) {
            let bucket = bucket_of(micros);
            let (from, to) = bounds(bucket);
            assert!(bucket < BUCKETS, "{micros} {bucket}");
            assert!(bucket >= last, "{micros} {bucket}");
            last = bucket;
            if micros <= MICROS_MAX {
                assert!((from..to).contains(&micros), "{micros} is not in {from}..{to}");
                assert!((to - from) * 16 <= from.max(16), "{from}..{to}");
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantile_is_within_a_bucket_of_the_true_one() {
        let mut counts = vec![0; BUCKETS];
        for micros in 1..=100_000 {
            counts[bucket_of(micros)] += 1;
        }
        let histogram = Histogram::from_counts(counts);
        assert_eq!(histogram.count(), 100_000);
        for (thousandths, micros) in [(500, 50_000), (990, 99_000), (1, 100), (1000, 100_000)] {
            let found = histogram.quantile_micros(thousandths).unwrap();
            assert!(found.abs_diff(micros) * 16 <= micros, "{thousandths}: {found}");
        }
        assert_eq!(Histogram::default().quantile_micros(990), None);
    }

    #[test]
    fn difference_of_two_states_is_what_came_between() {
        let mut earlier = Histogram::from_counts([1, 0, 3]);
        let later = Histogram::from_counts([1, 5, 4]);
        let between = later.since(&earlier);
        assert_eq!(between, Histogram::from_counts([0, 5, 1]));
        earlier.add(&between);
        assert_eq!(earlier, later);
    }
}

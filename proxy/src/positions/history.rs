//! Where a log was at which moment, so that a position can be told as a time.
//!
//! Marks are thinned as they grow old: what is found by those that are left makes a replica look older than it is, never
//! younger.

use std::collections::VecDeque;

/// Marks that are kept.
const MARKS_MAX: usize = 1024;

/// Where the log was at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The moment, in microseconds; the log was at least there then.
    pub at: u64,
    /// Its end.
    pub lsn: u64,
    /// What of it was on disk.
    pub flushed: u64,
}

/// Marks in order; of the same position, the last moment.
#[derive(Debug, Default)]
pub struct History {
    marks: VecDeque<Mark>,
}

impl History {
    /// Adds a later one.
    pub fn add(&mut self, mark: Mark) {
        match self.marks.back_mut() {
            // The log of another life.
            Some(last) if mark.lsn < last.lsn || mark.flushed < last.flushed => self.marks.clear(),
            Some(last) if mark.lsn == last.lsn && mark.flushed == last.flushed => {
                last.at = mark.at;
                return;
            }
            _ => {}
        }
        self.marks.push_back(mark);
        if self.marks.len() > MARKS_MAX {
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index > MARKS_MAX / 2 || index % 2 == 0
            });
        }
    }

    /// Forgets all.
    pub fn forget(&mut self) {
        self.marks.clear();
    }

    /// The last moment at which no more was on disk than up to this position.
    #[must_use]
    pub fn last_within(&self, position: u64) -> Option<u64> {
        let count = self.marks.partition_point(|mark| mark.flushed <= position);
        Some(self.marks.get(count.checked_sub(1)?)?.at)
    }

    /// The least position that is known to show all that was committed before a moment, where a commit may be in memory
    /// for `delay` before it is on disk; all in microseconds.
    #[must_use]
    pub fn floor_since(&self, since: u64, delay: u64) -> Option<u64> {
        let first = |since: u64| self.marks.get(self.marks.partition_point(|mark| mark.at < since));
        let inserted = first(since).map(|mark| mark.lsn)?;
        let flushed = first(since.saturating_add(delay)).map(|mark| mark.flushed);
        Some(flushed.map_or(inserted, |flushed| flushed.min(inserted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(marks: &[(u64, u64, u64)]) -> History {
        let mut history = History::default();
        marks.iter().for_each(|&(at, lsn, flushed)| history.add(Mark { at, lsn, flushed }));
        history
    }

    #[test]
    fn a_position_is_told_as_a_time() {
        let history = history(&[(10, 100, 100), (20, 200, 150), (30, 200, 150), (40, 300, 300)]);
        for (position, at) in
            [(99, None), (100, Some(10)), (149, Some(10)), (150, Some(30)), (300, Some(40)), (999, Some(40))]
        {
            assert_eq!(history.last_within(position), at, "{position}");
        }
    }

    #[test]
    fn a_time_is_told_as_a_position() {
        let history = history(&[(10, 100, 100), (20, 200, 150), (30, 200, 150), (40, 300, 160)]);
        for (since, delay, floor) in [
            (5, 1000, Some(100)),
            (11, 1000, Some(200)),
            (30, 1000, Some(200)),
            (31, 1000, Some(300)),
            (41, 1000, None),
            (11, 10, Some(150)),
            (31, 5, Some(160)),
            (31, u64::MAX, Some(300)),
        ] {
            assert_eq!(history.floor_since(since, delay), floor, "{since} {delay}");
        }
    }

    #[test]
    fn what_is_thinned_only_looks_older() {
        let marks: Vec<_> = (1..=5000_u64).map(|number| (number * 10, number * 100, number * 100)).collect();
        let history = history(&marks);
        assert!(history.marks.len() <= MARKS_MAX);
        for number in [1000_u64, 2500, 4999, 5000] {
            assert!(history.last_within(number * 100).is_none_or(|at| at <= number * 10));
            assert!(history.floor_since(number * 10, u64::MAX).unwrap() >= number * 100);
        }
        assert_eq!(history.last_within(500_000), Some(50_000));
    }

    #[test]
    fn another_life_begins_anew() {
        let history = history(&[(10, 100, 100), (20, 90, 90)]);
        assert_eq!((history.last_within(95), history.last_within(80)), (Some(20), None));
    }
}

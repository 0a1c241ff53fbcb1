//! Counts of things of which there may be any number: the rarest makes room.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

/// Things that are kept.
pub const ENTRIES_MAX: usize = 256;

/// How often each was seen.
#[derive(Debug)]
pub struct Tally<T> {
    seen: Mutex<HashMap<T, u64>>,
}

impl<T> Default for Tally<T> {
    fn default() -> Self {
        Self { seen: Mutex::default() }
    }
}

impl<T: Clone + Hash + Ord> Tally<T> {
    /// Counts one.
    pub fn count(&self, item: T) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= ENTRIES_MAX && !seen.contains_key(&item) {
            let rarest = seen.iter().min_by_key(|(_, count)| **count).map(|(rarest, _)| rarest.clone());
            rarest.and_then(|rarest| seen.remove(&rarest));
        }
        *seen.entry(item).or_default() += 1;
    }

    /// Everything that was seen, the most frequent first.
    #[must_use]
    pub fn entries(&self) -> Vec<(T, u64)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries: Vec<_> = seen.iter().map(|(item, count)| (item.clone(), *count)).collect();
        entries.sort_by(|(a, many), (b, few)| few.cmp(many).then_with(|| a.cmp(b)));
        entries
    }
}

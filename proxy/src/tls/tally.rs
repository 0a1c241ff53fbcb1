//! How many handshakes there were on one side, and how they ended.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts. A handshake costs so much more than they do that all threads share them.
#[derive(Debug, Default)]
pub struct Tally {
    completed: AtomicU64,
    failed: AtomicU64,
    /// Times that files were found broken.
    broken: AtomicU64,
}

/// A handshake under way; dropped before it is done, it has failed.
#[derive(Debug)]
pub struct Attempt<'a> {
    tally: &'a Tally,
    is_done: bool,
}

impl Tally {
    /// A handshake begins.
    #[must_use]
    pub const fn begin(&self) -> Attempt<'_> {
        Attempt { tally: self, is_done: false }
    }

    /// Files were found broken.
    pub fn note_broken(&self) {
        self.broken.fetch_add(1, Ordering::Relaxed);
    }

    /// Handshakes that were completed, those that were not, and how often files were found broken.
    #[must_use]
    pub fn numbers(&self) -> [u64; 3] {
        [&self.completed, &self.failed, &self.broken].map(|number| number.load(Ordering::Relaxed))
    }
}

impl Attempt<'_> {
    /// It is completed.
    pub fn complete(mut self) {
        self.is_done = true;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let number = if self.is_done { &self.tally.completed } else { &self.tally.failed };
        number.fetch_add(1, Ordering::Relaxed);
    }
}

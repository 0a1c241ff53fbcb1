//! A number that one thread changes and others read.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number. Not a read-modify-write, which would cost more than the rest of the counting.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn add_one(&self) {
        self.add(1);
    }

    /// Adds a number.
    pub fn add(&self, number: u64) {
        self.set(self.value().wrapping_add(number));
    }

    /// Takes one away, for what can fall.
    pub fn take_one(&self) {
        self.set(self.value().wrapping_sub(1));
    }

    /// Puts another number in its place.
    pub fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }

    /// The number now.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

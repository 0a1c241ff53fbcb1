//! What one thread counts for the gates of a rollout: groups of transactions that are compared, and times.

use pgrouting_contract::histogram::Histogram;
use pgrouting_contract::measures::{Arm as ArmReport, Measures};
use tokio::time::Instant;

use crate::metrics::counter::Counter;
use crate::metrics::times::{Sampler, Times};

/// A group of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// Reads that the split sends to replicas.
    Cohort,
    /// Reads that it would, and that stay on the primary by lot.
    Control,
    /// Transactions of sessions that are copied.
    Mirrored,
    /// Transactions of sessions that are not, while others are.
    Unmirrored,
}

impl Arm {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Cohort, Self::Control, Self::Mirrored, Self::Unmirrored];

    /// The label in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cohort => "cohort",
            Self::Control => "control",
            Self::Mirrored => "mirrored",
            Self::Unmirrored => "unmirrored",
        }
    }

    /// Its part of a report.
    #[must_use]
    pub const fn of(self, measures: &Measures) -> &ArmReport {
        match self {
            Self::Cohort => &measures.cohort,
            Self::Control => &measures.control,
            Self::Mirrored => &measures.mirrored,
            Self::Unmirrored => &measures.unmirrored,
        }
    }
}

/// What one thread counts.
#[derive(Debug, Default)]
pub struct Arms {
    cohort: ArmCounts,
    control: ArmCounts,
    mirrored: ArmCounts,
    unmirrored: ArmCounts,
    /// Times of waits for a server connection.
    pub waits: Times,
    /// Waits that ended with a connection for a transaction.
    pub waited: Counter,
    /// Refusals of replicas that reached a client that had not asked for it.
    pub misrouted: Counter,
}

impl Arms {
    /// The counts of a group.
    #[must_use]
    pub const fn of(&self, arm: Arm) -> &ArmCounts {
        match arm {
            Arm::Cohort => &self.cohort,
            Arm::Control => &self.control,
            Arm::Mirrored => &self.mirrored,
            Arm::Unmirrored => &self.unmirrored,
        }
    }
}

/// What is counted of one group.
#[derive(Debug, Default)]
pub struct ArmCounts {
    /// Transactions.
    pub transactions: Counter,
    /// Errors that clients got in them.
    pub errors: Counter,
    /// How long some of them took.
    pub latency: Times,
    sampler: Sampler,
}

impl ArmCounts {
    /// Whether the transaction that begins now is to be timed. Costs a few instructions where it is not.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.sampler.is_due()
    }

    /// The transaction that was due begins at this moment: draws which is the next.
    #[inline(never)]
    pub fn draw_next(&self, now: Instant) {
        self.sampler.draw_next(now);
    }
}

/// The counts of all threads together, but for what they do not know. Of `transactions` that got a connection, those that
/// did not wait have waited for no time.
#[must_use]
pub fn sum<'a>(threads: impl Iterator<Item = &'a Arms>, transactions: u64) -> Measures {
    let mut sum = Measures::default();
    let mut waited = 0;
    for arms in threads {
        let of = |arm: Arm| {
            let ArmCounts { transactions, errors, latency, sampler: _ } = arms.of(arm);
            ArmReport {
                transactions: transactions.value(),
                errors: errors.value(),
                latency: latency.histogram(),
            }
        };
        sum.add(&Measures {
            cohort: of(Arm::Cohort),
            control: of(Arm::Control),
            mirrored: of(Arm::Mirrored),
            unmirrored: of(Arm::Unmirrored),
            waits: arms.waits.histogram(),
            misrouted: arms.misrouted.value(),
            ..Measures::default()
        });
        waited += arms.waited.value();
    }
    sum.waits.add(&Histogram::from_counts([transactions.saturating_sub(waited)]));
    sum
}

#[cfg(test)]
mod tests;

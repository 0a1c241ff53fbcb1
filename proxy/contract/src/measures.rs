//! What the gates of a rollout are judged by: counters that only grow while a process lives.
//!
//! Whoever wants the figures of a span of time takes two reports of the same process and subtracts.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// Counters since the process started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Measures {
    /// Which process they are of: another one begins at zero. Empty from a proxy that does not measure.
    #[serde(default)]
    pub process: String,
    /// Reads that went to replicas, or would have but for the lack of one, since their session is in the share that is
    /// split.
    #[serde(default)]
    pub cohort: Arm,
    /// Reads that would have gone there and stayed on the primary, since their session is not in the share; at a stage
    /// that does not split, those reads that the forecast looks at.
    #[serde(default)]
    pub control: Arm,
    /// Transactions of sessions whose traffic is copied.
    #[serde(default)]
    pub mirrored: Arm,
    /// Transactions of sessions whose traffic is not copied, while others' is.
    #[serde(default)]
    pub unmirrored: Arm,
    /// How long transactions waited for a server connection; those that waited not at all are in the bucket of zero.
    #[serde(default)]
    pub waits: Histogram,
    /// Refusals of replicas that reached a client, of what the client had not declared to be READ ONLY.
    #[serde(default)]
    pub misrouted: u64,
    /// The statements that replicas refused, whether or not they were rescued; the most frequent first, at most 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedStatement>,
}

/// One of two groups that are compared.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Arm {
    /// Transactions.
    #[serde(default)]
    pub transactions: u64,
    /// Errors that clients got in them, of servers and of the proxy.
    #[serde(default)]
    pub errors: u64,
    /// How long they took from the client's request to the last byte of the answer; of a sample of them where there are
    /// many.
    #[serde(default)]
    pub latency: Histogram,
}

/// A statement that a replica refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedStatement {
    /// The server that refused it.
    pub server: String,
    /// The statement without its constants and comments, cut off where it is long; empty where it was not kept.
    pub statement: String,
    /// How often.
    pub count: u64,
}

impl Measures {
    /// What has come since an earlier report of the same process; everything where it is another process. The statements
    /// are those of now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if self.process != earlier.process {
            return self.clone();
        }
        Self {
            process: self.process.clone(),
            cohort: self.cohort.since(&earlier.cohort),
            control: self.control.since(&earlier.control),
            mirrored: self.mirrored.since(&earlier.mirrored),
            unmirrored: self.unmirrored.since(&earlier.unmirrored),
            waits: self.waits.since(&earlier.waits),
            misrouted: self.misrouted.saturating_sub(earlier.misrouted),
            refused: self.refused.clone(),
        }
    }

    /// Adds the figures of another process.
    pub fn add(&mut self, other: &Self) {
        self.cohort.add(&other.cohort);
        self.control.add(&other.control);
        self.mirrored.add(&other.mirrored);
        self.unmirrored.add(&other.unmirrored);
        self.waits.add(&other.waits);
        self.misrouted = self.misrouted.saturating_add(other.misrouted);
        self.refused.extend(other.refused.iter().cloned());
    }
}

impl Arm {
    /// What has come since an earlier state.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            transactions: self.transactions.saturating_sub(earlier.transactions),
            errors: self.errors.saturating_sub(earlier.errors),
            latency: self.latency.since(&earlier.latency),
        }
    }

    /// Adds another one's figures.
    pub fn add(&mut self, other: &Self) {
        self.transactions = self.transactions.saturating_add(other.transactions);
        self.errors = self.errors.saturating_add(other.errors);
        self.latency.add(&other.latency);
    }

    /// Errors in a million transactions.
    #[must_use]
    pub fn errors_per_million(&self) -> u64 {
        per_million(self.errors, self.transactions)
    }
}

/// How many of a million; 0 of none.
#[must_use]
pub fn per_million(count: u64, of: u64) -> u64 {
    let per_million = (u128::from(count) * 1_000_000).checked_div(u128::from(of)).unwrap_or(0);
    u64::try_from(per_million).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_counts_from_its_start() {
        let measures = |process: &str, transactions| Measures {
            process: process.to_owned(),
            cohort: Arm { transactions, ..Arm::default() },
            ..Measures::default()
        };
        let span = |later: &Measures, earlier: &Measures| later.since(earlier).cohort.transactions;
        assert_eq!(span(&measures("a", 10), &measures("a", 4)), 6);
        assert_eq!(span(&measures("b", 10), &measures("a", 40)), 10);
    }

    #[test]
    fn rate_of_nothing_is_zero() {
        assert_eq!(per_million(0, 0), 0);
        assert_eq!(per_million(3, 0), 0);
        assert_eq!(per_million(1, 2), 500_000);
        assert_eq!(per_million(u64::MAX, u64::MAX), 1_000_000);
    }
}

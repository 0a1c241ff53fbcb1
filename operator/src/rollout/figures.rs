//! The figures of a pool over a span of time, out of what its proxies count since they started.
//!
//! Pure. A proxy that comes in the middle counts from its start, and one that goes counts up to the last time that it was
//! seen. All of it can be lost: a span then begins anew.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use pgrouting_contract::measures::Measures;
use pgrouting_contract::mirror::MirrorReport;
use pgrouting_contract::report::ProxyReport;

/// What a proxy has counted, of all that gates look at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Figures {
    /// Both groups of reads, both groups of transactions, and waits.
    pub measures: Measures,
    /// Statements that ran on the primary since a replica refused or cancelled them.
    pub rescued: u64,
    /// Those of them that were in conflict with recovery.
    pub conflicts: u64,
    /// Transactions.
    pub transactions: u64,
    /// Of the copied traffic.
    pub mirror: MirrorFigures,
}

/// What came of copies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MirrorFigures {
    /// Transactions that were to be copied.
    pub offered: u64,
    /// Those that were not.
    pub dropped: u64,
    /// Requests whose answers were compared.
    pub compared: u64,
    /// Those that differ in error or number of rows.
    pub diverging: u64,
}

/// Verdicts on two answers that tell of another error or number of rows. Rows that differ in what they hold are told in
/// the mirror's report: a copy that is behind has them all the time.
const DIVERGING: [&str; 4] = ["tag", "failed_there", "failed_here", "other_error"];

impl Figures {
    /// What a proxy has counted.
    #[must_use]
    pub fn of(report: &ProxyReport) -> Self {
        let rescued = &report.split.rescued;
        Self {
            measures: report.measures.clone(),
            rescued: rescued.values().fold(0, |sum, count| sum.saturating_add(*count)),
            conflicts: rescued.get("conflict").copied().unwrap_or(0),
            transactions: report.totals.transactions,
            mirror: report.mirror.as_ref().map(MirrorFigures::of).unwrap_or_default(),
        }
    }

    fn since(&self, earlier: &Self) -> Self {
        if self.measures.process != earlier.measures.process {
            return self.clone();
        }
        Self {
            measures: self.measures.since(&earlier.measures),
            rescued: self.rescued.saturating_sub(earlier.rescued),
            conflicts: self.conflicts.saturating_sub(earlier.conflicts),
            transactions: self.transactions.saturating_sub(earlier.transactions),
            mirror: self.mirror.since(&earlier.mirror),
        }
    }

    fn add(&mut self, other: &Self) {
        self.measures.add(&other.measures);
        self.rescued = self.rescued.saturating_add(other.rescued);
        self.conflicts = self.conflicts.saturating_add(other.conflicts);
        self.transactions = self.transactions.saturating_add(other.transactions);
        self.mirror.offered = self.mirror.offered.saturating_add(other.mirror.offered);
        self.mirror.dropped = self.mirror.dropped.saturating_add(other.mirror.dropped);
        self.mirror.compared = self.mirror.compared.saturating_add(other.mirror.compared);
        self.mirror.diverging = self.mirror.diverging.saturating_add(other.mirror.diverging);
    }
}

impl MirrorFigures {
    fn of(report: &MirrorReport) -> Self {
        let sum =
            |counts: &BTreeMap<String, u64>| counts.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let diverging = DIVERGING.iter().filter_map(|verdict| report.verdicts.get(*verdict));
        Self {
            offered: report.offered,
            dropped: sum(&report.dropped),
            compared: sum(&report.verdicts),
            diverging: diverging.fold(0, |sum, count| sum.saturating_add(*count)),
        }
    }

    /// A mirror that was changed counts from zero.
    fn since(&self, earlier: &Self) -> Self {
        if self.offered < earlier.offered || self.compared < earlier.compared {
            return self.clone();
        }
        Self {
            offered: self.offered - earlier.offered,
            dropped: self.dropped.saturating_sub(earlier.dropped),
            compared: self.compared - earlier.compared,
            diverging: self.diverging.saturating_sub(earlier.diverging),
        }
    }
}

/// What is true of a pool at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// The largest lag of a replica that takes reads, where one is known.
    pub lag_ms_max: Option<u64>,
    /// Replicas that take reads.
    pub replicas: usize,
    /// How much of the connections to the primary is in use, in percent, where a primary is known.
    pub primary_use_percent: Option<u64>,
    /// Proxies that said so.
    pub proxies: usize,
}

/// A span of time that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    begun: Timestamp,
    /// What each proxy had counted when the span began, or when it came.
    bases: BTreeMap<String, Figures>,
    /// What it had counted when it was last seen.
    last: BTreeMap<String, Figures>,
    /// What those have counted that are gone.
    gone: Figures,
    /// The worst of the moments.
    worst: Moment,
}

impl Window {
    /// A span that begins with what the proxies have counted so far.
    #[must_use]
    pub fn begin(proxies: &BTreeMap<String, Figures>, moment: Moment, now: Timestamp) -> Self {
        Self {
            begun: now,
            bases: proxies.clone(),
            last: proxies.clone(),
            gone: Figures::default(),
            worst: moment,
        }
    }

    /// Takes in what the proxies have counted now.
    pub fn look(&mut self, proxies: &BTreeMap<String, Figures>, moment: Moment) {
        for (pod, figures) in proxies {
            let is_restarted =
                self.last.get(pod).is_some_and(|last| last.measures.process != figures.measures.process);
            if is_restarted {
                self.settle(pod);
            }
            self.last.insert(pod.clone(), figures.clone());
        }
        let worst = &mut self.worst;
        worst.lag_ms_max = worst.lag_ms_max.max(moment.lag_ms_max);
        worst.primary_use_percent = worst.primary_use_percent.max(moment.primary_use_percent);
        worst.replicas = worst.replicas.min(moment.replicas);
        worst.proxies = worst.proxies.min(moment.proxies);
    }

    /// What this process has counted will not be counted again.
    fn settle(&mut self, pod: &str) {
        let base = self.bases.remove(pod).unwrap_or_default();
        if let Some(last) = self.last.remove(pod) {
            self.gone.add(&last.since(&base));
        }
    }

    /// What has come since the span began.
    #[must_use]
    pub fn total(&self) -> Figures {
        let nothing = Figures::default();
        let mut total = self.gone.clone();
        for (pod, last) in &self.last {
            total.add(&last.since(self.bases.get(pod).unwrap_or(&nothing)));
        }
        total
    }

    /// The worst that was true at one of the moments.
    #[must_use]
    pub const fn worst(&self) -> Moment {
        self.worst
    }

    /// How long it has been.
    #[must_use]
    pub fn age(&self, now: Timestamp) -> Duration {
        Duration::try_from(now.duration_since(self.begun)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;

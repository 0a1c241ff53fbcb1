//! What a session's transaction counts for in the comparisons of a rollout.
//!
//! One exchange counts once. Of requests that follow in the same exchange only the groups of the mirror count more than the
//! first, since nobody has drawn a lot for them.

use pgrouting_contract::stage::Stage;
use tokio::time::Instant;

use crate::metrics::arms::{Arm, Arms};
use crate::route::{Access, Group};
use crate::server::settings::REPLICATION;
use crate::session::client::Client;
use crate::session::relay::Seen;
use crate::session::tenancy::Tenancy;

/// The transaction at hand; empty while there is none that counts.
#[derive(Debug, Default)]
pub struct Measured {
    /// The group of reads that it is in.
    read: Option<Entry>,
    /// The group of the mirror that it is in.
    copy: Option<Entry>,
    /// When the client's request was taken up, where that is to be known.
    began: Option<Instant>,
    /// The session keeps its connection, and the request has not come yet.
    is_awaited: bool,
    /// The request is to be run again, and counts as one with its first run.
    is_carried: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    arm: Arm,
    is_timed: bool,
}

impl Measured {
    /// A request is taken up.
    pub fn begin(&mut self, client: &Client, tenancy: &Tenancy, group: Option<Group>) {
        if group.is_none() && tenancy.view().active.config.stage < Stage::Mirror {
            return;
        }
        if std::mem::take(&mut self.is_carried) {
            return;
        }
        let entry = |arm| Entry { arm, is_timed: false };
        let read = group.map(|group| match group {
            Group::Cohort => Arm::Cohort,
            Group::Control => Arm::Control,
        });
        *self = Self { read: read.map(entry), copy: copy_arm(client, tenancy).map(entry), ..Self::default() };
        self.time(&tenancy.worker.metrics.arms);
    }

    /// The session keeps its connection and waits for a request there.
    pub fn await_request(&mut self, client: &Client, tenancy: &Tenancy) {
        let copy = copy_arm(client, tenancy).map(|arm| Entry { arm, is_timed: false });
        *self = Self { copy, is_awaited: copy.is_some(), ..Self::default() };
    }

    /// Whether a request is waited for.
    #[must_use]
    pub const fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// The request has come that was waited for. One that has been answered already is not timed.
    pub fn came(&mut self, tenancy: &Tenancy, is_answered: bool) {
        self.is_awaited = false;
        if !is_answered {
            self.time(&tenancy.worker.metrics.arms);
        }
    }

    /// Reads the clock where one of the groups wants it.
    fn time(&mut self, arms: &Arms) {
        for entry in [&mut self.read, &mut self.copy].into_iter().flatten() {
            let counts = arms.of(entry.arm);
            if counts.is_due() {
                entry.is_timed = true;
                counts.draw_next(*self.began.get_or_insert_with(Instant::now));
            }
        }
    }

    /// The exchange has come to its end, and the client has its answer.
    pub fn finish(&mut self, arms: &Arms, seen: &Seen) {
        if self.read.is_some() || self.copy.is_some() {
            self.count(arms, seen, 0);
        }
    }

    /// The client is told an error of ours, or of a server that goes, in the place of the answer.
    pub fn fail(&mut self, arms: &Arms) {
        self.count(arms, &Seen::default(), 1);
    }

    /// The request is to be run on the primary. What was seen before it in the same exchange counts by itself, and leaves no
    /// time to it.
    pub fn carry(&mut self, arms: &Arms, before: &Seen) {
        if before.transactions > 0 {
            let (read, copy) = (self.read, self.copy);
            self.count(arms, before, 0);
            let untimed = |entry: Entry| Entry { is_timed: false, ..entry };
            (self.read, self.copy) = (read.map(untimed), copy.map(untimed));
        }
        self.is_carried = true;
    }

    /// Nothing has been sent, or the client has gone: it counts for nothing.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    fn count(&mut self, arms: &Arms, seen: &Seen, more_errors: u64) {
        let Self { read, copy, began, is_awaited, is_carried: _ } = std::mem::take(self);
        if is_awaited {
            return;
        }
        // Of several transactions in one exchange none has a time of its own.
        let took = began.filter(|_| seen.transactions <= 1).map(|began| began.elapsed());
        let all = seen.transactions.max(1);
        for (entry, transactions, errors) in [(read, 1, seen.first_told), (copy, all, seen.told)] {
            let Some(Entry { arm, is_timed }) = entry else { continue };
            let counts = arms.of(arm);
            counts.transactions.add(transactions);
            if errors + more_errors > 0 {
                counts.errors.add(errors + more_errors);
            }
            if let Some(took) = took.filter(|_| is_timed) {
                counts.latency.count(took);
            }
        }
    }
}

/// Whether the session is one of those that are copied, by lot, where a mirror is in effect.
fn copy_arm(client: &Client, tenancy: &Tenancy) -> Option<Arm> {
    let config = &tenancy.view().active.config;
    if config.stage < Stage::Mirror || tenancy.access != Access::Routed {
        return None;
    }
    let mirror = config.mirror.as_ref()?;
    if client.state.startup.value(REPLICATION).is_some() {
        return None;
    }
    Some(if client.recorder.is_in(mirror.percent) { Arm::Mirrored } else { Arm::Unmirrored })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cohort() -> Measured {
        let entry = |arm| Some(Entry { arm, is_timed: true });
        Measured {
            read: entry(Arm::Cohort),
            copy: entry(Arm::Mirrored),
            began: Some(Instant::now()),
            ..Measured::default()
        }
    }

    /// Transactions, errors and times of a group.
    fn counts(arms: &Arms, arm: Arm) -> (u64, u64, u64) {
        let sum = crate::metrics::arms::sum([arms].into_iter(), 0);
        let report = arm.of(&sum);
        (report.transactions, report.errors, report.latency.count())
    }

    #[test]
    fn an_exchange_counts_once_and_is_gone() {
        let arms = Arms::default();
        let mut measured = cohort();
        let seen = Seen { transactions: 1, told: 1, first_told: 1, ..Seen::default() };
        measured.finish(&arms, &seen);
        measured.finish(&arms, &seen);
        assert_eq!(counts(&arms, Arm::Cohort), (1, 1, 1));
        assert_eq!(counts(&arms, Arm::Mirrored), (1, 1, 1));
        assert_eq!(counts(&arms, Arm::Control), (0, 0, 0));
    }

    #[test]
    fn of_what_follows_in_the_same_exchange_nothing_is_compared_with_other_reads() {
        let arms = Arms::default();
        let seen = Seen { transactions: 3, told: 2, first_told: 0, ..Seen::default() };
        cohort().finish(&arms, &seen);
        assert_eq!(counts(&arms, Arm::Cohort), (1, 0, 0));
        assert_eq!(counts(&arms, Arm::Mirrored), (3, 2, 0));
    }

    #[test]
    fn an_error_of_ours_counts_as_one_of_a_server() {
        let arms = Arms::default();
        cohort().fail(&arms);
        assert_eq!(counts(&arms, Arm::Cohort), (1, 1, 1));
    }

    #[test]
    fn a_rescued_request_counts_once_with_all_its_time() {
        let arms = Arms::default();
        let mut measured = cohort();
        let refused = Seen { errors: 1, ..Seen::default() };
        measured.carry(&arms, &refused);
        assert_eq!(counts(&arms, Arm::Cohort), (0, 0, 0));
        measured.finish(&arms, &Seen { transactions: 1, ..Seen::default() });
        assert_eq!(counts(&arms, Arm::Cohort), (1, 0, 1));
        // Behind another one, its time is not known.
        let mut measured = cohort();
        measured.carry(&arms, &Seen { transactions: 1, ..Seen::default() });
        measured.finish(&arms, &Seen { transactions: 1, ..Seen::default() });
        assert_eq!(counts(&arms, Arm::Cohort), (3, 0, 2));
    }

    #[test]
    fn what_never_came_is_not_counted() {
        let arms = Arms::default();
        let mut measured = Measured { is_awaited: true, ..cohort() };
        measured.fail(&arms);
        assert_eq!(counts(&arms, Arm::Mirrored), (0, 0, 0));
        let mut measured = cohort();
        measured.forget();
        measured.finish(&arms, &Seen { transactions: 1, ..Seen::default() });
        assert_eq!(counts(&arms, Arm::Cohort), (0, 0, 0));
    }
}

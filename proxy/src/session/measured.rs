//! What a session's transaction counts for in the comparisons of a rollout.
//!
//! One exchange counts once. Of requests that follow in the same exchange only the groups of the mirror count more than the
//! first, since nobody has drawn a lot for them.

use pgrouting_contract::stage::Stage;
use tokio::time::Instant;

use crate::metrics::arms::{Arm, ArmCounts, Arms};
use crate::route::{Access, Group};
use crate::server::settings::REPLICATION;
use crate::session::client::Client;
use crate::session::relay::Seen;
use crate::session::tenancy::Tenancy;

/// The transaction at hand; empty while there is none that counts.
#[derive(Debug, Default)]
pub struct Measured {
    /// The group of reads that it is in.
    read: Option<Arm>,
    /// There is more to it than that, so that the long way has to be gone.
    is_special: bool,
    special: Special,
}

/// What is said of few transactions.
#[derive(Debug, Default)]
struct Special {
    /// The group of the mirror that it is in.
    copy: Option<Arm>,
    /// When the client's request was taken up, where that is to be known.
    began: Option<Instant>,
    /// Which groups want to know.
    is_read_timed: bool,
    is_copy_timed: bool,
    /// The session keeps its connection, and the request has not come yet.
    is_awaited: bool,
    /// The request is to be run again, and counts as one with its first run.
    is_carried: bool,
}

impl Measured {
    /// A request is taken up. Costs next to nothing where it is in no group.
    #[inline]
    pub fn begin(&mut self, client: &Client, tenancy: &Tenancy, group: Option<Group>) {
        let read = group.map(|group| match group {
            Group::Cohort => Arm::Cohort,
            Group::Control => Arm::Control,
        });
        if self.is_special || tenancy.view().active.config.stage >= Stage::Mirror {
            self.begin_special(client, tenancy, read);
        } else if let Some(arm) = read {
            let counts = tenancy.worker.metrics.arms.of(arm);
            self.read = Some(arm);
            if counts.is_due() {
                self.time_read(counts);
            }
        }
    }

    #[inline(never)]
    fn begin_special(&mut self, client: &Client, tenancy: &Tenancy, read: Option<Arm>) {
        if !std::mem::take(&mut self.special.is_carried) {
            *self = Self::of(read, copy_arm(client, tenancy));
            self.time(&tenancy.worker.metrics.arms);
        }
    }

    fn of(read: Option<Arm>, copy: Option<Arm>) -> Self {
        Self { read, is_special: copy.is_some(), special: Special { copy, ..Special::default() } }
    }

    /// The session keeps its connection and waits for a request there.
    pub fn await_request(&mut self, client: &Client, tenancy: &Tenancy) {
        *self = Self::of(None, copy_arm(client, tenancy));
        self.special.is_awaited = self.is_special;
    }

    /// Whether a request is waited for.
    #[must_use]
    pub const fn is_awaited(&self) -> bool {
        self.special.is_awaited
    }

    /// The request has come that was waited for. One that has been answered already is not timed.
    pub fn came(&mut self, tenancy: &Tenancy, is_answered: bool) {
        self.special.is_awaited = false;
        if !is_answered {
            self.time(&tenancy.worker.metrics.arms);
        }
    }

    /// Reads the clock where one of the groups wants it.
    fn time(&mut self, arms: &Arms) {
        if let Some(read) = self.read.map(|arm| arms.of(arm))
            && read.is_due()
        {
            self.time_read(read);
        }
        if let Some(copy) = self.special.copy.map(|arm| arms.of(arm))
            && copy.is_due()
        {
            copy.draw_next(self.clock());
            self.special.is_copy_timed = true;
        }
    }

    #[inline(never)]
    fn time_read(&mut self, read: &ArmCounts) {
        read.draw_next(self.clock());
        self.special.is_read_timed = true;
    }

    fn clock(&mut self) -> Instant {
        self.is_special = true;
        *self.special.began.get_or_insert_with(Instant::now)
    }

    /// The exchange has come to its end, and the client has its answer.
    #[inline]
    pub fn finish(&mut self, arms: &Arms, seen: &Seen) {
        if self.is_special {
            self.count(arms, seen, 0);
        } else if let Some(read) = self.read.take() {
            add(arms.of(read), 1, seen.first_told);
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
            let again = Self::of(self.read, self.special.copy);
            self.count(arms, before, 0);
            *self = again;
        }
        self.is_special = true;
        self.special.is_carried = true;
    }

    /// Nothing has been sent, or the client has gone: it counts for nothing.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    #[inline(never)]
    fn count(&mut self, arms: &Arms, seen: &Seen, more_errors: u64) {
        let Self { read, is_special: _, special } = std::mem::take(self);
        if special.is_awaited {
            return;
        }
        // Of several transactions in one exchange none has a time of its own.
        let took = special.began.filter(|_| seen.transactions <= 1).map(|began| began.elapsed());
        if let Some(read) = read.map(|arm| arms.of(arm)) {
            add(read, 1, seen.first_told + more_errors);
            took.filter(|_| special.is_read_timed).inspect(|took| read.latency.count(*took));
        }
        if let Some(copy) = special.copy.map(|arm| arms.of(arm)) {
            add(copy, seen.transactions.max(1), seen.told + more_errors);
            took.filter(|_| special.is_copy_timed).inspect(|took| copy.latency.count(*took));
        }
    }
}

fn add(counts: &ArmCounts, transactions: u64, errors: u64) {
    counts.transactions.add(transactions);
    if errors > 0 {
        counts.errors.add(errors);
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
    Some(if client.recorder.is_in(mirror) { Arm::Mirrored } else { Arm::Unmirrored })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cohort() -> Measured {
        let mut measured = Measured::of(Some(Arm::Cohort), Some(Arm::Mirrored));
        measured.time(&Arms::default());
        measured
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
    fn what_is_not_timed_is_counted_all_the_same() {
        let arms = Arms::default();
        for told in [0, 1] {
            let mut measured = Measured::of(Some(Arm::Control), None);
            let seen = Seen { transactions: 1, told, first_told: told, ..Seen::default() };
            measured.finish(&arms, &seen);
            measured.finish(&arms, &seen);
        }
        assert_eq!(counts(&arms, Arm::Control), (2, 1, 0));
        let mut measured = Measured::of(Some(Arm::Control), None);
        measured.carry(&arms, &Seen { errors: 1, ..Seen::default() });
        measured.finish(&arms, &Seen { transactions: 1, ..Seen::default() });
        assert_eq!(counts(&arms, Arm::Control), (3, 1, 0));
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
        let mut measured = cohort();
        measured.special.is_awaited = true;
        measured.fail(&arms);
        assert_eq!(counts(&arms, Arm::Mirrored), (0, 0, 0));
        let mut measured = cohort();
        measured.forget();
        measured.finish(&arms, &Seen { transactions: 1, ..Seen::default() });
        assert_eq!(counts(&arms, Arm::Cohort), (0, 0, 0));
    }
}

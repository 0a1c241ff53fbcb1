//! Keeps the clock of the sessions, and stops those that do something for longer than the document allows.

use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::config::PoolingConfig;
use pgrouting_contract::duration::DurationText;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::debug;

use crate::cancel::CancelOutcome;
use crate::fleet::View;
use crate::metrics::counter::Counter;
use crate::pace::{Limits, Overdue};
use crate::roster::{Roster, Seat};

/// The grain of the clock.
const TICK: Duration = Duration::from_millis(100);

/// The longest from one look at all sessions to the next.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// Cancel requests that are on their way at a time. Whoever comes later is looked at again.
const CANCELS_MAX: usize = 64;

/// Sessions that were stopped, by what they did for too long.
#[derive(Debug, Default)]
pub struct Stopped([Counter; Overdue::ALL.len()]);

impl Stopped {
    fn count(&self, overdue: Overdue) {
        let counters = Overdue::ALL.iter().zip(&self.0);
        counters.filter(|(known, _)| **known == overdue).for_each(|(_, counter)| counter.add_one());
    }

    /// How many there were.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        Overdue::ALL.iter().zip(&self.0).map(|(known, counter)| (known.as_str(), counter.value())).collect()
    }
}

/// Looks at the sessions until it is dropped.
#[derive(Debug)]
pub struct Timekeeper {
    /// Who is connected.
    pub roster: Arc<Roster>,
    /// Tells the limits.
    pub views: watch::Receiver<Arc<View>>,
    /// What came of it.
    pub stopped: Arc<Stopped>,
}

impl Timekeeper {
    /// Keeps the time. What is on its way when this is dropped is given up.
    pub async fn run(mut self) {
        let began = Instant::now();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut cancels = JoinSet::new();
        let mut next_look = Duration::ZERO;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                Some(outcome) = cancels.join_next() => {
                    debug!(?outcome, "a statement took too long and was to be cancelled");
                    continue;
                }
            }
            let now = began.elapsed();
            self.roster.clock().set(now);
            let limits = limits_of(&self.views.borrow_and_update().active.config.pooling);
            let Some(shortest) = limits.shortest() else { continue };
            if now >= next_look {
                next_look = now + (shortest / 10).clamp(TICK, LOOK_WITHIN);
                for seat in self.roster.all() {
                    self.look(&seat, &limits, &mut cancels);
                }
            }
        }
    }

    fn look(&self, seat: &Seat, limits: &Limits, cancels: &mut JoinSet<CancelOutcome>) {
        let seen = seat.pace.look();
        let Some(due) = seen.due(limits, self.roster.clock()) else { return };
        if due.is_to_cancel && cancels.len() >= CANCELS_MAX {
            return;
        }
        if !seat.pace.mark(&seen, due) {
            return;
        }
        // Before the session hears of it: it waits for what is on its way, so that it meets no other's statement.
        let request = if due.is_to_cancel { seat.slot.request() } else { None };
        if let Some(request) = request {
            cancels.spawn(request.send());
        }
        if due.is_to_leave {
            seat.pace.wake();
        }
        if due.is_to_leave != (due.overdue == Overdue::Query) {
            self.stopped.count(due.overdue);
        }
    }
}

fn limits_of(pooling: &PoolingConfig) -> Limits {
    let limit = |time: DurationText| Some(time.get()).filter(|time| !time.is_zero());
    Limits {
        query: limit(pooling.query_timeout),
        transaction: limit(pooling.transaction_timeout),
        idle_transaction: limit(pooling.idle_transaction_timeout),
        client_idle: limit(pooling.client_idle_timeout),
    }
}

//! May the next step begin? Pure: takes the rollout as it is, what the gates say and the time; gives the rollout as it is to
//! be, and what to say of it.
//!
//! Forward only when every enforced gate has passed for as long as the step says. No figures hold, and never pass or roll
//! back. Whatever is needed to go on after a restart is in the rollout itself; a restart can cost time, and nothing else.

use pgrouting_crds::spec::PgRoutingPoolSpec;
use pgrouting_crds::status::rollout::RolloutStatus;

use crate::position::{Ladder, number};
use crate::rollout::fold::{fold_gates, shift_soak};
use crate::rollout::machine::Machine;
use crate::rollout::progress::Progress;
use crate::rollout::sight::Sight;

pub mod compared;
pub mod figures;
pub mod fold;
pub mod gates;
pub mod lookout;
pub mod machine;
pub mod moments;
pub mod progress;
pub mod reading;
pub mod sight;
pub mod spans;
pub mod stand;
pub mod text;
pub mod turn;

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The rollout as it is to be.
    pub rollout: RolloutStatus,
    /// What to say of it.
    pub progress: Progress,
}

/// Decides.
#[must_use]
pub fn decide(entered: &RolloutStatus, spec: &PgRoutingPoolSpec, sight: &Sight<'_>) -> Decision {
    let ladder = Ladder::of(spec);
    let mut rollout = entered.clone();
    fold_gates(&mut rollout, spec, sight);
    shift_soak(&mut rollout, sight.leap);
    let mut machine = Machine::new(rollout, spec, &ladder, sight);
    let progress = machine.step();
    let mut rollout = machine.rollout;
    number(&mut rollout, &ladder);
    Decision { rollout, progress }
}

#[cfg(test)]
mod tests;

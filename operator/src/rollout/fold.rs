//! Takes what the gates have to say into the rollout's status.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pgrouting_crds::spec::PgRoutingPoolSpec;
use pgrouting_crds::spec::rollout::RolloutMode;
use pgrouting_crds::status::rollout::{GateStatus, GateVerdict, RolloutStatus};

use crate::rollout::reading::{Outcome, Reading};
use crate::rollout::sight::Sight;
use crate::time::whole_seconds;

/// What did not pass does not count.
pub fn shift_soak(rollout: &mut RolloutStatus, leap: Duration) {
    if leap.is_zero() {
        return;
    }
    if let Some(until) = &mut rollout.soak_until {
        let leap = SignedDuration::try_from(leap).unwrap_or(SignedDuration::MAX);
        *until = whole_seconds(until.0.checked_add(leap).unwrap_or(Timestamp::MAX));
    }
}

/// Takes in what the gates have to say.
pub fn fold_gates(rollout: &mut RolloutStatus, spec: &PgRoutingPoolSpec, sight: &Sight<'_>) {
    let is_dry = spec.rollout.mode == RolloutMode::Immediate;
    let known = std::mem::take(&mut rollout.gates);
    if rollout.hold.is_some() {
        // What failed stays to be seen until somebody has done something about it.
        rollout.gates = known;
        return;
    }
    rollout.gates = sight
        .readings
        .iter()
        .map(|reading| {
            let known = known.iter().find(|gate| gate.name == reading.name);
            let is_enforced = reading.is_enforced() && !is_dry;
            fold_gate(known, reading, is_enforced, sight)
        })
        .collect();
}

fn fold_gate(
    known: Option<&GateStatus>,
    reading: &Reading,
    is_enforced: bool,
    sight: &Sight<'_>,
) -> GateStatus {
    let failures = known.map_or(0, |gate| gate.consecutive_failures);
    let figure = |samples: u64| i64::try_from(samples).unwrap_or(i64::MAX);
    let (verdict, value, samples, failures) = match &reading.outcome {
        // Nothing new: what was known is still all that is.
        Outcome::Open { .. } => match known {
            Some(gate) if gate.verdict != GateVerdict::Error => {
                return GateStatus { limit: reading.limit.clone(), ..gate.clone() };
            }
            Some(_) | None => (GateVerdict::NoData, String::new(), 0, failures),
        },
        Outcome::Error(why) => (GateVerdict::Error, why.clone(), 0, failures),
        Outcome::NoData { value, samples } => {
            (GateVerdict::NoData, value.clone(), figure(*samples), failures)
        }
        Outcome::Judged { passes: true, value, samples } => {
            (GateVerdict::Pass, value.clone(), figure(*samples), 0)
        }
        Outcome::Judged { passes: false, value, samples } => {
            let verdict = if is_enforced { GateVerdict::Fail } else { GateVerdict::DryRunFail };
            (verdict, value.clone(), figure(*samples), failures.saturating_add(1).min(1000))
        }
    };
    let value: String = value.chars().take(400).collect();
    let is_same = known.is_some_and(|gate| gate.verdict == verdict);
    // That one more was asked and said the same is not worth a write.
    if let Some(gate) = known
        && is_same
        && (!sight.may_refresh || gate.value == value)
        && (gate.consecutive_failures == failures || verdict != GateVerdict::Fail)
    {
        return GateStatus { limit: reading.limit.clone(), ..gate.clone() };
    }
    GateStatus {
        name: reading.name.clone(),
        verdict,
        value,
        limit: reading.limit.clone(),
        samples,
        consecutive_failures: failures,
        last_transition_time: known
            .filter(|_| is_same)
            .map_or_else(|| whole_seconds(sight.now), |gate| gate.last_transition_time.clone()),
    }
}

//! Gates that compare two groups: those in the share, and the others or what they were like.

use std::time::Duration;

use jiff::Timestamp;
use pgrouting_contract::measures::Arm;
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::Baseline;

use crate::rollout::reading::{Outcome, Reading};
use crate::rollout::spans::{Span, Spans};
use crate::rollout::stand::{Stand, judged, micros_of, reading, waits_for};
use crate::rollout::text::{micros_text, percent_text};
use crate::time::whole_seconds;

/// So many errors at least are a burst.
const BURST_ERRORS: u64 = 10;

/// And so many times as many as in the other group.
const BURST_FACTOR: u64 = 10;

/// A quantile of fewer times says nothing.
const TIMES_MIN: u64 = 100;

/// The two groups that are compared.
struct Groups<'a> {
    inside: &'a Arm,
    outside: Option<&'a Arm>,
    before: Option<&'a Baseline>,
    span: &'a Span,
    noun: &'static str,
}

fn groups<'a>(stand: &Stand<'a>, spans: &'a Spans) -> Groups<'a> {
    if stand.position.stage == Stage::Mirror {
        mirror_groups(stand, &spans.mirror)
    } else {
        split_groups(stand, &spans.split)
    }
}

fn split_groups<'a>(stand: &Stand<'a>, span: &'a Span) -> Groups<'a> {
    let measures = &span.figures.measures;
    Groups {
        inside: &measures.cohort,
        outside: (stand.position.split_percent < 100).then_some(&measures.control),
        before: stand.baseline,
        span,
        noun: "reads",
    }
}

fn mirror_groups<'a>(stand: &Stand<'a>, span: &'a Span) -> Groups<'a> {
    let measures = &span.figures.measures;
    Groups {
        inside: &measures.mirrored,
        outside: (stand.position.mirror_percent < 100).then_some(&measures.unmirrored),
        before: stand.mirror_baseline,
        span,
        noun: "transactions",
    }
}

impl Groups<'_> {
    /// Whether nobody is left to compare with, and nothing was kept of what it was like. A pool that was put at its place, and
    /// did not walk there, is not held by that.
    fn is_alone(&self, stand: &Stand<'_>) -> bool {
        stand.is_done && self.outside.is_none() && self.before.is_none()
    }

    fn samples(&self) -> u64 {
        let outside = self.outside.map_or(u64::MAX, |arm| arm.transactions);
        self.inside.transactions.min(outside)
    }

    fn wait(&self, stand: &Stand<'_>) -> Outcome {
        waits_for(&format!("{} in each group", self.noun), self.samples(), stand, self.span)
    }

    /// Errors in a million outside, where that is known.
    fn errors_outside(&self) -> Option<u64> {
        match (self.outside, self.before) {
            (Some(arm), _) => Some(arm.errors_per_million()),
            (None, Some(before)) => Some(u64::try_from(before.errors_per_million).unwrap_or(0)),
            (None, None) => None,
        }
    }

    fn p99_outside(&self) -> Option<u64> {
        match (self.outside, self.before) {
            (Some(arm), _) => arm.latency.quantile_micros(990),
            (None, Some(before)) => u64::try_from(before.latency_p99_micros).ok(),
            (None, None) => None,
        }
    }
}

/// Errors that clients got.
pub fn client_errors(stand: &Stand<'_>, spans: &Spans) -> Option<Reading> {
    let gate = &stand.gates.client_errors;
    let groups = groups(stand, spans);
    if groups.is_alone(stand) {
        return None;
    }
    let (errors, rate) = (groups.inside.errors, groups.inside.errors_per_million());
    let more = u64::try_from(gate.max_increase_per_million).unwrap_or(0);
    let outside = groups.errors_outside();
    let limit = format!("+{} over the others", percent_text(more));
    let value = || {
        let others = outside.map_or_else(|| "unknown".to_owned(), percent_text);
        format!("{} ({errors} of {}), others {others}", percent_text(rate), groups.inside.transactions)
    };
    let is_burst = errors >= BURST_ERRORS
        && outside.is_some_and(|outside| rate > outside.saturating_mul(BURST_FACTOR))
        && rate > more
        && groups.outside.is_none_or(|arm| arm.transactions >= BURST_ERRORS);
    let outcome = match outside {
        _ if is_burst => judged(false, value(), groups.inside.transactions),
        Some(outside) if groups.span.is_over => {
            judged(rate <= outside.saturating_add(more), value(), groups.inside.transactions)
        }
        Some(_) => groups.wait(stand),
        None if stand.min_samples == 0 => judged(true, value(), groups.inside.transactions),
        None => Outcome::Open {
            samples: 0,
            wait: "no group is left to compare with, and none was before".to_owned(),
        },
    };
    let remedy =
        "look for the errors in the servers' logs and in the application; then change spec.rollout.attempt";
    let reading = reading(stand, "clientErrors", gate.mode, outcome, limit, remedy)?;
    Some(if is_burst { Reading { threshold: 1, ..reading } } else { reading })
}

/// Fails where both the share and the time are exceeded. `None` where nobody is left to compare with.
fn slower(
    groups: &Groups<'_>,
    stand: &Stand<'_>,
    max_increase_percent: i32,
    floor: Duration,
) -> Option<(Outcome, String)> {
    if groups.is_alone(stand) {
        return None;
    }
    let floor_micros = micros_of(floor);
    let percent = u64::try_from(max_increase_percent).unwrap_or(0);
    let limit = format!("+{percent} % and +{} over the others", micros_text(floor_micros));
    if !groups.span.is_over {
        return Some((groups.wait(stand), limit));
    }
    let times = groups.inside.latency.count();
    let enough = TIMES_MIN.min(stand.min_samples);
    let (Some(inside), Some(outside)) = (groups.inside.latency.quantile_micros(990), groups.p99_outside())
    else {
        let outcome = if stand.min_samples == 0 {
            judged(true, "nothing to compare".to_owned(), times)
        } else {
            Outcome::Open { samples: times, wait: "no times to compare with".to_owned() }
        };
        return Some((outcome, limit));
    };
    let value = format!("{}, others {}", micros_text(inside), micros_text(outside));
    if times < enough {
        let wait = format!("{times} of {enough} timed {}", groups.noun);
        return Some((Outcome::Open { samples: times, wait }, limit));
    }
    let is_slower = u128::from(inside) * 100 > u128::from(outside) * u128::from(100 + percent)
        && inside > outside.saturating_add(floor_micros);
    Some((judged(!is_slower, value, times), limit))
}

/// The time that reads take.
pub fn latency(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.latency_p99;
    let groups = split_groups(stand, span);
    let (outcome, limit) = slower(&groups, stand, gate.max_increase_percent, gate.floor.get())?;
    let remedy = "a replica answers slowly: look at its load and cache (EXPLAIN ANALYZE on it and on the primary), lower its \
                  weight or warm it up; then change spec.rollout.attempt";
    reading(stand, "latencyP99", gate.mode, outcome, limit, remedy)
}

/// The time that transactions take while they are copied.
pub fn impact(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.mirror_impact;
    let groups = mirror_groups(stand, span);
    let (outcome, limit) = slower(&groups, stand, gate.max_increase_percent, gate.floor.get())?;
    let remedy = "see that the mirror is on another server than the pool's databases, and is none of them by another name; where \
                  the proxies have too little CPU for the copies, raise spec.proxy.resources or replicas, or lower \
                  spec.mirror.maxPercent; then change spec.rollout.attempt";
    reading(stand, "mirrorImpact", gate.mode, outcome, limit, remedy)
}

/// What reads on the primary are like, to compare with once there are none: of a span that is over.
#[must_use]
pub fn baseline_of(arm: &Arm, span: &Span, now: Timestamp) -> Option<Baseline> {
    let p99 = arm.latency.quantile_micros(990)?;
    let figure = |figure: u64| i64::try_from(figure).unwrap_or(i64::MAX);
    Some(Baseline {
        captured_at: whole_seconds(now),
        errors_per_million: figure(arm.errors_per_million()),
        latency_p99_micros: figure(p99),
        queries_per_second: figure(arm.transactions / span.age.as_secs().max(1)),
    })
}

/// Waits for both groups to have enough reads.
#[must_use]
pub fn wait_for_reads(stand: &Stand<'_>, span: &Span) -> Outcome {
    split_groups(stand, span).wait(stand)
}

//! Judges each gate by the figures of its span: pure.
//!
//! A gate is judged when its span is over. What is certain before, a refused write that reached a client or a burst of
//! errors, is told at once.

use std::collections::BTreeMap;

use pgrouting_contract::measures::{Arm, RefusedStatement, per_million};
use pgrouting_crds::spec::gates::{ExternalGate, GateMode, Gates};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::Baseline;

use crate::position::Position;
use crate::rollout::reading::{Outcome, Reading};
use crate::rollout::spans::{Span, Spans};
use crate::rollout::text::{counted, micros_text, percent_text, span_text};
use crate::time::whole_seconds;

/// So many errors at least are a burst.
const BURST_ERRORS: u64 = 10;
/// And so many times as many as in the other group.
const BURST_FACTOR: u64 = 10;
/// A quantile of fewer times says nothing.
const TIMES_MIN: u64 = 100;

/// What gates are judged by, beside their figures.
#[derive(Debug, Clone, Copy)]
pub struct Stand<'a> {
    /// Where the pool stands.
    pub position: Position,
    /// The gates.
    pub gates: &'a Gates,
    /// How many samples each group must have.
    pub min_samples: u64,
    /// How many times in a row a gate has to fail.
    pub threshold: i32,
    /// Whether the time of the step is over, or there was none.
    pub is_done: bool,
    /// What reads on the primary were like.
    pub baseline: Option<&'a Baseline>,
    /// What transactions were like that were not copied.
    pub mirror_baseline: Option<&'a Baseline>,
    /// Whether reads fail where there is no replica.
    pub needs_replica: bool,
    /// What a Prometheus says, by the name of the gate.
    pub external: &'a BTreeMap<String, ExternalValue>,
    /// Why the first proxy that does not run waits, as kubelet says.
    pub waiting: Option<&'a str>,
}

/// What a Prometheus says.
#[derive(Debug, Clone, PartialEq)]
pub enum ExternalValue {
    /// A number.
    Number(f64),
    /// Something that is not one number.
    Nothing(String),
    /// Nothing, since it could not be asked.
    Failed(String),
}

/// What each gate has to say at the place where the pool stands, in the order of the spec.
#[must_use]
pub fn readings(stand: &Stand<'_>, spans: &Spans) -> Vec<Reading> {
    let stage = stand.position.stage;
    let mut readings = Vec::new();
    let split = stage == Stage::Split;
    let mirror = stage == Stage::Mirror;
    if split || mirror {
        readings.extend(client_errors(stand, spans));
    }
    if split {
        readings.extend(latency(stand, &spans.split));
    }
    if split || mirror {
        readings.extend(misrouted(stand, spans));
    }
    if split {
        readings.extend(rescued(stand, &spans.split));
    }
    if !mirror {
        readings.extend(replica_lag(stand, &spans.moments));
        readings.extend(healthy_replicas(stand, &spans.moments));
    }
    readings.extend(primary_connections(stand, &spans.moments));
    readings.extend(pool_wait(stand, &spans.pool));
    if mirror {
        readings.extend(divergence(stand, &spans.mirror));
        readings.extend(drops(stand, &spans.pool));
        readings.extend(impact(stand, &spans.mirror));
    }
    let external = stand.gates.external.iter();
    readings.extend(external.filter_map(|gate| external_gate(stand, gate, &spans.moments)));
    readings.extend(crash_loop(stand));
    readings
}

/// A gate with its outcome, unless nobody wants to know.
fn reading(
    stand: &Stand<'_>,
    name: &str,
    mode: GateMode,
    outcome: Outcome,
    limit: String,
    remedy: &str,
) -> Option<Reading> {
    (mode != GateMode::Disabled).then(|| Reading {
        name: name.to_owned(),
        mode,
        outcome,
        limit,
        threshold: stand.threshold,
        is_of_split: false,
        remedy: remedy.to_owned(),
    })
}

fn judged(passes: bool, value: String, samples: u64) -> Outcome {
    Outcome::Judged { passes, value, samples }
}

/// Waits for the smaller of two groups to have enough.
fn waits_for(what: &str, samples: u64, stand: &Stand<'_>, span: &Span) -> Outcome {
    let min = stand.min_samples.max(1);
    let seconds = span.age.as_secs();
    let pace = if samples > 0 && seconds > 0 && samples < min {
        let left = u128::from(seconds) * u128::from(min - samples) / u128::from(samples);
        let left = std::time::Duration::from_secs(u64::try_from(left).unwrap_or(u64::MAX));
        format!(", {} at this pace", span_text(left))
    } else {
        String::new()
    };
    Outcome::Open { samples, wait: format!("{samples} of {min} {what}{pace}") }
}

/// The two groups that are compared: those in the share, and the others or what they were like.
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

fn client_errors(stand: &Stand<'_>, spans: &Spans) -> Option<Reading> {
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

/// Fails where both the share and the time are exceeded.
fn slower(
    groups: &Groups<'_>,
    stand: &Stand<'_>,
    max_increase_percent: i32,
    floor_micros: u64,
) -> (Outcome, String) {
    let percent = u64::try_from(max_increase_percent).unwrap_or(0);
    let limit = format!("+{percent} % and +{} over the others", micros_text(floor_micros));
    if !groups.span.is_over {
        return (groups.wait(stand), limit);
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
        return (outcome, limit);
    };
    let value = format!("{}, others {}", micros_text(inside), micros_text(outside));
    if times < enough {
        let wait = format!("{times} of {enough} timed {}", groups.noun);
        return (Outcome::Open { samples: times, wait }, limit);
    }
    let is_slower = u128::from(inside) * 100 > u128::from(outside) * u128::from(100 + percent)
        && inside > outside.saturating_add(floor_micros);
    (judged(!is_slower, value, times), limit)
}

fn latency(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.latency_p99;
    let floor = micros_of(gate.floor.get());
    let groups = split_groups(stand, span);
    if groups.is_alone(stand) {
        return None;
    }
    let (outcome, limit) = slower(&groups, stand, gate.max_increase_percent, floor);
    let remedy = "a replica answers slowly: look at its load and cache (EXPLAIN ANALYZE on it and on the primary), lower its \
                  weight or warm it up; then change spec.rollout.attempt";
    reading(stand, "latencyP99", gate.mode, outcome, limit, remedy)
}

fn misrouted(stand: &Stand<'_>, spans: &Spans) -> Option<Reading> {
    let gate = &stand.gates.misrouted_writes;
    // At the stage Mirror nothing is compared by this span, which ends by time alone there.
    let is_mirror = stand.position.stage == Stage::Mirror;
    let span = if is_mirror { &spans.pool } else { &spans.split };
    let measures = &span.figures.measures;
    let (count, reads) = (measures.misrouted, measures.cohort.transactions);
    let max = u64::try_from(gate.max_total).unwrap_or(0);
    let named = named(&measures.refused);
    let value = format!(
        "{} refused by a replica reached clients, of {reads} reads{named}",
        counted(count, "statement")
    );
    let outcome = if count > max {
        judged(false, value, reads)
    } else if span.is_over {
        judged(true, value, reads)
    } else {
        waits_for("reads", reads, stand, span)
    };
    let limit = max.to_string();
    let remedy = "name the function in spec.split.primaryFunctions or the table in spec.split.primaryTables (or declare the \
                  function VOLATILE), and leave spec.split.rescue on; then change spec.rollout.attempt";
    let reading = reading(stand, "misroutedWrites", gate.mode, outcome, limit, remedy)?;
    Some(Reading { threshold: 1, is_of_split: true, ..reading })
}

/// The statement that replicas refused most often.
fn named(refused: &[RefusedStatement]) -> String {
    let known = refused.iter().filter(|refused| !refused.statement.is_empty());
    known.max_by_key(|refused| refused.count).map_or_else(String::new, |refused| {
        let statement: String = refused.statement.chars().take(120).collect();
        format!("; most often {statement:?} at {}", refused.server)
    })
}

fn rescued(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.rescued_statements;
    let figures = &span.figures;
    let reads = figures.measures.cohort.transactions;
    let rate = per_million(figures.rescued, reads);
    let max = u64::try_from(gate.max_per_million).unwrap_or(0);
    let named = if figures.rescued > 0 { named(&figures.measures.refused) } else { String::new() };
    let value = format!(
        "{} ({} of {reads} reads, {} of them in conflict with recovery){named}",
        percent_text(rate),
        figures.rescued,
        figures.conflicts
    );
    let outcome =
        if span.is_over { judged(rate <= max, value, reads) } else { split_groups(stand, span).wait(stand) };
    let remedy = "where replicas refuse a statement, name its function in spec.split.primaryFunctions; where they cancel it for \
                  recovery, raise max_standby_streaming_delay or set hot_standby_feedback there; then change \
                  spec.rollout.attempt";
    reading(stand, "rescuedStatements", gate.mode, outcome, percent_text(max), remedy)
}

/// What is true at every moment is judged once a period, by the worst of it.
fn of_moments(span: &Span, judge: impl FnOnce() -> Outcome) -> Outcome {
    if span.worst.proxies == 0 {
        Outcome::Open { samples: 0, wait: "a proxy that answers".to_owned() }
    } else if span.is_over {
        judge()
    } else {
        Outcome::Open { samples: 0, wait: "the end of the evaluation period".to_owned() }
    }
}

fn replica_lag(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.replica_lag;
    let max_ms = u64::try_from(gate.max.get().as_millis()).unwrap_or(u64::MAX);
    let proxies = u64::try_from(span.worst.proxies).unwrap_or(0);
    let outcome = of_moments(span, || match span.worst.lag_ms_max {
        // Whole seconds, so that an idle pool's status stays as it is.
        Some(lag) => judged(lag <= max_ms, format!("{} s", lag / 1000), proxies),
        None if span.worst.replicas == 0 => {
            Outcome::NoData { value: "no replica takes reads".to_owned(), samples: 0 }
        }
        None => Outcome::NoData { value: "no replica has been measured".to_owned(), samples: 0 },
    });
    let remedy = "look why the replica does not keep up (its load, its disk, a long query with \
                  max_standby_streaming_delay); then change spec.rollout.attempt";
    reading(stand, "replicaLag", gate.mode, outcome, span_text(gate.max.get()), remedy)
}

fn healthy_replicas(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.healthy_replicas;
    let replicas = u64::try_from(span.worst.replicas).unwrap_or(0);
    let min = u64::try_from(gate.min).unwrap_or(1);
    let proxies = u64::try_from(span.worst.proxies).unwrap_or(0);
    let value = counted(replicas, "replica");
    let is_urgent = replicas == 0
        && proxies > 0
        && stand.needs_replica
        && stand.position.stage == Stage::Split
        && stand.position.split_percent > 0;
    let outcome = if is_urgent {
        judged(false, value, proxies)
    } else {
        of_moments(span, || judged(replicas >= min, value, proxies))
    };
    let remedy = "look at condition BackendsHealthy and at the replicas; then change spec.rollout.attempt";
    let reading = reading(stand, "healthyReplicas", gate.mode, outcome, format!("at least {min}"), remedy)?;
    Some(if is_urgent { Reading { threshold: 1, ..reading } } else { reading })
}

fn primary_connections(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.primary_connections;
    let max = u64::try_from(gate.max_percent).unwrap_or(100);
    let proxies = u64::try_from(span.worst.proxies).unwrap_or(0);
    let outcome = of_moments(span, || match span.worst.primary_use_percent {
        // In steps, so that the status is not written for every percent.
        Some(used) if used <= max => judged(true, format!("{} %", used.div_ceil(5) * 5), proxies),
        Some(used) => judged(false, format!("{used} %"), proxies),
        None => Outcome::NoData { value: "no primary is known".to_owned(), samples: 0 },
    });
    let remedy = "raise spec.pooling.maxServerConnections (and max_connections of the primary), or find what holds its \
                  connections; then change spec.rollout.attempt";
    reading(stand, "primaryConnections", gate.mode, outcome, format!("{max} %"), remedy)
}

fn pool_wait(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.pool_wait_p99;
    let waits = &span.figures.measures.waits;
    let max = micros_of(gate.max.get());
    let outcome = match waits.quantile_micros(990) {
        Some(p99) if span.is_over => judged(p99 <= max, micros_text(p99), waits.count()),
        None if span.is_over && stand.min_samples == 0 => judged(true, "nothing waited".to_owned(), 0),
        Some(_) | None => waits_for("transactions", span.figures.transactions, stand, span),
    };
    let remedy = "clients wait for server connections: raise spec.pooling.maxServerConnections, or find what holds them; \
                  then change spec.rollout.attempt";
    reading(stand, "poolWaitP99", gate.mode, outcome, micros_text(max), remedy)
}

fn divergence(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.mirror_divergence;
    let mirror = &span.figures.mirror;
    let rate = per_million(mirror.diverging, mirror.compared);
    let max = u64::try_from(gate.max_per_million).unwrap_or(0);
    let value = format!("{} ({} of {} answers)", percent_text(rate), mirror.diverging, mirror.compared);
    let outcome = if span.is_over {
        judged(rate <= max, value, mirror.compared)
    } else {
        waits_for("compared answers", mirror.compared, stand, span)
    };
    let remedy = "ask a proxy what differs (kubectl pgrp mirror-report, or SHOW MIRROR DIFFS); correct the mirror, or set \
                  spec.rollout.gates.mirrorDivergence; then change spec.rollout.attempt";
    reading(stand, "mirrorDivergence", gate.mode, outcome, percent_text(max), remedy)
}

fn drops(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.mirror_drops;
    let mirror = &span.figures.mirror;
    let rate = per_million(mirror.dropped, mirror.offered);
    let max = u64::try_from(gate.max_percent).unwrap_or(100);
    let value = format!("{} ({} of {})", percent_text(rate), mirror.dropped, mirror.offered);
    let outcome = match () {
        () if !span.is_over => waits_for("transactions", span.figures.transactions, stand, span),
        // What is left is no sample of the whole.
        () if rate > max.saturating_mul(10_000) => Outcome::NoData { value, samples: mirror.offered },
        () => judged(true, value, mirror.offered),
    };
    let remedy = "look at condition MirrorHealthy and at status.mirror";
    reading(stand, "mirrorDrops", gate.mode, outcome, format!("{max} %"), remedy)
}

fn impact(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.mirror_impact;
    let floor = micros_of(gate.floor.get());
    let groups = mirror_groups(stand, span);
    if groups.is_alone(stand) {
        return None;
    }
    let (outcome, limit) = slower(&groups, stand, gate.max_increase_percent, floor);
    let remedy = "the proxies have too little CPU for the copies: raise spec.proxy.resources or replicas, or lower \
                  spec.mirror.maxPercent; then change spec.rollout.attempt";
    reading(stand, "mirrorImpact", gate.mode, outcome, limit, remedy)
}

fn external_gate(stand: &Stand<'_>, gate: &ExternalGate, span: &Span) -> Option<Reading> {
    let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<f64>().ok());
    let (min, max) = (number(&gate.min), number(&gate.max));
    let outcome = match stand.external.get(&gate.name) {
        None => Outcome::Open { samples: 0, wait: "the first answer of the Prometheus".to_owned() },
        Some(ExternalValue::Failed(why)) => Outcome::Error(why.clone()),
        Some(ExternalValue::Nothing(why)) => Outcome::NoData { value: why.clone(), samples: 0 },
        Some(ExternalValue::Number(_)) if !span.is_over => {
            Outcome::Open { samples: 0, wait: "the end of the evaluation period".to_owned() }
        }
        Some(ExternalValue::Number(value)) => {
            let passes = max.is_none_or(|max| *value <= max) && min.is_none_or(|min| *value >= min);
            judged(passes, format!("{value}"), 1)
        }
    };
    let limit = match (&gate.min, &gate.max) {
        (Some(min), Some(max)) => format!("{min} to {max}"),
        (Some(min), None) => format!("at least {min}"),
        (None, Some(max)) => format!("at most {max}"),
        (None, None) => "none".to_owned(),
    };
    let remedy = "look at what the query of this gate measures; then change spec.rollout.attempt";
    reading(stand, &format!("external/{}", gate.name), gate.mode, outcome, limit, remedy)
}

/// Proxies that fail again and again are no base to go on from.
fn crash_loop(stand: &Stand<'_>) -> Option<Reading> {
    let waiting = stand.waiting.filter(|waiting| waiting.contains("CrashLoopBackOff"))?;
    let outcome = judged(false, waiting.to_owned(), 1);
    let limit = "none may crash".to_owned();
    let remedy = "look at the logs of the pod; then change spec.rollout.attempt";
    let reading = reading(stand, "proxies", GateMode::Enforce, outcome, limit, remedy)?;
    Some(Reading { threshold: 1, is_of_split: true, ..reading })
}

fn micros_of(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// What reads on the primary are like, to compare with once there are none: of a span that is over.
#[must_use]
pub fn baseline_of(arm: &Arm, span: &Span, now: jiff::Timestamp) -> Option<Baseline> {
    let p99 = arm.latency.quantile_micros(990)?;
    let figure = |figure: u64| i64::try_from(figure).unwrap_or(i64::MAX);
    Some(Baseline {
        captured_at: whole_seconds(now),
        errors_per_million: figure(arm.errors_per_million()),
        latency_p99_micros: figure(p99),
        queries_per_second: figure(arm.transactions / span.age.as_secs().max(1)),
    })
}

#[cfg(test)]
mod tests;

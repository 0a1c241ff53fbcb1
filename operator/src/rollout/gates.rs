//! Judges each gate by the figures of its span: pure.
//!
//! A gate is judged when its span is over. What is certain before, a refused write that reached a client or a burst of
//! errors, is told at once.

use pgrouting_contract::measures::{RefusedStatement, per_million};
use pgrouting_crds::spec::gates::{ExternalGate, GateMode};
use pgrouting_crds::stage::Stage;

use crate::rollout::compared::{client_errors, impact, latency, wait_for_reads};
use crate::rollout::moments::{healthy_replicas, primary_connections, replica_lag};
use crate::rollout::reading::{Outcome, Reading};
use crate::rollout::spans::{Span, Spans};
use crate::rollout::stand::{ExternalValue, Stand, external_name, judged, micros_of, reading, waits_for};
use crate::rollout::text::{counted, micros_text, percent_text};

/// What each gate has to say at the place where the pool stands, in the order of the spec.
#[must_use]
pub fn readings(stand: &Stand<'_>, spans: &Spans) -> Vec<Reading> {
    let stage = stand.position.stage;
    let mut readings = Vec::new();
    // With a share of nothing there is nothing to judge.
    let split = stage == Stage::Split && stand.position.split_percent > 0;
    let mirror = stage == Stage::Mirror && stand.position.mirror_percent > 0;
    if split || mirror {
        readings.extend(client_errors(stand, spans));
    }
    if split {
        readings.extend(latency(stand, &spans.split));
    }
    if stage != Stage::PoolingOnly && stand.position.split_percent > 0 {
        readings.extend(misrouted(stand, spans));
    }
    if split {
        readings.extend(rescued(stand, &spans.split));
    }
    if split || (stage == Stage::PoolingOnly && stand.is_to_split) {
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

fn misrouted(stand: &Stand<'_>, spans: &Spans) -> Option<Reading> {
    let gate = &stand.gates.misrouted_writes;
    // At the stage Mirror nothing is compared by this span, which ends by time alone there.
    let is_mirror = stand.position.stage == Stage::Mirror;
    let span = if is_mirror { &spans.pool } else { &spans.split };
    let measures = &span.figures.measures;
    let (count, reads) = (measures.misrouted, measures.cohort.transactions);
    let max = u64::try_from(gate.max_total).unwrap_or(0);
    let named = if count > 0 { named(&measures.refused) } else { String::new() };
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
    let outcome = if span.is_over { judged(rate <= max, value, reads) } else { wait_for_reads(stand, span) };
    let remedy = "where replicas refuse a statement, name its function in spec.split.primaryFunctions; where they cancel it for \
                  recovery, raise max_standby_streaming_delay or set hot_standby_feedback there; then change \
                  spec.rollout.attempt";
    reading(stand, "rescuedStatements", gate.mode, outcome, percent_text(max), remedy)
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
    reading(stand, &external_name(&gate.name), gate.mode, outcome, limit, remedy)
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

#[cfg(test)]
mod tests;

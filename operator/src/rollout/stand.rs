//! What gates are judged by, beside their figures, and how what they say is put.

use std::collections::BTreeMap;
use std::time::Duration;

use pgrouting_crds::spec::gates::{GateMode, Gates};
use pgrouting_crds::status::rollout::Baseline;

use crate::position::Position;
use crate::rollout::reading::{Outcome, Reading};
use crate::rollout::spans::Span;
use crate::rollout::text::span_text;

/// What the names of gates of a Prometheus begin with.
const EXTERNAL: &str = "external/";

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
    /// Whether reads are to go to replicas at all: neither the limit nor the pooling mode says no.
    pub is_to_split: bool,
    /// Whether reads fail where there is no replica.
    pub needs_replica: bool,
    /// What a Prometheus says, by the name of the gate.
    pub external: &'a BTreeMap<String, ExternalValue>,
    /// Why the first proxy that does not run waits, as kubelet says.
    pub waiting: Option<&'a str>,
    /// The gates that there were when the attempt began.
    pub known: &'a [String],
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

/// The name of a gate of a Prometheus.
#[must_use]
pub fn external_name(name: &str) -> String {
    format!("{EXTERNAL}{name}")
}

fn is_external(name: &str) -> bool {
    name.starts_with(EXTERNAL)
}

/// A gate with its outcome, unless nobody wants to know.
#[must_use]
pub fn reading(
    stand: &Stand<'_>,
    name: &str,
    mode: GateMode,
    outcome: Outcome,
    limit: String,
    remedy: &str,
) -> Option<Reading> {
    // What the attempt did not begin under is only shown. Those of the spec are there because somebody wants them.
    let is_known = is_external(name) || stand.known.iter().any(|known| known == name);
    let mode = if mode == GateMode::Enforce && !is_known { GateMode::DryRun } else { mode };
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

/// What was measured.
#[must_use]
pub fn judged(passes: bool, value: String, samples: u64) -> Outcome {
    Outcome::Judged { passes, value, samples }
}

/// Waits for the smaller of two groups to have enough.
#[must_use]
pub fn waits_for(what: &str, samples: u64, stand: &Stand<'_>, span: &Span) -> Outcome {
    let min = stand.min_samples.max(1);
    let seconds = span.age.as_secs();
    let pace = if samples > 0 && seconds > 0 && samples < min {
        let left = u128::from(seconds) * u128::from(min - samples) / u128::from(samples);
        let left = Duration::from_secs(u64::try_from(left).unwrap_or(u64::MAX));
        format!(", {} at this pace", span_text(left))
    } else {
        String::new()
    };
    Outcome::Open { samples, wait: format!("{samples} of {min} {what}{pace}") }
}

/// A time in microseconds.
#[must_use]
pub fn micros_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

//! What came of the copies of transactions, as Prometheus reads it.

use pgrouting_contract::mirror::{MirrorReport, MirrorState};
use prometheus::{Histogram, IntGauge, Registry};

use crate::metrics::families::{counters_by, gauges};

/// Registers it.
pub(super) fn register(
    registry: &Registry,
    report: &MirrorReport,
    times: &[Histogram],
) -> Result<(), prometheus::Error> {
    let state = gauges(
        registry,
        "pgrouting_proxy_mirror_state",
        "Whether transactions are copied: 1 for the state that it is, as in the report.",
        &["state"],
    )?;
    for known in MirrorState::ALL {
        state.with_label_values(&[known.as_str()]).set(i64::from(known == report.state));
    }
    let queued = IntGauge::new("pgrouting_proxy_mirror_queued_bytes", "Copies that wait, in bytes.")?;
    queued.set(i64::try_from(report.queued_bytes).unwrap_or(i64::MAX));
    registry.register(Box::new(queued))?;
    let diverged = IntGauge::new(
        "pgrouting_proxy_mirror_diverged",
        "Whether a write was left out, so that rows may differ: 1 if so.",
    )?;
    diverged.set(i64::from(report.diverged_since.is_some()));
    registry.register(Box::new(diverged))?;
    let numbers: [(&str, &str, u64); 2] = [
        ("pgrouting_proxy_mirror_offered_total", "Transactions of sessions that are copied.", report.offered),
        ("pgrouting_proxy_mirror_mirrored_total", "Those that were run at the mirror.", report.mirrored),
    ];
    for (name, help, number) in numbers {
        let counter = prometheus::IntCounter::new(name, help)?;
        counter.inc_by(number);
        registry.register(Box::new(counter))?;
    }
    let arrays = [
        (
            "pgrouting_proxy_mirror_dropped_total",
            "Those that should have been and were not.",
            "cause",
            &report.dropped,
        ),
        (
            "pgrouting_proxy_mirror_skipped_total",
            "Those of a kind that is not copied.",
            "cause",
            &report.skipped,
        ),
        (
            "pgrouting_proxy_mirror_compared_total",
            "Requests, by what the two answers are to each other.",
            "verdict",
            &report.verdicts,
        ),
        (
            "pgrouting_proxy_mirror_errors_total",
            "Errors at the mirror and none, or another one, here.",
            "sqlstate",
            &report.errors,
        ),
    ];
    for (name, help, label, values) in arrays {
        let counters = counters_by(registry, name, help, label)?;
        for (value, number) in values {
            counters.with_label_values(&[&**value]).inc_by(*number);
        }
    }
    for times in times {
        registry.register(Box::new(times.clone()))?;
    }
    Ok(())
}

//! How long clients wait for what, and who was stopped because something took too long.

use pgrouting_contract::histogram::Histogram;
use prometheus::Registry;

use crate::metrics::families::counters_by;
use crate::metrics::histograms::histograms;
use crate::metrics::times::{SessionTimes, Times};

/// Registers them.
///
/// # Errors
/// When two metrics have one name, which a test rules out.
pub(super) fn register(
    registry: &Registry,
    threads: &[&SessionTimes],
    waits: &Histogram,
    stopped: &[(&'static str, u64)],
) -> Result<(), prometheus::Error> {
    let total = |field: fn(&SessionTimes) -> &Times| {
        threads.iter().fold(Histogram::default(), |mut total, times| {
            total.add(&field(times).histogram());
            total
        })
    };
    let (primary, replica) = (total(|times| &times.primary), total(|times| &times.replica));
    histograms(
        registry,
        "pgrouting_proxy_query_seconds",
        "From a request to the end of its answer, by who answered; of a sample where there are many.",
        "target",
        &[("primary", &primary), ("replica", &replica)],
    )?;
    histograms(
        registry,
        "pgrouting_proxy_login_seconds",
        "From a client's connect to the end of its login.",
        "",
        &[("", &total(|times| &times.logins))],
    )?;
    histograms(
        registry,
        "pgrouting_proxy_wait_seconds",
        "How long transactions waited for a server connection.",
        "",
        &[("", waits)],
    )?;
    let counters = counters_by(
        registry,
        "pgrouting_proxy_timeouts_total",
        "Statements that were cancelled and sessions that were ended because something took too long.",
        "timeout",
    )?;
    for (what, count) in stopped {
        counters.with_label_values(&[*what]).inc_by(*count);
    }
    Ok(())
}

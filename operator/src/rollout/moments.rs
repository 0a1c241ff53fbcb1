//! Gates on what is true at every moment, judged once a period by the worst of it.

use std::time::Duration;

use pgrouting_crds::stage::Stage;

use crate::rollout::reading::{Outcome, Reading};
use crate::rollout::spans::Span;
use crate::rollout::stand::{Stand, judged, reading};
use crate::rollout::text::{counted, span_text};

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

/// How far the replicas are behind.
pub fn replica_lag(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
    let gate = &stand.gates.replica_lag;
    let max_ms = u64::try_from(gate.max.get().as_millis()).unwrap_or(u64::MAX);
    let proxies = u64::try_from(span.worst.proxies).unwrap_or(0);
    let outcome = of_moments(span, || match span.worst.lag_ms_max {
        Some(lag) if lag > max_ms => judged(false, format!("{} s", lag / 1000), proxies),
        // In quarters of the limit, so that the status of an idle pool stays as it is.
        Some(lag) => {
            let quarter = max_ms.div_ceil(4).next_multiple_of(1000).max(1000);
            let bound = lag.max(1).next_multiple_of(quarter).min(max_ms);
            judged(true, format!("at most {}", span_text(Duration::from_millis(bound))), proxies)
        }
        None if span.worst.replicas == 0 => {
            Outcome::NoData { value: "no replica takes reads".to_owned(), samples: 0 }
        }
        None => Outcome::NoData { value: "no replica has been measured".to_owned(), samples: 0 },
    });
    let remedy = "look why the replica does not keep up (its load, its disk, a long query with \
                  max_standby_streaming_delay); then change spec.rollout.attempt";
    reading(stand, "replicaLag", gate.mode, outcome, span_text(gate.max.get()), remedy)
}

/// How many replicas take reads.
pub fn healthy_replicas(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
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

/// How much of the connections to the primary is in use.
pub fn primary_connections(stand: &Stand<'_>, span: &Span) -> Option<Reading> {
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

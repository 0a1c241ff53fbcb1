//! What the gates of a rollout are judged by, as Prometheus reads it.

use pgrouting_contract::measures::Measures;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use crate::metrics::arms::Arm;
use crate::metrics::histograms::histograms;

/// Registers them.
///
/// # Errors
/// When two metrics have one name, which a test rules out.
pub fn register(registry: &Registry, measures: &Measures) -> Result<(), prometheus::Error> {
    let by_arm = |name: &str, help: &str| {
        let counters = IntCounterVec::new(Opts::new(name, help), &["arm"])?;
        registry.register(Box::new(counters.clone()))?;
        Ok::<_, prometheus::Error>(counters)
    };
    let transactions = by_arm(
        "pgrouting_proxy_rollout_transactions_total",
        "Transactions of the groups that a rollout compares.",
    )?;
    let errors =
        by_arm("pgrouting_proxy_rollout_errors_total", "Errors that clients got in these transactions.")?;
    let mut latencies = Vec::new();
    for arm in Arm::ALL {
        let report = arm.of(measures);
        transactions.with_label_values(&[arm.as_str()]).inc_by(report.transactions);
        errors.with_label_values(&[arm.as_str()]).inc_by(report.errors);
        latencies.push((arm.as_str(), &report.latency));
    }
    histograms(
        registry,
        "pgrouting_proxy_rollout_latency_seconds",
        "How long these transactions took; of a sample where there are many.",
        "arm",
        &latencies,
    )?;
    let misrouted = IntCounter::new(
        "pgrouting_proxy_misrouted_total",
        "Refusals of replicas that reached a client that had not asked for it.",
    )?;
    misrouted.inc_by(measures.misrouted);
    registry.register(Box::new(misrouted))
}

#[cfg(test)]
mod tests {
    use pgrouting_contract::histogram::{Histogram, bucket_of};
    use pgrouting_contract::measures::Arm as ArmReport;
    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn each_group_has_its_counters_and_a_histogram() {
        let counted = [(100, 1), (127, 2), (128, 4), (1_000_000, 8), (20_000_000, 16)];
        let latency =
            counted.iter().map(|(micros, count)| (u16::try_from(bucket_of(*micros)).unwrap(), *count));
        let latency =
            Histogram(latency.fold(std::collections::BTreeMap::new(), |mut sum, (bucket, count)| {
                *sum.entry(bucket).or_default() += count;
                sum
            }));
        let control = ArmReport { transactions: 40, errors: 2, latency };
        let measures = Measures { control, misrouted: 3, ..Measures::default() };
        let registry = Registry::new();
        register(&registry, &measures).unwrap();
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            "pgrouting_proxy_rollout_transactions_total{arm=\"control\"} 40",
            "pgrouting_proxy_rollout_transactions_total{arm=\"cohort\"} 0",
            "pgrouting_proxy_rollout_errors_total{arm=\"control\"} 2",
            "pgrouting_proxy_misrouted_total 3",
            "# TYPE pgrouting_proxy_rollout_latency_seconds histogram",
            "pgrouting_proxy_rollout_latency_seconds_bucket{arm=\"control\",le=\"0.000128\"} 3",
            "pgrouting_proxy_rollout_latency_seconds_bucket{arm=\"control\",le=\"0.000256\"} 7",
            "pgrouting_proxy_rollout_latency_seconds_bucket{arm=\"control\",le=\"0.524288\"} 7",
            "pgrouting_proxy_rollout_latency_seconds_bucket{arm=\"control\",le=\"1.048576\"} 15",
            "pgrouting_proxy_rollout_latency_seconds_bucket{arm=\"control\",le=\"8.388608\"} 15",
            "pgrouting_proxy_rollout_latency_seconds_bucket{arm=\"control\",le=\"+Inf\"} 31",
            "pgrouting_proxy_rollout_latency_seconds_count{arm=\"control\"} 31",
            "pgrouting_proxy_rollout_latency_seconds_count{arm=\"mirrored\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        let line = text.lines().find(|line| line.contains("seconds_sum{arm=\"control\"}")).unwrap();
        let sum: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((310.0..350.0).contains(&sum), "16 times 20 s and 8 times 1 s: {sum}");
    }
}

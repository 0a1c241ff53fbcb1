//! What the gates of a rollout are judged by, as Prometheus reads it.

use pgrouting_contract::histogram::{Histogram, bounds};
use pgrouting_contract::measures::Measures;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use crate::metrics::arms::Arm;

/// The bounds of buckets are these powers of two, in microseconds, as are those of the counts: 128 µs to 8.4 s.
const POWERS: std::ops::RangeInclusive<u32> = 7..=23;

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
    let desc = Desc::new(
        "pgrouting_proxy_rollout_latency_seconds".to_owned(),
        "How long these transactions took; of a sample where there are many.".to_owned(),
        vec!["arm".to_owned()],
        std::collections::HashMap::new(),
    )?;
    let mut metrics = Vec::new();
    for arm in Arm::ALL {
        let report = arm.of(measures);
        transactions.with_label_values(&[arm.as_str()]).inc_by(report.transactions);
        errors.with_label_values(&[arm.as_str()]).inc_by(report.errors);
        metrics.push(metric(arm, &report.latency));
    }
    registry.register(Box::new(Latency { desc, metrics }))?;
    let misrouted = IntCounter::new(
        "pgrouting_proxy_misrouted_total",
        "Refusals of replicas that reached a client that had not asked for it.",
    )?;
    misrouted.inc_by(measures.misrouted);
    registry.register(Box::new(misrouted))
}

/// Histograms that are counted elsewhere.
struct Latency {
    desc: Desc,
    metrics: Vec<Metric>,
}

impl Collector for Latency {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut family = MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(self.metrics.clone());
        vec![family]
    }
}

fn metric(arm: Arm, latency: &Histogram) -> Metric {
    let mut label = LabelPair::default();
    label.set_name("arm".to_owned());
    label.set_value(arm.as_str().to_owned());
    let mut histogram = prometheus::proto::Histogram::default();
    histogram.set_sample_count(latency.count());
    histogram.set_sample_sum(sum_seconds(latency));
    histogram.set_bucket(buckets(latency));
    let mut metric = Metric::from_label(vec![label]);
    metric.set_histogram(histogram);
    metric
}

fn buckets(latency: &Histogram) -> Vec<Bucket> {
    let mut counted = latency.0.iter().peekable();
    let mut count = 0;
    let bucket = |power: u32| {
        let bound = 1_u64 << power;
        while let Some((_, more)) = counted.next_if(|(index, _)| bounds(usize::from(**index)).1 <= bound) {
            count += more;
        }
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(seconds(bound));
        bucket.set_cumulative_count(count);
        bucket
    };
    POWERS.map(bucket).collect()
}

/// The sum of all times, each taken to be in the middle of its bucket.
fn sum_seconds(latency: &Histogram) -> f64 {
    let micros = latency.0.iter().fold(0_u64, |sum, (index, count)| {
        let (from, to) = bounds(usize::from(*index));
        sum.saturating_add(count.saturating_mul(from.midpoint(to)))
    });
    seconds(micros)
}

fn seconds(micros: u64) -> f64 {
    std::time::Duration::from_micros(micros).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use pgrouting_contract::histogram::bucket_of;
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

//! Histograms that are counted by powers of two, as Prometheus reads them.

use std::collections::HashMap;

use pgrouting_contract::histogram::{Histogram, bounds};
use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, LabelPair, Metric, MetricFamily, MetricType};

/// The bounds of buckets are these powers of two, in microseconds, as are those of the counts: 128 µs to 8.4 s.
const POWERS: std::ops::RangeInclusive<u32> = 7..=23;

/// Registers histograms under one name, told apart by a label, or a single one where that is empty.
pub(super) fn histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
    values: &[(&str, &Histogram)],
) -> Result<(), prometheus::Error> {
    let labels = if label.is_empty() { Vec::new() } else { vec![label.to_owned()] };
    let desc = Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())?;
    let metrics = values.iter().map(|(value, latency)| metric(label, value, latency)).collect();
    registry.register(Box::new(Latency { desc, metrics }))
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

fn metric(label: &str, value: &str, latency: &Histogram) -> Metric {
    let mut pair = LabelPair::default();
    pair.set_name(label.to_owned());
    pair.set_value(value.to_owned());
    let mut histogram = prometheus::proto::Histogram::default();
    histogram.set_sample_count(latency.count());
    histogram.set_sample_sum(sum_seconds(latency));
    histogram.set_bucket(buckets(latency));
    let mut metric = Metric::from_label(if label.is_empty() { Vec::new() } else { vec![pair] });
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

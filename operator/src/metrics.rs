//! Every metric of the operator, once; those of rollouts are in a file of their own.

use prometheus::{
    Encoder as _, GaugeVec, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::metrics::rollout::RolloutMetrics;

pub mod rollout;

/// The operator's metrics. Clones share their values.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    /// 1 while this process holds the Lease.
    pub leader: IntGauge,
    /// Passes over a pool, by result: ok, error.
    pub reconcile_total: IntCounterVec,
    /// Errors of passes, by reason.
    pub reconcile_errors_total: IntCounterVec,
    /// How long a pass takes, in seconds.
    pub reconcile_duration_seconds: Histogram,
    /// Applies, by kind and result: changed, unchanged, conflict, error. What is not sent is not counted.
    pub apply_total: IntCounterVec,
    /// Status patches, by result.
    pub status_patch_total: IntCounterVec,
    /// Seconds since each watch was last driven.
    pub watch_last_progress_seconds: GaugeVec,
    /// Times that a watch failed and was started again, by kind.
    pub watch_restarts_total: IntCounterVec,
    /// Documents offered to proxies, by result: applied, unchanged, stale, refused, error.
    pub config_push_total: IntCounterVec,
    /// How long one push takes, in seconds.
    pub config_push_duration_seconds: Histogram,
    /// From a changed document to the last pod's acknowledgement, in seconds.
    pub config_propagation_seconds: Histogram,
    /// 1 for each pool, with its stages.
    pub pool_info: IntGaugeVec,
    /// 1 for the status that a pool's condition has, 0 for the others.
    pub pool_condition: IntGaugeVec,
    /// Pods of a pool by state: ready, not_ready.
    pub pool_pods: IntGaugeVec,
    /// Pods of a pool that do not run its document.
    pub pool_pods_out_of_sync: IntGaugeVec,
    /// Of the rollouts.
    pub rollout: RolloutMetrics,
}

impl Metrics {
    /// A set of its own.
    ///
    /// # Errors
    /// When two metrics have one name, which would be a mistake here.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new_custom(Some("pgrouting_operator".to_owned()), None)?;
        let build = int_gauges(&registry, "build_info", "1, with the version.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let leader = IntGauge::new("leader", "1 while this process holds the Lease.")?;
        registry.register(Box::new(leader.clone()))?;
        let ages = GaugeVec::new(
            Opts::new("watch_last_progress_seconds", "Seconds since the watch was last driven."),
            &["kind"],
        )?;
        registry.register(Box::new(ages.clone()))?;
        // A series that begins with its first failure would hide that one from rates.
        let reconciles = counters(&registry, "reconcile_total", "Passes over a pool.", &["result"])?;
        for result in ["ok", "error"] {
            reconciles.with_label_values(&[result]);
        }
        let fast = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];
        let r = &registry;
        Ok(Self {
            leader,
            reconcile_total: reconciles,
            reconcile_errors_total: counters(r, "reconcile_errors_total", "Failed passes.", &["reason"])?,
            reconcile_duration_seconds: seconds(r, "reconcile_duration_seconds", "Time of a pass.", &fast)?,
            apply_total: counters(r, "apply_total", "Objects applied.", &["kind", "result"])?,
            status_patch_total: counters(r, "status_patch_total", "Status patches.", &["result"])?,
            watch_last_progress_seconds: ages,
            watch_restarts_total: counters(r, "watch_restarts_total", "Failures of watches.", &["kind"])?,
            config_push_total: counters(r, "config_push_total", "Documents offered.", &["result"])?,
            config_push_duration_seconds: seconds(
                r,
                "config_push_duration_seconds",
                "Time of a push.",
                &fast,
            )?,
            config_propagation_seconds: seconds(
                r,
                "config_propagation_seconds",
                "Time from a changed document to the last acknowledgement.",
                &fast,
            )?,
            pool_info: int_gauges(
                r,
                "pool_info",
                "1 for each pool.",
                &["namespace", "pool", "stage", "target"],
            )?,
            pool_condition: int_gauges(
                r,
                "pool_condition",
                "1 for the status that the condition has.",
                &["namespace", "pool", "type", "status"],
            )?,
            pool_pods: int_gauges(r, "pool_pods", "Pods by state.", &["namespace", "pool", "state"])?,
            pool_pods_out_of_sync: int_gauges(
                r,
                "pool_pods_out_of_sync",
                "Pods that do not run the document.",
                &["namespace", "pool"],
            )?,
            rollout: RolloutMetrics::new(r)?,
            registry,
        })
    }

    /// All of them in Prometheus' text form.
    ///
    /// # Errors
    /// When a metric has no text form.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Tells the stage of a pool and the one that it is to reach; only one pair of them is true at a time.
    pub fn tell_stage(&self, namespace: &str, pool: &str, stage: &str, target: &str) {
        for (other, other_target) in pairs_of_stages() {
            if (other, other_target) != (stage, target) {
                let _ = self.pool_info.remove_label_values(&[namespace, pool, other, other_target]);
            }
        }
        self.pool_info.with_label_values(&[namespace, pool, stage, target]).set(1);
    }

    /// Drops the series of a pool that is gone.
    pub fn forget_pool(&self, namespace: &str, pool: &str) {
        for state in ["ready", "not_ready"] {
            let _ = self.pool_pods.remove_label_values(&[namespace, pool, state]);
        }
        let _ = self.pool_pods_out_of_sync.remove_label_values(&[namespace, pool]);
        self.rollout.forget_pool(namespace, pool);
        for (stage, target) in pairs_of_stages() {
            let _ = self.pool_info.remove_label_values(&[namespace, pool, stage, target]);
        }
        for condition in POOL_CONDITIONS {
            for status in ["True", "False", "Unknown"] {
                let _ = self.pool_condition.remove_label_values(&[namespace, pool, condition, status]);
            }
        }
    }
}

/// The types of conditions that have a series.
pub const POOL_CONDITIONS: [&str; 9] = [
    "Ready",
    "ConfigAccepted",
    "ConfigApplied",
    "BackendsHealthy",
    "CredentialsValid",
    "Progressing",
    "SplitActive",
    "MirrorHealthy",
    "Stalled",
];

fn pairs_of_stages() -> impl Iterator<Item = (&'static str, &'static str)> {
    const STAGES: [&str; 3] = ["PoolingOnly", "Split", "Mirror"];
    STAGES.into_iter().flat_map(|stage| STAGES.into_iter().map(move |target| (stage, target)))
}

fn counters(
    r: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
    r.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn int_gauges(
    r: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntGaugeVec, prometheus::Error> {
    let metric = IntGaugeVec::new(Opts::new(name, help), labels)?;
    r.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn seconds(r: &Registry, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
    let metric = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?;
    r.register(Box::new(metric.clone()))?;
    Ok(metric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_from_zero() {
        let text = Metrics::new().unwrap().text().unwrap();
        assert!(text.contains("pgrouting_operator_reconcile_total{result=\"error\"} 0"), "{text}");
    }

    #[test]
    fn series_of_a_deleted_pool_are_dropped() {
        let metrics = Metrics::new().unwrap();
        metrics.pool_pods.with_label_values(&["shop", "orders", "ready"]).set(2);
        metrics.pool_condition.with_label_values(&["shop", "orders", "Ready", "True"]).set(1);
        metrics.tell_stage("shop", "orders", "PoolingOnly", "Split");
        assert!(metrics.text().unwrap().contains("orders"));
        metrics.forget_pool("shop", "orders");
        assert!(!metrics.text().unwrap().contains("orders"));
    }

    #[test]
    fn pool_is_at_one_stage_at_a_time() {
        let metrics = Metrics::new().unwrap();
        for (stage, target) in [
            ("PoolingOnly", "PoolingOnly"),
            ("PoolingOnly", "Split"),
            ("Split", "Split"),
            ("Split", "Mirror"),
            ("Mirror", "Mirror"),
            ("Mirror", "Split"),
        ] {
            metrics.tell_stage("shop", "orders", stage, target);
            let text = metrics.text().unwrap();
            let told: Vec<_> = text.lines().filter(|line| line.contains("pool_info{")).collect();
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0].contains(&format!("stage=\"{stage}\",target=\"{target}\"")), "{told:?}");
        }
    }
}

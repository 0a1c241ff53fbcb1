//! The metrics of rollouts.

use std::collections::HashMap;

use pgrouting_crds::status::rollout::{GateVerdict, RolloutStatus};
use prometheus::core::{Collector as _, MetricVec, MetricVecBuilder};
use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry};

/// The metrics of rollouts. Clones share their values.
#[derive(Debug, Clone)]
pub struct RolloutMetrics {
    split_ratio: GaugeVec,
    mirror_ratio: GaugeVec,
    step: IntGaugeVec,
    gate: IntGaugeVec,
    transitions_total: IntCounterVec,
    rollbacks_total: IntCounterVec,
    wave_waiting: IntGaugeVec,
}

const POOL: [&str; 2] = ["namespace", "pool"];

impl RolloutMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When two metrics have one name, which would be a mistake here.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let ratio = |name: &str, help: &str| -> Result<GaugeVec, prometheus::Error> {
            let metric = GaugeVec::new(Opts::new(name, help), &POOL)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| -> Result<IntGaugeVec, prometheus::Error> {
            let metric = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        Ok(Self {
            split_ratio: ratio("rollout_split_ratio", "The share whose reads go to replicas, 0 to 1.")?,
            mirror_ratio: ratio("rollout_mirror_ratio", "The share whose traffic is copied, 0 to 1.")?,
            step: gauge("rollout_step", "The step in effect, from 1; 0 before the first.", &POOL)?,
            gate: gauge(
                "rollout_gate",
                "1 for the verdict that the gate has.",
                &["namespace", "pool", "gate", "verdict"],
            )?,
            transitions_total: counter(
                "rollout_transitions_total",
                "Moves of rollouts.",
                &["namespace", "pool", "from", "to", "reason"],
            )?,
            rollbacks_total: counter(
                "rollbacks_total",
                "Moves back that nobody asked for.",
                &["namespace", "pool", "gate"],
            )?,
            wave_waiting: gauge(
                "wave_waiting",
                "1 while the pool waits for another one of its group.",
                &POOL,
            )?,
        })
    }

    /// Tells of a rollout, and counts what has happened since it was last told of.
    pub fn tell(&self, namespace: &str, pool: &str, before: Option<&RolloutStatus>, now: &RolloutStatus) {
        let labels = [namespace, pool];
        self.split_ratio.with_label_values(&labels).set(f64::from(now.split_percent) / 100.0);
        self.mirror_ratio.with_label_values(&labels).set(f64::from(now.mirror_percent) / 100.0);
        self.step.with_label_values(&labels).set(i64::from(now.step));
        let is_waiting = now.wave.as_ref().is_some_and(|wave| wave.waiting_for.is_some());
        self.wave_waiting.with_label_values(&labels).set(i64::from(is_waiting));
        let gone = before.iter().flat_map(|before| &before.gates);
        for gate in gone.filter(|gate| now.gates.iter().all(|known| known.name != gate.name)) {
            forget(&self.gate, &[("namespace", namespace), ("pool", pool), ("gate", &gate.name)]);
        }
        for gate in &now.gates {
            for verdict in GateVerdict::ALL {
                self.gate
                    .with_label_values(&[namespace, pool, &gate.name, verdict.as_str()])
                    .set(i64::from(gate.verdict == verdict));
            }
        }
        let Some(before) = before else { return };
        let known = before.history.first();
        for made in now.history.iter().take_while(|made| Some(*made) != known) {
            let labels = [namespace, pool, &stage(&made.from), &stage(&made.to), &made.reason];
            self.transitions_total.with_label_values(&labels).inc();
        }
        if let Some(rollback) =
            now.last_rollback.as_ref().filter(|_| before.last_rollback != now.last_rollback)
        {
            self.rollbacks_total.with_label_values(&[namespace, pool, &rollback.gate]).inc();
        }
    }

    /// Drops the series of a pool that is gone.
    pub fn forget_pool(&self, namespace: &str, pool: &str) {
        let of_pool = [("namespace", namespace), ("pool", pool)];
        forget(&self.split_ratio, &of_pool);
        forget(&self.mirror_ratio, &of_pool);
        forget(&self.step, &of_pool);
        forget(&self.wave_waiting, &of_pool);
        forget(&self.gate, &of_pool);
        forget(&self.transitions_total, &of_pool);
        forget(&self.rollbacks_total, &of_pool);
    }
}

/// Drops all series that have these labels, whatever else they have.
fn forget<T: MetricVecBuilder>(metric: &MetricVec<T>, labels: &[(&str, &str)]) {
    for family in metric.collect() {
        for series in family.get_metric() {
            let all: HashMap<&str, &str> =
                series.get_label().iter().map(|label| (label.name(), label.value())).collect();
            if labels.iter().all(|(name, value)| all.get(name) == Some(value)) {
                // It may have gone in the meantime.
                let _ = metric.remove(&all);
            }
        }
    }
}

/// The stage of a place such as `Split 5 %`: a percentage in a label would make a series for each.
fn stage(place: &str) -> String {
    place.split(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use pgrouting_crds::stage::Stage;
    use pgrouting_crds::status::rollout::{GateStatus, Move, Rollback};

    use super::*;
    use crate::fixtures::at;
    use crate::time::whole_seconds;

    fn gate(name: &str, verdict: GateVerdict) -> GateStatus {
        GateStatus {
            name: name.to_owned(),
            verdict,
            value: String::new(),
            limit: String::new(),
            samples: 0,
            consecutive_failures: 0,
            last_transition_time: whole_seconds(at(0)),
        }
    }

    fn text(registry: &Registry) -> String {
        prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    #[test]
    fn each_move_is_counted_once_and_gone_gates_and_pools_leave_no_series() {
        let registry = Registry::new();
        let metrics = RolloutMetrics::new(&registry).unwrap();
        let pooling =
            RolloutStatus { gates: vec![gate("replicaLag", GateVerdict::Pass)], ..RolloutStatus::default() };
        metrics.tell("shop", "orders", None, &pooling);
        assert!(
            text(&registry).contains(
                r#"rollout_gate{gate="replicaLag",namespace="shop",pool="orders",verdict="Pass"} 1"#
            )
        );
        let made = Move {
            time: whole_seconds(at(1)),
            from: "Split 5 %".into(),
            to: "PoolingOnly".into(),
            reason: "clientErrors".into(),
            actor: "controller".into(),
        };
        let back = RolloutStatus {
            stage: Stage::PoolingOnly,
            history: vec![made],
            gates: vec![gate("clientErrors", GateVerdict::Fail)],
            last_rollback: Some(Rollback {
                time: whole_seconds(at(1)),
                from: "Split 5 %".into(),
                to: "PoolingOnly".into(),
                gate: "clientErrors".into(),
                attempt: 1,
                message: String::new(),
                remedy: String::new(),
            }),
            ..RolloutStatus::default()
        };
        metrics.tell("shop", "orders", Some(&pooling), &back);
        metrics.tell("shop", "orders", Some(&back), &back);
        let told = text(&registry);
        for line in [
            r#"rollout_transitions_total{from="Split",namespace="shop",pool="orders",reason="clientErrors",to="PoolingOnly"} 1"#,
            r#"rollbacks_total{gate="clientErrors",namespace="shop",pool="orders"} 1"#,
        ] {
            assert!(told.contains(line), "{told}");
        }
        assert!(!told.contains("replicaLag"), "{told}");
        metrics.tell("shop", "other", None, &pooling);
        metrics.forget_pool("shop", "orders");
        let told = text(&registry);
        assert!(!told.contains("orders") && told.contains("other"), "{told}");
    }
}

//! The rollout's part of a pass: what the spec changes at once, and, once the proxies have been heard, what is decided.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::Store;
use kube::{Resource as _, ResourceExt as _};
use pgrouting_contract::report::ProxyReport;
use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::{RolloutStatus, WaveStatus};

use crate::memory::PoolMemory;
use crate::observe::Observation;
use crate::position::Position;
use crate::prometheus_query::PrometheusUrl;
use crate::proxies::ProxyAnswer;
use crate::rollout::lookout::{View, first_step_text, forecast};
use crate::rollout::progress::Word;
use crate::rollout::sight::Turn;
use crate::rollout::stand::ExternalValue;
use crate::rollout::turn::{Errand, member, turn};
use crate::rollout::{Decision, decide};

/// What the decision on one pool is made from.
pub struct Judged<'a> {
    /// The pool.
    pub pool: &'a PgRoutingPool,
    /// All pools, for those that take turns.
    pub pools: &'a Store<DeserializeGuard<PgRoutingPool>>,
    /// The rollout as the spec has it at once.
    pub entered: &'a RolloutStatus,
    /// What the proxies said.
    pub answers: &'a [ProxyAnswer],
    /// What is known of pods and servers.
    pub observation: &'a Observation,
    /// The Deployment.
    pub deployment: Option<&'a Deployment>,
    /// The time.
    pub now: Timestamp,
    /// How long the operator has run.
    pub uptime: Duration,
}

impl Judged<'_> {
    /// Decides.
    pub fn decide(&self, memory: &mut PoolMemory) -> Decision {
        let reports: Vec<(&str, &ProxyReport)> = self
            .answers
            .iter()
            .filter_map(|answer| Some((answer.pod.as_str(), answer.report.as_ref().ok()?)))
            .collect();
        let (external, lookout) = memory.rollout();
        let seen = lookout.look(&View {
            spec: &self.pool.spec,
            rollout: self.entered,
            reports: &reports,
            observation: self.observation,
            replicas_wanted: self.pool.spec.proxy.replicas,
            is_updated: self.deployment.is_none_or(is_updated),
            external,
            now: self.now,
            uptime: self.uptime,
        });
        let (turn, wave) = self.turn(seen.peak_qps);
        let sight = seen.sight(self.entered, turn, self.now);
        let mut decision = decide(self.entered, &self.pool.spec, &sight);
        decision.rollout.wave = wave;
        let is_pooling = decision.rollout.stage == Stage::PoolingOnly;
        let known = self.entered.forecast.as_ref();
        decision.rollout.forecast =
            if is_pooling { forecast(known, &reports, self.now) } else { known.cloned() };
        // Before the first step a quiet pool is told how long it will take.
        let is_first = is_pooling && decision.progress.word != Word::StageReached;
        if is_first
            && let Some(forecast) = &decision.rollout.forecast
            && let Some(text) = first_step_text(&self.pool.spec, forecast, seen.peak_qps)
        {
            decision.progress.message.push_str(&format!("; {text}"));
            decision.progress.is_stale = !seen.may_refresh;
        }
        decision
    }

    fn turn(&self, peak_qps: i64) -> (Turn, Option<WaveStatus>) {
        let Some((group, me)) = member(self.pool, Some(self.entered)) else { return (Turn::Mine, None) };
        if me.errand == Errand::None {
            return (Turn::Mine, None);
        }
        let frozen =
            self.entered.wave.as_ref().filter(|wave| wave.group == group).map(|wave| wave.frozen_qps);
        let namespace = self.pool.meta().namespace.clone();
        let pools = self.pools.state_filter(|other| {
            other.meta().namespace == namespace && other.meta().deletion_timestamp.is_none()
        });
        let mut members: Vec<_> = pools
            .iter()
            .filter_map(|other| other.0.as_ref().ok())
            .filter(|other| other.name_any() != me.name)
            .filter_map(|other| {
                let rollout = other.status.as_ref().and_then(|status| status.rollout.as_ref());
                member(other, rollout).filter(|(other_group, _)| *other_group == group)
            })
            .map(|(_, member)| member)
            .collect();
        let name = me.name.clone();
        members.push(me);
        let (turn, status) = turn(&group, &name, frozen.unwrap_or(peak_qps), frozen.is_some(), &members);
        (turn, Some(status))
    }
}

/// Whether a decision sends the proxies something else than the spec does at once.
#[must_use]
pub fn has_moved(entered: &RolloutStatus, decided: &RolloutStatus) -> bool {
    Position::of(entered) != Position::of(decided)
}

/// Whether all pods are of the newest template.
fn is_updated(deployment: &Deployment) -> bool {
    let Some(status) = &deployment.status else { return true };
    let is_observed = status.observed_generation == deployment.metadata.generation;
    is_observed && status.updated_replicas.unwrap_or(0) == status.replicas.unwrap_or(0)
}

/// Asks the Prometheus for the gates of a pool, as often as they are judged.
pub async fn ask_prometheus(url: Option<&PrometheusUrl>, pool: &PgRoutingPool, memory: &mut PoolMemory) {
    let gates = &pool.spec.rollout.gates.external;
    if gates.is_empty() {
        memory.external_answers(BTreeMap::new());
        return;
    }
    let period = pool.spec.rollout.evaluation_period.get();
    if !memory.is_external_due(period / 2) {
        return;
    }
    let asked = gates.iter().map(|gate| async {
        let value = match url {
            Some(url) => url.ask(&gate.query).await,
            None => ExternalValue::Failed(
                "the operator has not been told of a Prometheus: set prometheus.url in the chart's values"
                    .to_owned(),
            ),
        };
        (gate.name.clone(), value)
    });
    memory.external_answers(futures::future::join_all(asked).await.into_iter().collect());
}

//! A PgRoutingPool as its user sees it: manifests, conditions, Services, pods.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::RolloutStatus;
use pgrouting_crds::status::{ConditionStatus, PoolCondition, ServerRole, ServerState};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::wait::{Look, until};

/// One pool.
#[derive(Clone)]
pub struct Pool {
    cluster: Cluster,
    /// Where it is.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Pool {
    /// A pool that is there, or will be.
    #[must_use]
    pub fn new(cluster: &Cluster, namespace: &str, name: &str) -> Self {
        Self { cluster: cluster.clone(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn api(&self) -> Api<PgRoutingPool> {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }

    /// The object as it is now.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn read(&self) -> Result<PgRoutingPool> {
        Ok(self.api().get(&self.name).await?)
    }

    /// Changes the spec by a JSON merge patch, as `kubectl patch --type merge` does.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn patch(&self, spec: Value) -> Result<PgRoutingPool> {
        let patch = serde_json::json!({ "spec": spec });
        Ok(self.api().patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    /// Deletes the pool.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn delete(&self) -> Result<()> {
        self.api().delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until a condition has a status for the spec as it is now, and returns it.
    ///
    /// # Errors
    /// When the deadline passes, with all conditions as they were last.
    pub async fn wait_for(&self, kind: &str, status: ConditionStatus, seconds: u64) -> Result<PoolCondition> {
        let what = format!("{kind}={}", status.as_str());
        self.wait_for_condition(&what, seconds, |found| found.kind == kind && found.status == status).await
    }

    /// Waits until a condition has a reason for the spec as it is now, and returns it.
    ///
    /// # Errors
    /// When the deadline passes, with all conditions as they were last.
    pub async fn wait_for_reason(&self, kind: &str, reason: &str, seconds: u64) -> Result<PoolCondition> {
        let what = format!("{kind} for the reason {reason}");
        self.wait_for_condition(&what, seconds, |found| found.kind == kind && found.reason == reason).await
    }

    async fn wait_for_condition(
        &self,
        what: &str,
        seconds: u64,
        is_it: impl Fn(&PoolCondition) -> bool,
    ) -> Result<PoolCondition> {
        let what = format!("pool {} has {what}", self.name);
        until(&what, Duration::from_secs(seconds), || async {
            let pool = self.read().await?;
            let generation = pool.metadata.generation;
            let conditions = pool.status.map(|status| status.conditions).unwrap_or_default();
            let found = conditions
                .iter()
                .find(|condition| is_it(condition) && condition.observed_generation == generation);
            Ok(match found {
                Some(condition) => Look::Done(condition.clone()),
                None => Look::NotYet(describe(&conditions, generation)),
            })
        })
        .await
    }

    /// Waits until every proxy serves the spec as it is now.
    ///
    /// # Errors
    /// When the deadline passes.
    pub async fn wait_until_serving(&self, seconds: u64) -> Result<()> {
        self.wait_for("Ready", ConditionStatus::True, seconds).await?;
        self.wait_for("ConfigApplied", ConditionStatus::True, seconds).await?;
        Ok(())
    }

    /// The rollout as the status has it.
    ///
    /// # Errors
    /// When there is none yet.
    pub async fn rollout(&self) -> Result<RolloutStatus> {
        let status = self.read().await?.status.context("no status yet")?;
        status.rollout.context("no rollout in the status yet")
    }

    /// Waits until the rollout stands at a stage with a share, in percent.
    ///
    /// # Errors
    /// When the deadline passes, with what is said of the rollout.
    pub async fn wait_for_share(&self, stage: Stage, percent: i32, seconds: u64) -> Result<RolloutStatus> {
        let what = format!("pool {} is at {} {percent} %", self.name, stage.as_str());
        until(&what, Duration::from_secs(seconds), || async {
            let rollout = self.rollout().await?;
            let share = if stage == Stage::Mirror { rollout.mirror_percent } else { rollout.split_percent };
            Ok(if (rollout.stage, share) == (stage, percent) {
                Look::Done(rollout)
            } else {
                let conditions =
                    self.read().await?.status.map(|status| status.conditions).unwrap_or_default();
                let said = conditions.into_iter().find(|condition| condition.kind == "Progressing");
                let said = said.map(|condition| format!("{}: {}", condition.reason, condition.message));
                Look::NotYet(format!("{} at {share} %, {said:?}", rollout.stage.as_str()))
            })
        })
        .await
    }

    /// Waits until so many replicas are in use, beside the primary and no other server.
    ///
    /// # Errors
    /// When they are not in a minute.
    pub async fn wait_for_replicas(&self, count: usize) -> Result<()> {
        until(&format!("{count} replicas in use"), Duration::from_secs(60), || async {
            let backends = self.read().await?.status.and_then(|status| status.backends);
            let servers = backends.map(|backends| backends.servers).unwrap_or_default();
            let replicas =
                servers.iter().filter(|s| s.role == ServerRole::Replica && s.state == ServerState::Up);
            let is_so = replicas.count() == count && servers.len() == count + 1;
            Ok(if is_so { Look::Done(()) } else { Look::NotYet(format!("{servers:?}")) })
        })
        .await
    }

    /// Waits until so many proxies are ready and no other pod is left.
    ///
    /// # Errors
    /// When the deadline passes.
    pub async fn wait_for_pods(&self, count: usize, seconds: u64) -> Result<Vec<Pod>> {
        let what = format!("pool {} has {count} ready proxies and no other", self.name);
        until(&what, Duration::from_secs(seconds), || async {
            let pods = self.pods().await?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            Ok(if ready == count && pods.len() == count {
                Look::Done(pods)
            } else {
                Look::NotYet(format!("{ready} of {} pods are ready", pods.len()))
            })
        })
        .await
    }

    /// The proxies' pods, those that are ending included.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let pods = Api::<Pod>::namespaced(self.cluster.client.clone(), &self.namespace);
        Ok(pods.list(&ListParams::default().labels(&self.selector())).await?.items)
    }

    /// The labels of everything that belongs to the pool.
    #[must_use]
    pub fn selector(&self) -> String {
        format!("app.kubernetes.io/name=pg-routing-proxy,app.kubernetes.io/instance={}", self.name)
    }

    /// The address of one of its Services: `""`, `-primary` or `-readonly` names which.
    ///
    /// # Errors
    /// When it is not there within some seconds.
    pub async fn address(&self, suffix: &str) -> Result<String> {
        let name = format!("{}{suffix}", self.name);
        let services = Api::<Service>::namespaced(self.cluster.client.clone(), &self.namespace);
        until(&format!("Service {name} has an address"), Duration::from_secs(30), || async {
            let service = services.get(&name).await?;
            Ok(match service.spec.and_then(|spec| spec.cluster_ip) {
                Some(address) => Look::Done(address),
                None => Look::NotYet("it has none".to_owned()),
            })
        })
        .await
    }

    /// The hash of the document that the pool's proxies should run, and how many do.
    ///
    /// # Errors
    /// When there is no status yet.
    pub async fn config(&self) -> Result<pgrouting_crds::status::ConfigStatus> {
        let status = self.read().await?.status.context("no status yet")?;
        status.config.context("no config in the status yet")
    }
}

/// Whether a pod is ready and not ending.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    ready && pod.metadata.deletion_timestamp.is_none()
}

/// How often a pod's containers were started again, by the pod's name.
#[must_use]
pub fn restarts(pods: &[Pod]) -> Vec<(String, i32)> {
    let mut all: Vec<_> = pods
        .iter()
        .map(|pod| {
            let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            (pod.name_any(), status.map_or(0, |all| all.iter().map(|one| one.restart_count).sum()))
        })
        .collect();
    all.sort();
    all
}

fn describe(conditions: &[PoolCondition], generation: Option<i64>) -> String {
    let mut text = format!("generation {generation:?}");
    for condition in conditions {
        let PoolCondition { kind, status, observed_generation, reason, message, last_transition_time: _ } =
            condition;
        text.push_str(&format!(
            "; {kind}={} ({reason}, generation {observed_generation:?}): {message}",
            status.as_str()
        ));
    }
    text
}

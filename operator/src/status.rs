//! The status of a pool: computed from what one pass found, then written in one patch if it differs.
//!
//! The first part is pure and the time is passed in. No time is refreshed while nothing changes, so that an idle pool
//! is not written.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::status::{
    BackendsStatus, ConditionStatus, ConfigStatus, OutOfSyncPod, PgRoutingPoolStatus, PoolCondition,
    ProxiesStatus, ServerRole, ServerState, ServerStatus,
};
use serde_json::json;

use crate::names::STATUS_FIELD_MANAGER;
use crate::observe::{Observation, PodSync};
use crate::resolve::API_TIMEOUT;
use crate::status::condition::{ConditionType, Finding, Reason, set_condition};
use crate::status::findings::findings;
use crate::status::found::Found;
use crate::status::mirror::mirror_status;
use crate::time::whole_seconds;

pub mod condition;
pub mod findings;
pub mod fleet;
pub mod found;
pub mod mirror;
pub mod rollout;

const OUT_OF_SYNC_SHOWN: usize = 10;

/// The status after a found. `before` gives the times of what has not changed.
#[must_use]
pub fn status(
    before: Option<&PgRoutingPoolStatus>,
    found: &Found<'_>,
    now: Timestamp,
) -> PgRoutingPoolStatus {
    let observation = found.observation;
    let mut conditions: Vec<PoolCondition> =
        before.map(|status| status.conditions.clone()).unwrap_or_default();
    let mirror = mirror_status(before, found, now);
    let progressing =
        conditions.iter().find(|known| known.kind == ConditionType::Progressing.as_str()).cloned();
    for finding in findings(found, mirror.as_ref(), progressing.as_ref(), now) {
        set_condition(&mut conditions, finding, found.generation, now);
    }
    PgRoutingPoolStatus {
        observed_generation: found.generation,
        replicas: observation.replicas,
        ready_replicas: observation.ready_replicas,
        selector: Some(found.selector.clone()),
        conditions,
        config: config(before, found, now),
        proxies: Some(ProxiesStatus {
            summary: format!("{}/{}", observation.ready_replicas, found.replicas_wanted),
            image: found.image.unwrap_or(&found.images.image).to_owned(),
            out_of_sync: out_of_sync(before, observation, now),
        }),
        backends: backends(before, found, now),
        rollout: found.rollout.cloned(),
        mirror,
    }
}

fn config(before: Option<&PgRoutingPoolStatus>, found: &Found<'_>, now: Timestamp) -> Option<ConfigStatus> {
    let document = found.document?;
    let (applied, total) = found.observation.applied_of_total();
    let before = before.and_then(|status| status.config.as_ref());
    let rendered_at = before.filter(|config| config.hash == document.hash.as_str());
    Some(ConfigStatus {
        hash: document.hash.as_str().to_owned(),
        short_hash: document.hash.short().to_owned(),
        generation: i64::try_from(document.config.generation.0).unwrap_or(i64::MAX),
        pods_applied: i32::try_from(applied).unwrap_or(i32::MAX),
        pods_total: i32::try_from(total).unwrap_or(i32::MAX),
        rendered_at: rendered_at.map_or_else(|| whole_seconds(now), |config| config.rendered_at.clone()),
    })
}

fn out_of_sync(
    before: Option<&PgRoutingPoolStatus>,
    observation: &Observation,
    now: Timestamp,
) -> Vec<OutOfSyncPod> {
    let before = before.and_then(|status| status.proxies.as_ref()).map(|proxies| &proxies.out_of_sync);
    let laggards = observation.pods.iter().filter_map(|pod| {
        let (hash, reason, message) = match &pod.sync {
            PodSync::Applied | PodSync::Starting => return None,
            PodSync::Behind { hash, reason } => (Some(hash.clone()), "Behind", reason.clone()),
            PodSync::Refused { hash, reasons } => (Some(hash.clone()), "Refused", reasons.join("; ")),
            PodSync::Unreachable { reason } => (None, "Unreachable", reason.clone()),
        };
        let known = before.and_then(|pods| pods.iter().find(|known| known.pod == pod.name));
        Some(OutOfSyncPod {
            pod: pod.name.clone(),
            applied_hash: hash,
            reason: reason.to_owned(),
            message: message.chars().take(500).collect(),
            since: known.map_or_else(|| whole_seconds(now), |known| known.since.clone()),
        })
    });
    laggards.take(OUT_OF_SYNC_SHOWN).collect()
}

fn backends(
    before: Option<&PgRoutingPoolStatus>,
    found: &Found<'_>,
    now: Timestamp,
) -> Option<BackendsStatus> {
    let before = before.and_then(|status| status.backends.as_ref());
    let servers = &found.observation.servers;
    if found.observation.reports == 0 {
        // Nobody can say anything new.
        return before.cloned();
    }
    let known: BTreeMap<&str, &ServerStatus> =
        before.iter().flat_map(|before| &before.servers).map(|known| (known.name.as_str(), known)).collect();
    let is_up = |role: ServerRole| {
        servers.iter().filter(move |server| server.role == role && server.state == ServerState::Up)
    };
    let primary = is_up(ServerRole::Primary).max_by_key(|server| server.timeline);
    let replicas = servers.iter().filter(|server| server.role != ServerRole::Primary).count();
    Some(BackendsStatus {
        replicas_summary: format!("{}/{replicas}", is_up(ServerRole::Replica).count()),
        primary: primary.map(|server| server.name.clone()),
        timeline: primary.and_then(|server| server.timeline).map(i64::from),
        servers: servers
            .iter()
            .map(|server| {
                let known = known.get(server.name.as_str()).filter(|known| {
                    known.role == server.role
                        && known.state == server.state
                        && known.address == server.address
                });
                ServerStatus {
                    name: server.name.clone(),
                    address: server.address.clone(),
                    role: server.role,
                    state: server.state,
                    reason: Some(server.message.chars().take(500).collect::<String>())
                        .filter(|message| !message.is_empty()),
                    since: known.map_or_else(|| whole_seconds(now), |known| known.since.clone()),
                }
            })
            .collect(),
    })
}

/// The status when the operator may not read what it must: all else stays as it was.
#[must_use]
pub fn forbidden(
    before: Option<&PgRoutingPoolStatus>,
    error: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> PgRoutingPoolStatus {
    let mut status = before.cloned().unwrap_or_default();
    status.observed_generation = generation;
    let message = format!(
        "{error}: grant the operator that right in this namespace; the last good config stays in use"
    );
    // What was ready runs on, and nobody can tell how.
    let ready = if status.ready_replicas > 0 { ConditionStatus::Unknown } else { ConditionStatus::False };
    for (kind, value) in [(ConditionType::Ready, ready), (ConditionType::Stalled, ConditionStatus::True)] {
        let finding = Finding::new(kind, value, Reason::Forbidden, message.clone());
        set_condition(&mut status.conditions, finding, generation, now);
    }
    status
}

/// The conditions of an object that does not even read.
#[must_use]
pub fn unreadable(error: &str, generation: Option<i64>, now: Timestamp) -> Vec<PoolCondition> {
    let message = format!("the object does not read: {error}; correct it, or update the operator");
    let mut conditions = Vec::new();
    for (kind, status) in
        [(ConditionType::Ready, ConditionStatus::False), (ConditionType::Stalled, ConditionStatus::True)]
    {
        let finding = Finding::new(kind, status, Reason::InvalidSpec, message.clone());
        set_condition(&mut conditions, finding, generation, now);
    }
    conditions
}

/// Why a status was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The API server answered with an error.
    #[error("cannot read or write the status: {0}")]
    Api(#[from] kube::Error),
    /// It did not answer.
    #[error("cannot read or write the status: no answer in time")]
    Timeout,
}

/// The status as it is stored now, which a cache may be behind: a rollout goes on from there, and must not go on from what
/// was before. `None` where there is none yet, or the pool has just been deleted.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn read(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<PgRoutingPoolStatus>, StatusError> {
    let api: Api<PgRoutingPool> = Api::namespaced(client.clone(), namespace);
    match tokio::time::timeout(API_TIMEOUT, api.get_opt(name)).await {
        Ok(Ok(pool)) => Ok(pool.and_then(|pool| pool.status)),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(StatusError::Timeout),
    }
}

/// Writes a whole status. A pool that has just been deleted is no error.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn write(
    client: &Client,
    namespace: &str,
    name: &str,
    status: &PgRoutingPoolStatus,
) -> Result<(), StatusError> {
    let body = json!({
        "apiVersion": "pgrouting.dev/v1alpha1",
        "kind": "PgRoutingPool",
        "metadata": {"name": name, "namespace": namespace},
        "status": status,
    });
    let params = PatchParams::apply(STATUS_FIELD_MANAGER).force();
    patch(client, namespace, name, &params, &Patch::Apply(body)).await
}

/// Writes only the conditions of an object whose other fields nobody can read.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn write_conditions(
    client: &Client,
    namespace: &str,
    name: &str,
    generation: Option<i64>,
    conditions: &[PoolCondition],
) -> Result<(), StatusError> {
    let body = json!({"status": {"observedGeneration": generation, "conditions": conditions}});
    let params =
        PatchParams { field_manager: Some(STATUS_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    patch(client, namespace, name, &params, &Patch::Merge(body)).await
}

async fn patch(
    client: &Client,
    namespace: &str,
    name: &str,
    params: &PatchParams,
    patch: &Patch<serde_json::Value>,
) -> Result<(), StatusError> {
    // The answer is not looked at, so that an object that does not read can be written too.
    let resource = kube::api::ApiResource::erase::<PgRoutingPool>(&());
    let api: Api<kube::api::DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    match tokio::time::timeout(API_TIMEOUT, api.patch_status(name, params, patch)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(answer))) if answer.code == 404 => Ok(()),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(StatusError::Timeout),
    }
}

#[cfg(test)]
mod tests;

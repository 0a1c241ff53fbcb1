//! Puts together what the pods, the Deployment and the proxies' answers say of a pool.
//!
//! Takes what was read; gives an [`Observation`], from which the status is computed. The time is passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;
use pgrouting_contract::config::ServerConfig;
use pgrouting_contract::mirror::MirrorState;
use pgrouting_contract::report::{
    ConfigAnswer, ConfigOutcome, CredentialReport, CredentialState, Health, ProxyReport, Role, Rotation,
};
use pgrouting_crds::status::{ServerRole, ServerState};

use crate::desired::config_map::Document;
use crate::names::{ADMIN_PORT, PoolNames};
use crate::observe::mirror::{MirrorView, mirror_view};
use crate::proxies::{Patience, ProxyAddress, ProxyAnswer};
use crate::resolve::phase;

pub mod mirror;

/// A pod that does not answer may have just been started; after this it is a finding.
const START_TIME: Duration = Duration::from_secs(60);

/// What is known of a pool now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// Pods there are.
    pub replicas: i32,
    /// Pods that are ready.
    pub ready_replicas: i32,
    /// Each pod that is not leaving.
    pub pods: Vec<PodState>,
    /// Each server of the document.
    pub servers: Vec<ServerView>,
    /// What comes of the copied traffic, where some proxy says.
    pub mirror: Option<MirrorView>,
    /// Why the first pod that has not started waits, as kubelet says.
    pub waiting: Option<String>,
    /// Proxies whose reports count.
    pub reports: usize,
    /// Credentials that do not work, each user once.
    pub bad_credentials: Vec<CredentialReport>,
    /// Whether some credential has been seen to work or none is asked for.
    pub has_used_credentials: bool,
    /// The highest generation of another document than ours that a proxy runs.
    pub foreign_generation: u64,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodState {
    /// Its name.
    pub name: String,
    /// Whether clients reach it.
    pub is_ready: bool,
    /// Whether it runs the document.
    pub sync: PodSync,
    /// Whether no client holds a server connection of it; absent where it does not say.
    pub is_drained: Option<bool>,
}

/// Whether a pod runs the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSync {
    /// It does.
    Applied,
    /// It has not come up yet; it will read the mounted document.
    Starting,
    /// It runs another one.
    Behind {
        /// The hash of that one.
        hash: String,
        /// Why it does not take ours.
        reason: String,
    },
    /// It refused the document.
    Refused {
        /// The hash of the one it runs.
        hash: String,
        /// Why.
        reasons: Vec<String>,
    },
    /// It does not answer.
    Unreachable {
        /// What happened.
        reason: String,
    },
}

/// One PostgreSQL server, as the majority of the proxies sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerView {
    /// Its name.
    pub name: String,
    /// `host:port`.
    pub address: String,
    /// What it is.
    pub role: ServerRole,
    /// Whether it answers.
    pub state: ServerState,
    /// Whether any proxy has asked it yet.
    pub is_probed: bool,
    /// Why it is not up.
    pub message: String,
    /// Its timeline.
    pub timeline: Option<u32>,
}

/// The pods of a pool that are not leaving, in order of name.
#[must_use]
pub fn pods_of(store: &Store<Pod>, namespace: &str, pool: &str) -> Vec<Arc<Pod>> {
    let selector = PoolNames(pool).selector();
    let mut pods = store.state_filter(|pod| {
        pod.metadata.namespace.as_deref() == Some(namespace)
            && pod.metadata.deletion_timestamp.is_none()
            && !matches!(phase(pod), "Succeeded" | "Failed")
            && selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value))
    });
    pods.sort_by_key(|pod| pod.name_any());
    pods
}

/// Where to ask the pods that have an address. Unready ones too: they need the document as well.
#[must_use]
pub fn addresses(pods: &[Arc<Pod>], silent: &BTreeSet<String>, has_changed: bool) -> Vec<ProxyAddress> {
    pods.iter()
        .filter_map(|pod| {
            let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
            let pod = pod.name_any();
            let patience = match (silent.contains(&pod), has_changed) {
                (false, _) => Patience::Full,
                (true, false) => Patience::Little,
                (true, true) => Patience::Least,
            };
            Some(ProxyAddress { pod, ip, port: ADMIN_PORT, patience })
        })
        .collect()
}

/// Puts everything together.
#[must_use]
pub fn observe(
    pods: &[Arc<Pod>],
    deployment: Option<&Deployment>,
    answers: &[ProxyAnswer],
    document: Option<&Document>,
    now: Timestamp,
) -> Observation {
    let status = deployment.and_then(|deployment| deployment.status.as_ref());
    let by_pod: BTreeMap<&str, &ProxyAnswer> =
        answers.iter().map(|answer| (answer.pod.as_str(), answer)).collect();
    let reports: Vec<&ProxyReport> =
        answers.iter().filter_map(|answer| answer.report.as_ref().ok()).collect();
    let servers = document.map_or(&[][..], |document| &document.config.servers[..]);
    Observation {
        replicas: status.and_then(|status| status.replicas).unwrap_or(0),
        ready_replicas: status.and_then(|status| status.ready_replicas).unwrap_or(0),
        pods: pods
            .iter()
            .map(|pod| {
                let name = pod.name_any();
                let sync = pod_sync(pod, by_pod.get(name.as_str()).copied(), document, now);
                let report = by_pod.get(name.as_str()).and_then(|answer| answer.report.as_ref().ok());
                let is_drained =
                    report.map(|report| report.servers.iter().all(|server| server.connections_active == 0));
                PodState { name, is_ready: is_ready(pod), sync, is_drained }
            })
            .collect(),
        servers: servers.iter().map(|server| server_view(server, &reports)).collect(),
        mirror: document.and_then(|document| mirror_view(&document.config, &reports)),
        waiting: pods.iter().find_map(|pod| waiting(pod)),
        reports: reports.len(),
        bad_credentials: bad_credentials(&reports),
        has_used_credentials: reports.iter().any(|report| {
            report.credentials.is_empty()
                || report.credentials.iter().any(|c| c.state == CredentialState::Valid)
        }),
        foreign_generation: document.map_or(0, |document| foreign_generation(&reports, document)),
    }
}

fn pod_sync(pod: &Pod, answer: Option<&ProxyAnswer>, document: Option<&Document>, now: Timestamp) -> PodSync {
    let (Some(answer), Some(document)) = (answer, document) else { return PodSync::Starting };
    match &answer.report {
        Ok(report) if report.config.hash == document.hash => PodSync::Applied,
        Ok(report) => {
            let hash = report.config.hash.as_str().to_owned();
            match &answer.push {
                Some(ConfigAnswer { outcome: ConfigOutcome::Refused, reasons, .. }) => {
                    PodSync::Refused { hash, reasons: reasons.clone() }
                }
                Some(ConfigAnswer { outcome: ConfigOutcome::Stale, generation, .. }) => PodSync::Behind {
                    hash,
                    reason: format!("it runs generation {generation} and takes no lower one"),
                },
                Some(_) | None => PodSync::Behind { hash, reason: "it has not changed over yet".to_owned() },
            }
        }
        Err(_) if !is_ready(pod) && (is_young(pod, now) || waiting(pod).is_some()) => PodSync::Starting,
        Err(error) => PodSync::Unreachable { reason: error.to_string() },
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Why a pod's container does not run. It has no admin API then, and will read the mounted document when it starts.
fn waiting(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let waiting = statuses.iter().find_map(|status| status.state.as_ref()?.waiting.as_ref())?;
    let reason = waiting.reason.as_deref().unwrap_or("Waiting");
    (reason != "ContainerCreating").then(|| format!("{} waits: {reason}", pod.name_any()))
}

fn is_young(pod: &Pod, now: Timestamp) -> bool {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    started.is_none_or(|started| now.duration_since(started.0).unsigned_abs() < START_TIME)
}

/// What more than half of those say that have an opinion.
fn majority<T: Copy + Ord>(votes: &[T]) -> Option<T> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    for vote in votes {
        *counts.entry(*vote).or_default() += 1;
    }
    counts.into_iter().find(|(_, count)| count * 2 > votes.len()).map(|(vote, _)| vote)
}

fn server_view(server: &ServerConfig, reports: &[&ProxyReport]) -> ServerView {
    let seen: Vec<_> = reports
        .iter()
        .filter_map(|report| report.servers.iter().find(|seen| seen.name == server.name))
        .collect();
    let roles: Vec<u8> = seen
        .iter()
        .filter_map(|seen| match seen.role {
            Role::Primary => Some(0),
            Role::Replica => Some(1),
            Role::Unknown => None,
        })
        .collect();
    let healths: Vec<bool> = seen
        .iter()
        .filter_map(|seen| match seen.health {
            Health::Up => Some(true),
            Health::Down => Some(false),
            Health::Unknown => None,
        })
        .collect();
    let is_up = majority(&healths) == Some(true);
    let rotations: Vec<Rotation> =
        seen.iter().filter(|seen| seen.health == Health::Up).map(|seen| seen.rotation).collect();
    let state = match majority(&rotations) {
        _ if !is_up => ServerState::Down,
        Some(Rotation::Lagging) => ServerState::Lagging,
        Some(Rotation::Fenced) => ServerState::Fenced,
        Some(Rotation::Settling | Rotation::Diverged) => ServerState::Ejected,
        // It is there, and does not say what it is.
        Some(Rotation::Unmeasured) if majority(&roles).is_none() => ServerState::Ejected,
        // One that was just asked for the first time is measured in a moment.
        Some(Rotation::In | Rotation::Unmeasured | Rotation::Down) | None => ServerState::Up,
    };
    let message = if is_up {
        let out =
            seen.iter().find(|seen| seen.health == Health::Up && Some(seen.rotation) == majority(&rotations));
        out.map(|seen| seen.message.clone()).unwrap_or_default()
    } else if healths.is_empty() {
        "no proxy has asked it yet".to_owned()
    } else {
        let message = seen.iter().find(|seen| seen.health == Health::Down).map(|seen| seen.message.clone());
        message.filter(|message| !message.is_empty()).unwrap_or_else(|| "probes fail".to_owned())
    };
    ServerView {
        name: server.name.clone(),
        address: format!("{}:{}", server.host, server.port),
        role: match majority(&roles) {
            Some(0) => ServerRole::Primary,
            Some(_) => ServerRole::Replica,
            None => ServerRole::Unknown,
        },
        state,
        is_probed: !healths.is_empty(),
        message,
        timeline: seen.iter().filter_map(|seen| seen.timeline).max(),
    }
}

/// Each user once; a login that a server refused says more than a file that is not there yet.
fn bad_credentials(reports: &[&ProxyReport]) -> Vec<CredentialReport> {
    let mut bad: BTreeMap<&str, &CredentialReport> = BTreeMap::new();
    for credential in reports.iter().flat_map(|report| &report.credentials) {
        let is_worse = match credential.state {
            CredentialState::Valid | CredentialState::Unused => false,
            CredentialState::Rejected => true,
            CredentialState::Missing => !bad.contains_key(credential.user.as_str()),
        };
        if is_worse {
            bad.insert(&credential.user, credential);
        }
    }
    bad.into_values().cloned().collect()
}

fn foreign_generation(reports: &[&ProxyReport], document: &Document) -> u64 {
    reports
        .iter()
        .filter(|report| report.config.hash != document.hash)
        .map(|report| report.config.generation.0)
        .max()
        .unwrap_or(0)
}

impl Observation {
    /// Whether something is still on its way, so that it is worth looking again soon.
    #[must_use]
    pub fn is_unsettled(&self, replicas_wanted: i32) -> bool {
        let is_syncing = self.pods.iter().any(|pod| match pod.sync {
            PodSync::Starting | PodSync::Behind { .. } | PodSync::Refused { .. } => true,
            // One that does not answer may be away for long.
            PodSync::Applied | PodSync::Unreachable { .. } => false,
        });
        let is_probing = self.reports > 0 && self.servers.iter().any(|server| !server.is_probed);
        let is_off = |mirror: &MirrorView| mirror.is_wanted && mirror.state == MirrorState::Inactive;
        let has_primary = self.servers.iter().any(|server| server.role == ServerRole::Primary);
        is_syncing
            || is_probing
            || self.mirror.as_ref().is_some_and(is_off)
            || !self.bad_credentials.is_empty()
            || (self.reports > 0 && !has_primary)
            || (self.ready_replicas != replicas_wanted && !self.has_unreachable())
    }

    /// Whether some pod does not answer.
    #[must_use]
    pub fn has_unreachable(&self) -> bool {
        self.pods.iter().any(|pod| matches!(pod.sync, PodSync::Unreachable { .. }))
    }

    /// Pods that run the document, and pods that should.
    #[must_use]
    pub fn applied_of_total(&self) -> (usize, usize) {
        let count = |want: fn(&PodSync) -> bool| self.pods.iter().filter(|pod| want(&pod.sync)).count();
        (count(|sync| *sync == PodSync::Applied), count(|sync| *sync != PodSync::Starting))
    }
}

#[cfg(test)]
mod tests;

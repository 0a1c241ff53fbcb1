//! Writes a pool's objects by server-side apply, and deletes those that it should no longer have.
//!
//! Takes [`DesiredObjects`]; gives [`AppliedObjects`]. An object that someone else owns is never touched. What has
//! already been applied and still looks as it did then is not sent again, so that an idle pool costs no write.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::hash::{Hash as _, Hasher as _};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::desired::DesiredObjects;
use crate::desired::config_map::Document;
use crate::metrics::Metrics;
use crate::names::{ANNOTATION_MOUNTED_HASH, FIELD_MANAGER};
use crate::resolve::{API_TIMEOUT, ResolvedRefs};

/// The caches of the kinds that pools own.
#[derive(Debug, Clone)]
pub struct OwnedStores {
    /// Deployments.
    pub deployments: Store<Deployment>,
    /// Services.
    pub services: Store<Service>,
    /// ServiceAccounts.
    pub service_accounts: Store<ServiceAccount>,
    /// PodDisruptionBudgets.
    pub disruption_budgets: Store<PodDisruptionBudget>,
    /// NetworkPolicies.
    pub network_policies: Store<NetworkPolicy>,
}

/// What was applied, by kind and name: a fingerprint of what was sent, and of what was there afterwards.
///
/// It only saves writes. Without it (after a restart) each object is sent once and the API server finds no change.
#[derive(Debug, Clone, Default)]
pub struct ApplyMemory(HashMap<(String, String), (u64, u64)>);

/// What became of a pool's objects.
#[derive(Debug)]
pub struct AppliedObjects {
    /// The document in the ConfigMap; absent when it could not be stored, and then it is not pushed either.
    pub document: Option<Document>,
    /// The Deployment as it is now.
    pub deployment: Option<Deployment>,
    /// The admin Secret as it is now.
    pub admin: Option<Secret>,
    /// What was not applied.
    pub faults: Vec<ApplyFault>,
}

/// Why an object was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyFault {
    /// Someone else's object has its name.
    #[error("{kind} {name} belongs to {owner}: rename the pool, or delete or rename that {kind}")]
    NameConflict {
        /// The kind.
        kind: String,
        /// The name.
        name: String,
        /// Whose it is.
        owner: String,
    },
    /// The operator lacks a right.
    #[error("the operator may not {verb} {kind} {name}: grant it that verb in this namespace ({message})")]
    Forbidden {
        /// What it may not do.
        verb: &'static str,
        /// The kind.
        kind: String,
        /// The name.
        name: String,
        /// The API server's words.
        message: String,
    },
    /// The API server refuses the object: the spec asks for something impossible.
    #[error("the API server refuses {kind} {name}: {message}")]
    Refused {
        /// The kind.
        kind: String,
        /// The name.
        name: String,
        /// The API server's words.
        message: String,
    },
    /// It may work the next time.
    #[error("cannot {verb} {kind} {name}: {message}")]
    Failed {
        /// What was tried.
        verb: &'static str,
        /// The kind.
        kind: String,
        /// The name.
        name: String,
        /// What went wrong.
        message: String,
    },
}

impl ApplyFault {
    /// Whether it may work the next time, without a person.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Failed { .. } => true,
            Self::NameConflict { .. } | Self::Forbidden { .. } | Self::Refused { .. } => false,
        }
    }
}

/// Applies the objects of one pool.
pub struct Applier<'a> {
    client: &'a Client,
    stores: &'a OwnedStores,
    metrics: &'a Metrics,
    memory: &'a mut ApplyMemory,
    namespace: String,
    owner: OwnerReference,
    faults: Vec<ApplyFault>,
}

impl<'a> Applier<'a> {
    /// For the pool that `owner` names.
    #[must_use]
    pub fn new(
        client: &'a Client,
        stores: &'a OwnedStores,
        metrics: &'a Metrics,
        memory: &'a mut ApplyMemory,
        namespace: String,
        owner: OwnerReference,
    ) -> Self {
        Self { client, stores, metrics, memory, namespace, owner, faults: Vec::new() }
    }

    /// Applies everything, the pods last, and deletes what is no longer wanted. One object's fault does not keep the
    /// others from being applied.
    pub async fn apply(
        mut self,
        desired: DesiredObjects,
        refs: &ResolvedRefs,
        pods: &[std::sync::Arc<Pod>],
    ) -> AppliedObjects {
        let DesiredObjects {
            document,
            config_map,
            admin,
            users,
            service_account,
            services,
            disruption_budget,
            network_policy,
            deployment,
        } = desired;
        let stored = self.apply_config_map(&config_map, refs).await;
        let admin = self.apply_secret(&admin, refs.admin.as_ref(), pods).await;
        self.apply_secret(&users, refs.users.as_ref(), pods).await;
        if let Some(service_account) = &service_account {
            self.apply_stored(service_account, &self.stores.service_accounts).await;
        }
        for service in &services {
            self.apply_stored(service, &self.stores.services).await;
        }
        if let Some(budget) = &disruption_budget {
            self.apply_stored(budget, &self.stores.disruption_budgets).await;
        }
        if let Some(policy) = &network_policy {
            self.apply_stored(policy, &self.stores.network_policies).await;
        }
        let deployment = self.apply_stored(&deployment, &self.stores.deployments).await;
        self.prune(&self.stores.services, &names(services.iter())).await;
        self.prune(&self.stores.service_accounts, &names(service_account.iter())).await;
        self.prune(&self.stores.disruption_budgets, &names(disruption_budget.iter())).await;
        self.prune(&self.stores.network_policies, &names(network_policy.iter())).await;
        AppliedObjects { document: stored.map(|_| document), deployment, admin, faults: self.faults }
    }

    async fn apply_config_map(&mut self, desired: &ConfigMap, refs: &ResolvedRefs) -> Option<ConfigMap> {
        self.apply_one(desired, refs.config_map.as_ref()).await
    }

    /// Applies a Secret. When it changed under running pods, kubelet is asked to mount it anew at once.
    async fn apply_secret(
        &mut self,
        desired: &Secret,
        live: Option<&Secret>,
        pods: &[std::sync::Arc<Pod>],
    ) -> Option<Secret> {
        let applied = self.apply_one(desired, live).await?;
        if live.is_some_and(|live| live.data != applied.data) {
            self.refresh_mounts(&format!("{:016x}", fingerprint(&applied.data)), pods).await;
        }
        Some(applied)
    }

    async fn apply_stored<K>(&mut self, desired: &K, store: &Store<K>) -> Option<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let name = desired.name_any();
        let reference = ObjectRef::new(&name).within(&self.namespace);
        let cached = store.get(&reference);
        if cached.is_some() {
            return self.apply_one(desired, cached.as_deref()).await;
        }
        // The cache holds only what has our label, so an object of someone else is not in it.
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        match in_time(api.get_opt(&name)).await {
            Ok(live) => self.apply_one(desired, live.as_ref()).await,
            Err(error) => {
                self.record::<K>("get", &name, &error);
                None
            }
        }
    }

    async fn apply_one<K>(&mut self, desired: &K, live: Option<&K>) -> Option<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let name = desired.name_any();
        let kind = K::kind(&()).into_owned();
        if let Some(owner) = live.and_then(|live| foreign_owner(live, &self.owner)) {
            self.count(&kind, "conflict");
            self.faults.push(ApplyFault::NameConflict { kind, name, owner });
            return None;
        }
        let mut body = match serde_json::to_value(desired) {
            Ok(body) => body,
            Err(error) => {
                let message = error.to_string();
                self.faults.push(ApplyFault::Failed { verb: "render", kind, name, message });
                return None;
            }
        };
        let sent = fingerprint(&body);
        let key = (kind.clone(), name.clone());
        if let Some(live) = live
            && self.memory.0.get(&key) == Some(&(sent, appearance(live)))
        {
            return Some(live.clone());
        }
        if let Some(uid) = live.and_then(|live| live.meta().uid.clone()) {
            // If it has been deleted or replaced since, the API server refuses instead of bringing it back to life.
            body["metadata"]["uid"] = json!(uid);
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let mut answer = in_time(api.patch(&name, &params, &Patch::Apply(&body))).await;
        if live.is_some() && matches!(&answer, Err(CallError::Api(error)) if is_code(error, 422)) {
            // A hand's entry in a list with keys can stand in the way of ours: a Service's port with the name of our
            // port. A merge puts our lists in the place of the whole lists, and the apply then makes them our own.
            let merge =
                PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
            if in_time(api.patch(&name, &merge, &Patch::Merge(&body))).await.is_ok() {
                answer = in_time(api.patch(&name, &params, &Patch::Apply(&body))).await;
            }
        }
        match answer {
            Ok(applied) => {
                let seen = (sent, appearance(&applied));
                // The cache may be behind, so an object that looks as it did after the last apply counts as the same.
                let is_same = live.is_some_and(|live| live.resource_version() == applied.resource_version())
                    || self.memory.0.get(&key) == Some(&seen);
                self.count(&kind, if is_same { "unchanged" } else { "changed" });
                self.memory.0.insert(key, seen);
                if !is_same {
                    tracing::info!(kind, object = name, "applied");
                }
                Some(applied)
            }
            Err(error) => {
                self.record::<K>("patch", &name, &error);
                None
            }
        }
    }

    /// Deletes objects of this pool that are not among `wanted`.
    async fn prune<K>(&mut self, store: &Store<K>, wanted: &BTreeSet<String>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let orphans = store.state_filter(|object| {
            object.meta().namespace.as_deref() == Some(self.namespace.as_str())
                && object.meta().deletion_timestamp.is_none()
                && object.owner_references().iter().any(|owner| owner.uid == self.owner.uid)
                && !wanted.contains(&object.name_any())
        });
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        for orphan in orphans {
            let name = orphan.name_any();
            let params = DeleteParams::default()
                .preconditions(Preconditions { uid: orphan.meta().uid.clone(), resource_version: None });
            match in_time(api.delete(&name, &params)).await {
                Ok(_) => {
                    self.memory.0.remove(&(K::kind(&()).into_owned(), name.clone()));
                    tracing::info!(kind = %K::kind(&()), object = name, "deleted");
                }
                Err(CallError::Api(error)) if is_code(&error, 404) => {}
                Err(error) => self.record::<K>("delete", &name, &error),
            }
        }
    }

    /// Touches the pods: kubelet then looks at their mounted Secrets at once, instead of after a minute or more.
    /// A failure costs only that minute.
    async fn refresh_mounts(&self, hash: &str, pods: &[std::sync::Arc<Pod>]) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let patch = json!({"metadata": {"annotations": {ANNOTATION_MOUNTED_HASH: hash}}});
        let patches = pods.iter().map(|pod| {
            let (api, patch, name) = (&api, &patch, pod.name_any());
            async move {
                let params =
                    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
                if let Err(error) = in_time(api.patch_metadata(&name, &params, &Patch::Merge(patch))).await {
                    tracing::warn!(pod = name, %error, "cannot ask kubelet to mount Secrets anew");
                }
            }
        });
        futures::future::join_all(patches).await;
    }

    fn record<K: Resource<DynamicType = ()>>(&mut self, verb: &'static str, name: &str, error: &CallError) {
        let kind = K::kind(&()).into_owned();
        self.count(&kind, "error");
        self.memory.0.remove(&(kind.clone(), name.to_owned()));
        let name = name.to_owned();
        let message = match error {
            CallError::Api(error) => match &**error {
                kube::Error::Api(answer) => answer.message.clone(),
                other => other.to_string(),
            },
            CallError::Timeout => error.to_string(),
        };
        self.faults.push(match error {
            CallError::Api(error) if is_code(error, 403) => {
                ApplyFault::Forbidden { verb, kind, name, message }
            }
            CallError::Api(error) if is_code(error, 422) || is_code(error, 400) => {
                ApplyFault::Refused { kind, name, message }
            }
            CallError::Api(_) | CallError::Timeout => ApplyFault::Failed { verb, kind, name, message },
        });
    }

    fn count(&self, kind: &str, result: &str) {
        self.metrics.apply_total.with_label_values(&[kind, result]).inc();
    }
}

/// Why a call to the API server failed.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("{0}")]
    Api(Box<kube::Error>),
    #[error("the API server did not answer in time")]
    Timeout,
}

async fn in_time<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match tokio::time::timeout(API_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|error| CallError::Api(Box::new(error))),
        Err(_) => Err(CallError::Timeout),
    }
}

fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Whose an object is, when it is not ours.
fn foreign_owner<K: Resource>(live: &K, owner: &OwnerReference) -> Option<String> {
    let controller = live.owner_references().iter().find(|reference| reference.controller == Some(true));
    match controller {
        Some(controller) if controller.uid == owner.uid => None,
        Some(controller) => Some(format!("{} {}", controller.kind, controller.name)),
        None => Some("nobody that the operator knows".to_owned()),
    }
}

/// What an object looks like, without what changes by itself.
fn appearance<K: Serialize>(object: &K) -> u64 {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.remove("status");
    }
    if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
        metadata.remove("generation");
    }
    fingerprint(&value)
}

fn fingerprint<T: Serialize>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(value).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

fn names<'a, K: Resource + 'a>(objects: impl Iterator<Item = &'a K>) -> BTreeSet<String> {
    objects.map(|object| object.name_any()).collect()
}

#[cfg(test)]
mod tests;

//! The controller: its watches, its error policy, and when a pass over a pool begins.
//!
//! Every replica keeps its caches warm; only the holder of the Lease runs passes. The caches of a scope (one namespace
//! or the cluster) and the controller over them live and end together.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{PredicateConfig, WatchStreamExt as _, predicates, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use pgrouting_crds::spec::PgRoutingPool;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tokio_util::sync::CancellationToken;

use crate::apply::OwnedStores;
use crate::controller::pass::{Caches, NextLook, Operator, PassError, mark_unreadable, pass};
use crate::memory::Memories;
use crate::named::{self, Changed};
use crate::names::{LABEL_INSTANCE, LABEL_MANAGED_BY, MANAGED_BY};
use crate::resolve::{ResolveStores, uses_service};
use crate::settings::WatchScope;
use crate::watches::{WatchHealth, watched};

pub mod judge;
pub mod pass;

/// How soon after the last of several changes a pass begins.
const DEBOUNCE: Duration = Duration::from_millis(30);
/// How soon to look again whether the caches are filled.
const SYNC_PERIOD: Duration = Duration::from_millis(100);
/// Pools that are worked on at once.
const POOLS_AT_ONCE: u16 = 16;
/// Changes of Secrets and ConfigMaps that wait to be acted on.
const CHANGES_MAX: usize = 64;

type GuardedPool = DeserializeGuard<PgRoutingPool>;

struct Context {
    operator: Operator,
    pools: Store<GuardedPool>,
    caches: Caches,
    memories: Memories,
    /// How the names of this scope's watches end.
    scope_suffix: String,
}

/// Runs the controller of one scope until `stop`; passes under way end first.
pub async fn run(operator: Operator, scope: WatchScope, stop: CancellationToken) {
    let wide = watcher::Config::default();
    let ours = watcher::Config::default().labels(&format!("{LABEL_MANAGED_BY}={MANAGED_BY}"));
    let watch = Watch { client: &operator.client, scope: &scope, health: &operator.health };
    let (pools, pool_events) = watched(watch.api(), wide.clone(), watch.name("pools"), watch.health);
    let (deployments, deployment_events) =
        watched(watch.api(), ours.clone(), watch.name("deployments"), watch.health);
    let (services, service_events) = watched(watch.api(), ours.clone(), watch.name("services"), watch.health);
    let (service_accounts, account_events) =
        watched(watch.api(), ours.clone(), watch.name("serviceaccounts"), watch.health);
    let (disruption_budgets, budget_events) =
        watched(watch.api(), ours.clone(), watch.name("poddisruptionbudgets"), watch.health);
    let (network_policies, policy_events) =
        watched(watch.api(), ours.clone(), watch.name("networkpolicies"), watch.health);
    let (_, config_map_events) =
        watched::<ConfigMap>(watch.api(), ours.clone(), watch.name("configmaps"), watch.health);
    let (pods, pod_events) = watched(watch.api(), ours, watch.name("pods"), watch.health);
    let (endpoint_slices, slice_events) =
        watched(watch.api(), wide, watch.name("endpointslices"), watch.health);
    operator.fleet.add(pools.clone());
    let context = Arc::new(Context {
        caches: Caches {
            owned: OwnedStores {
                deployments,
                services,
                service_accounts,
                disruption_budgets,
                network_policies,
            },
            resolved: ResolveStores { dns: operator.dns.clone(), pods, endpoint_slices },
            pools: pools.clone(),
        },
        memories: Memories::new(operator.metrics.clone()),
        pools: pools.clone(),
        scope_suffix: watch.name(""),
        operator,
    });
    let forget = {
        let context = context.clone();
        move |event: &watcher::Result<watcher::Event<GuardedPool>>| match event {
            Ok(watcher::Event::Delete(pool)) => context.memories.forget(pool),
            Ok(watcher::Event::InitDone) => context.memories.keep_only(&context.pools.state()),
            Ok(watcher::Event::Apply(_) | watcher::Event::Init | watcher::Event::InitApply(_)) | Err(_) => {}
        }
    };
    let pool_changes = pool_events
        .inspect(forget)
        .applied_objects()
        .predicate_filter(predicates::generation, PredicateConfig::default());
    let became_leader = WatchStream::from_changes(context.operator.epoch.clone())
        .filter_map(|epoch| std::future::ready(epoch.map(|_| ())));
    let addresses_changed = WatchStream::from_changes(context.operator.dns.changes()).map(|_| ());
    let (changes, changed) = mpsc::channel(CHANGES_MAX);
    let named = named::run(
        context.operator.client.clone(),
        pools.clone(),
        context.operator.epoch.clone(),
        changes,
        stop.clone(),
    );
    let users_of_object = {
        let pools = pools.clone();
        move |object: Changed| pools_naming(&pools, &object)
    };
    let users_of_slice = {
        let pools = pools.clone();
        move |slice: EndpointSlice| pools_of_slice(&pools, &slice)
    };
    let controller = Controller::for_stream(pool_changes, pools)
        .with_config(Config::default().debounce(DEBOUNCE).concurrency(POOLS_AT_ONCE))
        .owns_stream(deployment_events.touched_objects())
        .owns_stream(service_events.touched_objects())
        .owns_stream(account_events.touched_objects())
        .owns_stream(budget_events.touched_objects())
        .owns_stream(policy_events.touched_objects())
        .owns_stream(config_map_events.touched_objects())
        .watches_stream(pod_events.touched_objects(), |pod: Pod| pool_of_pod(&pod))
        .watches_stream(slice_events.touched_objects(), users_of_slice)
        .watches_stream(ReceiverStream::new(changed).map(Ok), users_of_object)
        .reconcile_all_on(became_leader)
        .reconcile_all_on(addresses_changed)
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile, on_error, context)
        // Errors are logged where the policy is chosen; an object that is gone is none.
        .for_each(|_| std::future::ready(()));
    futures::join!(controller, named);
}

/// Where the watches of one scope look.
struct Watch<'a> {
    client: &'a Client,
    scope: &'a WatchScope,
    health: &'a WatchHealth,
}

impl Watch<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned,
    {
        match self.scope {
            WatchScope::Cluster => Api::all(self.client.clone()),
            WatchScope::Namespace(namespace) => Api::namespaced(self.client.clone(), namespace),
        }
    }

    fn name(&self, kind: &str) -> String {
        match self.scope {
            WatchScope::Cluster => kind.to_owned(),
            WatchScope::Namespace(namespace) => format!("{kind}/{namespace}"),
        }
    }
}

fn pool_of_pod(pod: &Pod) -> Option<ObjectRef<GuardedPool>> {
    let pool = pod.labels().get(LABEL_INSTANCE)?;
    Some(ObjectRef::new(pool).within(&pod.namespace()?))
}

fn pools_of_slice(pools: &Store<GuardedPool>, slice: &EndpointSlice) -> Vec<ObjectRef<GuardedPool>> {
    let Some(service) = slice.labels().get("kubernetes.io/service-name") else { return Vec::new() };
    let users = pools.state_filter(|pool| {
        pool.meta().namespace == slice.metadata.namespace
            && pool.0.as_ref().is_ok_and(|pool| uses_service(pool, service))
    });
    users.iter().map(|pool| ObjectRef::from_obj(&**pool)).collect()
}

fn pools_naming(pools: &Store<GuardedPool>, object: &Changed) -> Vec<ObjectRef<GuardedPool>> {
    let Some(name) = object.metadata.name.as_deref() else { return Vec::new() };
    let users = pools.state_filter(|pool| {
        pool.meta().namespace == object.metadata.namespace
            && pool.0.as_ref().is_ok_and(|pool| named::names(pool, name))
    });
    users.iter().map(|pool| ObjectRef::from_obj(&**pool)).collect()
}

async fn reconcile(object: Arc<GuardedPool>, context: Arc<Context>) -> Result<Action, PassError> {
    let Some(epoch) = *context.operator.epoch.borrow() else { return Ok(Action::await_change()) };
    if object.meta().deletion_timestamp.is_some() {
        // Its objects go with it: they have it as owner.
        return Ok(Action::await_change());
    }
    if !context.operator.health.is_scope_synced(&context.scope_suffix) {
        return Ok(Action::requeue(SYNC_PERIOD));
    }
    let timer = context.operator.metrics.reconcile_duration_seconds.start_timer();
    let mut memory = context.memories.take(&object);
    let result = match &object.0 {
        Ok(pool) => Box::pin(pass(pool, &context.operator, &context.caches, &mut memory, epoch)).await,
        Err(invalid) => mark_unreadable(&object, &invalid.error, &context.operator, &mut memory).await,
    };
    timer.observe_duration();
    memory.failures = if result.is_ok() { 0 } else { memory.failures.saturating_add(1) };
    context.memories.put_back(&object, memory);
    let word = if result.is_ok() { "ok" } else { "error" };
    context.operator.metrics.reconcile_total.with_label_values(&[word]).inc();
    result.map(|next| match next {
        NextLook::OnChange => Action::await_change(),
        NextLook::After(pause) => Action::requeue(pause),
    })
}

fn on_error(object: Arc<GuardedPool>, error: &PassError, context: Arc<Context>) -> Action {
    let failures = context.memories.failures(&object);
    let pause = Duration::from_secs(1 << failures.saturating_sub(1).min(6)).min(Duration::from_secs(60));
    context.operator.metrics.reconcile_errors_total.with_label_values(&[error.reason()]).inc();
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    tracing::warn!(namespace, name, %error, failures, pause_s = pause.as_secs(), "pass failed");
    Action::requeue(pause)
}

//! The controller: its watches, and one pass over a pool, a line a step.
//!
//! Every replica keeps its caches warm; only the holder of the Lease runs passes. The caches of a scope (one namespace
//! or the cluster) and the controller over them live and end together.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::events::Recorder;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{PredicateConfig, WatchStreamExt as _, predicates, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use pgrouting_crds::spec::{PgRoutingPool, Stage};
use pgrouting_crds::status::{ConditionStatus, PgRoutingPoolStatus};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;

use crate::apply::{Applier, ApplyFault, OwnedStores};
use crate::desired::config_map::Document;
use crate::desired::{DesiredError, DesiredObjects, desired};
use crate::events::{events_between, publish};
use crate::lease::Epoch;
use crate::memory::{Memories, PoolMemory};
use crate::metrics::Metrics;
use crate::names::{LABEL_INSTANCE, LABEL_MANAGED_BY, MANAGED_BY, PoolNames};
use crate::observe::{addresses, observe, pods_of};
use crate::resolve::{ResolveError, ResolveStores, ResolvedRefs, resolve, uses_service};
use crate::settings::WatchScope;
use crate::status::pass::{Pass, SpecVerdict};
use crate::status::{StatusError, status, unreadable, write, write_conditions};
use crate::validate::{InvalidSpec, SpecFault, ValidatedPool, validate};
use crate::watches::{WatchHealth, filled, watched};

/// How soon after the last of several changes a pass begins.
const DEBOUNCE: Duration = Duration::from_millis(30);
/// Pools that are worked on at once.
const POOLS_AT_ONCE: u16 = 16;
type GuardedPool = DeserializeGuard<PgRoutingPool>;

/// What the passes over all pools share.
#[derive(Clone)]
pub struct Operator {
    /// The API server.
    pub client: Client,
    /// The image of pools that name none.
    pub proxy_image: String,
    /// The metrics.
    pub metrics: Metrics,
    /// The one recorder of events; it counts repeats.
    pub recorder: Recorder,
    /// The epoch while this process leads.
    pub epoch: watch::Receiver<Option<Epoch>>,
    /// Whether the watches run.
    pub health: WatchHealth,
}

struct Context {
    operator: Operator,
    pools: Store<GuardedPool>,
    owned: OwnedStores,
    resolved: ResolveStores,
    memories: Memories,
}

/// Why a pass failed. Each is tried again, later and later.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// What the spec points at could not be read.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The objects could not be built.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// Some object was not applied, for a reason that may pass.
    #[error("{0}")]
    Apply(String),
    /// The proxies cannot be spoken to.
    #[error(transparent)]
    Access(#[from] crate::proxies::AccessError),
    /// The status was not written.
    #[error(transparent)]
    Status(#[from] StatusError),
}

impl PassError {
    /// The metric's label.
    fn reason(&self) -> &'static str {
        match self {
            Self::Resolve(_) => "resolve",
            Self::Desired(_) => "desired",
            Self::Apply(_) => "apply",
            Self::Access(_) => "access",
            Self::Status(_) => "status",
        }
    }
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
    let (_, config_map_events) =
        watched::<ConfigMap>(watch.api(), ours.clone(), watch.name("configmaps"), watch.health);
    let (pods, pod_events) = watched(watch.api(), ours, watch.name("pods"), watch.health);
    let (endpoint_slices, slice_events) =
        watched(watch.api(), wide, watch.name("endpointslices"), watch.health);
    let context = Arc::new(Context {
        owned: OwnedStores { deployments, services, service_accounts, disruption_budgets },
        resolved: ResolveStores { pods, endpoint_slices },
        memories: Memories::new(operator.metrics.clone()),
        pools: pools.clone(),
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
    let users_of_slice = {
        let pools = pools.clone();
        move |slice: EndpointSlice| pools_of_slice(&pools, &slice)
    };
    Controller::for_stream(pool_changes, pools)
        .with_config(Config::default().debounce(DEBOUNCE).concurrency(POOLS_AT_ONCE))
        .owns_stream(deployment_events.touched_objects())
        .owns_stream(service_events.touched_objects())
        .owns_stream(account_events.touched_objects())
        .owns_stream(budget_events.touched_objects())
        .owns_stream(config_map_events.touched_objects())
        .watches_stream(pod_events.touched_objects(), |pod: Pod| pool_of_pod(&pod))
        .watches_stream(slice_events.touched_objects(), users_of_slice)
        .reconcile_all_on(became_leader)
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile, on_error, context)
        // Errors are logged where the policy is chosen; an object that is gone is none.
        .for_each(|_| std::future::ready(()))
        .await;
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

async fn reconcile(object: Arc<GuardedPool>, context: Arc<Context>) -> Result<Action, PassError> {
    let Some(epoch) = *context.operator.epoch.borrow() else { return Ok(Action::await_change()) };
    if object.meta().deletion_timestamp.is_some() {
        // Its objects go with it: they have it as owner.
        return Ok(Action::await_change());
    }
    filled(&context.resolved.pods).await;
    filled(&context.resolved.endpoint_slices).await;
    filled(&context.owned.deployments).await;
    filled(&context.owned.services).await;
    filled(&context.owned.service_accounts).await;
    filled(&context.owned.disruption_budgets).await;
    let timer = context.operator.metrics.reconcile_duration_seconds.start_timer();
    let mut memory = context.memories.take(&object);
    let result = match &object.0 {
        Ok(pool) => Box::pin(pass(pool, &context, &mut memory, epoch)).await,
        Err(invalid) => mark_unreadable(&object, &invalid.error, &context, &mut memory).await,
    };
    timer.observe_duration();
    memory.failures = if result.is_ok() { 0 } else { memory.failures.saturating_add(1) };
    context.memories.put_back(&object, memory);
    let word = if result.is_ok() { "ok" } else { "error" };
    context.operator.metrics.reconcile_total.with_label_values(&[word]).inc();
    result
}

fn on_error(object: Arc<GuardedPool>, error: &PassError, context: Arc<Context>) -> Action {
    let failures = context.memories.failures(&object);
    let pause = Duration::from_secs(1 << failures.saturating_sub(1).min(6)).min(Duration::from_secs(60));
    context.operator.metrics.reconcile_errors_total.with_label_values(&[error.reason()]).inc();
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    tracing::warn!(namespace, name, %error, failures, pause_s = pause.as_secs(), "pass failed");
    Action::requeue(pause)
}

/// One pass over a pool.
#[tracing::instrument(
    skip_all,
    fields(namespace = pool.namespace(), name = pool.name_any(), generation = pool.metadata.generation)
)]
async fn pass(
    pool: &PgRoutingPool,
    context: &Context,
    memory: &mut PoolMemory,
    epoch: Epoch,
) -> Result<Action, PassError> {
    let operator = &context.operator;
    let pods = pods_of(&context.resolved.pods, &pool.namespace().unwrap_or_default(), &pool.name_any());
    // 1. What the spec points at (reads the API).
    let refs = resolve(&operator.client, &context.resolved, pool, memory.foreign_generation).await?;
    // 2 and 3. What there should be (pure).
    let built = build(pool, &refs, &operator.proxy_image)?;
    // 4. Write it (writes the API).
    let effect = Box::pin(put_into_effect(pool, built, &refs, &pods, context, memory)).await;
    // 5. Push it to the proxies that run another document, and hear what they say.
    let answers = match (memory.access(effect.admin.as_ref(), epoch)?, &effect.document) {
        (Some(access), Some(document)) => {
            access.converge(&addresses(&pods), document, &operator.metrics).await
        }
        (None, _) | (_, None) => Vec::new(),
    };
    let now = Timestamp::now();
    let observation = observe(&pods, effect.deployment.as_ref(), &answers, effect.document.as_ref(), now);
    memory.learn(&observation, effect.document.as_ref(), &operator.metrics);
    // 6. Say so (writes the status).
    let replicas_wanted = pool.spec.proxy.replicas;
    let found = Pass {
        generation: pool.metadata.generation,
        verdict: effect.verdict,
        document: effect.document.as_ref(),
        backend_faults: effect.validated.as_ref().map_or(&[], |validated| &validated.backend_faults),
        credential_faults: effect.validated.as_ref().map_or(&[], |validated| &validated.credential_faults),
        apply_faults: &effect.faults,
        observation: &observation,
        image: pool.spec.proxy.image.as_deref().unwrap_or(&operator.proxy_image),
        replicas_wanted,
        selector: PoolNames(&pool.name_any()).selector_text(),
    };
    report(pool, context, memory, &found, now).await?;
    let passing: Vec<_> =
        effect.faults.iter().filter(|fault| fault.may_pass()).map(ToString::to_string).collect();
    if !passing.is_empty() {
        return Err(PassError::Apply(passing.join("; ")));
    }
    // What waits for a person is looked at as seldom as what is settled.
    let is_moving = effect.faults.is_empty() && observation.is_unsettled(replicas_wanted);
    Ok(Action::requeue(memory.next_look(is_moving)))
}

type Built = Result<(ValidatedPool, DesiredObjects), SpecVerdict>;

/// Steps 2 and 3. A spec that makes no sense is a verdict, not an error.
fn build(pool: &PgRoutingPool, refs: &ResolvedRefs, proxy_image: &str) -> Result<Built, DesiredError> {
    let validated = match validate(pool, refs, proxy_image) {
        Ok(validated) => validated,
        Err(InvalidSpec { fault, reasons }) => {
            return Ok(Err(match fault {
                SpecFault::Field => SpecVerdict::Invalid(reasons),
                SpecFault::NoServers => SpecVerdict::NoServers(reasons),
            }));
        }
    };
    let config = pool.status.as_ref().and_then(|status| status.config.as_ref());
    let generation_in_status = config.and_then(|config| u64::try_from(config.generation).ok()).unwrap_or(0);
    match desired(&validated, refs, generation_in_status, Timestamp::now()) {
        Ok(objects) => Ok(Ok((validated, objects))),
        Err(DesiredError::Document(invalid)) => {
            let is_parameter = invalid.reasons.iter().all(|reason| reason.starts_with("pooling.parameters"));
            let reasons = invalid.reasons.iter().map(|reason| format!("spec.{reason}")).collect();
            Ok(Err(if is_parameter {
                SpecVerdict::InvalidParameter(reasons)
            } else {
                SpecVerdict::Invalid(reasons)
            }))
        }
        Err(error) => Err(error),
    }
}

/// What is in effect after step 4: this spec's objects, or the last good ones when it makes no sense.
struct Effect {
    verdict: SpecVerdict,
    validated: Option<ValidatedPool>,
    document: Option<Document>,
    deployment: Option<Deployment>,
    admin: Option<Secret>,
    faults: Vec<ApplyFault>,
}

/// Step 4.
async fn put_into_effect(
    pool: &PgRoutingPool,
    built: Built,
    refs: &ResolvedRefs,
    pods: &[Arc<Pod>],
    context: &Context,
    memory: &mut PoolMemory,
) -> Effect {
    let (namespace, name) = (pool.namespace().unwrap_or_default(), pool.name_any());
    let last_good = || refs.previous.clone().map(Document::new);
    let reference = ObjectRef::new(&PoolNames(&name).proxy()).within(&namespace);
    let known_deployment = || {
        let known = context.owned.deployments.get(&reference);
        known.filter(|known| is_owned(&**known, pool)).map(|known| (*known).clone())
    };
    let known_admin = || refs.admin.clone().filter(|admin| is_owned(admin, pool));
    let (validated, objects) = match built {
        Ok(built) => built,
        Err(verdict) => {
            return Effect {
                verdict,
                validated: None,
                document: last_good(),
                deployment: known_deployment(),
                admin: known_admin(),
                faults: Vec::new(),
            };
        }
    };
    memory.rendered(&objects.document, refs.previous.as_ref());
    let operator = &context.operator;
    let owner = validated.owner.clone();
    let applier = Applier::new(
        &operator.client,
        &context.owned,
        &operator.metrics,
        &mut memory.applied,
        namespace,
        owner,
    );
    let applied = Box::pin(applier.apply(objects, refs, pods)).await;
    Effect {
        verdict: SpecVerdict::Accepted,
        validated: Some(validated),
        document: applied.document.or_else(last_good),
        deployment: applied.deployment.or_else(known_deployment),
        admin: applied.admin.or_else(known_admin),
        faults: applied.faults,
    }
}

fn is_owned<K: Resource>(object: &K, pool: &PgRoutingPool) -> bool {
    object.owner_references().iter().any(|owner| Some(&owner.uid) == pool.metadata.uid.as_ref())
}

/// Step 6: writes the status if it differs from what is stored, and tells what changed.
async fn report(
    pool: &PgRoutingPool,
    context: &Context,
    memory: &mut PoolMemory,
    found: &Pass<'_>,
    now: Timestamp,
) -> Result<(), PassError> {
    let operator = &context.operator;
    let (namespace, name) = (pool.namespace().unwrap_or_default(), pool.name_any());
    // The cache may be behind our own last write, and then says nothing of what is stored.
    let before = memory.written.clone().or_else(|| pool.status.clone());
    let after = status(before.as_ref(), found, now);
    record_pool(&operator.metrics, &namespace, &name, &after, found);
    let is_stored = before.as_ref() == Some(&after) && pool.status.as_ref() == Some(&after);
    if is_stored {
        memory.written = Some(after);
        return Ok(());
    }
    let result = write(&operator.client, &namespace, &name, &after).await;
    let word = if result.is_ok() { "ok" } else { "error" };
    operator.metrics.status_patch_total.with_label_values(&[word]).inc();
    result?;
    let events = events_between(before.as_ref(), &after);
    memory.written = Some(after);
    publish(&operator.recorder, &pool.object_ref(&()), events).await;
    Ok(())
}

fn record_pool(
    metrics: &Metrics,
    namespace: &str,
    name: &str,
    status: &PgRoutingPoolStatus,
    found: &Pass<'_>,
) {
    let stage = Stage::PoolingOnly.as_str();
    metrics.pool_info.with_label_values(&[namespace, name, stage, stage]).set(1);
    for condition in &status.conditions {
        for value in [ConditionStatus::True, ConditionStatus::False, ConditionStatus::Unknown] {
            metrics
                .pool_condition
                .with_label_values(&[namespace, name, &condition.kind, value.as_str()])
                .set(i64::from(condition.status == value));
        }
    }
    let not_ready = found.replicas_wanted.saturating_sub(status.ready_replicas).max(0);
    for (state, count) in [("ready", status.ready_replicas), ("not_ready", not_ready)] {
        metrics.pool_pods.with_label_values(&[namespace, name, state]).set(i64::from(count));
    }
    let (applied, total) = found.observation.applied_of_total();
    let behind = i64::try_from(total - applied).unwrap_or(i64::MAX);
    metrics.pool_pods_out_of_sync.with_label_values(&[namespace, name]).set(behind);
}

/// Says of an object that does not read that it does not, once for each of its errors.
async fn mark_unreadable(
    object: &GuardedPool,
    error: &str,
    context: &Context,
    memory: &mut PoolMemory,
) -> Result<Action, PassError> {
    let operator = &context.operator;
    if memory.unreadable.as_deref() != Some(error) {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        tracing::warn!(namespace, name, error, "the object does not read");
        let generation = object.meta().generation;
        let conditions = unreadable(error, generation, Timestamp::now());
        write_conditions(&operator.client, &namespace, &name, generation, &conditions).await?;
        memory.written = None;
        memory.unreadable = Some(error.to_owned());
    }
    Ok(Action::await_change())
}

//! One pass over a pool, a line a step: from its spec to its status.
//!
//! Takes the caches and what is remembered of the pool; the steps are in files of their own.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::core::DeserializeGuard;
use kube::runtime::events::Recorder;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource, ResourceExt as _};
use pgrouting_crds::spec::{PgRoutingPool, Reconciliation};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::{ConditionStatus, PgRoutingPoolStatus};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::apply::{Applier, ApplyFault, OwnedStores};
use crate::controller::judge::{Judged, ask_prometheus, has_moved};
use crate::desired::config_map::Document;
use crate::desired::network_policy::network_policy;
use crate::desired::{DesiredError, DesiredObjects, desired};
use crate::dns::Dns;
use crate::events::{events_between, publish};
use crate::fleet::Fleet;
use crate::images::{image_of, is_rolled_out, plan};
use crate::lease::Epoch;
use crate::memory::PoolMemory;
use crate::metrics::Metrics;
use crate::names::PoolNames;
use crate::observe::{addresses, observe, pods_of};
use crate::position::{Position, enter};
use crate::prometheus_query::PrometheusUrl;
use crate::proxies::AccessError;
use crate::resolve::{ResolveError, ResolveStores, ResolvedRefs, resolve};
use crate::status::found::{Budget, Found, SpecVerdict};
use crate::status::{StatusError, forbidden, read, status, unreadable, write, write_conditions};
use crate::validate::{InvalidSpec, SpecFault, ValidatedPool, validate};
use crate::watches::WatchHealth;

/// How soon to try again what the operator may not do. An edit is tried at once.
const FORBIDDEN_PERIOD: Duration = Duration::from_secs(30);
/// How often the proxies are asked while gates are judged.
const JUDGING_PERIOD: Duration = Duration::from_secs(2);

/// What the passes over all pools share.
#[derive(Clone)]
pub struct Operator {
    /// The API server.
    pub client: Client,
    /// The image of pools that name none.
    pub proxy_image: String,
    /// The operator's own namespace.
    pub namespace: String,
    /// The metrics.
    pub metrics: Metrics,
    /// The one recorder of events; it counts repeats.
    pub recorder: Recorder,
    /// The epoch while this process leads.
    pub epoch: watch::Receiver<Option<Epoch>>,
    /// Whether the watches run.
    pub health: WatchHealth,
    /// All pools of all scopes.
    pub fleet: Fleet,
    /// What the installed definition lacks.
    pub missing_parts: watch::Receiver<Vec<String>>,
    /// Host names that pools take their servers from.
    pub dns: Dns,
    /// When it began.
    pub started: Instant,
    /// The Prometheus that gates may ask.
    pub prometheus: Option<PrometheusUrl>,
}

/// The caches that a pass reads.
#[derive(Clone)]
pub struct Caches {
    /// Of the kinds that pools own.
    pub owned: OwnedStores,
    /// Of what pools point at.
    pub resolved: ResolveStores,
    /// Of the pools themselves.
    pub pools: Store<DeserializeGuard<PgRoutingPool>>,
}

/// When to look at a pool again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextLook {
    /// When something changes.
    OnChange,
    /// After this, or when something changes.
    After(Duration),
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
    Access(#[from] AccessError),
    /// The status was not written.
    #[error(transparent)]
    Status(#[from] StatusError),
}

impl PassError {
    /// The error as a metric's label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Resolve(_) => "resolve",
            Self::Desired(_) => "desired",
            Self::Apply(_) => "apply",
            Self::Access(_) => "access",
            Self::Status(_) => "status",
        }
    }
}

/// One pass over a pool.
#[tracing::instrument(
    skip_all,
    fields(namespace = pool.namespace(), name = pool.name_any(), generation = pool.metadata.generation)
)]
pub async fn pass(
    pool: &PgRoutingPool,
    operator: &Operator,
    caches: &Caches,
    memory: &mut PoolMemory,
    epoch: Epoch,
) -> Result<NextLook, PassError> {
    memory.unreadable = None;
    if memory.written.is_none() {
        // The first pass of this leader: what the one before wrote last may not be in the cache yet.
        memory.written =
            read(&operator.client, &pool.namespace().unwrap_or_default(), &pool.name_any()).await?;
    }
    let pods = pods_of(&caches.resolved.pods, &pool.namespace().unwrap_or_default(), &pool.name_any());
    // 1. What the spec points at (reads the API).
    let refs = resolve(&operator.client, &caches.resolved, pool, memory.foreign_generation).await;
    let refs = match refs {
        Ok(refs) => refs,
        Err(error) if error.is_forbidden() => return blocked(pool, operator, memory, &error).await,
        Err(error) => return Err(error.into()),
    };
    // 2 and 3. What there should be (pure), the rollout as far as the spec alone decides on it.
    let before = memory.written.as_ref().or(pool.status.as_ref()).and_then(|status| status.rollout.clone());
    let entered = enter(before.as_ref(), refs.previous.as_ref(), &pool.spec, Timestamp::now());
    let running = known_deployment(pool, caches);
    let images = plan(
        pool,
        running.as_ref().and_then(image_of),
        || operator.fleet.members(&operator.health),
        &operator.proxy_image,
    );
    let built = match pool.spec.reconciliation {
        Reconciliation::Active => build(pool, &refs, &Position::of(&entered), &images.image)?,
        Reconciliation::Suspended => Err(SpecVerdict::Suspended),
    };
    // 4. Write it (writes the API).
    let effect = Box::pin(put_into_effect(pool, built, &refs, &pods, operator, caches, memory)).await;
    // 5. Push it to the proxies that run another document, and hear what they say.
    let answers = match (memory.access(effect.admin.as_ref(), epoch)?, &effect.document) {
        (Some(access), Some(document)) => {
            let has_changed = memory.has_just_changed();
            let proxies = addresses(&pods, &memory.silent, has_changed);
            match effect.verdict {
                SpecVerdict::Suspended => access.ask(&proxies, &operator.metrics).await,
                _ => access.converge(&proxies, document, &operator.metrics).await,
            }
        }
        (None, _) | (_, None) => Vec::new(),
    };
    let now = Timestamp::now();
    let observation = observe(&pods, effect.deployment.as_ref(), &answers, effect.document.as_ref(), now);
    memory.learn(&observation, &answers, &operator.metrics);
    // 6. May the rollout go on? (asks a Prometheus where there is one to ask, and is pure apart from that)
    let decision = match effect.verdict {
        SpecVerdict::Accepted => {
            ask_prometheus(operator.prometheus.as_ref(), pool, memory).await;
            let judged = Judged {
                pool,
                pools: &caches.pools,
                entered: &entered,
                answers: &answers,
                observation: &observation,
                deployment: effect.deployment.as_ref(),
                now,
                uptime: operator.started.elapsed(),
            };
            Some(judged.decide(memory))
        }
        SpecVerdict::Invalid(_)
        | SpecVerdict::InvalidParameter(_)
        | SpecVerdict::NoServers(_)
        | SpecVerdict::NoLogins(_)
        | SpecVerdict::Suspended => None,
    };
    let has_moved = decision.as_ref().is_some_and(|decision| has_moved(&entered, &decision.rollout));
    // 7. Say so (writes the status).
    let missing_parts = operator.missing_parts.borrow().clone();
    let replicas_wanted = pool.spec.proxy.replicas;
    let credential_faults = match (&effect.validated, &effect.verdict) {
        (Some(validated), _) => &validated.credential_faults[..],
        (None, SpecVerdict::NoLogins(faults)) => &faults.clone()[..],
        (None, _) => &[],
    };
    let found = Found {
        generation: pool.metadata.generation,
        target: pool.spec.rollout.stage,
        rollout: decision.as_ref().map(|decision| &decision.rollout).or(before.as_ref()),
        progress: decision.as_ref().map(|decision| &decision.progress),
        progress_deadline: pool.spec.rollout.progress_deadline.get(),
        verdict: effect.verdict,
        document: effect.document.as_ref(),
        backend_faults: effect.validated.as_ref().map_or(&[], |validated| &validated.backend_faults),
        credential_faults,
        certificate_ends: effect.validated.as_ref().map_or(&[], |validated| &validated.tls.ends),
        apply_faults: &effect.faults,
        missing_parts: &missing_parts,
        observation: &observation,
        images: &images,
        image: effect.deployment.as_ref().and_then(image_of),
        is_rolled_out: effect.deployment.as_ref().is_some_and(is_rolled_out),
        budget: effect.validated.as_ref().map(|validated| Budget {
            connections: validated.pooling.max_server_connections,
            pods: validated.sharing_pods,
        }),
        replicas_wanted,
        selector: PoolNames(&pool.name_any()).selector_text(),
    };
    report(pool, operator, memory, &found, now).await?;
    let passing: Vec<_> =
        effect.faults.iter().filter(|fault| fault.may_pass()).map(ToString::to_string).collect();
    if !passing.is_empty() {
        return Err(PassError::Apply(passing.join("; ")));
    }
    if has_moved {
        // What has been decided and written down is now done.
        return Ok(NextLook::After(Duration::ZERO));
    }
    // What waits for a person is looked at as seldom as what is settled.
    let is_moving = effect.faults.is_empty() && observation.is_unsettled(replicas_wanted);
    let pause = memory.next_look(is_moving).min(images.next_look());
    let is_judging = decision.is_some_and(|decision| decision.progress.is_under_way());
    // A gate that fails at once is to be seen at once.
    let judging_period = pool.spec.rollout.evaluation_period.get().min(JUDGING_PERIOD * 5) / 5;
    Ok(NextLook::After(if is_judging { pause.min(judging_period) } else { pause }))
}

type Built = Result<(ValidatedPool, DesiredObjects), SpecVerdict>;

/// Steps 2 and 3. A spec that makes no sense is a verdict, not an error.
fn build(
    pool: &PgRoutingPool,
    refs: &ResolvedRefs,
    position: &Position,
    proxy_image: &str,
) -> Result<Built, DesiredError> {
    let validated = match validate(pool, refs, position, proxy_image) {
        Ok(validated) => validated,
        Err(InvalidSpec { fault, reasons }) => {
            return Ok(Err(match fault {
                SpecFault::Field => SpecVerdict::Invalid(reasons),
                SpecFault::NoServers => SpecVerdict::NoServers(reasons),
                SpecFault::NoLogins(faults) => SpecVerdict::NoLogins(faults),
            }));
        }
    };
    let config = pool.status.as_ref().and_then(|status| status.config.as_ref());
    let generation_in_status = config.and_then(|config| u64::try_from(config.generation).ok()).unwrap_or(0);
    match desired(&validated, refs, generation_in_status, Timestamp::now()) {
        Ok(objects) => Ok(Ok((validated, objects))),
        Err(DesiredError::Document(invalid)) => {
            let is_parameter = |reason: &String| {
                ["pooling.parameters", "mirror.parameters"].iter().any(|path| reason.starts_with(path))
            };
            let is_parameter = invalid.reasons.iter().all(is_parameter);
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
    operator: &Operator,
    caches: &Caches,
    memory: &mut PoolMemory,
) -> Effect {
    let known = known_deployment(pool, caches);
    let last_good = || refs.previous.clone().map(Document::new);
    let known_admin = || refs.admin.clone().filter(|admin| is_owned(admin, pool));
    let (validated, mut objects) = match built {
        Ok(built) => built,
        Err(verdict) => {
            return Effect {
                verdict,
                validated: None,
                document: last_good(),
                deployment: known,
                admin: known_admin(),
                faults: Vec::new(),
            };
        }
    };
    objects.network_policy = network_policy(&validated, &operator.namespace);
    memory.rendered(&objects.document, refs.previous.as_ref());
    let owner = validated.owner.clone();
    let applier = Applier::new(
        &operator.client,
        &caches.owned,
        &operator.metrics,
        &mut memory.applied,
        pool.namespace().unwrap_or_default(),
        owner,
    );
    let applied = Box::pin(applier.apply(objects, refs, pods)).await;
    Effect {
        verdict: SpecVerdict::Accepted,
        validated: Some(validated),
        document: applied.document.or_else(last_good),
        deployment: applied.deployment.or(known),
        admin: applied.admin.or_else(known_admin),
        faults: applied.faults,
    }
}

/// The pool's Deployment, as the cache has it.
fn known_deployment(pool: &PgRoutingPool, caches: &Caches) -> Option<Deployment> {
    let namespace = pool.namespace().unwrap_or_default();
    let reference = ObjectRef::new(&PoolNames(&pool.name_any()).proxy()).within(&namespace);
    let known = caches.owned.deployments.get(&reference)?;
    is_owned(&*known, pool).then(|| (*known).clone())
}

fn is_owned<K: Resource>(object: &K, pool: &PgRoutingPool) -> bool {
    object.owner_references().iter().any(|owner| Some(&owner.uid) == pool.metadata.uid.as_ref())
}

/// The operator may not read what it must: nothing is changed, and the status says so.
async fn blocked(
    pool: &PgRoutingPool,
    operator: &Operator,
    memory: &mut PoolMemory,
    error: &ResolveError,
) -> Result<NextLook, PassError> {
    let before = memory.written.clone().or_else(|| pool.status.clone());
    let after = forbidden(before.as_ref(), &error.to_string(), pool.metadata.generation, Timestamp::now());
    store_status(pool, operator, memory, before, after).await?;
    Ok(NextLook::After(FORBIDDEN_PERIOD))
}

/// Step 7.
async fn report(
    pool: &PgRoutingPool,
    operator: &Operator,
    memory: &mut PoolMemory,
    found: &Found<'_>,
    now: Timestamp,
) -> Result<(), PassError> {
    // The cache may be behind our own last write, and then says nothing of what is stored.
    let before = memory.written.clone().or_else(|| pool.status.clone());
    let after = status(before.as_ref(), found, now);
    let (namespace, name) = (pool.namespace().unwrap_or_default(), pool.name_any());
    record_pool(&operator.metrics, &namespace, &name, &after, found);
    let (known, rollout) = (before.as_ref().and_then(|status| status.rollout.clone()), after.rollout.clone());
    store_status(pool, operator, memory, before, after).await?;
    if let Some(rollout) = &rollout {
        operator.metrics.rollout.tell(&namespace, &name, known.as_ref(), rollout);
    }
    Ok(())
}

/// Writes a status if it differs from what is stored, and tells what changed.
async fn store_status(
    pool: &PgRoutingPool,
    operator: &Operator,
    memory: &mut PoolMemory,
    before: Option<PgRoutingPoolStatus>,
    after: PgRoutingPoolStatus,
) -> Result<(), PassError> {
    let is_stored = before.as_ref() == Some(&after) && pool.status.as_ref() == Some(&after);
    if is_stored {
        memory.written = Some(after);
        return Ok(());
    }
    let (namespace, name) = (pool.namespace().unwrap_or_default(), pool.name_any());
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
    found: &Found<'_>,
) {
    let stage = status.rollout.as_ref().map_or(Stage::PoolingOnly, |rollout| rollout.stage);
    metrics.tell_stage(namespace, name, stage.as_str(), found.target.as_str());
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
pub async fn mark_unreadable(
    object: &DeserializeGuard<PgRoutingPool>,
    error: &str,
    operator: &Operator,
    memory: &mut PoolMemory,
) -> Result<NextLook, PassError> {
    if memory.unreadable.as_deref() != Some(error) {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        tracing::warn!(namespace, name, error, "the object does not read");
        let generation = object.meta().generation;
        let conditions = unreadable(error, generation, Timestamp::now());
        write_conditions(&operator.client, &namespace, &name, generation, &conditions).await?;
        memory.written = None;
        memory.unreadable = Some(error.to_owned());
    }
    Ok(NextLook::OnChange)
}

#[cfg(test)]
mod tests;

//! What the operator remembers of a pool between two passes.
//!
//! All of it can be lost: it only saves writes, handshakes and time. What must survive a restart is in the status and in
//! the pool's objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::core::DeserializeGuard;
use kube::{Resource as _, ResourceExt as _};
use pgrouting_contract::config::ProxyConfig;
use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::status::PgRoutingPoolStatus;
use tokio::time::Instant;

use crate::apply::ApplyMemory;
use crate::certificates::AdminCertificates;
use crate::desired::config_map::Document;
use crate::desired::secret::admin_certificates;
use crate::lease::Epoch;
use crate::metrics::Metrics;
use crate::observe::Observation;
use crate::proxies::{AccessError, ProxyAccess, ProxyAnswer, ProxyError};
use crate::rollout::lookout::Lookout;
use crate::rollout::stand::ExternalValue;

/// How long a settled pool is left alone.
const SETTLED_PERIOD: Duration = Duration::from_secs(10);
/// How soon an unsettled pool is looked at again, at first.
const UNSETTLED_PERIOD: Duration = Duration::from_millis(500);
/// How soon, when it has been unsettled for longer.
const LONG_UNSETTLED_PERIOD: Duration = Duration::from_secs(3);
/// When that is.
const LONG_UNSETTLED: Duration = Duration::from_secs(30);

/// What is remembered of one pool.
#[derive(Default)]
pub struct PoolMemory {
    /// What was applied and need not be sent again.
    pub applied: ApplyMemory,
    /// The status that was last written.
    pub written: Option<PgRoutingPoolStatus>,
    /// The error of an object that does not read, once it has been told.
    pub unreadable: Option<String>,
    /// The highest generation of another document that a proxy runs.
    pub foreign_generation: u64,
    /// The pods that did not answer the last time.
    pub silent: BTreeSet<String>,
    /// How many passes in a row have failed.
    pub failures: u32,
    /// What is remembered of the figures.
    lookout: Lookout,
    /// What a Prometheus said, and when.
    external: (Option<Instant>, BTreeMap<String, ExternalValue>),
    uid: Option<String>,
    access: Option<(AdminCertificates, Epoch, ProxyAccess)>,
    unsettled_since: Option<Instant>,
    /// Whether this pass changed the document.
    has_changed: bool,
    /// When the document changed that not all pods have acknowledged yet.
    changed_at: Option<Instant>,
}

impl PoolMemory {
    /// A document has been rendered.
    pub fn rendered(&mut self, document: &Document, previous: Option<&ProxyConfig>) {
        self.has_changed = previous != Some(&document.config);
        if self.has_changed {
            self.changed_at = Some(Instant::now());
            self.unsettled_since = None;
        }
    }

    /// The right to speak to the proxies, kept as long as certificates and epoch stay.
    ///
    /// # Errors
    /// When the certificates do not read.
    pub fn access(
        &mut self,
        admin: Option<&Secret>,
        epoch: Epoch,
    ) -> Result<Option<ProxyAccess>, AccessError> {
        let Some(certificates) = admin.and_then(admin_certificates) else { return Ok(None) };
        if let Some((known, known_epoch, access)) = &self.access
            && *known == certificates
            && *known_epoch == epoch
        {
            return Ok(Some(access.clone()));
        }
        let access = ProxyAccess::new(&certificates, epoch.0)?;
        self.access = Some((certificates, epoch, access.clone()));
        Ok(Some(access))
    }

    /// Whether this pass changed the document. Asked once, after it has been rendered.
    pub fn has_just_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Takes in what the proxies said.
    pub fn learn(&mut self, observation: &Observation, answers: &[ProxyAnswer], metrics: &Metrics) {
        let silent = answers.iter().filter(|answer| matches!(answer.report, Err(ProxyError::Timeout)));
        self.silent = silent.map(|answer| answer.pod.clone()).collect();
        self.foreign_generation = self.foreign_generation.max(observation.foreign_generation);
        let (applied, total) = observation.applied_of_total();
        if total > 0
            && applied == total
            && let Some(changed_at) = self.changed_at.take()
        {
            metrics.config_propagation_seconds.observe(changed_at.elapsed().as_secs_f64());
        }
    }

    /// What the rollout is decided by: what a Prometheus said, and the figures so far.
    pub const fn rollout(&mut self) -> (&BTreeMap<String, ExternalValue>, &mut Lookout) {
        (&self.external.1, &mut self.lookout)
    }

    /// Whether a Prometheus has not been asked for so long.
    #[must_use]
    pub fn is_external_due(&self, period: Duration) -> bool {
        self.external.0.is_none_or(|asked| asked.elapsed() >= period)
    }

    /// What a Prometheus says now.
    pub fn external_answers(&mut self, answers: BTreeMap<String, ExternalValue>) {
        self.external = (Some(Instant::now()), answers);
    }

    /// How long to wait for the next pass.
    pub fn next_look(&mut self, is_unsettled: bool) -> Duration {
        if !is_unsettled {
            self.unsettled_since = None;
            return if self.silent.is_empty() { SETTLED_PERIOD } else { LONG_UNSETTLED_PERIOD };
        }
        let since = *self.unsettled_since.get_or_insert_with(Instant::now);
        if since.elapsed() < LONG_UNSETTLED { UNSETTLED_PERIOD } else { LONG_UNSETTLED_PERIOD }
    }
}

/// What is remembered of all pools of a scope.
pub struct Memories {
    pools: Mutex<HashMap<(String, String), PoolMemory>>,
    metrics: Metrics,
}

impl Memories {
    /// Nothing yet.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self { pools: Mutex::default(), metrics }
    }

    /// Takes one pool's memory for a pass; no pool has two passes at once. A pool that was deleted and made again
    /// begins anew.
    #[must_use]
    pub fn take(&self, pool: &DeserializeGuard<PgRoutingPool>) -> PoolMemory {
        let memory = self.pools().remove(&key(pool)).unwrap_or_default();
        let uid = pool.meta().uid.clone();
        if memory.uid == uid { memory } else { PoolMemory { uid, ..PoolMemory::default() } }
    }

    /// Gives it back.
    pub fn put_back(&self, pool: &DeserializeGuard<PgRoutingPool>, memory: PoolMemory) {
        self.pools().insert(key(pool), memory);
    }

    /// How many passes in a row have failed.
    #[must_use]
    pub fn failures(&self, pool: &DeserializeGuard<PgRoutingPool>) -> u32 {
        self.pools().get(&key(pool)).map_or(0, |memory| memory.failures)
    }

    /// Forgets a pool that is gone, and drops its metrics.
    pub fn forget(&self, pool: &DeserializeGuard<PgRoutingPool>) {
        let (namespace, name) = key(pool);
        self.metrics.forget_pool(&namespace, &name);
        self.pools().remove(&(namespace, name));
    }

    /// Forgets all pools but these.
    pub fn keep_only(&self, pools: &[std::sync::Arc<DeserializeGuard<PgRoutingPool>>]) {
        let there: std::collections::HashSet<_> = pools.iter().map(|pool| key(pool)).collect();
        self.pools().retain(|(namespace, name), _| {
            let is_there = there.contains(&(namespace.clone(), name.clone()));
            if !is_there {
                self.metrics.forget_pool(namespace, name);
            }
            is_there
        });
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<(String, String), PoolMemory>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(pool: &DeserializeGuard<PgRoutingPool>) -> (String, String) {
    (pool.namespace().unwrap_or_default(), pool.name_any())
}

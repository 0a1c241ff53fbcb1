//! All pools that this operator knows, over all its scopes.

use std::sync::{Arc, Mutex, PoisonError};

use kube::core::DeserializeGuard;
use kube::runtime::reflector::Store;
use pgrouting_crds::spec::PgRoutingPool;

use crate::images::Member;
use crate::watches::WatchHealth;

/// The caches of all scopes' pools.
#[derive(Clone, Default)]
pub struct Fleet(Arc<Mutex<Vec<Store<DeserializeGuard<PgRoutingPool>>>>>);

impl Fleet {
    /// Adds the pools of a scope.
    pub fn add(&self, pools: Store<DeserializeGuard<PgRoutingPool>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(pools);
    }

    /// All pools that read; `None` until every scope has listed its own.
    #[must_use]
    pub fn members(&self, health: &WatchHealth) -> Option<Vec<Member>> {
        if !health.is_synced() {
            return None;
        }
        let stores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pools = stores.iter().flat_map(Store::state);
        Some(pools.filter_map(|pool| pool.0.as_ref().ok().map(Member::of)).collect())
    }
}

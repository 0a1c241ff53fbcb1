//! Looks whether the Secrets and ConfigMaps that pools name have changed, so that a new password is not left to the next look.
//!
//! The operator may read each of them and list none, so it asks for the metadata of one after the other: every two
//! seconds, and seldomer where that would be more than a hundred requests a second. Only versions are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::reflector::Store;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::spec::tls::CaKind;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::lease::Epoch;
use crate::resolve::files::{ObjectReference, referenced_files};
use crate::resolve::{API_TIMEOUT, referenced_secrets};

/// How often all of them are looked at, where they are few.
const PERIOD: Duration = Duration::from_secs(2);
/// What each of them adds to the period, where they are many.
const EACH: Duration = Duration::from_millis(10);
/// How long one is left alone that the operator may not read.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(60);
const READS_AT_ONCE: usize = 4;

/// What has changed, as the controller takes it: an object's name, and nothing of what is in it.
pub type Changed = PartialObjectMeta<Secret>;

/// An object in a namespace.
type Key = (String, ObjectReference);

/// Looks until `stop`, while this process leads, and says what has changed.
pub async fn run(
    client: Client,
    pools: Store<DeserializeGuard<PgRoutingPool>>,
    epoch: watch::Receiver<Option<Epoch>>,
    changes: mpsc::Sender<Changed>,
    stop: CancellationToken,
) {
    let mut versions = Versions::default();
    let mut period = PERIOD;
    while stop.run_until_cancelled(sleep(period)).await.is_some() {
        if epoch.borrow().is_none() {
            continue;
        }
        let keys = keys(&pools);
        period = PERIOD.max(EACH * u32::try_from(keys.len()).unwrap_or(u32::MAX));
        let Some(changed) = stop.run_until_cancelled(versions.look(&client, keys)).await else { return };
        for (namespace, object) in changed {
            let mut metadata = Changed::default();
            metadata.metadata.namespace = Some(namespace);
            metadata.metadata.name = Some(object.name);
            if changes.send(metadata).await.is_err() {
                return;
            }
        }
    }
}

/// Whether a pool names an object of this name.
#[must_use]
pub fn names(pool: &PgRoutingPool, name: &str) -> bool {
    objects(pool).iter().any(|object| object.name == name)
}

fn objects(pool: &PgRoutingPool) -> BTreeSet<ObjectReference> {
    let secrets = referenced_secrets(pool)
        .into_iter()
        .map(|reference| ObjectReference { kind: CaKind::Secret, name: reference.name });
    let files = referenced_files(&pool.spec).into_iter().flatten().map(|file| file.object);
    secrets.chain(files).collect()
}

fn keys(pools: &Store<DeserializeGuard<PgRoutingPool>>) -> BTreeSet<Key> {
    let pools = pools.state();
    let live = pools.iter().filter(|pool| pool.meta().deletion_timestamp.is_none());
    live.filter_map(|pool| pool.0.as_ref().ok())
        .flat_map(|pool| {
            let namespace = pool.namespace().unwrap_or_default();
            objects(pool).into_iter().map(move |object| (namespace.clone(), object))
        })
        .collect()
}

/// The versions that were seen last.
#[derive(Default)]
struct Versions {
    /// `None` of an object that is not there.
    known: BTreeMap<Key, Option<String>>,
    forbidden: BTreeMap<Key, Instant>,
}

impl Versions {
    /// Those of `keys` that are not as they were the last time. What is seen for the first time has not changed.
    async fn look(&mut self, client: &Client, keys: BTreeSet<Key>) -> Vec<Key> {
        self.known.retain(|key, _| keys.contains(key));
        self.forbidden.retain(|key, since| keys.contains(key) && since.elapsed() < FORBIDDEN_PAUSE);
        let due: Vec<_> = keys.into_iter().filter(|key| !self.forbidden.contains_key(key)).collect();
        let reads = futures::stream::iter(due).map(|key| async move {
            let version = version(client, &key).await;
            (key, version)
        });
        let mut reads = reads.buffer_unordered(READS_AT_ONCE);
        let mut changed = Vec::new();
        while let Some((key, version)) = reads.next().await {
            match version {
                Seen::Version(version) => {
                    let before = self.known.insert(key.clone(), version.clone());
                    if before.is_some_and(|before| before != version) {
                        changed.push(key);
                    }
                }
                Seen::Forbidden => {
                    self.forbidden.insert(key, Instant::now());
                }
                Seen::Nothing => {}
            }
        }
        changed
    }
}

enum Seen {
    Version(Option<String>),
    Forbidden,
    /// The API server did not answer: the next look will tell.
    Nothing,
}

async fn version(client: &Client, (namespace, object): &Key) -> Seen {
    let client = client.clone();
    let read = async {
        match object.kind {
            CaKind::Secret => {
                let api: Api<Secret> = Api::namespaced(client, namespace);
                api.get_metadata_opt(&object.name).await.map(|found| found.and_then(|f| f.resource_version()))
            }
            CaKind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(client, namespace);
                api.get_metadata_opt(&object.name).await.map(|found| found.and_then(|f| f.resource_version()))
            }
        }
    };
    match timeout(API_TIMEOUT, read).await {
        Ok(Ok(version)) => Seen::Version(version),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Seen::Forbidden,
        Ok(Err(_)) | Err(_) => Seen::Nothing,
    }
}

#[cfg(test)]
mod tests;

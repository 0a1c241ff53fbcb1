//! Watches that each recover on their own, and the record of whether they still run.
//!
//! kube's controller has one backoff for all its watches, and one that fails can keep the others from ever connecting
//! again. So each stream here has its own, and its errors end here: counted, logged, never passed on.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// A watch that nobody has driven for this long is stuck. The API server speaks on each of them every few minutes,
/// and a failing one is tried again at least twice a minute.
const STUCK_AFTER: Duration = Duration::from_secs(600);

/// Whether the watches run. Clones share their record.
#[derive(Debug, Clone)]
pub struct WatchHealth {
    metrics: Metrics,
    watches: Arc<Mutex<BTreeMap<String, WatchState>>>,
}

#[derive(Debug)]
struct WatchState {
    driven_at: Instant,
    is_synced: bool,
}

impl WatchHealth {
    /// With no watch yet.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, watches: Arc::default() }
    }

    /// The watches that nobody drives any more.
    #[must_use]
    pub fn stuck(&self) -> Vec<String> {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let stuck = watches.iter().filter(|(_, state)| state.driven_at.elapsed() > STUCK_AFTER);
        stuck.map(|(name, _)| name.clone()).collect()
    }

    /// Whether every watch has listed its objects once.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        !watches.is_empty() && watches.values().all(|state| state.is_synced)
    }

    /// Whether all watches whose name ends like this have listed their objects once.
    ///
    /// Not asked of the caches themselves: of several that wait for one of kube's stores, only the last is woken.
    #[must_use]
    pub fn is_scope_synced(&self, suffix: &str) -> bool {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scope = watches.iter().filter(|(name, _)| name.ends_with(suffix)).peekable();
        scope.peek().is_some() && scope.all(|(_, state)| state.is_synced)
    }

    /// Writes the ages into the metrics.
    pub fn record_ages(&self) {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, state) in watches.iter() {
            let age = state.driven_at.elapsed().as_secs_f64();
            self.metrics.watch_last_progress_seconds.with_label_values(&[name]).set(age);
        }
    }

    fn driven(&self, name: &str) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match watches.get_mut(name) {
            Some(state) => state.driven_at = now,
            None => {
                watches.insert(name.to_owned(), WatchState { driven_at: now, is_synced: false });
            }
        }
    }

    fn synced(&self, name: &str) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = watches.get_mut(name) {
            state.is_synced = true;
        }
    }
}

/// The events of one watch that never ends and never fails, and the cache that it fills.
pub fn watched<K>(
    api: Api<K>,
    config: watcher::Config,
    name: String,
    health: &WatchHealth,
) -> (Store<K>, impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let writer = Writer::<K>::new(());
    let store = writer.as_reader();
    (store, quiet(reflector::reflector(writer, driven(watcher(api, config), name, health.clone()))))
}

/// Records each time that the stream is driven, backs off by itself after an error, and takes errors out.
fn driven<K>(
    stream: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    name: String,
    health: WatchHealth,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static
where
    K: Send + 'static,
{
    health.driven(&name);
    let restarts = health.metrics.watch_restarts_total.with_label_values(&[&name]);
    let stream = stream.default_backoff().filter_map({
        let (name, health) = (name.clone(), health.clone());
        move |event| {
            let event = match event {
                Ok(event) => {
                    if matches!(event, watcher::Event::InitDone) {
                        health.synced(&name);
                    }
                    Some(Ok(event))
                }
                Err(error) => {
                    restarts.inc();
                    tracing::warn!(watch = name, %error, "watch failed, starting it again");
                    None
                }
            };
            std::future::ready(event)
        }
    });
    Driven { stream: stream.boxed(), name, health }
}

fn quiet<T>(stream: impl Stream<Item = T> + Send + 'static) -> impl Stream<Item = T> + Send + 'static {
    stream
}

struct Driven<T> {
    stream: Pin<Box<dyn Stream<Item = T> + Send>>,
    name: String,
    health: WatchHealth,
}

impl<T> Stream for Driven<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let this = &mut *self;
        this.health.driven(&this.name);
        this.stream.as_mut().poll_next(context)
    }
}

#[cfg(test)]
mod tests;

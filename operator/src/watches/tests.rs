//! A failing watch starts again by itself, tells nobody, and a stuck one is found.

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;

use super::*;

fn failure() -> watcher::Result<watcher::Event<Pod>> {
    Err(watcher::Error::NoResourceVersion)
}

fn health() -> WatchHealth {
    WatchHealth::new(Metrics::new().unwrap())
}

#[tokio::test(start_paused = true)]
async fn errors_end_in_the_stream_and_are_counted() {
    let health = health();
    let events =
        futures::stream::iter([failure(), Ok(watcher::Event::Init), failure(), Ok(watcher::Event::InitDone)]);
    let seen: Vec<_> = driven(events, "pods".into(), health.clone()).collect().await;
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(Result::is_ok));
    let restarts = health.metrics.watch_restarts_total.with_label_values(&["pods"]).get();
    assert_eq!(restarts, 2);
}

#[tokio::test(start_paused = true)]
async fn failing_watch_backs_off_and_is_not_stuck() {
    let health = health();
    let events = futures::stream::repeat_with(failure);
    let mut stream = Box::pin(driven(events, "pods".into(), health.clone()));
    // Nothing ever comes out of it; an hour passes.
    let hour = tokio::time::timeout(Duration::from_secs(3600), stream.next()).await;
    assert!(hour.is_err());
    assert_eq!(health.stuck(), [""; 0]);
    let restarts = health.metrics.watch_restarts_total.with_label_values(&["pods"]).get();
    assert!((60..400).contains(&restarts), "{restarts} restarts in an hour");
}

#[tokio::test(start_paused = true)]
async fn watch_that_nobody_drives_is_stuck() {
    let health = health();
    let events = futures::stream::pending::<watcher::Result<watcher::Event<Pod>>>();
    let mut stream = Box::pin(driven(events, "pods".into(), health.clone()));
    assert!(stream.next().now_or_never().is_none());
    tokio::time::advance(Duration::from_secs(599)).await;
    assert_eq!(health.stuck(), [""; 0]);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(health.stuck(), ["pods"]);
}

#[tokio::test]
async fn scope_is_synced_when_each_of_its_watches_has_listed() {
    let health = health();
    let done = || futures::stream::iter([Ok(watcher::Event::<Pod>::InitDone)]);
    let pods = driven(done(), "pods/shop".into(), health.clone());
    let services = driven(done(), "services/shop".into(), health.clone());
    let _elsewhere = driven(done(), "pods/other".into(), health.clone());
    pods.collect::<Vec<_>>().await;
    assert!(!health.is_scope_synced("/shop"));
    services.collect::<Vec<_>>().await;
    assert!(health.is_scope_synced("/shop"));
    assert!(!health.is_scope_synced("/other") && !health.is_scope_synced("/none") && !health.is_synced());
}

//! Story: a fleet is paused, left alone, and given another image, and its clients notice none of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use pgrouting_crds::status::ConditionStatus::{False, True};
use pgrouting_crds::status::PoolCondition;
use pgrouting_e2e::load::Load;
use pgrouting_e2e::pool::{Pool, restarts};
use pgrouting_e2e::story::{SOON, Story};
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;

#[tokio::test]
async fn pause_survives_its_pods_and_loses_nothing() -> Result<()> {
    let story = Story::begin("fleet-pause").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({"proxy": {"drainTimeout": "5s"}})).await?;
    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 6).await?;
    committed_grows(&story, 50).await?;

    pool.patch(json!({"pooling": {"traffic": "Paused"}})).await?;
    let all = "2 of 2 proxies are paused, and 2 of them have no transaction under way";
    let condition = paused(&pool, all).await?;
    println!("TrafficOpen=False: {}: {}", condition.reason, condition.message);
    pool.wait_for_reason("Ready", "TrafficPaused", 30).await?;
    let before = committed(&story).await?;

    let pods = pool.wait_for_pods(2, 30).await?;
    let name = pods[0].metadata.name.clone().context("a pod without a name")?;
    let api = Api::<Pod>::namespaced(story.cluster.client.clone(), &story.namespace);
    api.delete(&name, &DeleteParams::default()).await?;
    until(&format!("{name} is replaced"), Duration::from_secs(90), || async {
        let pods = pool.wait_for_pods(2, 1).await?;
        let is_gone = pods.iter().all(|pod| pod.metadata.name.as_ref() != Some(&name));
        Ok(if is_gone { Look::Done(()) } else { Look::NotYet("it is there".to_owned()) })
    })
    .await?;
    // The new pod has read it from its mount, and says so itself.
    paused(&pool, all).await?;
    assert_eq!(committed(&story).await?, before, "something was let through");

    pool.patch(json!({"pooling": {"traffic": "Open"}})).await?;
    pool.wait_for("TrafficOpen", True, 30).await?;
    committed_grows(&story, 50).await?;
    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("paused, a pod replaced, and resumed")?;
    story.end().await
}

#[tokio::test]
async fn suspended_pool_is_left_alone_and_serves_on() -> Result<()> {
    let story = Story::begin("fleet-suspended").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({})).await?;
    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 4).await?;
    let former = pool.config().await?.hash;
    let budget = ["-n", &story.namespace, "get", "poddisruptionbudget", "-l", &pool.selector(), "-o", "name"];

    pool.patch(json!({"reconciliation": "Suspended"})).await?;
    let condition = pool.wait_for("ReconciliationActive", False, 30).await?;
    println!("ReconciliationActive=False: {}: {}", condition.reason, condition.message);
    story.cluster.kubectl(&["-n", &story.namespace, "delete", "poddisruptionbudget/orders-proxy"]).await?;
    // This edit is seen, and is not acted on: what was deleted before it would be back.
    pool.patch(json!({"pooling": {"checkoutTimeout": "7s"}})).await?;
    pool.wait_for("ReconciliationActive", False, 30).await?;
    pool.wait_for_reason("ConfigApplied", "Suspended", 30).await?;
    assert_eq!(story.cluster.kubectl(&budget).await?, "", "what a person deletes stays deleted");
    assert_eq!(pool.config().await?.hash, former);

    pool.patch(json!({"reconciliation": "Active"})).await?;
    pool.wait_until_serving(60).await?;
    assert_ne!(pool.config().await?.hash, former, "the edit of before is in effect");
    assert!(!story.cluster.kubectl(&budget).await?.is_empty());
    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("suspended and active again")?;
    assert_eq!(figures.reconnects, 0, "a connection was broken");
    story.end().await
}

#[tokio::test]
async fn new_default_image_is_taken_by_one_pool_at_a_time() -> Result<()> {
    let story = Story::begin("fleet-image").await?;
    let spec = json!({"proxy": {"replicas": 1, "drainTimeout": "5s"}});
    let first = story.pool("a", &["pg-a"], spec.clone()).await?;
    let second = story.pool("b", &["pg-a"], spec.clone()).await?;
    let manual =
        story.pool("c", &["pg-a"], json!({"proxy": {"replicas": 1, "imageUpdates": "Manual"}})).await?;
    let load = Load::start(&story.postgres, &story.login, &second.address("").await?, 4).await?;
    let untouched =
        [restarts(&second.wait_for_pods(1, 30).await?), restarts(&manual.wait_for_pods(1, 30).await?)];

    // An image that does not exist: the first pool does not become ready, and holds the others.
    upgrade(&story, "no-such-tag").await?;
    let held = first.wait_for_reason("ImageCurrent", "ImageUpdating", 60).await?;
    let waits = says(&second, "is being updated").await?;
    println!("a: {}", held.message);
    println!("b: {}", waits.message);
    assert!(waits.message.contains(&format!("{}/a", story.namespace)), "{}", waits.message);
    let named = format!("{}/b waits for it", story.namespace);
    println!("a: {}", says(&first, &named).await?.message);
    let kept = manual.wait_for_reason("ImageCurrent", "ImageKept", 60).await?;
    println!("c: {}", kept.message);

    // The next upgrade has one that does: each takes it in its turn, and never two at a time.
    upgrade(&story, "next").await?;
    until("both run the new image", Duration::from_secs(180), || async {
        let (a, b) = (image_current(&first).await?, image_current(&second).await?);
        ensure!(
            a.reason != "ImageUpdating" || b.reason != "ImageUpdating",
            "two at a time: {} | {}",
            a.message,
            b.message
        );
        let are_done = [&a, &b].iter().all(|found| found.status == True && found.message.contains(":next"));
        Ok(if are_done { Look::Done(()) } else { Look::NotYet(format!("{} | {}", a.message, b.message)) })
    })
    .await?;
    assert_ne!(restarts(&second.wait_for_pods(1, 60).await?), untouched[0], "it runs another pod now");
    assert_eq!(restarts(&manual.wait_for_pods(1, 60).await?), untouched[1], "the manual one is as it was");
    manual.patch(json!({"proxy": {"imageUpdates": "Automatic"}})).await?;
    manual.wait_for("ImageCurrent", True, 90).await?;
    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("another image, one pool at a time")?;
    story.end().await
}

async fn upgrade(story: &Story, tag: &str) -> Result<()> {
    let tag = format!("proxyImage.tag={tag}");
    story.release.apply("upgrade", &["--set", "crds.install=false", "--set", &tag]).await?;
    Ok(())
}

async fn image_current(pool: &Pool) -> Result<PoolCondition> {
    let conditions = pool.read().await?.status.context("no status")?.conditions;
    conditions.into_iter().find(|condition| condition.kind == "ImageCurrent").context("no ImageCurrent")
}

/// Waits until ImageCurrent says this.
async fn says(pool: &Pool, words: &str) -> Result<PoolCondition> {
    until(&format!("ImageCurrent of {} says {words}", pool.name), SOON * 2, || async {
        let condition = image_current(pool).await?;
        Ok(if condition.message.contains(words) {
            Look::Done(condition)
        } else {
            Look::NotYet(condition.message)
        })
    })
    .await
}

/// Waits until the condition says so of all pods, for the spec as it is.
async fn paused(pool: &Pool, words: &str) -> Result<PoolCondition> {
    until("every proxy is paused and drained", Duration::from_secs(60), || async {
        let condition = pool.wait_for_reason("TrafficOpen", "TrafficPaused", 10).await?;
        Ok(if condition.message.contains(words) {
            Look::Done(condition)
        } else {
            Look::NotYet(condition.message)
        })
    })
    .await
}

/// What the load has committed, asked past the pool.
async fn committed(story: &Story) -> Result<i64> {
    let primary = story.postgres.direct(0, &story.login).await?;
    Ok(primary.query_one("SELECT count(*) FROM load", &[]).await?.get(0))
}

async fn committed_grows(story: &Story, by: i64) -> Result<()> {
    let before = committed(story).await?;
    until("the load goes on", Duration::from_secs(60), || async {
        let now = committed(story).await?;
        Ok(if now >= before + by { Look::Done(()) } else { Look::NotYet(format!("{now}, {before} before")) })
    })
    .await
}

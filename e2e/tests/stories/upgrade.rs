//! Story: the chart is upgraded, taken back and uninstalled, and clients notice none of it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pgrouting_crds::status::ConditionStatus::{False, True};
use pgrouting_e2e::chart::{helm, write_older};
use pgrouting_e2e::load::Load;
use pgrouting_e2e::pool::{Pool, is_ready, restarts};
use pgrouting_e2e::postgres::connect;
use pgrouting_e2e::story::{SOON, Story};
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;
use tokio::task::JoinSet;

#[tokio::test]
async fn upgrade_and_uninstall_break_no_connection() -> Result<()> {
    let story = Story::begin("upgrade").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({})).await?;
    let before = restarts(&pool.wait_for_pods(2, 60).await?);
    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 4).await?;
    let namespace = story.namespace.as_str();

    let values =
        ["--set", "crds.install=false", "--set", "logging.level=debug", "--set", "podLabels.release=second"];
    story.release.apply("upgrade", &values).await?;
    pool.patch(json!({"pooling": {"checkoutTimeout": "6s"}})).await?;
    pool.wait_until_serving(60).await?;
    assert_eq!(
        restarts(&pool.wait_for_pods(2, 30).await?),
        before,
        "an upgrade of the operator rolls no proxy"
    );

    helm(&["uninstall", "pgrouting", "--namespace", namespace, "--wait", "--timeout", "60s"]).await?;
    pool.read().await?;
    let left = [
        "-n",
        namespace,
        "get",
        "deployment,role,serviceaccount",
        "-l",
        "app.kubernetes.io/managed-by=Helm",
        "-o",
        "name",
    ];
    assert_eq!(story.cluster.kubectl(&left).await?, "", "the release left something behind");
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "an uninstall leaves the proxies alone");
    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("upgraded and uninstalled")?;
    assert_eq!(figures.reconnects, 0, "a connection was broken");

    // Installed again, the operator takes up what is there.
    story.release.apply("install", &["--set", "crds.install=false"]).await?;
    pool.patch(json!({"pooling": {"checkoutTimeout": "5s"}})).await?;
    pool.wait_until_serving(60).await?;
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "an install leaves the proxies alone");
    story.end().await
}

/// From a chart with other images and an older definition to this one, over an upgrade that leaves the definition out, and
/// back. The programs of both are the same: what older programs do with newer documents is not told here.
#[tokio::test]
async fn version_before_goes_to_this_one_and_back() -> Result<()> {
    let story = Story::set("upgrade-before").await?;
    story.remove_definition().await?;
    let older = std::env::temp_dir().join(format!("pgrouting-older-{}", std::process::id()));
    write_older(&older, FIELD)?;
    story.release.apply_from(&older, "install", &[]).await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({"proxy": {"drainTimeout": "60s"}})).await?;
    runs(&pool, "before").await?;
    story.cluster.kubectl(&set_field(&story)).await?;
    assert_eq!(field(&story).await?, "", "the older definition does not keep the field");
    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 4).await?;

    // Case 240: transactions that take longer than the new pods need to come up are waited for.
    let long = long_transactions(&story, &pool).await?;
    story.release.apply("upgrade", &["--set", "crds.install=false"]).await?;
    runs(&pool, env!("CARGO_PKG_VERSION")).await?;
    println!("{} long transactions were committed while their proxies drained", all(long).await?);

    // Case 238: whoever leaves the definition out is told what is missing, and what ran before runs on.
    let condition = pool.wait_for_reason("Stalled", "CrdOutdated", 90).await?;
    println!("Stalled: {}: {}", condition.reason, condition.message);
    ensure!(condition.message.contains(FIELD), "{}", condition.message);
    pool.wait_for("Ready", True, 30).await?;
    story.release.apply("upgrade", &["--set", "crds.install=true"]).await?;
    pool.wait_for("Stalled", False, 90).await?;
    story.cluster.kubectl(&set_field(&story)).await?;
    assert_eq!(field(&story).await?, "Enabled", "the definition of this version keeps the field");
    let policy =
        ["-n", &story.namespace, "wait", "--for=create", "networkpolicy/orders-proxy", "--timeout=30s"];
    story.cluster.kubectl(&policy).await?;
    pool.wait_until_serving(60).await?;

    let long = long_transactions(&story, &pool).await?;
    helm(&["rollback", "pgrouting", "1", "--namespace", &story.namespace, "--wait", "--timeout", "90s"])
        .await?;
    runs(&pool, "before").await?;
    println!("{} long transactions were committed on the way back", all(long).await?);
    pool.wait_for("Ready", True, 60).await?;
    assert_eq!(field(&story).await?, "");
    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("upgraded and taken back")?;
    std::fs::remove_dir_all(&older)?;
    story.end().await
}

/// A field of the spec that the older definition has not.
const FIELD: &str = "networkPolicy";

/// The arguments of kubectl that set it.
fn set_field(story: &Story) -> [&str; 8] {
    let patch = r#"{"spec":{"networkPolicy":"Enabled"}}"#;
    ["-n", &story.namespace, "patch", "pgrp", "orders", "--type=merge", "-p", patch]
}

/// The field as the API server has it.
async fn field(story: &Story) -> Result<String> {
    story
        .cluster
        .kubectl(&["-n", &story.namespace, "get", "pgrp", "orders", "-o", "jsonpath={.spec.networkPolicy}"])
        .await
}

/// Waits until both proxies, and no other pod, run the image with this tag.
async fn runs(pool: &Pool, tag: &str) -> Result<()> {
    until(&format!("the proxies run {tag}"), Duration::from_secs(150), || async {
        let pods = pool.pods().await?;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        let images: BTreeSet<_> =
            pods.iter().filter_map(|pod| pod.spec.as_ref()?.containers.first()?.image.clone()).collect();
        let is_so =
            ready == 2 && pods.len() == 2 && images.iter().all(|image| image.ends_with(&format!(":{tag}")));
        Ok(if is_so {
            Look::Done(())
        } else {
            Look::NotYet(format!("{ready} of {} ready, {images:?}", pods.len()))
        })
    })
    .await
}

/// Four transactions under way that last 20 s each.
async fn long_transactions(story: &Story, pool: &Pool) -> Result<JoinSet<Result<()>>> {
    let address = pool.address("").await?;
    let mut set = JoinSet::new();
    for _ in 0..4 {
        let client = connect(&address, 5432, &story.login, &story.login.user).await?;
        client.batch_execute("BEGIN; SELECT txid_current()").await?;
        set.spawn(async move {
            client.batch_execute("SELECT pg_sleep(20)").await.context("in the transaction")?;
            client.batch_execute("COMMIT").await.context("COMMIT")?;
            Ok(())
        });
    }
    Ok(set)
}

async fn all(mut set: JoinSet<Result<()>>) -> Result<usize> {
    let mut count = 0;
    while let Some(ended) = tokio::time::timeout(SOON * 2, set.join_next()).await.context("it hangs")? {
        ended??;
        count += 1;
    }
    Ok(count)
}

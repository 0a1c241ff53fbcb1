//! Story: the chart is upgraded and uninstalled, and clients notice neither.

use anyhow::Result;
use pgrouting_e2e::chart::helm;
use pgrouting_e2e::load::Load;
use pgrouting_e2e::pool::restarts;
use pgrouting_e2e::story::Story;
use serde_json::json;

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

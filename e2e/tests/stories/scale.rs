//! Story: scale the proxies up and down and roll their Deployment under load.

use anyhow::Result;
use pgrouting_e2e::load::Load;
use pgrouting_e2e::story::Story;
use serde_json::json;

#[tokio::test]
async fn no_transaction_fails_while_proxies_come_and_go() -> Result<()> {
    let story = Story::begin("scale").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({})).await?;
    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 8).await?;
    let namespace = story.namespace.as_str();

    for replicas in [4_usize, 1, 3] {
        let wanted = format!("--replicas={replicas}");
        story.cluster.kubectl(&["-n", namespace, "scale", "pgrp/orders", &wanted]).await?;
        pool.wait_for_pods(replicas, 90).await?;
    }
    let deployment = "deployment/orders-proxy";
    story.cluster.kubectl(&["-n", namespace, "rollout", "restart", deployment]).await?;
    story.cluster.kubectl(&["-n", namespace, "rollout", "status", deployment, "--timeout=120s"]).await?;
    pool.wait_for_pods(3, 90).await?;

    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("scaled 2, 4, 1, 3 and rolled")?;
    story.end().await
}

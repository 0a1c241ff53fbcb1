//! Story: scale the proxies up and down and roll their Deployment under load.

use anyhow::Result;
use pgrouting_crds::status::ConditionStatus::True;
use pgrouting_e2e::load::Load;
use pgrouting_e2e::pool::Pool;
use pgrouting_e2e::story::{Story, servers_named};
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

/// Case 232: an autoscaler works through the scale subresource of the pool, whose manifest names no number.
#[tokio::test]
async fn number_of_an_autoscaler_stays_when_the_manifest_is_applied_again() -> Result<()> {
    let story = Story::begin("autoscaler").await?;
    let namespace = story.namespace.as_str();
    let spec = json!({
        "backends": {"type": "Static", "static": {"servers": servers_named(&["pg-a"])}},
        "auth": {"type": "UserList", "users": [{"name": "app"}]},
        "proxy": {"drainTimeout": "5s"},
    });
    story.apply_pool("orders", &spec).await?;
    let pool = Pool::new(&story.cluster, namespace, "orders");
    pool.wait_for_pods(2, 90).await?;
    story.cluster.kubectl(&["-n", namespace, "scale", "pgrp/orders", "--replicas=4"]).await?;
    pool.wait_for_pods(4, 90).await?;
    // What an autoscaler reads: so many, selected by these labels.
    let scale = format!("/apis/pgrouting.dev/v1alpha1/namespaces/{namespace}/pgroutingpools/orders/scale");
    let scale: serde_json::Value =
        serde_json::from_str(&story.cluster.kubectl(&["get", "--raw", &scale]).await?)?;
    assert_eq!(scale["spec"]["replicas"], 4);
    assert!(scale["status"]["selector"].as_str().is_some_and(|selector| selector.contains("orders")));

    let mut edited = spec.clone();
    edited["pooling"] = json!({"checkoutTimeout": "7s", "maxServerConnections": 3});
    story.apply_pool("orders", &edited).await?;
    pool.wait_until_serving(60).await?;
    assert_eq!(pool.read().await?.spec.proxy.replicas, 4);
    assert_eq!(pool.pods().await?.len(), 4);
    // Case 234: four pods share three connections.
    let condition = pool.wait_for_reason("ConnectionBudget", "BudgetBelowPods", 30).await?;
    println!("ConnectionBudget={}: {}", condition.status.as_str(), condition.message);
    story.cluster.kubectl(&["-n", namespace, "scale", "pgrp/orders", "--replicas=0"]).await?;
    let condition = pool.wait_for_reason("Ready", "ScaledToZero", 60).await?;
    println!("Ready={}: {}: {}", condition.status.as_str(), condition.reason, condition.message);
    pool.wait_for_pods(0, 60).await?;
    story.cluster.kubectl(&["-n", namespace, "scale", "pgrp/orders", "--replicas=1"]).await?;
    pool.wait_for_pods(1, 60).await?;
    pool.wait_for("ConnectionBudget", True, 30).await?;
    story.end().await
}

//! Story: an object that the operator owns is deleted or edited, and comes back.

use std::time::Duration;

use anyhow::Result;
use pgrouting_e2e::story::{SOON, Story};
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;

#[tokio::test]
async fn deleted_and_edited_objects_come_back() -> Result<()> {
    let story = Story::begin("drift").await?;
    let pool = story
        .pool("orders", &["pg-a"], json!({"service": {"endpoints": ["Primary"]}, "networkPolicy": "Enabled"}))
        .await?;
    let namespace = story.namespace.as_str();

    for object in [
        "service/orders-primary",
        "service/orders",
        "service/orders-peers",
        "configmap/orders-config",
        "serviceaccount/orders-proxy",
        "poddisruptionbudget/orders-proxy",
        "networkpolicy/orders-proxy",
        "deployment/orders-proxy",
    ] {
        let uid = ["-n", namespace, "get", object, "-o", "jsonpath={.metadata.uid}"];
        let former = story.cluster.kubectl(&uid).await?;
        story.cluster.kubectl(&["-n", namespace, "delete", object]).await?;
        until(&format!("{object} comes back"), SOON, || async {
            let now = story.cluster.kubectl(&uid).await?;
            Ok(if now != former { Look::Done(()) } else { Look::NotYet("it is still ending".to_owned()) })
        })
        .await?;
    }
    pool.wait_for_pods(2, 90).await?;

    let port = r#"[{"op": "replace", "path": "/spec/ports/0/port", "value": 5999}]"#;
    story.cluster.kubectl(&["-n", namespace, "patch", "service/orders", "--type=json", "-p", port]).await?;
    until("the edited Service is as the spec says", SOON, || async {
        let path = ["-n", namespace, "get", "service/orders", "-o", "jsonpath={.spec.ports[*].port}"];
        let ports = story.cluster.kubectl(&path).await?;
        Ok(if ports == "5432" { Look::Done(()) } else { Look::NotYet(ports) })
    })
    .await?;
    pool.wait_until_serving(30).await?;
    story.end().await
}

/// Case 223, with a Service that no pool has made.
#[tokio::test]
async fn service_of_someone_else_is_not_taken() -> Result<()> {
    let story = Story::begin("conflict").await?;
    let foreign = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders"},
        "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 5432}]},
    });
    story.apply(&foreign.to_string()).await?;
    let spec = json!({
        "backends": {"type": "Static", "static": {"servers": [{"name": "pg-a", "host": "pg-a"}]}},
        "auth": {"type": "UserList", "users": [{"name": "app"}]},
    });
    story.apply_pool("orders", &spec).await?;
    let pool = pgrouting_e2e::pool::Pool::new(&story.cluster, &story.namespace, "orders");
    let condition = pool.wait_for("Stalled", pgrouting_crds::status::ConditionStatus::True, 30).await?;
    println!("Stalled=True: {}: {}", condition.reason, condition.message);
    assert_eq!(condition.reason, "NameConflict");
    let namespace = story.namespace.as_str();
    let path = ["-n", namespace, "get", "service/orders", "-o", "jsonpath={.spec.selector.app}"];
    assert_eq!(story.cluster.kubectl(&path).await?, "theirs");

    story.cluster.kubectl(&["-n", namespace, "delete", "service/orders"]).await?;
    until("the pool serves once the name is free", Duration::from_secs(90), || async {
        pool.wait_until_serving(1).await?;
        Ok(Look::Done(()))
    })
    .await?;
    story.end().await
}

/// Case 223: two pools want the Service `orders-primary`.
#[tokio::test]
async fn name_that_two_pools_want_stays_with_the_first() -> Result<()> {
    let story = Story::begin("same-name").await?;
    let first = story.pool("orders", &["pg-a"], json!({"service": {"endpoints": ["Primary"]}})).await?;
    let namespace = story.namespace.as_str();
    let version =
        ["-n", namespace, "get", "service/orders-primary", "-o", "jsonpath={.metadata.resourceVersion}"];
    let before = story.cluster.kubectl(&version).await?;
    let spec = json!({
        "backends": {"type": "Static", "static": {"servers": [{"name": "pg-a", "host": "pg-a"}]}},
        "auth": {"type": "UserList", "users": [{"name": "app"}]},
    });
    story.apply_pool("orders-primary", &spec).await?;
    let second = pgrouting_e2e::pool::Pool::new(&story.cluster, &story.namespace, "orders-primary");
    let condition = second.wait_for_reason("Ready", "NameConflict", 60).await?;
    println!("Ready={}: {}: {}", condition.status.as_str(), condition.reason, condition.message);
    assert!(condition.message.contains("PgRoutingPool orders"), "it names the first pool");
    first.wait_until_serving(30).await?;
    assert_eq!(story.cluster.kubectl(&version).await?, before, "the first pool's Service is as it was");
    let client = pgrouting_e2e::postgres::connect_soon(
        &first.address("-primary").await?,
        5432,
        &story.login,
        &story.login.user,
    )
    .await?;
    client.query_one("SELECT 1", &[]).await?;

    first.delete().await?;
    until("the second pool serves once the name is free", Duration::from_secs(120), || async {
        second.wait_until_serving(1).await?;
        Ok(Look::Done(()))
    })
    .await?;
    story.end().await
}

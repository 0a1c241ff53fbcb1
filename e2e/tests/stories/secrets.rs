//! Story: what a pool needs is missing or may not be read; it says so, and goes on by itself once that is mended.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::Role;
use kube::Api;
use kube::api::{Patch, PatchParams};
use pgrouting_crds::status::ConditionStatus::{False, True};
use pgrouting_e2e::load::Load;
use pgrouting_e2e::pool::{Pool, restarts};
use pgrouting_e2e::story::{Story, servers_named};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Case 216: no Secret, then one that lacks a key, then all of it.
#[tokio::test]
async fn pool_waits_for_its_secret_and_starts_no_proxy_before() -> Result<()> {
    let story = Story::begin("secrets").await?;
    let spec = json!({
        "backends": {"type": "Static", "static": {"servers": servers_named(&["pg-a", "pg-b"])}},
        "auth": {"type": "UserList", "users": [{"name": "late"}]},
    });
    story.apply_pool("orders", &spec).await?;
    let pool = Pool::new(&story.cluster, &story.namespace, "orders");
    let generation = pool.read().await?.metadata.generation;

    let condition = pool.wait_for_reason("Ready", "SecretNotFound", 30).await?;
    println!("Ready={}: {}: {}", condition.status.as_str(), condition.reason, condition.message);
    assert_eq!(condition.status, False);
    assert!(condition.message.contains("late"), "{}", condition.message);

    let secrets = Api::<Secret>::namespaced(story.cluster.client.clone(), &story.namespace);
    let params = PatchParams::apply("pgrouting-e2e").force();
    let half = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"},
        "stringData": {"username": story.login.user},
    });
    secrets.patch("late", &params, &Patch::Apply(half)).await?;
    let condition = pool.wait_for_reason("Ready", "KeyMissing", 30).await?;
    println!("Ready={}: {}: {}", condition.status.as_str(), condition.reason, condition.message);
    assert!(condition.message.contains("password"), "{}", condition.message);
    assert_eq!(pool.pods().await?.len(), 0, "a proxy without a login serves nobody");

    story.write_secret("late").await?;
    pool.wait_until_serving(60).await?;
    assert_eq!(pool.read().await?.metadata.generation, generation, "nobody has touched the pool");
    story.end().await
}

/// Case 236: the right to read Secrets is taken away from a running operator.
#[tokio::test]
async fn missing_right_is_named_and_asked_for_seldom() -> Result<()> {
    let story = Story::begin("forbidden").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({})).await?;
    let before = restarts(&pool.wait_for_pods(2, 60).await?);
    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 4).await?;
    let given = set_rules(&story, |rules| {
        for rule in rules.iter_mut().filter(|rule| rule["resources"] == json!(["secrets"])) {
            rule["verbs"] = json!(["create", "patch", "delete"]);
        }
    })
    .await?;

    pool.patch(json!({"pooling": {"checkoutTimeout": "7s"}})).await?;
    let condition = pool.wait_for_reason("Stalled", "Forbidden", 60).await?;
    println!("Stalled={}: {}: {}", condition.status.as_str(), condition.reason, condition.message);
    assert!(
        condition.message.contains("get") && condition.message.contains("secrets"),
        "{}",
        condition.message
    );
    pool.wait_for_reason("Ready", "Forbidden", 30).await?;
    // A new pool has never been ready.
    let spec = json!({
        "backends": {"type": "Static", "static": {"servers": servers_named(&["pg-a"])}},
        "auth": {"type": "UserList", "users": [{"name": "app"}]},
    });
    story.apply_pool("second", &spec).await?;
    let second = Pool::new(&story.cluster, &story.namespace, "second");
    assert_eq!(second.wait_for_reason("Ready", "Forbidden", 30).await?.status, False);

    // Not a deadline but what is counted: requests in half a minute.
    let refused = refused_requests(&story).await?;
    // One is sure: an edit is looked at at once.
    pool.patch(json!({"pooling": {"checkoutTimeout": "8s"}})).await?;
    sleep(Duration::from_secs(30)).await;
    let asked = refused_requests(&story).await? - refused;
    println!("{asked} requests were refused in 30 s, of two pools");
    assert!((1..20).contains(&asked), "{asked} refused requests in 30 s");

    set_rules(&story, |rules| rules.clone_from(&given)).await?;
    pool.wait_until_serving(60).await?;
    second.wait_for("Ready", True, 60).await?;
    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("the operator may not read Secrets")?;
    assert_eq!(figures.reconnects, 0, "a connection was broken");
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before);
    story.end().await
}

/// Changes the rules of the operator's Role, and returns those of before.
async fn set_rules(story: &Story, change: impl FnOnce(&mut Vec<Value>)) -> Result<Vec<Value>> {
    let roles = Api::<Role>::namespaced(story.cluster.client.clone(), &story.namespace);
    let name = story.release.operator();
    let role = serde_json::to_value(roles.get(&name).await?)?;
    let given = role["rules"].as_array().context("a Role without rules")?.clone();
    let mut rules = given.clone();
    change(&mut rules);
    roles.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"rules": rules}))).await?;
    Ok(given)
}

/// Requests that no rule allowed since the API server started, of whoever it was.
async fn refused_requests(story: &Story) -> Result<u64> {
    let metrics = story.cluster.kubectl(&["get", "--raw", "/metrics"]).await?;
    let counter = "authorization_attempts_total{result=\"no-opinion\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(counter)).context("no such counter")?;
    Ok(count.parse()?)
}

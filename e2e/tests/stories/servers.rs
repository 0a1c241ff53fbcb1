//! Story: servers are added and removed under load, and no connection notices.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use pgrouting_crds::status::ServerRole;
use pgrouting_e2e::load::Load;
use pgrouting_e2e::pool::{Pool, is_ready, restarts};
use pgrouting_e2e::postgres::{connect, connect_soon, expose_addresses, expose_by_name};
use pgrouting_e2e::story::{SOON, Story, servers_named};
use pgrouting_e2e::wait::{Look, until};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

#[tokio::test]
async fn edit_of_servers_reaches_all_pods_and_breaks_no_connection() -> Result<()> {
    let story = Story::begin("servers").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({"proxy": {"replicas": 3}})).await?;
    let before = restarts(&pool.wait_for_pods(3, 60).await?);
    let address = pool.address("").await?;
    let load = Load::start(&story.postgres, &story.login, &address, 8).await?;
    let idle = connect(&address, 5432, &story.login, &story.login.user).await?;
    idle.query_one("SELECT 1", &[]).await?;

    let mut times = Vec::new();
    for edit in 0..11 {
        let servers: &[&str] = if edit % 2 == 0 { &["pg-a", "pg-b", "pg-c"] } else { &["pg-a", "pg-b"] };
        times.push(edit_until_acknowledged(&pool, servers).await?);
    }
    times.sort();
    println!(
        "{} edits acknowledged by 3 pods: median {} ms, fastest {} ms, slowest {} ms",
        times.len(),
        times[times.len() / 2].as_millis(),
        times[0].as_millis(),
        times[times.len() - 1].as_millis()
    );

    idle.query_one("SELECT 1", &[]).await?;
    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("11 edits of servers")?;
    assert_eq!(figures.reconnects, 0, "a connection was broken");
    assert_eq!(restarts(&pool.wait_for_pods(3, 30).await?), before, "the pods are the same as before");
    assert!(times[times.len() / 2] < Duration::from_secs(1), "median of {times:?}");
    story.end().await
}

#[tokio::test]
async fn endpoints_of_services_are_followed() -> Result<()> {
    let story = Story::begin("endpoints").await?;
    let addresses: Vec<_> = story.postgres.servers.iter().map(|server| server.address.as_str()).collect();
    expose_addresses(&story.cluster, &story.namespace, "db-primary", &addresses[..1]).await?;
    expose_addresses(&story.cluster, &story.namespace, "db-replicas", &addresses[1..2]).await?;
    let spec = json!({
        "backends": {"type": "Services", "services": {
            "primary": {"name": "db-primary"}, "replicas": {"name": "db-replicas"},
        }},
        "auth": {"type": "UserList", "users": [{"name": "app"}]},
    });
    let pool = pool_of_two(&story, &spec).await?;
    let client = connect_soon(&pool.address("").await?, 5432, &story.login, &story.login.user).await?;

    expose_addresses(&story.cluster, &story.namespace, "db-replicas", &addresses[1..]).await?;
    wait_for_servers(&pool, 3).await?;
    expose_addresses(&story.cluster, &story.namespace, "db-replicas", &addresses[2..]).await?;
    wait_for_servers(&pool, 2).await?;

    client.query_one("SELECT 1", &[]).await?;
    story.end().await
}

/// Case 235: pods that start while the document changes run the last one in the end.
#[tokio::test]
async fn pods_that_start_between_edits_run_the_last_of_them() -> Result<()> {
    let story = Story::begin("edits").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({"proxy": {"drainTimeout": "5s"}})).await?;
    let pods = Api::<Pod>::namespaced(story.cluster.client.clone(), &story.namespace);
    for edit in 0..5 {
        let servers: &[&str] = if edit % 2 == 0 { &["pg-a", "pg-b", "pg-c"] } else { &["pg-a", "pg-b"] };
        let victim = pool.pods().await?.into_iter().find(is_ready);
        if let Some(name) = victim.and_then(|pod| pod.metadata.name) {
            pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
        }
        pool.patch(json!({"backends": {"static": {"servers": servers_named(servers)}}})).await?;
    }
    pool.wait_for_pods(2, 120).await?;
    pool.wait_until_serving(60).await?;
    let config = pool.config().await?;
    assert_eq!((config.pods_applied, config.pods_total), (2, 2));
    let read = pool.read().await?;
    let status = read.status.context("no status")?;
    assert_eq!(status.observed_generation, read.metadata.generation);
    assert_eq!(status.backends.context("no backends")?.servers.len(), 3, "the last edit's servers");
    story.end().await
}

#[tokio::test]
async fn addresses_of_names_are_followed() -> Result<()> {
    let story = Story::begin("names").await?;
    let addresses: Vec<_> = story.postgres.servers.iter().map(|server| server.address.as_str()).collect();
    expose_by_name(&story.cluster, &story.namespace, "db", &addresses[..2]).await?;
    let host = format!("db.{}.svc", story.namespace);
    let spec = json!({
        "backends": {"type": "Dns", "dns": {"primary": {"host": host}}},
        "auth": {"type": "UserList", "users": [{"name": "app"}]},
    });
    let pool = pool_of_two(&story, &spec).await?;
    let client = connect_soon(&pool.address("").await?, 5432, &story.login, &story.login.user).await?;

    expose_by_name(&story.cluster, &story.namespace, "db", &addresses).await?;
    wait_for_servers(&pool, 3).await?;
    expose_by_name(&story.cluster, &story.namespace, "db", &addresses[..1]).await?;
    wait_for_servers(&pool, 1).await?;

    // A name that is not there takes nothing out of a running pool.
    pool.patch(json!({"backends": {"dns": {"primary": {"host": "no-such-name.svc"}}}})).await?;
    until("the condition names the host", SOON, || async {
        let conditions = pool.read().await?.status.map(|status| status.conditions).unwrap_or_default();
        let message = conditions.into_iter().find(|condition| condition.kind == "BackendsHealthy");
        let message = message.map(|condition| condition.message).unwrap_or_default();
        let is_so =
            message.contains("no-such-name.svc cannot be looked up") && message.contains("stay in use");
        Ok(if is_so { Look::Done(()) } else { Look::NotYet(message) })
    })
    .await?;
    client.query_one("SELECT 1", &[]).await?;
    story.end().await
}

/// Edits the list and returns the time until every pod runs it, seen by the status.
async fn edit_until_acknowledged(pool: &Pool, servers: &[&str]) -> Result<Duration> {
    let former = pool.config().await?.hash;
    let began = Instant::now();
    pool.patch(json!({"backends": {"static": {"servers": servers_named(servers)}}})).await?;
    loop {
        let config = pool.config().await?;
        if config.hash != former && config.pods_applied == config.pods_total && config.pods_total > 0 {
            return Ok(began.elapsed());
        }
        anyhow::ensure!(began.elapsed() < SOON, "not acknowledged: {config:?}");
        // Finer than a wait's pause, because this is a measurement.
        sleep(Duration::from_millis(10)).await;
    }
}

/// Applies a pool and waits until it serves and knows its two servers.
async fn pool_of_two(story: &Story, spec: &Value) -> Result<Pool> {
    story.apply_pool("orders", spec).await?;
    let pool = Pool::new(&story.cluster, &story.namespace, "orders");
    pool.wait_until_serving(60).await?;
    wait_for_servers(&pool, 2).await?;
    Ok(pool)
}

async fn wait_for_servers(pool: &Pool, count: usize) -> Result<()> {
    until(&format!("{count} servers are known by their roles"), SOON, || async {
        let backends = pool.read().await?.status.and_then(|status| status.backends);
        let servers = backends.map(|backends| backends.servers).unwrap_or_default();
        let known = servers.iter().filter(|server| server.role != ServerRole::Unknown).count();
        Ok(if servers.len() == count && known == count {
            Look::Done(())
        } else {
            Look::NotYet(format!("{servers:?}"))
        })
    })
    .await
}

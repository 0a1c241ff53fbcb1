//! Story: standbys come and go, and one of them is promoted, all under load.

use anyhow::{Context, Result};
use pgrouting_crds::status::ConditionStatus::True;
use pgrouting_e2e::ledger::Ledger;
use pgrouting_e2e::load::Load;
use pgrouting_e2e::pool::{Pool, restarts};
use pgrouting_e2e::postgres::{Login, Postgres, address_of, connect};
use pgrouting_e2e::reads::{FUNCTION, Reads};
use pgrouting_e2e::story::{SOON, Story};
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;
use tokio::time::Instant;

/// Servers of the story's own, and a pool over the endpoints of their Service.
async fn pool_over_own_servers(story: &Story) -> Result<(Postgres, Login, Pool)> {
    let own = Postgres::start_in(&story.cluster, &story.namespace).await?;
    let login = own.make_login(&story.namespace).await?;
    // So that the proxies see timelines and the identity of the cluster.
    own.superuser().await?.batch_execute(&format!("GRANT pg_monitor TO {}", login.user)).await?;
    story.write_login("ledger", &login).await?;
    let spec = json!({
        "backends": {"type": "Services", "services": {"primary": {"name": "pg"}}},
        "auth": {"type": "UserList", "users": [{"name": "ledger"}]},
        "rollout": {"stage": "Split", "mode": "Immediate"},
        "split": {"readFunctions": [FUNCTION], "slowStart": "1s"},
        "proxy": {"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}},
    });
    story.apply_pool("orders", &spec).await?;
    let pool = Pool::new(&story.cluster, &story.namespace, "orders");
    pool.wait_until_serving(60).await?;
    pool.wait_for_replicas(2).await?;
    Ok((own, login, pool))
}

#[tokio::test]
async fn standbys_come_and_go_under_load() -> Result<()> {
    let story = Story::begin("standbys").await?;
    let (own, login, pool) = pool_over_own_servers(&story).await?;
    let before = restarts(&pool.wait_for_pods(2, 60).await?);
    let address = pool.address("").await?;
    let reads = Reads::start(&own, &login, &address, 3).await?;
    let load = Load::start(&own, &login, &address, 3).await?;

    let scale = |replicas: &'static str| {
        let cluster = &story.cluster;
        let namespace = story.namespace.clone();
        async move { cluster.kubectl(&["-n", &namespace, "scale", "statefulset/pg", replicas]).await }
    };
    scale("--replicas=4").await?;
    pool.wait_for_replicas(3).await?;
    let newcomer = address_of(&story.cluster, &story.namespace, "pg-3").await?;
    until("the new standby takes reads", SOON * 2, || async {
        let served = reads.counts().reads.get(&newcomer).copied().unwrap_or(0);
        Ok(if served >= 50 { Look::Done(()) } else { Look::NotYet(format!("{served} reads")) })
    })
    .await?;
    scale("--replicas=3").await?;
    pool.wait_for_replicas(2).await?;

    let counts = reads.stop().await?;
    println!("reads by server: {:?}; {} writes were read back", counts.reads, counts.writes);
    let figures = load.stop(&own, &login).await?;
    figures.expect_clean("a standby came and went")?;
    assert_eq!(figures.reconnects, 0, "a connection was broken");
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "the pods are the same as before");
    story.end().await
}

#[tokio::test]
async fn promotion_loses_no_write_and_stops_no_read() -> Result<()> {
    let story = Story::begin("promotion").await?;
    let (own, login, pool) = pool_over_own_servers(&story).await?;
    let before = restarts(&pool.wait_for_pods(2, 60).await?);
    let primary = own.superuser().await?;
    // What is acknowledged is on both standbys.
    primary.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 2 (*)'").await?;
    primary.batch_execute("SELECT pg_reload_conf()").await?;
    let ledger = Ledger::start(&own.direct(0, &login).await?, &login, &pool.address("").await?, 4).await?;
    ledger.reaches(500).await?;

    // The primary's pod goes with all it has, and no other one comes for now.
    let node = story.cluster.kubectl(&["get", "nodes", "-o", "name"]).await?;
    let node = node.trim();
    story.cluster.kubectl(&["cordon", node]).await?;
    let gone = ["-n", &story.namespace, "delete", "pod", "pg-0", "--force", "--grace-period=0"];
    let deleted = story.cluster.kubectl(&gone).await;
    let superuser = own.superuser_at(1).await?;
    let promoted = superuser.query_one("SELECT pg_promote()", &[]).await;
    let began = Instant::now();
    let at_promotion = ledger.acknowledged();
    let went_on = ledger.reaches(at_promotion + 1).await;
    let pause = began.elapsed();
    story.cluster.kubectl(&["uncordon", node]).await?;
    deleted?;
    promoted?;
    went_on?;
    println!("the first write was acknowledged {} ms after pg_promote() had returned", pause.as_millis());
    ledger.reaches(at_promotion + 500).await?;

    until("the status names the new primary", SOON, || async {
        let backends = pool.read().await?.status.and_then(|status| status.backends).context("no backends")?;
        let is_so = backends.primary.as_deref() == Some("pg-1") && backends.timeline == Some(2);
        Ok(if is_so { Look::Done(()) } else { Look::NotYet(format!("{backends:?}")) })
    })
    .await?;
    pool.wait_for("Ready", True, 30).await?;
    until("an event tells of it", SOON, || async {
        let events = story.cluster.kubectl(&["-n", &story.namespace, "get", "events"]).await?;
        let told: Vec<_> = events.lines().filter(|line| line.contains("pgroutingpool/")).collect();
        let is_so = told.iter().any(|line| line.contains("PrimaryChanged") && line.contains("is pg-1"));
        Ok(if is_so { Look::Done(()) } else { Look::NotYet(told.join("\n")) })
    })
    .await?;

    let book = ledger.stop().await?;
    book.expect_kept(&connect(&own.servers[1].address, 5432, &login, &login.user).await?).await?;
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "the pods are the same as before");
    println!("{}", story.cluster.kubectl(&["-n", &story.namespace, "get", "pgrp", &pool.name]).await?);
    story.end().await
}

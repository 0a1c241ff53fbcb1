//! Story: one edit sends the reads to the replicas, another one takes them back, and no client notices.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::ConditionStatus::{False, True};
use pgrouting_e2e::load::Load;
use pgrouting_e2e::pool::{Pool, restarts};
use pgrouting_e2e::postgres::connect;
use pgrouting_e2e::reads::{Counts, FUNCTION, Reads};
use pgrouting_e2e::story::{SOON, Story};
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;

#[tokio::test]
async fn reads_go_to_replicas_and_back_by_one_edit_each() -> Result<()> {
    let story = Story::begin("split").await?;
    let spec =
        json!({"service": {"endpoints": ["Primary", "ReadOnly"]}, "split": {"readFunctions": [FUNCTION]}});
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec).await?;
    let before = restarts(&pool.wait_for_pods(2, 60).await?);
    let address = pool.address("").await?;
    let reads = Reads::start(&story.postgres, &story.login, &address, 4).await?;
    let load = Load::start(&story.postgres, &story.login, &address, 4).await?;
    let servers: Vec<_> = story.postgres.servers.iter().map(|server| server.address.clone()).collect();

    pool.wait_for_reason("SplitActive", "StagePoolingOnly", 30).await?;
    let on_primary = |new: &Counts| {
        only_on(&new.reads, &servers[..1]) && only_on(&new.own_reads, &servers[..1]) && new.writes >= 50
    };
    let pooling = until_served(&reads, on_primary).await?;
    tell(&story, &pool, "at PoolingOnly", &pooling, &servers).await?;
    expect_columns(&story, &pool, "PoolingOnly", "0").await?;

    pool.patch(json!({"rollout": {"stage": "Split"}})).await?;
    let condition = pool.wait_for("SplitActive", True, 30).await?;
    assert_eq!(condition.reason, "Splitting", "{}", condition.message);
    println!("SplitActive=True: {}: {}", condition.reason, condition.message);
    let split = until_served(&reads, |new| {
        let many = |reads: &BTreeMap<String, u64>, at| reads.get(at).is_some_and(|count| *count >= 100);
        servers[1..].iter().all(|at| many(&new.reads, at) && many(&new.own_reads, at)) && new.writes >= 300
    })
    .await?;
    tell(&story, &pool, "at Split", &split, &servers).await?;
    expect_columns(&story, &pool, "Split", "100").await?;
    until_served(&reads, |new| only_on(&new.reads, &servers[1..])).await?;
    further_services_lead_where_they_say(&story, &pool, &servers).await?;

    pool.patch(json!({"rollout": {"stage": "PoolingOnly"}})).await?;
    let condition = pool.wait_for_reason("SplitActive", "StagePoolingOnly", 30).await?;
    println!("SplitActive=False: {}: {}", condition.reason, condition.message);
    let back = until_served(&reads, on_primary).await?;
    tell(&story, &pool, "back at PoolingOnly", &back, &servers).await?;
    expect_columns(&story, &pool, "PoolingOnly", "0").await?;

    let counts = reads.stop().await?;
    println!("reads: {} writes were read back, no failure, no connection broken", counts.writes);
    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("to Split and back")?;
    assert_eq!(figures.reconnects, 0, "a connection was broken");
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "the pods are the same as before");
    story.end().await
}

#[tokio::test]
async fn split_that_cannot_be_says_why() -> Result<()> {
    let story = Story::begin("no-split").await?;
    let spec = json!({"rollout": {"stage": "Split"}, "pooling": {"mode": "Session"}});
    let pool = story.pool("orders", &["pg-a", "pg-b"], spec).await?;
    for (edit, reason, says) in [
        (json!({}), "SessionMode", "set it to Transaction"),
        (
            json!({"pooling": {"mode": "Transaction"}, "split": {"maxPercent": 0}}),
            "MaxPercentZero",
            "raise it",
        ),
        (
            json!({"split": {"maxPercent": 50}, "backends": {"static": {"servers": [{"name": "pg-a", "host": "pg-a"}]}}}),
            "NoReplicas",
            "add a replica under spec.backends",
        ),
    ] {
        pool.patch(edit).await?;
        let condition = pool.wait_for_reason("SplitActive", reason, 30).await?;
        println!("SplitActive={}: {reason}: {}", condition.status.as_str(), condition.message);
        assert_eq!(condition.status, False);
        assert!(condition.message.contains(says), "{}", condition.message);
        pool.wait_for("Ready", True, 30).await?;
    }
    let rollout = pool.read().await?.status.and_then(|status| status.rollout).context("a rollout")?;
    assert_eq!((rollout.stage, rollout.split_percent), (Stage::Split, 50));
    story.end().await
}

/// Waits until all that the load does from one moment on is as it should be. Where it is not, a later moment is tried:
/// a read that was under way at an edit ends where it began.
async fn until_served(reads: &Reads, is_so: impl Fn(&Counts) -> bool) -> Result<Counts> {
    let mut since = reads.counts();
    until("reads are served where they should be", SOON * 2, || {
        let new = reads.counts().since(&since);
        let is_done = new.reads.values().sum::<u64>() >= READS_OF_A_LOOK && is_so(&new);
        if !is_done && new.writes >= WRITES_OF_A_LOOK {
            since = reads.counts();
        }
        async move { Ok(if is_done { Look::Done(new) } else { Look::NotYet(format!("{new:?}")) }) }
    })
    .await
}

/// Whether all of them ran on some of these servers.
fn only_on(reads: &BTreeMap<String, u64>, servers: &[String]) -> bool {
    reads.iter().all(|(server, count)| *count == 0 || servers.contains(server))
}

async fn tell(story: &Story, pool: &Pool, when: &str, counts: &Counts, servers: &[String]) -> Result<()> {
    let shares = |reads: &BTreeMap<String, u64>| {
        let of = |server: &String| reads.get(server).copied().unwrap_or(0);
        let shares: Vec<_> = servers
            .iter()
            .zip(&story.postgres.servers)
            .map(|(at, s)| format!("{} {}", s.pod, of(at)))
            .collect();
        shares.join(", ")
    };
    println!(
        "{when}: reads on {}; {} writes read back on {}",
        shares(&counts.reads),
        counts.writes,
        shares(&counts.own_reads)
    );
    println!("{}", story.cluster.kubectl(&["-n", &story.namespace, "get", "pgrp", &pool.name]).await?);
    Ok(())
}

async fn expect_columns(story: &Story, pool: &Pool, stage: &str, percent: &str) -> Result<()> {
    let table = story.cluster.kubectl(&["-n", &story.namespace, "get", "pgrp", &pool.name]).await?;
    let row: Vec<_> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    let expected = [&pool.name, "True", stage, stage, percent];
    ensure!(row.get(..5) == Some(&expected[..]), "{expected:?}, but {table}");
    Ok(())
}

/// The Services that name a kind of server are not touched by the stage.
async fn further_services_lead_where_they_say(story: &Story, pool: &Pool, servers: &[String]) -> Result<()> {
    let read = format!("SELECT {FUNCTION}()");
    for (suffix, expected) in [("-primary", &servers[..1]), ("-readonly", &servers[1..])] {
        let client = connect(&pool.address(suffix).await?, 5432, &story.login, &story.login.user).await?;
        for _ in 0..20 {
            let server: String = client.query_one(&read, &[]).await?.get(0);
            assert!(expected.contains(&server), "Service orders{suffix} leads to {server}");
        }
    }
    Ok(())
}

/// Fewer reads than this say nothing.
const READS_OF_A_LOOK: u64 = 200;
/// Writes of the same load after which a look that did not come out is begun anew.
const WRITES_OF_A_LOOK: u64 = 400;

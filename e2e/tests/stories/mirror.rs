//! Story: one edit sends a copy of all transactions to another database, and whatever becomes of that one, no client notices.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pgrouting_crds::status::ConditionStatus::{False, True};
use pgrouting_crds::status::{MirrorState, MirrorStatus};
use pgrouting_e2e::cluster::root;
use pgrouting_e2e::load::Load;
use pgrouting_e2e::pgbench::{clean_runs, pgbench};
use pgrouting_e2e::pool::{Pool, restarts};
use pgrouting_e2e::postgres::{Login, connect, make_login_at};
use pgrouting_e2e::story::{SOON, Story};
use pgrouting_e2e::wait::{Look, throughout, until};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

#[tokio::test]
async fn all_transactions_are_copied_and_clients_never_notice_the_mirror() -> Result<()> {
    let story = Story::begin("mirror").await?;
    let mirror = start_mirror(&story).await?;
    let spec = json!({
        "rollout": {"stage": "Split"},
        "mirror": {"target": {"host": MIRROR}, "statements": "All", "maxConnections": 40},
    });
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec).await?;
    let before = restarts(&pool.wait_for_pods(2, 60).await?);
    let tables = format!("pgbench -q -i -s 1 -h pg-a && pgbench -q -i -s 1 -h {MIRROR}");
    pgbench(&story, "tables", &tables, 120).await?;
    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 4).await?;
    pool.wait_for_reason("MirrorHealthy", "StageNotMirror", 30).await?;
    expect_columns(&story, &pool, ["Split", "Split", "100", "0"]).await?;

    pool.patch(json!({"rollout": {"stage": "Mirror"}})).await?;
    let condition = pool.wait_for("MirrorHealthy", True, 30).await?;
    println!("MirrorHealthy=True: {}: {}", condition.reason, condition.message);
    assert_eq!(condition.reason, "Mirroring");
    expect_columns(&story, &pool, ["Mirror", "Mirror", "100", "100"]).await?;
    the_same_comes_of_it(&story, &pool, &mirror).await?;

    let goes = ["-n", &story.namespace, "scale", "deployment/pg-mirror", "--replicas=0"];
    story.cluster.kubectl(&goes).await?;
    let began = Instant::now();
    let condition = pool.wait_for("MirrorHealthy", False, 60).await?;
    println!("without the mirror, after {} ms: {}", began.elapsed().as_millis(), condition.message);
    assert_eq!(condition.reason, "MirrorBroken");
    pool.wait_for("Ready", True, 30).await?;
    event_tells(&story, "MirrorBroken").await?;
    let reads = format!("pgbench -n -S -h {} -c 4 -t 200", pool.name);
    let log = pgbench(&story, "reads", &reads, 60).await?;
    assert_eq!(clean_runs(&log), 1, "{log}");

    // Another one takes its place, and the copies go on by themselves.
    let comes = ["-n", &story.namespace, "scale", "deployment/pg-mirror", "--replicas=1"];
    story.cluster.kubectl(&comes).await?;
    let mirror = make_tables(&story).await?;
    pool.wait_for("MirrorHealthy", True, 120).await?;
    event_tells(&story, "MirrorRunning").await?;
    until("rows come in again", SOON * 2, || async {
        Ok(match rows_of_the_load(&mirror).await? {
            0 => Look::NotYet("there are none".to_owned()),
            _ => Look::Done(()),
        })
    })
    .await?;

    pool.patch(json!({"rollout": {"stage": "Split"}})).await?;
    pool.wait_for_reason("MirrorHealthy", "StageNotMirror", 30).await?;
    expect_columns(&story, &pool, ["Split", "Split", "100", "0"]).await?;
    nothing_is_copied(&story, &mirror).await?;

    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("to Mirror and back, over a mirror that went away")?;
    assert_eq!(figures.reconnects, 0, "a connection was broken");
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "the pods are the same as before");
    story.end().await
}

/// Another PostgreSQL, by itself, with the story's role and its table.
async fn start_mirror(story: &Story) -> Result<Client> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pg-superuser"},
        "stringData": {"username": "postgres", "password": SUPERUSER_PASSWORD},
    });
    story.apply(&secret.to_string()).await?;
    story.apply(&std::fs::read_to_string(root().join("e2e/demo/mirror.yaml"))?).await?;
    make_tables(story).await
}

/// Waits until it answers, makes role, database and table, and returns a connection as the role.
async fn make_tables(story: &Story) -> Result<Client> {
    let path = ["-n", &story.namespace, "get", "service", MIRROR, "-o", "jsonpath={.spec.clusterIP}"];
    let address = story.cluster.kubectl(&path).await?;
    let superuser = Login { user: "postgres".to_owned(), password: SUPERUSER_PASSWORD.to_owned() };
    let superuser = until("the mirror answers", SOON * 4, || async {
        Ok(match connect(&address, 5432, &superuser, "postgres").await {
            Ok(client) => Look::Done(client),
            Err(error) => Look::NotYet(format!("{error:#}")),
        })
    })
    .await?;
    make_login_at(&superuser, &story.login).await?;
    let client = connect(&address, 5432, &story.login, &story.login.user).await?;
    client.batch_execute("CREATE TABLE load (client int, number bigint)").await?;
    Ok(client)
}

/// A bounded load ends with the same rows on both sides, and the status says that all was copied and nothing differs.
async fn the_same_comes_of_it(story: &Story, pool: &Pool, mirror: &Client) -> Result<()> {
    let script = format!(
        "base=0; for mode in simple extended prepared; do \
         pgbench -n -f - -h {} -c {CLIENTS} -t {TRANSACTIONS} -M $mode -D base=$base <<'SQL' || exit 1\n{OWN_ACCOUNTS}SQL\n\
         base=$((base + 32000)); done",
        pool.name
    );
    let log = pgbench(story, "writes", &script, 120).await?;
    assert_eq!(clean_runs(&log), 3, "{log}");
    let primary = story.postgres.direct(0, &story.login).await?;
    let expected = sums(&primary).await?;
    assert_eq!(expected.history, 3 * CLIENTS * TRANSACTIONS, "{expected:?}");
    until("the mirror has what the primary has", SOON * 2, || async {
        let there = sums(mirror).await?;
        Ok(if there == expected {
            Look::Done(())
        } else {
            Look::NotYet(format!("{there:?}, not {expected:?}"))
        })
    })
    .await?;
    let told = until("the status tells of all of it", SOON * 3, || async {
        let told = status(pool).await?;
        Ok(if told.mirrored >= expected.history {
            Look::Done(told)
        } else {
            Look::NotYet(format!("{told:?}"))
        })
    })
    .await?;
    println!("{told:?}");
    assert_eq!(told.state, MirrorState::Running);
    assert_eq!((told.dropped, told.differing, told.errors), (0, 0, 0), "{told:?}");
    assert_eq!(told.diverged_since, None);
    assert!(told.compared > told.mirrored, "each transaction has several requests: {told:?}");
    Ok(())
}

/// What tells two states of pgbench's tables apart.
#[derive(Debug, PartialEq, Eq)]
struct Sums {
    accounts: i64,
    tellers: i64,
    branches: i64,
    deltas: i64,
    history: i64,
}

async fn sums(server: &Client) -> Result<Sums> {
    let query = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), \
                 (SELECT sum(bbalance) FROM pgbench_branches), coalesce(sum(delta), 0), count(*) FROM pgbench_history";
    let row = server.query_one(query, &[]).await?;
    Ok(Sums {
        accounts: row.get(0),
        tellers: row.get(1),
        branches: row.get(2),
        deltas: row.get(3),
        history: row.get(4),
    })
}

async fn status(pool: &Pool) -> Result<MirrorStatus> {
    pool.read().await?.status.and_then(|status| status.mirror).context("no mirror in the status yet")
}

async fn rows_of_the_load(server: &Client) -> Result<i64> {
    Ok(server.query_one("SELECT count(*) FROM load", &[]).await?.get(0))
}

/// While clients go on writing, the mirror stays as it is once what was under way has ended there.
async fn nothing_is_copied(story: &Story, mirror: &Client) -> Result<()> {
    until("what was under way has ended", SOON, || async {
        let then = rows_of_the_load(mirror).await?;
        sleep(Duration::from_secs(1)).await;
        let now = rows_of_the_load(mirror).await?;
        Ok(if now == then { Look::Done(()) } else { Look::NotYet(format!("{} rows more", now - then)) })
    })
    .await?;
    let primary = story.postgres.direct(0, &story.login).await?;
    let (here, there) = (rows_of_the_load(&primary).await?, rows_of_the_load(mirror).await?);
    throughout("the mirror stays as it is", Duration::from_secs(5), || async {
        let now = rows_of_the_load(mirror).await?;
        Ok(if now == there { Look::Done(()) } else { Look::NotYet(format!("{} rows more", now - there)) })
    })
    .await?;
    ensure!(rows_of_the_load(&primary).await? > here, "the load does nothing");
    Ok(())
}

async fn event_tells(story: &Story, reason: &str) -> Result<()> {
    until(&format!("an event tells of {reason}"), SOON, || async {
        let events = story.cluster.kubectl(&["-n", &story.namespace, "get", "events"]).await?;
        let told: Vec<_> = events.lines().filter(|line| line.contains("pgroutingpool/")).collect();
        let is_so = told.iter().any(|line| line.contains(reason));
        Ok(if is_so { Look::Done(()) } else { Look::NotYet(told.join("\n")) })
    })
    .await
}

async fn expect_columns(story: &Story, pool: &Pool, columns: [&str; 4]) -> Result<()> {
    let table = story.cluster.kubectl(&["-n", &story.namespace, "get", "pgrp", &pool.name]).await?;
    println!("{table}");
    let row: Vec<_> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    ensure!(row.get(2..6) == Some(&columns[..]), "{columns:?}, but {table}");
    Ok(())
}

const MIRROR: &str = "pg-mirror";
const SUPERUSER_PASSWORD: &str = "superuser-of-the-mirror";
const CLIENTS: i64 = 4;
const TRANSACTIONS: i64 = 200;
/// TPC-B-like, as pgbench's own; but each client of each run has accounts of its own, so that what it reads there is the same
/// whatever the order in which the clients' transactions arrive at the mirror.
const OWN_ACCOUNTS: &str = r"\set aid random(1 + :base + 8000 * :client_id, 8000 + :base + 8000 * :client_id)
\set tid random(1, 10)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = 1;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, 1, :aid, :delta, CURRENT_TIMESTAMP);
END;
";

//! Story: one edit begins a walk in steps; a person may hold it, approve of it and end it, and an operator that dies at
//! every turn of it changes nothing.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::ConditionStatus::True;
use pgrouting_crds::status::rollout::{GateVerdict, RolloutStatus};
use pgrouting_e2e::faults::{FUNCTION, Faults};
use pgrouting_e2e::load::Load;
use pgrouting_e2e::pool::{Pool, restarts};
use pgrouting_e2e::story::Story;
use pgrouting_e2e::wait::{Look, until};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

fn spec() -> Value {
    json!({
        "rollout": {
            "mode": "Automatic", "evaluationPeriod": "5s", "minSamples": 100,
            "splitSteps": [
                {"percent": 10, "soak": "5s"}, {"percent": 50, "soak": "5s"}, {"percent": 100, "soak": "5s"},
            ],
        },
        "split": {"readFunctions": [FUNCTION], "cohort": "Transaction"},
    })
}

#[tokio::test]
async fn pool_walks_in_steps_and_goes_back_at_once() -> Result<()> {
    let story = Story::begin("rollout").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec()).await?;
    let before = restarts(&pool.wait_for_pods(2, 60).await?);
    let address = pool.address("").await?;
    let reads = Faults::start(&story.postgres, &story.login, &address, 6).await?;
    let load = Load::start(&story.postgres, &story.login, &address, 2).await?;
    let forecast = until("there is a forecast", Duration::from_secs(120), || async {
        Ok(pool.rollout().await?.forecast.map_or_else(|| Look::NotYet("none".to_owned()), Look::Done))
    })
    .await?;
    println!("forecast: {forecast:?}");
    ensure!(forecast.read_share_percent > 0 && forecast.samples >= 50, "{forecast:?}");

    pool.patch(json!({"rollout": {"stage": "Split", "mode": "StepApproval", "approvedStep": 0}})).await?;
    let condition = pool.wait_for_reason("Progressing", "AwaitingApproval", 60).await?;
    println!("{}: {}", condition.reason, condition.message);
    ensure!(condition.message.contains("set spec.rollout.approvedStep to 1"), "{}", condition.message);
    assert_eq!(pool.rollout().await?.stage, Stage::PoolingOnly);
    pool.patch(json!({"rollout": {"approvedStep": 1}})).await?;
    pool.wait_for_share(Stage::Split, 10, 30).await?;
    pool.wait_for_reason("Progressing", "AwaitingApproval", 60).await?;
    let rollout = pool.rollout().await?;
    assert_eq!((rollout.split_percent, rollout.step_summary.as_str()), (10, "1/3"));
    for gate in [
        "clientErrors",
        "latencyP99",
        "misroutedWrites",
        "rescuedStatements",
        "replicaLag",
        "healthyReplicas",
    ] {
        let known = rollout.gates.iter().find(|known| known.name == gate).with_context(|| gate.to_owned())?;
        assert_eq!(known.verdict, GateVerdict::Pass, "{known:?}");
        println!("gate {}: {} (limit {}, {} samples)", known.name, known.value, known.limit, known.samples);
    }
    pool.patch(json!({"rollout": {"mode": "Paused", "approvedStep": null}})).await?;
    pool.wait_for_reason("Progressing", "Paused", 30).await?;
    pool.patch(json!({"rollout": {"mode": "Automatic"}})).await?;
    let table = ["-n", &story.namespace, "get", "pgrp", "orders", "-o", "wide"];
    pool.wait_for_share(Stage::Split, 50, 60).await?;
    println!("{}", story.cluster.kubectl(&table).await?);
    pool.wait_for_share(Stage::Split, 100, 60).await?;
    let reached = pool.wait_for_reason("Progressing", "StageReached", 60).await?;
    println!("{}: {}", reached.reason, reached.message);
    println!("{}", story.cluster.kubectl(&table).await?);
    let rollout = pool.rollout().await?;
    assert_eq!((rollout.step_summary.as_str(), rollout.moving_to), ("3/3", None));
    println!("baseline: {:?}", rollout.baseline.context("a baseline")?);
    let moves: Vec<_> = rollout.history.iter().map(|made| made.to.as_str()).collect();
    assert_eq!(moves, ["Split 100 %", "Split 50 %", "Split 10 %"]);
    pool.wait_for("SplitActive", True, 30).await?;

    let began = Instant::now();
    pool.patch(json!({"rollout": {"stage": "PoolingOnly"}})).await?;
    pool.wait_for_reason("SplitActive", "StagePoolingOnly", 30).await?;
    println!("back and acknowledged after {} ms", began.elapsed().as_millis());
    events_tell(
        &story,
        &["AttemptStarted", "StageAdvanced", "StepAdvanced", "StageReached", "AwaitingApproval"],
    )
    .await?;
    metrics_tell(&story, &pool).await?;

    reads.stop().await;
    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("a walk to Split and back")?;
    assert_eq!(figures.reconnects, 0, "a connection was broken");
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "the pods are the same as before");
    story.end().await
}

#[tokio::test]
async fn operator_that_dies_at_every_turn_changes_nothing() -> Result<()> {
    let story = Story::begin("rollout-restart").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec()).await?;
    let load = Faults::start(&story.postgres, &story.login, &pool.address("").await?, 6).await?;
    pool.patch(json!({"rollout": {"stage": "Split"}})).await?;
    let mut last = turn_of(&pool.rollout().await?);
    let mut deaths = 0;
    let deadline = Instant::now() + Duration::from_secs(240);
    loop {
        ensure!(Instant::now() < deadline, "after {deaths} deaths it is still at {last:?}");
        sleep(Duration::from_millis(50)).await;
        let rollout = pool.rollout().await?;
        let turn = turn_of(&rollout);
        if turn == last {
            continue;
        }
        println!("{turn:?}");
        if rollout.split_percent == 100 && rollout.moving_to.is_none() {
            break;
        }
        ensure!(rollout.split_percent >= last.1, "from {last:?} to {turn:?}");
        last = turn;
        kill_operator(&story).await?;
        deaths += 1;
    }
    ensure!(deaths >= 5, "only {deaths} deaths");
    let rollout = pool.rollout().await?;
    let moves: Vec<_> = rollout.history.iter().map(|made| made.to.as_str()).collect();
    assert_eq!(moves, ["Split 100 %", "Split 50 %", "Split 10 %"], "each step once, and none left out");
    assert_eq!((rollout.attempt, rollout.last_rollback), (1, None));
    println!("{deaths} deaths of the operator");
    load.stop().await;
    story.end().await
}

/// What an operator does one after the other: a step, the time of the step, its end.
fn turn_of(rollout: &RolloutStatus) -> (Stage, i32, bool, bool) {
    (rollout.stage, rollout.split_percent, rollout.soak_until.is_some(), rollout.soak_left.is_some())
}

/// Ends the operator's pod without a word.
async fn kill_operator(story: &Story) -> Result<()> {
    let pods = Api::<Pod>::namespaced(story.cluster.client.clone(), &story.namespace);
    let selector = ListParams::default().labels("app.kubernetes.io/name=pgrouting-operator");
    for pod in pods.list(&selector).await?.items {
        let name = pod.metadata.name.unwrap_or_default();
        pods.delete(&name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() })
            .await?;
    }
    Ok(())
}

async fn events_tell(story: &Story, reasons: &[&str]) -> Result<()> {
    until("events tell of the walk", Duration::from_secs(30), || async {
        let events =
            ["-n", &story.namespace, "get", "events.events.k8s.io", "-o", "jsonpath={.items[*].reason}"];
        let events = story.cluster.kubectl(&events).await?;
        let is_told = reasons.iter().all(|reason| events.split(' ').any(|told| told == *reason));
        Ok(if is_told { Look::Done(()) } else { Look::NotYet(events) })
    })
    .await
}

/// The operator's metrics have the moves.
async fn metrics_tell(story: &Story, pool: &Pool) -> Result<()> {
    let path =
        format!("/api/v1/namespaces/{0}/services/pgrouting-metrics:8080/proxy/metrics", story.namespace);
    let text = story.cluster.kubectl(&["get", "--raw", &path]).await?;
    for part in ["rollout_split_ratio", "rollout_step", "rollout_transitions_total", "wave_waiting"] {
        let line = text
            .lines()
            .find(|line| line.contains(part) && line.contains(&format!("pool=\"{}\"", pool.name)));
        println!("{}", line.with_context(|| format!("no {part}"))?);
    }
    Ok(())
}

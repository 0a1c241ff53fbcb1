//! Story: pools of a group move one at a time, from the least traffic to the most, and one that is rolled back halts the
//! others.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::RolloutStatus;
use pgrouting_e2e::faults::{self, FUNCTION, Fault, Faults};
use pgrouting_e2e::pool::Pool;
use pgrouting_e2e::story::Story;
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;
use tokio::time::sleep;

#[tokio::test]
async fn pools_of_a_group_take_turns_and_a_rollback_halts_them() -> Result<()> {
    let story = Story::begin("rollout-waves").await?;
    let spec = json!({
        "proxy": {"replicas": 1},
        "rollout": {
            "mode": "Automatic", "evaluationPeriod": "5s", "failureThreshold": 2, "minSamples": 50,
            "splitSteps": [{"percent": 50, "soak": "10s"}, {"percent": 100, "soak": "5s"}],
            "wave": {"group": "shop"},
        },
        "split": {"readFunctions": [FUNCTION], "cohort": "Transaction"},
    });
    let busy = story.pool("a-busy", &["pg-a", "pg-b"], spec.clone()).await?;
    let quiet = story.pool("b-quiet", &["pg-a", "pg-b"], spec.clone()).await?;
    let load = Faults::start(&story.postgres, &story.login, &busy.address("").await?, 8).await?;
    let small = Faults::more(&story.login, &quiet.address("").await?, 2);
    // Each has to have been seen with its traffic.
    sleep(Duration::from_secs(25)).await;
    for pool in [&busy, &quiet] {
        pool.patch(json!({"rollout": {"stage": "Split"}})).await?;
    }

    let condition = busy.wait_for_reason("Progressing", "WaitingForWave", 60).await?;
    println!("{}: {}", condition.reason, condition.message);
    ensure!(condition.message.contains("b-quiet"), "{}", condition.message);
    let wave = busy.rollout().await?.wave.context("a wave")?;
    assert_eq!(
        (wave.group.as_str(), wave.rank, wave.of, wave.waiting_for.as_deref()),
        ("shop", 2, 2, Some("b-quiet"))
    );
    quiet.wait_for_share(Stage::Split, 50, 60).await?;
    assert_eq!(busy.rollout().await?.stage, Stage::PoolingOnly);

    // The first one fails: the other does not begin, whatever its own gates say.
    let primary = story.postgres.direct(0, &story.login).await?;
    faults::set(&primary, Fault::ErrorsOnReplicas).await?;
    quiet.wait_for_reason("Progressing", "ClientErrors", 60).await?;
    let condition = busy.wait_for_reason("Progressing", "WaveHalted", 60).await?;
    println!("{}: {}", condition.reason, condition.message);
    ensure!(condition.message.contains("pool b-quiet of the group was rolled back"), "{}", condition.message);
    faults::set(&primary, Fault::None).await?;

    quiet.patch(json!({"rollout": {"attempt": 1}})).await?;
    never_both(&busy, &quiet).await?;
    load.stop().await;
    small.stop().await;
    story.end().await
}

/// Waits until both are there, the quiet one first, and watches that no two were on their way at once.
async fn never_both(busy: &Pool, quiet: &Pool) -> Result<()> {
    let is_on_its_way = |rollout: &RolloutStatus| rollout.soak_until.is_some() || rollout.soak_left.is_some();
    until("both pools have arrived", Duration::from_secs(180), || async {
        let (first, second) = (quiet.rollout().await?, busy.rollout().await?);
        ensure!(!(is_on_its_way(&first) && is_on_its_way(&second)), "both move: {first:?} {second:?}");
        let is_there = |rollout: &RolloutStatus| rollout.split_percent == 100 && rollout.moving_to.is_none();
        ensure!(second.stage == Stage::PoolingOnly || is_there(&first), "the busy one was first: {second:?}");
        Ok(if is_there(&first) && is_there(&second) {
            Look::Done(())
        } else {
            Look::NotYet(format!("quiet at {} %, busy at {} %", first.split_percent, second.split_percent))
        })
    })
    .await
}

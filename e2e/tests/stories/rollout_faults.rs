//! Story: a real fault trips each gate, the pool goes back by itself and says why and what to do; without it, it goes on.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::ConditionStatus::{False, True};
use pgrouting_crds::status::rollout::GateVerdict;
use pgrouting_e2e::faults::{self, Conflicts, FUNCTION, Fault, Faults};
use pgrouting_e2e::pool::Pool;
use pgrouting_e2e::postgres::connect;
use pgrouting_e2e::rows::Rows;
use pgrouting_e2e::story::{Story, servers_named};
use pgrouting_e2e::wait::{Look, until};
use serde_json::{Value, json};
use tokio_postgres::Client;

/// Longer than any fault takes to be seen.
const SOAK: &str = "5m";

fn spec() -> Value {
    json!({
        "proxy": {"replicas": 1},
        "rollout": {
            "mode": "Automatic", "evaluationPeriod": "5s", "failureThreshold": 2, "minSamples": 200,
            "splitSteps": [{"percent": 50, "soak": SOAK}, {"percent": 100, "soak": SOAK}],
            "mirrorSteps": [{"percent": 50, "soak": SOAK}, {"percent": 100, "soak": SOAK}],
            // A lag is known to a second, the interval of probes, where no session asks.
            "gates": {"replicaLag": {"max": "3s"}},
        },
        // By transaction both groups fill evenly whatever the number of clients.
        "split": {"readFunctions": [FUNCTION], "cohort": "Transaction", "rescue": false},
        "pooling": {"maxServerConnections": 20},
    })
}

/// A fault, and the gate that it trips.
struct Case {
    gate: &'static str,
    reason: &'static str,
    /// What the message must say beside the gate.
    says: &'static str,
}

#[tokio::test]
async fn each_fault_of_the_split_trips_its_gate_and_is_rolled_back() -> Result<()> {
    let story = Story::begin("rollout-faults").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec()).await?;
    let load = Faults::start(&story.postgres, &story.login, &pool.address("").await?, 8).await?;
    let primary = story.postgres.direct(0, &story.login).await?;
    pool.patch(json!({"rollout": {"stage": "Split"}})).await?;

    for (attempt, fault, case) in [
        (
            1,
            Fault::ErrorsOnReplicas,
            Case { gate: "clientErrors", reason: "ClientErrors", says: "others 0.0000 %" },
        ),
        (2, Fault::HiddenWrite, Case { gate: "misroutedWrites", reason: "MisroutedWrites", says: "work()" }),
        (3, Fault::SlowReplicas, Case { gate: "latencyP99", reason: "LatencyP99", says: "ms, others" }),
    ] {
        begin_step(&pool, attempt).await?;
        faults::set(&primary, fault).await?;
        expect_rollback(&story, &pool, &case, "Split 50 %", "PoolingOnly").await?;
        faults::set(&primary, Fault::None).await?;
    }

    begin_step(&pool, 4).await?;
    for standby in [1, 2] {
        story.postgres.superuser_at(standby).await?.batch_execute("SELECT pg_wal_replay_pause()").await?;
    }
    let case = Case { gate: "replicaLag", reason: "ReplicaLag", says: " s (limit 3 s" };
    let seen = expect_rollback(&story, &pool, &case, "Split 50 %", "PoolingOnly").await;
    for standby in [1, 2] {
        story.postgres.superuser_at(standby).await?.batch_execute("SELECT pg_wal_replay_resume()").await?;
    }
    seen?;

    // Transactions that stay open fill the pool of the primary. That reads wait for the rest is another gate's.
    pool.patch(
        json!({"rollout": {"gates": {"poolWaitP99": {"mode": "DryRun"}, "latencyP99": {"mode": "DryRun"}}}}),
    )
    .await?;
    begin_step(&pool, 5).await?;
    let held = hold_connections(&story, &pool, 18).await?;
    let case = Case { gate: "primaryConnections", reason: "PrimaryConnections", says: "% (limit 85 %" };
    expect_rollback(&story, &pool, &case, "Split 50 %", "PoolingOnly").await?;
    drop(held);

    // Few connections and slow statements: clients wait in line. Reads are as slow on either side.
    pool.patch(json!({
        "rollout": {"gates": {"poolWaitP99": {"mode": "Enforce"}, "primaryConnections": {"mode": "DryRun"}}},
        "pooling": {"maxServerConnections": 2},
    }))
    .await?;
    begin_step(&pool, 6).await?;
    faults::set(&primary, Fault::SlowEverywhere).await?;
    let case = Case { gate: "poolWaitP99", reason: "PoolWaitP99", says: "(limit 50 ms" };
    expect_rollback(&story, &pool, &case, "Split 50 %", "PoolingOnly").await?;
    faults::set(&primary, Fault::None).await?;

    // The replicas are gone.
    pool.patch(json!({"pooling": {"maxServerConnections": 20}})).await?;
    begin_step(&pool, 7).await?;
    pool.patch(json!({"backends": {"static": {"servers": servers_named(&["pg-a"])}}})).await?;
    let case =
        Case { gate: "healthyReplicas", reason: "HealthyReplicas", says: "0 replicas (limit at least 1" };
    expect_rollback(&story, &pool, &case, "Split 50 %", "PoolingOnly").await?;

    assert!(load.reads() > 1000, "only {} reads", load.reads());
    load.stop().await;
    story.end().await
}

#[tokio::test]
async fn diverging_mirror_is_rolled_back_and_the_split_stays() -> Result<()> {
    let story = Story::begin("rollout-mirror").await?;
    let mirror = start_mirror(&story).await?;
    let mut spec = spec();
    spec["rollout"]["mode"] = json!("Immediate");
    spec["rollout"]["stage"] = json!("Split");
    spec["mirror"] = json!({"target": {"host": "pg-a", "database": MIRROR}, "queueBytes": 16384});
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec).await?;
    pool.wait_for_share(Stage::Split, 100, 30).await?;
    // Sessions are copied or not by lot: of so many, neither group is empty.
    let load = Faults::start(&story.postgres, &story.login, &pool.address("").await?, 12).await?;

    pool.patch(json!({"rollout": {"stage": "Mirror", "mode": "Automatic"}})).await?;
    pool.wait_for_share(Stage::Mirror, 50, 60).await?;
    pool.wait_for_reason("Progressing", "Soaking", 60).await?;
    faults::set(&mirror, Fault::ErrorsEverywhere).await?;
    let case = Case { gate: "mirrorDivergence", reason: "MirrorDivergence", says: "answers)" };
    expect_rollback(&story, &pool, &case, "Mirror 50 %", "Split 100 %").await?;
    let rollout = pool.rollout().await?;
    assert_eq!((rollout.stage, rollout.split_percent, rollout.mirror_percent), (Stage::Split, 100, 0));
    pool.wait_for("SplitActive", True, 30).await?;

    // The remedy, and another attempt.
    faults::set(&mirror, Fault::None).await?;
    pool.patch(json!({"rollout": {"attempt": 1}})).await?;
    pool.wait_for_share(Stage::Mirror, 50, 60).await?;
    pool.wait_for_reason("Progressing", "Soaking", 60).await?;

    // A mirror that cannot keep up shows too little of the traffic: the step is held, and nothing is taken back.
    faults::set(&mirror, Fault::SlowEverywhere).await?;
    let condition = pool.wait_for_reason("Progressing", "NoData", 90).await?;
    println!("{}: {}", condition.reason, condition.message);
    ensure!(condition.message.contains("(mirrorDrops)"), "{}", condition.message);
    assert_eq!(pool.rollout().await?.mirror_percent, 50);
    load.stop().await;
    story.end().await
}

#[tokio::test]
async fn recovery_that_cancels_reads_is_seen_by_what_the_primary_runs_again() -> Result<()> {
    let story = Story::begin("rollout-conflicts").await?;
    let mut spec = spec();
    spec["split"]["rescue"] = json!(true);
    spec["rollout"]["gates"]["latencyP99"] = json!({"mode": "DryRun"});
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec).await?;
    let load = Faults::start(&story.postgres, &story.login, &pool.address("").await?, 8).await?;
    let primary = story.postgres.direct(0, &story.login).await?;
    pool.patch(json!({"rollout": {"stage": "Split"}})).await?;
    begin_step(&pool, 1).await?;
    // What locks a table on the primary cancels the long reads of replicas; the primary runs them again.
    faults::set(&primary, Fault::SlowReplicas).await?;
    let conflicts = Conflicts::start(&story.postgres, &story.login).await?;
    let case = Case {
        gate: "rescuedStatements",
        reason: "RescuedStatements",
        says: "in conflict with recovery) (limit 0.1000 %",
    };
    let seen = expect_rollback(&story, &pool, &case, "Split 50 %", "PoolingOnly").await;
    conflicts.stop(&story.postgres).await?;
    seen?;
    let rollout = pool.rollout().await?;
    let errors = rollout.gates.iter().find(|gate| gate.name == "clientErrors").context("clientErrors")?;
    assert_eq!(errors.verdict, GateVerdict::Pass, "clients saw nothing of it: {errors:?}");
    load.stop().await;
    story.end().await
}

#[tokio::test]
async fn mirror_that_is_the_same_database_by_another_name_is_seen_by_its_impact() -> Result<()> {
    let story = Story::begin("rollout-impact").await?;
    let mut spec = spec();
    spec["rollout"]["mode"] = json!("Immediate");
    spec["rollout"]["stage"] = json!("Split");
    // Nobody can tell from the names that this is the primary of the pool. Copied writes then lock what clients write next.
    let host = format!("pg-a.{}.svc", story.namespace);
    spec["mirror"] = json!({"target": {"host": host}, "statements": "All"});
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec).await?;
    pool.wait_for_share(Stage::Split, 100, 30).await?;
    let address = pool.address("").await?;
    let reads = Faults::start(&story.postgres, &story.login, &address, 4).await?;
    let writes = Rows::start(&story.postgres, &story.login, &address, 12).await?;

    pool.patch(json!({"rollout": {"stage": "Mirror", "mode": "Automatic"}})).await?;
    let case = Case { gate: "mirrorImpact", reason: "MirrorImpact", says: "ms, others" };
    expect_rollback(&story, &pool, &case, "Mirror 50 %", "Split 100 %").await?;
    pool.wait_for("SplitActive", True, 30).await?;
    writes.stop().await?;
    reads.stop().await;
    story.end().await
}

/// Tries again, and waits until the first step goes well.
async fn begin_step(pool: &Pool, attempt: i32) -> Result<()> {
    pool.patch(json!({"rollout": {"attempt": attempt}})).await?;
    pool.wait_for_share(Stage::Split, 50, 60).await?;
    pool.wait_for_reason("Progressing", "Soaking", 60).await?;
    Ok(())
}

/// Waits until the gate has failed and the pool has gone back, and looks at everything that is said of it.
async fn expect_rollback(story: &Story, pool: &Pool, case: &Case, from: &str, to: &str) -> Result<()> {
    let condition = pool.wait_for_reason("Progressing", case.reason, 60).await?;
    println!("{}: {}", condition.reason, condition.message);
    assert_eq!(condition.status, False);
    let rollout = pool.rollout().await?;
    let rollback = rollout.last_rollback.context("a rollback")?;
    assert_eq!((rollback.gate.as_str(), rollback.from.as_str(), rollback.to.as_str()), (case.gate, from, to));
    for part in [case.gate, case.says, "limit", "samples", "spec.rollout.attempt", &rollback.remedy, from, to]
    {
        ensure!(condition.message.contains(part), "{part:?} is not in: {}", condition.message);
    }
    let gate = rollout.gates.iter().find(|gate| gate.name == case.gate).context("the gate")?;
    assert_eq!(gate.verdict, GateVerdict::Fail, "{gate:?}");
    let stalled = pool.wait_for("Stalled", True, 10).await?;
    assert_eq!(stalled.reason, "GateFailed");
    // The proxies run it too, and clients were served all the time.
    pool.wait_for("ConfigApplied", True, 30).await?;
    pool.wait_for("Ready", True, 10).await?;
    until("an event tells of the rollback", Duration::from_secs(30), || async {
        let events =
            ["-n", &story.namespace, "get", "events.events.k8s.io", "-o", "jsonpath={.items[*].reason}"];
        let events = story.cluster.kubectl(&events).await?;
        Ok(if events.contains("RolledBack") { Look::Done(()) } else { Look::NotYet(events) })
    })
    .await
}

/// Clients with an open transaction each on the primary.
async fn hold_connections(story: &Story, pool: &Pool, count: usize) -> Result<Vec<Client>> {
    let address = pool.address("").await?;
    let mut held = Vec::new();
    for _ in 0..count {
        let client = connect(&address, 5432, &story.login, &story.login.user).await?;
        client.batch_execute("BEGIN; INSERT INTO written VALUES (2)").await?;
        held.push(client);
    }
    Ok(held)
}

/// Another database on the primary, with the function. It is the superuser's, so that the role of an earlier run can go.
async fn start_mirror(story: &Story) -> Result<Client> {
    let superuser = story.postgres.superuser().await?;
    superuser.batch_execute(&format!("DROP DATABASE IF EXISTS {MIRROR} WITH (FORCE)")).await?;
    superuser.batch_execute(&format!("CREATE DATABASE {MIRROR}")).await?;
    let mirror = story.postgres.superuser_in(MIRROR).await?;
    faults::make(&mirror).await?;
    let grant = "GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO PUBLIC";
    mirror.batch_execute(grant).await?;
    Ok(mirror)
}

const MIRROR: &str = "rollout_mirror";

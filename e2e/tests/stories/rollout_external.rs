//! Story: a gate asks a real Prometheus. Without an answer, or without a number, it holds; with a number over its limit it
//! fails.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::ConditionStatus::Unknown;
use pgrouting_e2e::faults::{FUNCTION, Faults};
use pgrouting_e2e::pool::Pool;
use pgrouting_e2e::postgres::connect;
use pgrouting_e2e::story::Story;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::sleep;

/// Where the Prometheus listens: the node's address, which pods reach.
const LISTEN: &str = "192.0.2.1:9191";
const QUERY: &str = "sum(pgrouting_proxy_clients)";

#[tokio::test]
async fn gate_asks_a_prometheus() -> Result<()> {
    let story = Story::set("rollout-external").await?;
    story.apply_definition().await?;
    let url = format!("prometheus.url=http://{LISTEN}");
    story.release.apply("install", &["--set", "crds.install=false", "--set", &url]).await?;
    let spec = json!({
        "proxy": {"replicas": 1},
        "rollout": {
            "mode": "Automatic", "evaluationPeriod": "5s", "failureThreshold": 2, "minSamples": 100,
            "splitSteps": [{"percent": 50, "soak": "5m"}, {"percent": 100, "soak": "5m"}],
            "gates": {"external": [{"name": "clients", "query": QUERY, "max": "12"}]},
        },
        "split": {"readFunctions": [FUNCTION], "cohort": "Transaction"},
    });
    let pool = story.pool("orders", &["pg-a", "pg-b"], spec).await?;
    let load = Faults::start(&story.postgres, &story.login, &pool.address("").await?, 4).await?;

    pool.patch(json!({"rollout": {"stage": "Split"}})).await?;
    let condition = pool.wait_for_reason("Progressing", "MetricsUnavailable", 60).await?;
    println!("{}: {}", condition.reason, condition.message);
    assert_eq!(condition.status, Unknown);
    ensure!(condition.message.contains("external/clients"), "{}", condition.message);
    sleep(Duration::from_secs(12)).await;
    assert_eq!(pool.rollout().await?.stage, Stage::PoolingOnly, "no figures never pass");

    let folder = std::env::temp_dir().join(format!("pgrouting-prometheus-{}", std::process::id()));
    let mut prometheus = start_prometheus(&pool, &folder).await?;
    pool.wait_for_share(Stage::Split, 50, 90).await?;
    pool.wait_for_reason("Progressing", "Soaking", 60).await?;
    let gate = |query: &str| {
        let gate = json!({"name": "clients", "query": query, "max": "12"});
        json!({"rollout": {"gates": {"external": [gate]}}})
    };
    pool.patch(gate("sum(no_such_metric)")).await?;
    let condition = pool.wait_for_reason("Progressing", "NoData", 60).await?;
    println!("{}: {}", condition.reason, condition.message);
    ensure!(condition.message.contains("the query gives no value"), "{}", condition.message);
    pool.patch(gate(QUERY)).await?;
    pool.wait_for_reason("Progressing", "Soaking", 60).await?;

    let address = pool.address("").await?;
    let mut clients = Vec::new();
    for _ in 0..15 {
        clients.push(connect(&address, 5432, &story.login, &story.login.user).await?);
    }
    let condition = pool.wait_for_reason("Progressing", "ExternalGate", 60).await?;
    println!("{}: {}", condition.reason, condition.message);
    for part in ["external/clients: 19", "limit at most 12", "Split 50 % to PoolingOnly"] {
        ensure!(condition.message.contains(part), "{part:?} is not in: {}", condition.message);
    }
    drop(clients);
    prometheus.kill().await?;
    std::fs::remove_dir_all(&folder)?;
    load.stop().await;
    story.end().await
}

/// A Prometheus that scrapes the pool's proxy every second. It ends when it is dropped.
async fn start_prometheus(pool: &Pool, folder: &Path) -> Result<Child> {
    let pods = pool.wait_for_pods(1, 60).await?;
    let address = pods[0].status.as_ref().and_then(|status| status.pod_ip.clone()).context("an address")?;
    std::fs::create_dir_all(folder)?;
    let config = folder.join("prometheus.yml");
    std::fs::write(
        &config,
        format!(
            "scrape_configs: [{{job_name: proxies, scrape_interval: 1s, static_configs: [{{targets: ['{address}:9127']}}]}}]\n"
        ),
    )?;
    let program = std::env::var("PROMETHEUS").context("PROMETHEUS names the program: run.sh sets it")?;
    let child = Command::new(program)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={LISTEN}"))
        .arg("--scrape.discovery-reload-interval=100ms")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

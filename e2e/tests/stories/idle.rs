//! Story: while nothing happens, the operator writes nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use pgrouting_e2e::story::Story;
use serde_json::{Value, json};
use tokio::time::sleep;

#[tokio::test]
async fn operator_writes_nothing_in_an_idle_minute() -> Result<()> {
    let story = Story::begin("idle").await?;
    for (name, stage) in [("orders", "PoolingOnly"), ("ledger", "Split")] {
        let spec = json!({"rollout": {"stage": stage}});
        story.pool(name, &["pg-a", "pg-b", "pg-c"], spec).await?.wait_for_pods(2, 60).await?;
    }
    // What follows a start ends within this: the status of the last pod that became ready, and the first figures of the gates.
    sleep(Duration::from_secs(45)).await;

    let before = writes(&story.namespace)?;
    assert!(!before.is_empty(), "the audit log must show what the start wrote");
    sleep(Duration::from_secs(60)).await;
    let after = writes(&story.namespace)?;
    let (idle, leases): (Vec<_>, Vec<_>) =
        after[before.len()..].iter().partition(|write| !write.contains("leases"));
    println!("an idle minute: {} writes, and {} renewals of the Lease", idle.len(), leases.len());
    assert!(idle.is_empty(), "{idle:#?}");
    story.end().await
}

/// Every write of a ServiceAccount of the namespace, out of the API server's audit log.
fn writes(namespace: &str) -> Result<Vec<String>> {
    let path = std::env::var("AUDIT_LOG").context("AUDIT_LOG names the API server's audit log")?;
    let user = format!("system:serviceaccount:{namespace}:");
    let log = std::fs::read_to_string(path)?;
    // The API server may be in the middle of its last line.
    let whole = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let mut writes = Vec::new();
    for line in whole.lines() {
        let event: Value = serde_json::from_str(line)?;
        let name = event["user"]["username"].as_str().unwrap_or_default();
        let (verb, uri) = (event["verb"].as_str(), event["requestURI"].as_str());
        if name.starts_with(&user) && verb != Some("get") {
            writes.push(format!("{} {}", verb.unwrap_or_default(), uri.unwrap_or_default()));
        }
    }
    Ok(writes)
}

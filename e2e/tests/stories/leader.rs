//! Story: of two operators one works, and the other takes over.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use pgrouting_e2e::story::Story;
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;

#[tokio::test]
async fn one_of_two_operators_leads_and_the_other_takes_over() -> Result<()> {
    let story = Story::begin("leader").await?;
    story.release.apply("upgrade", &["--set", "crds.install=false", "--set", "replicaCount=2"]).await?;
    let pool = story.pool("orders", &["pg-a"], json!({"proxy": {"replicas": 1}})).await?;
    let operators = Api::<Pod>::namespaced(story.cluster.client.clone(), &story.namespace);
    let pods = operators.list(&ListParams::default().labels("app.kubernetes.io/component=operator")).await?;
    assert_eq!(pods.items.len(), 2);
    let leader = holder(&story).await?;
    let mut leading = Vec::new();
    for pod in &pods.items {
        let address =
            pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).context("no address")?;
        let metrics = metrics(address).await?;
        if metrics.lines().any(|line| line.starts_with("pgrouting_operator_leader") && line.ends_with(" 1")) {
            leading.push(pod.metadata.name.clone().unwrap_or_default());
        }
    }
    assert_eq!(
        leading.as_slice(),
        std::slice::from_ref(&leader),
        "the holder of the Lease is the one that says it leads"
    );

    // Killed, not asked: the Lease is not handed over and has to run out.
    operators.delete(&leader, &DeleteParams::default().grace_period(0)).await?;
    let next = until("another operator leads", Duration::from_secs(60), || async {
        let now = holder(&story).await?;
        Ok(if now != leader && !now.is_empty() {
            Look::Done(now)
        } else {
            Look::NotYet(format!("{now} leads"))
        })
    })
    .await?;
    println!("{leader} was killed, {next} leads");
    pool.patch(json!({"proxy": {"replicas": 2}})).await?;
    pool.wait_for_pods(2, 60).await?;
    pool.wait_until_serving(30).await?;
    story.end().await
}

async fn holder(story: &Story) -> Result<String> {
    let leases = Api::<Lease>::namespaced(story.cluster.client.clone(), &story.namespace);
    let lease = leases.get(&story.release.operator()).await?;
    Ok(lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
}

/// The metrics of a pod, over plain HTTP.
async fn metrics(address: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut socket = tokio::net::TcpStream::connect((address, 8080)).await?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n").await?;
    let mut text = String::new();
    socket.read_to_string(&mut text).await?;
    Ok(text)
}

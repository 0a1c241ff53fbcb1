//! Story: a query runs through one pod, and its cancel request arrives at another.

use std::time::Duration;

use anyhow::{Context as _, Result};
use pgrouting_e2e::postgres::connect;
use pgrouting_e2e::story::{SOON, Story};
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::NoTls;
use tokio_postgres::error::SqlState;

#[tokio::test]
async fn cancel_request_finds_its_session_at_another_pod() -> Result<()> {
    let story = Story::begin("cancel").await?;
    let pool = story.pool("orders", &["pg-a"], json!({})).await?;
    let pods = pool.wait_for_pods(2, 60).await?;
    let addresses: Vec<_> =
        pods.iter().filter_map(|pod| pod.status.as_ref().and_then(|status| status.pod_ip.clone())).collect();
    let [first, second] = addresses.as_slice() else { anyhow::bail!("two pods have {addresses:?}") };
    peers_are_published(&story, addresses.len()).await?;

    for (session, request) in [(first, second), (second, first)] {
        let port = lead(vec![session.clone(), request.clone()]).await?;
        let client = connect("127.0.0.1", port, &story.login, &story.login.user).await?;
        let cancel = client.cancel_token();
        let sleep = tokio::spawn(async move { (client.batch_execute("SELECT pg_sleep(120)").await, client) });
        runs(&story, session).await?;
        cancel.cancel_query(NoTls).await?;
        let (slept, client) = tokio::time::timeout(SOON, sleep).await.context("the query runs on")??;
        let code = slept.expect_err("the query was cancelled").code().cloned();
        assert_eq!(code, Some(SqlState::QUERY_CANCELED), "from {request} to {session}");
        client.batch_execute("SELECT 1").await?;
    }
    story.end().await
}

/// Leads the connections to a new port on to these proxies, one after the other.
async fn lead(proxies: Vec<String>) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        for proxy in proxies {
            let (mut client, _) = listener.accept().await?;
            let mut server = TcpStream::connect((proxy.as_str(), 5432)).await?;
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
        std::io::Result::Ok(())
    });
    Ok(port)
}

/// Waits until the query of this proxy's client sleeps at the server.
async fn runs(story: &Story, proxy: &str) -> Result<()> {
    let admin = connect(&story.postgres.servers[0].address, 5432, &story.login, &story.login.user).await?;
    let sleeping =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
    until(&format!("the query runs through {proxy}"), SOON, || async {
        let count: i64 = admin.query_one(sleeping, &[]).await?.get(0);
        Ok(if count == 1 { Look::Done(()) } else { Look::NotYet(format!("{count} sleep")) })
    })
    .await
}

/// Waits until the headless Service has an address for each pod.
async fn peers_are_published(story: &Story, count: usize) -> Result<()> {
    until("each pod is published as a peer", Duration::from_secs(30), || async {
        let path = [
            "-n",
            story.namespace.as_str(),
            "get",
            "endpointslices",
            "-l",
            "kubernetes.io/service-name=orders-peers",
            "-o",
            "jsonpath={.items[*].endpoints[*].addresses[0]}",
        ];
        let published = story.cluster.kubectl(&path).await?;
        Ok(if published.split_whitespace().count() == count {
            Look::Done(())
        } else {
            Look::NotYet(published)
        })
    })
    .await
}

//! Story: without an operator the proxies serve on, and new ones start.

use anyhow::Result;
use pgrouting_e2e::load::Load;
use pgrouting_e2e::postgres::connect;
use pgrouting_e2e::story::{SOON, Story};
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;

#[tokio::test]
async fn proxies_serve_and_start_without_an_operator() -> Result<()> {
    let story = Story::begin("operator-gone").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({})).await?;
    let pods = pool.wait_for_pods(2, 60).await?;
    let namespace = story.namespace.as_str();
    let operator = format!("deployment/{}", story.release.operator());
    story.cluster.kubectl(&["-n", namespace, "scale", &operator, "--replicas=0"]).await?;
    until("the operator is gone", SOON, || async {
        let arguments =
            ["-n", namespace, "get", "pods", "-l", "app.kubernetes.io/component=operator", "-o", "name"];
        let left = story.cluster.kubectl(&arguments).await?;
        Ok(if left.is_empty() { Look::Done(()) } else { Look::NotYet(left) })
    })
    .await?;

    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 4).await?;
    for pod in &pods {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        story.cluster.kubectl(&["-n", namespace, "delete", "pod", name, "--wait=false"]).await?;
        until(&format!("{name} is replaced"), SOON, || async {
            let now = pool.pods().await?;
            let is_there = now.iter().any(|pod| pod.metadata.name.as_deref() == Some(name));
            Ok(if is_there { Look::NotYet("it is still ending".to_owned()) } else { Look::Done(()) })
        })
        .await?;
        pool.wait_for_pods(2, 60).await?;
    }
    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("both proxies replaced without an operator")?;

    // Every proxy now started from the mounted document alone, and takes logins.
    let client = connect(&pool.address("").await?, 5432, &story.login, &story.login.user).await?;
    client.query_one("SELECT 1", &[]).await?;
    story.cluster.kubectl(&["-n", namespace, "scale", &operator, "--replicas=1"]).await?;
    pool.patch(json!({"pooling": {"checkoutTimeout": "7s"}})).await?;
    pool.wait_until_serving(60).await?;
    story.end().await
}

//! Story: a pool is deleted and nothing of it is left, with or without an operator.

use std::time::Duration;

use anyhow::Result;
use pgrouting_e2e::pool::Pool;
use pgrouting_e2e::postgres::connect;
use pgrouting_e2e::story::{SOON, Story};
use pgrouting_e2e::wait::{Look, throughout, until};
use serde_json::json;
use tokio_postgres::error::SqlState;

#[tokio::test]
async fn deleted_pool_leaves_nothing_behind() -> Result<()> {
    let story = Story::begin("delete").await?;
    let endpoints = json!({"service": {"endpoints": ["Primary", "ReadOnly"]}});
    for name in ["first", "second"] {
        let pool = story.pool(name, &["pg-a", "pg-b"], endpoints.clone()).await?;
        let before = everything(&story, &pool.selector()).await?;
        println!("{name} made: {}", before.join(" "));
        assert!(before.len() >= 8, "{before:?}");
        if name == "second" {
            // No finalizer: the garbage collector alone is enough.
            let namespace = story.namespace.as_str();
            let operator = format!("deployment/{}", story.release.operator());
            story.cluster.kubectl(&["-n", namespace, "delete", &operator]).await?;
        }
        pool.delete().await?;
        nothing_is_left(&story, &pool).await?;
    }
    story.end().await
}

/// Case 225: who is in a transaction ends it, who is idle is told, and the pool goes.
#[tokio::test]
async fn deleted_pool_lets_transactions_end() -> Result<()> {
    let story = Story::begin("delete-drain").await?;
    let pool =
        story.pool("orders", &["pg-a"], json!({"proxy": {"replicas": 1, "drainTimeout": "30s"}})).await?;
    let address = pool.address("").await?;
    let busy = connect(&address, 5432, &story.login, &story.login.user).await?;
    let idle = connect(&address, 5432, &story.login, &story.login.user).await?;
    idle.query_one("SELECT 1", &[]).await?;
    busy.batch_execute("CREATE TABLE of_delete (a int); BEGIN; INSERT INTO of_delete VALUES (1)").await?;
    let sleeping = busy.query_one("SELECT pg_sleep(5)::text", &[]);
    let (slept, deleted) = tokio::join!(sleeping, pool.delete());
    deleted?;
    slept?;
    busy.batch_execute("COMMIT").await?;
    let primary = story.postgres.direct(0, &story.login).await?;
    let row = primary.query_one("SELECT count(*) FROM of_delete", &[]).await?;
    assert_eq!(row.get::<_, i64>(0), 1, "what was acknowledged is there");
    until("the idle client is told", Duration::from_secs(60), || async {
        Ok(match idle.query_one("SELECT 1", &[]).await {
            Ok(_) => Look::NotYet("it is served".to_owned()),
            Err(error) => {
                let code = error.code().cloned();
                anyhow::ensure!(code.is_none() || code == Some(SqlState::ADMIN_SHUTDOWN), "{error}");
                Look::Done(())
            }
        })
    })
    .await?;
    nothing_is_left(&story, &pool).await?;
    story.end().await
}

/// Case 226: somebody else's finalizer keeps the pool, and its objects go all the same.
#[tokio::test]
async fn pool_that_is_on_its_way_gets_nothing_made_anew() -> Result<()> {
    let story = Story::begin("delete-held").await?;
    let pool = story.pool("orders", &["pg-a"], json!({"proxy": {"drainTimeout": "5s"}})).await?;
    let namespace = story.namespace.as_str();
    let patch = |list: &str| format!(r#"{{"metadata": {{"finalizers": {list}}}}}"#);
    let hold = patch(r#"["other.example.org/hold"]"#);
    story.cluster.kubectl(&["-n", namespace, "patch", "pgrp/orders", "--type=merge", "-p", &hold]).await?;
    let delete = ["-n", namespace, "delete", "pgrp/orders", "--cascade=foreground", "--wait=false"];
    story.cluster.kubectl(&delete).await?;
    nothing_is_left(&story, &pool).await?;
    // An edit is one more reason to look at the pool.
    pool.patch(json!({"pooling": {"checkoutTimeout": "7s"}})).await?;
    throughout("nothing comes back", Duration::from_secs(10), || async {
        let left = everything(&story, &pool.selector()).await?;
        Ok(if left.is_empty() { Look::Done(()) } else { Look::NotYet(left.join(" ")) })
    })
    .await?;
    story
        .cluster
        .kubectl(&["-n", namespace, "patch", "pgrp/orders", "--type=merge", "-p", &patch("null")])
        .await?;
    until("the pool is gone", SOON, || async {
        let left = story.cluster.kubectl(&["-n", namespace, "get", "pgrp", "-o", "name"]).await?;
        Ok(if left.is_empty() { Look::Done(()) } else { Look::NotYet(left) })
    })
    .await?;
    story.end().await
}

/// Case 227: the namespace goes with operator and pool in it.
#[tokio::test]
async fn namespace_with_operator_and_pool_goes() -> Result<()> {
    let story = Story::begin("delete-namespace").await?;
    story.pool("orders", &["pg-a"], json!({"proxy": {"drainTimeout": "5s"}})).await?;
    // It waits until it is gone, and fails where something holds it.
    story.end().await
}

async fn nothing_is_left(story: &Story, pool: &Pool) -> Result<()> {
    until("nothing is left", Duration::from_secs(90), || async {
        let left = everything(story, &pool.selector()).await?;
        Ok(if left.is_empty() { Look::Done(()) } else { Look::NotYet(left.join(" ")) })
    })
    .await
}

/// Every object of the namespace that carries the pool's labels, whatever its kind; events apart.
async fn everything(story: &Story, selector: &str) -> Result<Vec<String>> {
    let namespace = story.namespace.as_str();
    let kinds = story
        .cluster
        .kubectl(&["api-resources", "--namespaced", "--verbs=list,delete", "-o", "name"])
        .await?;
    let kinds: Vec<_> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let arguments = ["-n", namespace, "get", &kinds.join(","), "-l", selector, "-o", "name"];
    let names = story.cluster.kubectl(&arguments).await?;
    Ok(names.lines().map(str::to_owned).collect())
}

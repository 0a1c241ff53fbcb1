//! Story: a pool is deleted and nothing of it is left, with or without an operator.

use std::time::Duration;

use anyhow::Result;
use pgrouting_e2e::story::Story;
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;

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
        until("nothing is left", Duration::from_secs(90), || async {
            let left = everything(&story, &pool.selector()).await?;
            Ok(if left.is_empty() { Look::Done(()) } else { Look::NotYet(left.join(" ")) })
        })
        .await?;
    }
    story.end().await
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

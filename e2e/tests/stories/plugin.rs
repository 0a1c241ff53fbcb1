//! Story: a person follows and moves a pool with `kubectl pgrp`, and asks it where a statement would run.

use anyhow::{Result, ensure};
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::ConditionStatus::True;
use pgrouting_e2e::story::Story;
use serde_json::json;

#[tokio::test]
async fn kubectl_pgrp_shows_moves_and_explains() -> Result<()> {
    let story = Story::begin("plugin").await?;
    let spec = json!({"mirror": {"target": {"host": "pg-a", "database": "postgres"}}});
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec).await?;

    let table = pgrp(&story, &["status"]).await?;
    ensure!(table.contains("PoolingOnly   PoolingOnly"), "{table}");
    let told = pgrp(&story, &["promote", "orders"]).await?;
    println!("{told}");
    pool.wait_for_share(Stage::Split, 100, 30).await?;
    pool.wait_for("SplitActive", True, 30).await?;
    let picture = pgrp(&story, &["status", "orders"]).await?;
    println!("{picture}");
    for part in
        ["Stage         Split", "StageReached", "healthyReplicas", "pg-b", "Replica", "in use", "in sync"]
    {
        ensure!(picture.contains(part), "{part:?} is not in:\n{picture}");
    }

    let database = story.login.user.as_str();
    for (statement, says) in [
        ("SELECT count(*) FROM pg_class", "replica: "),
        ("SELECT nextval('s')", "primary: "),
        ("INSERT INTO t VALUES (1)", "primary: "),
    ] {
        let told = pgrp(&story, &["explain-route", "orders", "--database", database, statement]).await?;
        println!("{told}");
        ensure!(told.starts_with(says), "{statement}: {told}");
    }
    let report = pgrp(&story, &["mirror-report", "orders"]).await?;
    ensure!(report.contains("orders-proxy-"), "{report}");

    let told = pgrp(&story, &["rollback", "orders"]).await?;
    println!("{told}");
    pool.wait_for_share(Stage::PoolingOnly, 0, 30).await?;
    let nobody = pgrp(&story, &["promote", "nobody"]).await.expect_err("there is no such pool").to_string();
    ensure!(nobody.contains("nobody"), "{nobody}");
    story.end().await
}

/// What the plugin says, run through kubectl.
async fn pgrp(story: &Story, arguments: &[&str]) -> Result<String> {
    let namespace = ["--namespace", &story.namespace];
    story.cluster.kubectl(&[&["pgrp"], arguments, &namespace].concat()).await
}

//! Story: install the chart, apply the pool of the README, and run pgbench through its Service by name.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use pgrouting_e2e::cluster::{root, run};
use pgrouting_e2e::pgbench::{clean_runs, pgbench};
use pgrouting_e2e::pool::Pool;
use pgrouting_e2e::story::{DEFINITION, SOON, Story};
use pgrouting_e2e::wait::{Look, until};

#[tokio::test]
async fn install_then_pool_then_pgbench_through_the_service() -> Result<()> {
    let story = Story::set("install").await?;
    story.remove_definition().await?;

    let notes = story.release.apply("install", &[]).await?;
    let definitions = Api::<CustomResourceDefinition>::all(story.cluster.client.clone());
    definitions.get(DEFINITION).await.context("the chart brings the definition")?;

    let manifest = readme_manifest()?;
    let pool = apply_as_it_stands(&story, &manifest).await?;
    pool.wait_until_serving(60).await?;
    pool.wait_for_pods(2, 30).await?;
    columns_say_how_the_pool_is(&story, &pool.name).await?;
    run_pgbench(&story, &pool.name).await?;

    story.cluster.kubectl(&["-n", &story.namespace, "delete", "pgrp", &pool.name]).await?;
    notes_are_commands_that_work(&story, &notes).await?;
    story.end().await
}

/// Runs the chart's notes as the script that they are, with the places filled in that only a user knows.
async fn notes_are_commands_that_work(story: &Story, notes: &str) -> Result<()> {
    let (_, notes) = notes.split_once("NOTES:\n").context("no notes")?;
    let known = [
        ("ROLE", story.login.user.as_str()),
        ("PASSWORD", &story.login.password),
        ("HOST-OF-A", "pg-a"),
        ("HOST-OF-B", "pg-b"),
    ];
    let filled = known.iter().fold(notes.to_owned(), |text, (place, value)| text.replace(place, value));
    let script = format!("set -e\n{filled}");
    // The README's Secret has that name, too.
    story
        .cluster
        .kubectl(&["-n", &story.namespace, "delete", "secret", "orders-app", "--ignore-not-found"])
        .await?;
    let log = run("bash", &["-s"], &script).await.with_context(|| script.clone())?;
    println!("{log}");
    ensure!(log.contains("condition met") && log.contains("PoolingOnly"), "{log}");
    Ok(())
}

/// The first manifest of a pool in README.md.
fn readme_manifest() -> Result<String> {
    let readme = std::fs::read_to_string(root().join("README.md"))?;
    let blocks = readme.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let manifest = blocks.into_iter().find(|block| block.contains("kind: PgRoutingPool"));
    Ok(manifest.context("README.md has no manifest of a pool")?.to_owned())
}

/// Applies the manifest unchanged; its hosts and its Secret are made to be there first.
async fn apply_as_it_stands(story: &Story, manifest: &str) -> Result<Pool> {
    let object: serde_yaml::Value = serde_yaml::from_str(manifest)?;
    let name = object["metadata"]["name"].as_str().context("the manifest names no pool")?;
    let servers = object["spec"]["backends"]["static"]["servers"].as_sequence().context("no servers")?;
    let hosts: Vec<_> = servers.iter().filter_map(|server| server["host"].as_str()).collect();
    ensure!(hosts.len() <= 3 && hosts.len() == servers.len(), "hosts of the manifest: {hosts:?}");
    story.postgres.expose(&story.cluster, &story.namespace, &hosts).await?;
    let users = object["spec"]["auth"]["users"].as_sequence().context("no users")?;
    for user in users {
        story.write_secret(user["name"].as_str().context("a user without a Secret")?).await?;
    }
    story.apply(manifest).await?;
    Ok(Pool::new(&story.cluster, &story.namespace, name))
}

async fn columns_say_how_the_pool_is(story: &Story, pool: &str) -> Result<()> {
    let namespace = story.namespace.as_str();
    let table = until("the columns are filled", SOON, || async {
        let table = story.cluster.kubectl(&["-n", namespace, "get", "pgrp", pool]).await?;
        Ok(if table.contains("2/2") { Look::Done(table) } else { Look::NotYet(table) })
    })
    .await?;
    println!("{table}");
    let mut lines = table.lines();
    let header: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(
        header,
        ["NAME", "READY", "STAGE", "TARGET", "SPLIT%", "MIRROR%", "ROLLOUT", "PROXIES", "REPLICAS", "AGE"]
    );
    let row: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
    let expected = [pool, "True", "PoolingOnly", "PoolingOnly", "0", "0", "StageReached", "2/2"];
    assert_eq!(row.get(..8), Some(&expected[..]), "{table}");
    assert_eq!(row.get(8), Some(&"2/2"), "both standbys are up: {table}");
    let wide = story.cluster.kubectl(&["-n", namespace, "get", "pgrp", pool, "-o", "wide"]).await?;
    println!("{wide}");
    Ok(())
}

/// From a pod that knows nothing but the Service's name.
async fn run_pgbench(story: &Story, host: &str) -> Result<()> {
    let script = format!(
        "pgbench -q -i -s 1 -h {host} && for mode in simple extended prepared; do \
         pgbench -n -h {host} -c 4 -T 4 -M $mode || exit 1; done"
    );
    let log = pgbench(story, "pgbench", &script, 90).await?;
    assert_eq!(clean_runs(&log), 3, "{log}");
    Ok(())
}

//! Story: the operator works with the rights of one namespace alone, with those of the cluster, and says which it lacks.

use anyhow::{Context, Result, ensure};
use pgrouting_crds::status::ConditionStatus::True;
use pgrouting_e2e::chart::{folder, helm};
use pgrouting_e2e::load::Load;
use pgrouting_e2e::story::Story;
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

#[tokio::test]
async fn rights_of_one_namespace_are_enough() -> Result<()> {
    let story = Story::set("rights").await?;
    story.apply_definition().await?;
    // What a run left that did not come to its end.
    for name in cluster_wide(&story).await? {
        story.cluster.kubectl(&["delete", &name]).await?;
    }
    let sets = ["--set", "crds.install=false", "--set", "rbac.clusterWide=false"];
    story.release.apply("install", &sets).await?;
    assert_eq!(cluster_wide(&story).await?, Vec::<String>::new(), "nothing cluster-wide was made");
    let user = format!("--as=system:serviceaccount:{0}:pgrouting", story.namespace);
    for (verb, resource, namespace, expected) in [
        ("list", "secrets", story.namespace.as_str(), "no"),
        ("get", "secrets", story.namespace.as_str(), "yes"),
        ("get", "secrets", "default", "no"),
        ("list", "pgroutingpools.pgrouting.dev", "default", "no"),
    ] {
        // It prints no and fails where the answer is no.
        let asked = ["auth", "can-i", verb, resource, "-n", namespace, &user];
        let answer = story.cluster.kubectl(&asked).await.unwrap_or_else(|error| error.to_string());
        ensure!(answer.lines().any(|line| line == expected), "{verb} {resource} in {namespace}: {answer}");
    }
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({"networkPolicy": "Enabled"})).await?;
    pool.wait_for_pods(2, 60).await?;
    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 4).await?;

    the_right_to_read_secrets_goes(&story, &pool).await?;
    load.stop(&story.postgres, &story.login).await?.expect_clean("without the right to read Secrets")?;

    // The same release for the whole cluster keeps the same pool.
    let chart = folder();
    let chart = chart.to_str().context("a plain path")?;
    let wide = [
        "upgrade",
        "pgrouting",
        chart,
        "--namespace",
        &story.namespace,
        "--set",
        "crds.install=false",
        "--wait",
    ];
    helm(&wide).await?;
    pool.patch(json!({"pooling": {"checkoutTimeout": "7s"}})).await?;
    pool.wait_until_serving(60).await?;
    let made = cluster_wide(&story).await?;
    assert_eq!(made.len(), 4, "three ClusterRoles and a binding: {made:?}");
    helm(&["uninstall", "pgrouting", "--namespace", &story.namespace, "--wait"]).await?;
    story.end().await
}

/// The cluster-wide objects of the story's release.
async fn cluster_wide(story: &Story) -> Result<Vec<String>> {
    let label = "app.kubernetes.io/name=pgrouting-operator";
    let all = ["get", "clusterroles,clusterrolebindings", "-l", label, "-o", "name"];
    let all = story.cluster.kubectl(&all).await?;
    let own = format!("/{}:", story.namespace);
    Ok(all.lines().filter(|name| name.contains(&own)).map(str::to_owned).collect())
}

/// Case 236: a condition says which right is missing, few requests ask again, and what ran before runs on.
async fn the_right_to_read_secrets_goes(story: &Story, pool: &pgrouting_e2e::pool::Pool) -> Result<()> {
    let namespace = story.namespace.as_str();
    let role: Value = serde_json::from_str(
        &story.cluster.kubectl(&["-n", namespace, "get", "role", "pgrouting", "-o", "json"]).await?,
    )?;
    let rules = role["rules"].as_array().context("rules")?;
    let is_secrets = |rule: &&Value| rule["resources"] == json!(["secrets"]);
    let fewer: Vec<_> = rules.iter().filter(|rule| !is_secrets(rule)).collect();
    assert_eq!(fewer.len() + 1, rules.len(), "one rule is of Secrets");
    let patch = |rules: Value| json!({"rules": rules}).to_string();
    let edit = |body: String| async move {
        story
            .cluster
            .kubectl(&["-n", namespace, "patch", "role", "pgrouting", "--type=merge", "-p", &body])
            .await
    };
    edit(patch(json!(fewer))).await?;
    pool.patch(json!({"pooling": {"checkoutTimeout": "6s"}})).await?;
    let condition = pool.wait_for_reason("Stalled", "Forbidden", 60).await?;
    println!("Stalled: {}: {}", condition.reason, condition.message);
    assert_eq!(condition.status, True);
    for part in ["secrets", "get"] {
        ensure!(condition.message.to_lowercase().contains(part), "{part} is not in: {}", condition.message);
    }
    let before = refusals(namespace)?;
    sleep(Duration::from_secs(30)).await;
    let asked = refusals(namespace)? - before;
    println!("{asked} requests were refused in 30 s");
    ensure!(asked < 20, "{asked} refused requests in 30 s");

    edit(patch(json!(rules))).await?;
    pool.wait_until_serving(90).await?;
    Ok(())
}

/// Requests of the namespace's operator that the API server has refused, out of its audit log.
fn refusals(namespace: &str) -> Result<usize> {
    let path = std::env::var("AUDIT_LOG").context("AUDIT_LOG names the API server's audit log")?;
    let log = std::fs::read_to_string(path)?;
    let user = format!("system:serviceaccount:{namespace}:");
    let whole = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let mut refused = 0;
    for line in whole.lines() {
        let event: Value = serde_json::from_str(line)?;
        let is_its = event["user"]["username"].as_str().is_some_and(|name| name.starts_with(&user));
        refused += usize::from(is_its && event["responseStatus"]["code"] == 403);
    }
    Ok(refused)
}

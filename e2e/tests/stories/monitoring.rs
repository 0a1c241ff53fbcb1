//! Story: a real Prometheus scrapes what the chart's PodMonitors select, and every query of the alerts and of both dashboards
//! has data from a real operator and real proxies.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pgrouting_crds::status::ConditionStatus::True;
use pgrouting_e2e::chart::folder;
use pgrouting_e2e::load::Load;
use pgrouting_e2e::monitoring::{Prometheus, define, undefine};
use pgrouting_e2e::pgbench::pgbench;
use pgrouting_e2e::pool::Pool;
use pgrouting_e2e::story::Story;
use pgrouting_e2e::tls::{Authority, write_identity};
use pgrouting_e2e::wait::{Look, until};
use serde_json::{Value, json};

/// The node's address, in the cluster's network namespace.
const LISTEN: &str = "192.0.2.1:9192";

#[tokio::test]
async fn every_query_of_alerts_and_dashboards_has_data() -> Result<()> {
    let story = Story::set("monitoring").await?;
    story.apply_definition().await?;
    define(&story.cluster).await?;
    let told = play(&story).await;
    undefine(&story.cluster).await?;
    told?;
    story.end().await
}

async fn play(story: &Story) -> Result<()> {
    let values = [
        "crds.install=false",
        "metrics.podMonitor.enabled=true",
        "metrics.podMonitor.interval=1s",
        "metrics.prometheusRule.enabled=true",
        "metrics.dashboards.enabled=true",
    ];
    let sets: Vec<_> = values.iter().flat_map(|value| ["--set", value]).collect();
    story.release.apply("install", &sets).await?;
    let pool = pool_with_everything(story).await?;
    let prometheus = Prometheus::start(&story.cluster, &story.namespace, LISTEN).await?;
    targets_are_up(&prometheus).await?;

    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 2).await?;
    pool.patch(json!({"rollout": {"stage": "Mirror"}})).await?;
    pool.wait_for("MirrorHealthy", True, 60).await?;
    let reads = "pgbench -n -S -h orders -c 4 -T 20";
    pgbench(story, "reads", reads, 60).await?;

    let queries = queries()?;
    let names = metric_names(&queries);
    println!("{} queries over {} metrics", queries.len(), names.len());
    let known = prometheus.ask("label/__name__/values", "match[]={__name__=~\"pgrouting.+\"}").await?;
    let unknown: Vec<_> =
        names.iter().filter(|name| !known.as_array().is_some_and(|all| all.contains(&json!(name)))).collect();
    ensure!(unknown.is_empty(), "nothing scraped has these metrics: {unknown:#?}");
    until("every query has data", Duration::from_secs(90), || async {
        let mut empty = Vec::new();
        for (place, query) in &queries {
            if prometheus.query(query).await.with_context(|| place.clone())?.is_empty() {
                empty.push(format!("{place}: {query}"));
            }
        }
        Ok(if empty.is_empty() { Look::Done(()) } else { Look::NotYet(format!("no data: {empty:#?}")) })
    })
    .await?;
    rules_are_evaluated(&prometheus).await?;
    load.stop(&story.postgres, &story.login).await?.expect_clean("scraped every second")?;
    stalled_pool_raises_its_alert(story, &pool, &prometheus).await
}

/// A pool that uses what has metrics of its own: TLS, replicas, and a mirror, which is another database of the primary.
async fn pool_with_everything(story: &Story) -> Result<Pool> {
    write_identity(story, "orders-tls", &Authority::new("monitoring")?.identity(&["orders"])?).await?;
    let copy = story.postgres.make_login("story-monitoring-copy").await?;
    story.write_login("copy", &copy).await?;
    let there = format!("PGUSER={0} PGDATABASE={0} PGPASSWORD={1}", copy.user, copy.password);
    let tables = format!("pgbench -q -i -s 1 -h pg-a && {there} pgbench -q -i -s 1 -h pg-a");
    pgbench(story, "tables", &tables, 120).await?;
    let spec = json!({
        "rollout": {"stage": "Split"},
        "tls": {"client": "Allow", "certificateSecret": "orders-tls"},
        "mirror": {"target": {"host": "pg-a", "database": copy.user}, "credentialsSecret": {"name": "copy"}},
    });
    story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec).await
}

async fn targets_are_up(prometheus: &Prometheus) -> Result<()> {
    until("the operator and both proxies are scraped", Duration::from_secs(60), || async {
        let up = prometheus.query("up == 1").await?;
        let pods: BTreeSet<_> = up.iter().map(|one| one["metric"].to_string()).collect();
        Ok(if pods.len() == 3 { Look::Done(()) } else { Look::NotYet(format!("{pods:?}")) })
    })
    .await?;
    let labelled = prometheus
        .query("pgrouting_proxy_queries_total{namespace=\"story-monitoring\",pool=\"orders\"}")
        .await?;
    assert_eq!(labelled.len(), 2, "the PodMonitor gives proxies the label of their pool: {labelled:?}");
    Ok(())
}

/// Each query with where it stands: alerts without their comparison, since none should fire, and dashboards with their
/// variables filled in.
fn queries() -> Result<Vec<(String, String)>> {
    let mut queries = Vec::new();
    let alerts: serde_yaml::Value =
        serde_yaml::from_str(&std::fs::read_to_string(folder().join("files/alerts.yaml"))?)?;
    for group in alerts["groups"].as_sequence().context("groups")? {
        for rule in group["rules"].as_sequence().context("rules")? {
            let expression = rule["expr"].as_str().context("expr")?;
            // What is left of the comparison; of alternatives, the first.
            let cut = [" == ", " > ", " < "].iter().filter_map(|sign| expression.find(sign)).min();
            let measured = &expression[..cut.context("an alert compares")?];
            queries
                .push((format!("alert {}", rule["alert"].as_str().unwrap_or_default()), measured.to_owned()));
        }
    }
    for name in ["operator", "proxy"] {
        let text = std::fs::read_to_string(folder().join(format!("files/dashboards/{name}.json")))?;
        let dashboard: Value = serde_json::from_str(&text)?;
        for panel in dashboard["panels"].as_array().context("panels")? {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = target["expr"].as_str().context("expr")?;
                let filled = expression
                    .replace("$namespace", "story-monitoring")
                    .replace("$pool", "orders")
                    .replace("$__rate_interval", "1m");
                ensure!(!filled.contains('$'), "a variable is left: {filled}");
                queries.push((format!("dashboard {name}, {}", panel["title"]), filled));
            }
        }
    }
    Ok(queries)
}

fn metric_names(queries: &[(String, String)]) -> BTreeSet<String> {
    let words =
        queries.iter().flat_map(|(_, query)| query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
    words.filter(|word| word.starts_with("pgrouting_")).map(str::to_owned).collect()
}

async fn rules_are_evaluated(prometheus: &Prometheus) -> Result<()> {
    let rules = prometheus.ask("rules", "type=alert").await?;
    let groups = rules["groups"].as_array().context("groups")?;
    let rules: Vec<_> =
        groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten()).collect();
    ensure!(rules.len() > 10, "{rules:?}");
    for rule in rules {
        ensure!(rule["health"] == "ok" && rule["state"] == "inactive", "{rule}");
    }
    Ok(())
}

/// What the operator says of a pool that waits for a person arrives as the alert of that pool.
async fn stalled_pool_raises_its_alert(story: &Story, pool: &Pool, prometheus: &Prometheus) -> Result<()> {
    let other = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders-readonly"},
        "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 5432}]},
    });
    story.apply(&other.to_string()).await?;
    pool.patch(json!({"service": {"endpoints": ["ReadOnly"]}})).await?;
    pool.wait_for("Stalled", True, 60).await?;
    let alert = "ALERTS{alertname=\"PgRoutingPoolStalled\",namespace=\"story-monitoring\",pool=\"orders\",severity=\"critical\"}";
    until("the alert is pending or fires", Duration::from_secs(60), || async {
        let alerts = prometheus.query(alert).await?;
        Ok(if alerts.len() == 1 { Look::Done(()) } else { Look::NotYet(format!("{alerts:?}")) })
    })
    .await
}

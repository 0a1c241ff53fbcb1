//! Story: the API server takes what the chart renders, as it stands and with every value changed.

use anyhow::{Context, Result, ensure};
use pgrouting_e2e::chart::values::{changed, leaves};
use pgrouting_e2e::chart::{folder, helm, render};
use pgrouting_e2e::cluster::Cluster;
use pgrouting_e2e::monitoring::{define, undefine};

#[tokio::test]
async fn every_rendering_is_taken_by_the_api_server() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.make_namespace(NAMESPACE).await?;
    // Case 241: Helm refuses a value that no template knows, before anything is made.
    let folder = folder();
    let folder = folder.to_str().context("a plain path")?;
    for (set, key) in [("proxxy.replicas=2", "proxxy"), ("image.tagg=1", "tagg"), ("logging.level=", "level")]
    {
        let install = ["install", "refused", folder, "--namespace", NAMESPACE, "--set", set];
        let error = helm(&install).await.expect_err(set).to_string();
        ensure!(error.contains(key), "{set}: {error}");
    }
    // Without the Prometheus operator a monitor is refused in words.
    let monitor =
        ["install", "refused", folder, "--namespace", NAMESPACE, "--set", "metrics.podMonitor.enabled=true"];
    let error = helm(&monitor).await.expect_err("no PodMonitor").to_string();
    println!("{}", error.lines().last().unwrap_or_default());
    ensure!(error.contains("metrics.podMonitor.enabled needs the Prometheus operator"), "{error}");

    define(&cluster).await?;
    let told = every_value(&cluster).await;
    undefine(&cluster).await?;
    told?;
    cluster.remove_namespace(NAMESPACE).await
}

async fn every_value(cluster: &Cluster) -> Result<()> {
    take(cluster, "as it stands", &[]).await?;
    let leaves = leaves()?;
    for leaf in &leaves {
        let (arguments, _) = changed(leaf)?;
        take(cluster, leaf, &arguments).await?;
    }
    println!("{} renderings were taken", leaves.len() + 1);
    Ok(())
}

async fn take(cluster: &Cluster, what: &str, arguments: &[String]) -> Result<()> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let rendered = render("pgrouting", NAMESPACE, &arguments).await?;
    let apply =
        ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"];
    cluster.kubectl_with(&apply, &rendered).await.with_context(|| what.to_owned())?;
    Ok(())
}

const NAMESPACE: &str = "story-chart-values";

//! Story: three releases in one cluster, two of one name and one of the longest, keep out of each other's way (case 243).

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use pgrouting_e2e::chart::{Release, folder, helm};
use pgrouting_e2e::cluster::run;
use pgrouting_e2e::story::{SOON, Story};
use pgrouting_e2e::wait::{Look, throughout, until};
use serde_json::json;

#[tokio::test]
async fn each_operator_keeps_its_own_namespace() -> Result<()> {
    let story = Story::set("releases").await?;
    story.apply_definition().await?;
    let longest = "r".repeat(53);
    let releases = [("a", story.namespace.as_str()), ("a", SECOND), (longest.as_str(), THIRD)];
    for namespace in [SECOND, THIRD] {
        story.cluster.make_namespace(namespace).await?;
    }
    for (name, namespace) in releases {
        let release = Release { name: name.to_owned(), namespace: namespace.to_owned() };
        release.apply("install", &["--set", "crds.install=false"]).await?;
    }
    // Installed with --wait, so all three are ready at once, each with its own cluster-wide role.
    let roles = ["get", "clusterroles", "-l", "app.kubernetes.io/name=pgrouting-operator", "-o", "name"];
    let roles = story.cluster.kubectl(&roles).await?;
    for (_, namespace) in releases {
        let own = roles.lines().filter(|role| role.contains(&format!("/{namespace}:"))).count();
        assert_eq!(own, 3, "{namespace}: {roles}");
    }

    let pool = story.pool("orders", &["pg-a"], json!({"proxy": {"replicas": 1}})).await?;
    let keeper = || async {
        let mut keepers = Vec::new();
        for (_, namespace) in releases {
            if knows_a_pool(&story, namespace).await? {
                keepers.push(namespace);
            }
        }
        let is_its_own = keepers == [story.namespace.as_str()];
        anyhow::Ok(if is_its_own { Look::Done(()) } else { Look::NotYet(format!("{keepers:?}")) })
    };
    until("its own operator knows the pool", SOON, keeper).await?;
    pool.patch(json!({"pooling": {"checkoutTimeout": "6s"}})).await?;
    pool.wait_until_serving(30).await?;
    throughout("no other operator takes the pool up", SOON / 3, keeper).await?;

    // An operator that cannot be installed twice under one name says so.
    let folder = folder();
    let folder = folder.to_str().context("a plain path")?;
    let again =
        helm(&["install", "a", folder, "--namespace", SECOND]).await.expect_err("it is there").to_string();
    ensure!(again.contains("in use"), "{again}");
    for (name, namespace) in releases {
        helm(&["uninstall", name, "--namespace", namespace, "--wait", "--timeout", "60s"]).await?;
    }
    for namespace in [SECOND, THIRD] {
        story.cluster.remove_namespace(namespace).await?;
    }
    story.end().await
}

/// Whether the operator of a namespace tells of a pool in its metrics.
async fn knows_a_pool(story: &Story, namespace: &str) -> Result<bool> {
    let pods = Api::<Pod>::namespaced(story.cluster.client.clone(), namespace);
    let pods = pods.list(&ListParams::default().labels("app.kubernetes.io/component=operator")).await?;
    let address =
        pods.items.iter().find_map(|pod| pod.status.as_ref()?.pod_ip.clone()).context("no operator")?;
    let metrics =
        run("curl", &["-sSf", "--max-time", "5", &format!("http://{address}:8080/metrics")], "").await?;
    Ok(metrics.lines().any(|line| line.starts_with("pgrouting_operator_pool_info{")))
}

const SECOND: &str = "story-releases-2";
const THIRD: &str = "story-releases-3";

//! Story: a pool before a real CloudNativePG cluster, whose primary is killed, moved, and whose instances change.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use pgrouting_e2e::cluster::Cluster;
use pgrouting_e2e::ledger::Ledger;
use pgrouting_e2e::page::blocks;
use pgrouting_e2e::pool::{Pool, restarts};
use pgrouting_e2e::postgres::{Login, address_of, connect};
use pgrouting_e2e::story::{SOON, Story, merge};
use pgrouting_e2e::wait::{Look, until};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

#[tokio::test]
async fn cluster_of_cloudnativepg_fails_over_moves_and_grows_under_load() -> Result<()> {
    let story = Story::begin("cnpg").await?;
    let (cluster, namespace) = (&story.cluster, story.namespace.as_str());
    start(&story).await?;
    let login = login(cluster, namespace).await?;
    story.apply(&from_page("The pool")?).await?;
    let pool = Pool::new(cluster, namespace, "orders");
    pool.wait_until_serving(60).await?;
    pool.wait_for_replicas(2).await?;
    let before = restarts(&pool.wait_for_pods(2, 60).await?);

    let primary = primary_of(cluster, namespace).await?;
    let direct = connect(&address_of(cluster, namespace, &primary).await?, 5432, &login, "app").await?;
    let ledger = Ledger::start(&direct, &login, &pool.address("").await?, 4).await?;
    ledger.reaches(300).await?;

    // The primary's pod is killed.
    cluster.kubectl(&["-n", namespace, "delete", "pod", &primary, "--force", "--grace-period=0"]).await?;
    let second = goes_on(&story, &ledger, &login, &primary, "after the primary's pod was killed").await?;
    wait_for_instances(cluster, namespace, 3).await?;
    pool.wait_for_replicas(2).await?;

    // A planned switchover.
    let instances = instances(cluster, namespace).await?;
    let target = instances.into_iter().find(|name| *name != second).context("another instance")?;
    switch_over(cluster, namespace, &target).await?;
    let third = goes_on(&story, &ledger, &login, &second, "after a switchover").await?;
    assert_eq!(third, target);
    wait_for_instances(cluster, namespace, 3).await?;
    pool.wait_for_replicas(2).await?;

    // One instance more, and one less.
    for (count, replicas) in [(4, 3), (3, 2)] {
        let change = json!({"spec": {"instances": count}}).to_string();
        cluster
            .kubectl(&["-n", namespace, "patch", "cluster", "orders", "--type=merge", "-p", &change])
            .await?;
        wait_for_instances(cluster, namespace, count).await?;
        pool.wait_for_replicas(replicas).await?;
    }

    let book = ledger.stop().await?;
    let primary = primary_of(cluster, namespace).await?;
    let direct = connect(&address_of(cluster, namespace, &primary).await?, 5432, &login, "app").await?;
    book.expect_kept(&direct).await?;
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "the pods are the same as before");
    println!("{}", cluster.kubectl(&["-n", namespace, "get", "pgrp,cluster"]).await?);
    cluster.kubectl(&["-n", namespace, "delete", "cluster", "orders", "--timeout=60s"]).await?;
    cluster.kubectl(&["-n", namespace, "wait", "--for=delete", "pvc", "--all", "--timeout=180s"]).await?;
    remove_volumes(cluster).await?;
    story.end().await
}

/// The operator, and a cluster of three instances on volumes of this machine.
async fn start(story: &Story) -> Result<()> {
    let cluster = &story.cluster;
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name}: run e2e/run.sh cnpg"));
    let (manifest, volumes, image) =
        (variable("CNPG_MANIFEST")?, variable("CNPG_VOLUMES")?, variable("CNPG_POSTGRES")?);
    cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &manifest]).await?;
    let deployment = "deployment/cnpg-controller-manager";
    cluster.kubectl(&["-n", "cnpg-system", "rollout", "status", deployment, "--timeout=120s"]).await?;
    remove_volumes(cluster).await?;
    let volumes = (1..=4).map(|number| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("cnpg-{number}")},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "cnpg",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": format!("{volumes}/{number}")},
            },
        })
    });
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "cnpg"},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    });
    let mut orders: Value = serde_yaml::from_str(&from_page("The cluster")?)?;
    // What this cluster of one node needs; the image comes without LLVM.
    let local = json!({"spec": {
        "imageName": image, "imagePullPolicy": "Never", "postgresUID": 100, "postgresGID": 102,
        "storage": {"storageClass": "cnpg"},
        "affinity": {"enablePodAntiAffinity": false},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "postgresql": {"parameters": {"jit": "off"}},
    }});
    merge(&mut orders, local);
    let all = json!({"apiVersion": "v1", "kind": "List", "items": volumes.chain([class, orders]).collect::<Vec<_>>()});
    // CloudNativePG tries once to make what it owns, and an API server learns of a new kind's owners only by and by.
    let owned = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": [{
            "apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": "orders", "uid": "none", "blockOwnerDeletion": true,
        }]},
    });
    let account = "--as=system:serviceaccount:cnpg-system:cnpg-manager";
    let arguments = ["-n", &story.namespace, account, "create", "--dry-run=server", "-f", "-"];
    until("the API server knows owners of kind Cluster", SOON * 4, || async {
        Ok(match cluster.kubectl_with(&arguments, &owned.to_string()).await {
            Ok(_) => Look::Done(()),
            Err(error) => Look::NotYet(format!("{error:#}")),
        })
    })
    .await?;
    // Its webhook may take a moment longer than its pod.
    until("CloudNativePG takes the cluster", SOON, || async {
        Ok(match story.apply(&all.to_string()).await {
            Ok(_) => Look::Done(()),
            Err(error) => Look::NotYet(format!("{error:#}")),
        })
    })
    .await?;
    wait_for_instances(cluster, &story.namespace, 3).await
}

/// The manifest that docs/cloudnativepg.md has under a heading.
fn from_page(heading: &str) -> Result<String> {
    let mut all = blocks("cloudnativepg.md")?.into_iter();
    let found = all.find(|block| block.heading == heading && block.language == "yaml");
    Ok(found.with_context(|| format!("no manifest under {heading:?}"))?.text)
}

async fn remove_volumes(cluster: &Cluster) -> Result<()> {
    let volumes =
        ["delete", "pv", "cnpg-1", "cnpg-2", "cnpg-3", "cnpg-4", "--ignore-not-found", "--wait=false"];
    cluster.kubectl(&volumes).await.map(drop)
}

async fn login(cluster: &Cluster, namespace: &str) -> Result<Login> {
    let secret = Api::<Secret>::namespaced(cluster.client.clone(), namespace).get("orders-app").await?;
    let value = |key: &str| {
        let value =
            secret.data.as_ref().and_then(|data| data.get(key)).with_context(|| format!("no {key}"))?;
        Ok::<_, anyhow::Error>(String::from_utf8(value.0.clone())?)
    };
    Ok(Login { user: value("username")?, password: value("password")? })
}

async fn field(cluster: &Cluster, namespace: &str, path: &str) -> Result<String> {
    let output = format!("jsonpath={{{path}}}");
    cluster.kubectl(&["-n", namespace, "get", "cluster", "orders", "-o", &output]).await
}

async fn primary_of(cluster: &Cluster, namespace: &str) -> Result<String> {
    field(cluster, namespace, ".status.currentPrimary").await
}

async fn instances(cluster: &Cluster, namespace: &str) -> Result<Vec<String>> {
    let names = field(cluster, namespace, ".status.instanceNames[*]").await?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

async fn wait_for_instances(cluster: &Cluster, namespace: &str, count: usize) -> Result<()> {
    until(&format!("{count} instances are ready"), SOON * 6, || async {
        let ready = field(cluster, namespace, ".status.readyInstances").await?;
        let phase = field(cluster, namespace, ".status.phase").await?;
        let all = instances(cluster, namespace).await?.len();
        let is_so = ready == count.to_string() && all == count && phase == "Cluster in healthy state";
        Ok(if is_so { Look::Done(()) } else { Look::NotYet(format!("{ready} of {all}: {phase}")) })
    })
    .await
}

/// Does what `kubectl cnpg promote` does.
async fn switch_over(cluster: &Cluster, namespace: &str, target: &str) -> Result<()> {
    let change = json!({"status": {
        "targetPrimary": target, "targetPrimaryTimestamp": field(cluster, namespace, ".metadata.creationTimestamp").await?,
        "phase": "Switchover in progress", "phaseReason": format!("Switching over to {target}"),
    }});
    let change = change.to_string();
    let patch = ["patch", "cluster", "orders", "--subresource=status", "--type=merge", "-p", &change];
    cluster.kubectl(&[&["-n", namespace], &patch[..]].concat()).await.map(drop)
}

/// Waits until another instance than `before` takes writes and the load's writes go on, and tells how long that took.
async fn goes_on(story: &Story, ledger: &Ledger, login: &Login, before: &str, when: &str) -> Result<String> {
    let (cluster, namespace) = (&story.cluster, story.namespace.as_str());
    let began = Instant::now();
    let mut servers = Vec::new();
    for name in instances(cluster, namespace).await?.into_iter().filter(|name| name != before) {
        let address = address_of(cluster, namespace, &name).await?;
        servers.push((name, connect(&address, 5432, login, "app").await?));
    }
    let new = 'found: loop {
        for (name, server) in &servers {
            let row = server.query_one("SELECT pg_is_in_recovery()", &[]).await?;
            if !row.get::<_, bool>(0) {
                break 'found name.clone();
            }
        }
        anyhow::ensure!(began.elapsed() < SOON * 4, "no instance was promoted");
        sleep(Duration::from_millis(10)).await;
    };
    let promoted = began.elapsed();
    // CloudNativePG ends all connections at a promotion, and a write waits for a standby.
    let address = address_of(cluster, namespace, &new).await?;
    until("a write past the pool", SOON * 4, || async {
        let written = async {
            let direct = connect(&address, 5432, login, "app").await?;
            Ok::<_, anyhow::Error>(
                direct
                    .batch_execute("CREATE TABLE IF NOT EXISTS probe (); INSERT INTO probe DEFAULT VALUES")
                    .await?,
            )
        };
        Ok(match written.await {
            Ok(()) => Look::Done(()),
            Err(error) => Look::NotYet(format!("{error:#}")),
        })
    })
    .await?;
    let (written, at_writing) = (began.elapsed(), ledger.acknowledged());
    ledger.reaches(at_writing + 1).await?;
    println!(
        "{when}: {new} was the primary after {} ms, a write past the pool was acknowledged after {} ms, the next one through \
         the pool after {} ms",
        promoted.as_millis(),
        written.as_millis(),
        began.elapsed().as_millis()
    );
    ledger.reaches(at_writing + 200).await?;
    Ok(new)
}

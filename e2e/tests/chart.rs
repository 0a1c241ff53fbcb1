//! The chart as Helm renders it: needs no cluster.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use pgrouting_e2e::chart::{folder, helm, objects, render};
use pgrouting_e2e::cluster::root;
use serde_yaml::Value;

#[tokio::test]
async fn lint_finds_nothing() -> Result<()> {
    let folder = folder();
    helm(&["lint", "--strict", folder.to_str().context("a plain path")?]).await?;
    Ok(())
}

#[test]
fn definition_is_the_generated_one() -> Result<()> {
    let generated = std::fs::read_to_string(root().join("crds/pgroutingpools.yaml"))?;
    let copied = std::fs::read_to_string(folder().join("files/pgroutingpools.yaml"))?;
    assert!(generated == copied, "the chart's definition is stale: run `make crd`");
    Ok(())
}

#[test]
fn version_is_the_workspace_version() -> Result<()> {
    let chart: Value = serde_yaml::from_str(&std::fs::read_to_string(folder().join("Chart.yaml"))?)?;
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    Ok(())
}

#[tokio::test]
async fn definition_survives_an_uninstall() -> Result<()> {
    let rendered = objects(&render("pgrouting", "ns1", &[]).await?)?;
    let definition = find(&rendered, "CustomResourceDefinition").context("no definition")?;
    assert_eq!(definition["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    let without = objects(&render("pgrouting", "ns1", &["--set", "crds.install=false"]).await?)?;
    assert!(find(&without, "CustomResourceDefinition").is_none());
    Ok(())
}

#[tokio::test]
async fn unknown_value_is_refused_by_name() -> Result<()> {
    for typo in ["proxxy.replicas=2", "image.tagg=x", "metrics.service.prot=1", "logging.colour=red"] {
        let error = render("pgrouting", "ns1", &["--set", typo]).await.expect_err(typo).to_string();
        let key = typo.split('=').next().and_then(|path| path.rsplit('.').next()).unwrap_or_default();
        let key = if typo.starts_with("proxxy") { "proxxy" } else { key };
        assert!(error.contains(key), "{typo}: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn every_value_changes_what_is_rendered() -> Result<()> {
    let values: Value = serde_yaml::from_str(&std::fs::read_to_string(folder().join("values.yaml"))?)?;
    let mut leaves = Vec::new();
    paths(&values, "", &mut leaves);
    let others = other_values();
    let standard = render("pgrouting", "ns1", &[]).await?;
    for leaf in &leaves {
        let json =
            others.get(leaf.as_str()).with_context(|| format!("{leaf}: no other value in this test"))?;
        let mut arguments = vec!["--set-json".to_owned(), format!("{leaf}={json}")];
        if leaf == "serviceAccount.create" {
            arguments.extend(["--set".to_owned(), "serviceAccount.name=mine".to_owned()]);
        }
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let rendered = render("pgrouting", "ns1", &arguments).await?;
        assert!(rendered != standard, "{leaf}={json} changes nothing");
        objects(&rendered).with_context(|| format!("{leaf}={json}"))?;
    }
    assert_eq!(leaves.len(), others.len(), "a value of this test is not in values.yaml");
    Ok(())
}

#[tokio::test]
async fn watched_namespaces_get_a_role_each_and_the_cluster_none() -> Result<()> {
    let rendered = objects(&render("pgrouting", "ns1", &["--set", "watch.namespaces={a,b}"]).await?)?;
    let in_pools = |object: &Value| {
        let rules = object["rules"].as_sequence().cloned().unwrap_or_default();
        rules
            .iter()
            .any(|rule| rule["resources"].as_sequence().is_some_and(|all| all.contains(&"secrets".into())))
    };
    let roles: Vec<_> = rendered.iter().filter(|object| in_pools(object)).collect();
    let places: Vec<_> = roles.iter().map(|role| role["metadata"]["namespace"].as_str()).collect();
    assert_eq!(places, [Some("a"), Some("b")]);
    Ok(())
}

#[tokio::test]
async fn two_releases_share_no_cluster_wide_name() -> Result<()> {
    let mut names = Vec::new();
    for namespace in ["ns1", "ns2"] {
        let rendered = objects(&render("a", namespace, &["--set", "crds.install=false"]).await?)?;
        let cluster_wide = rendered.iter().filter(|object| object["metadata"]["namespace"].is_null());
        names.extend(cluster_wide.map(|object| (object["kind"].clone(), object["metadata"]["name"].clone())));
    }
    let mut once = names.clone();
    once.dedup();
    assert_eq!(names.len(), 8, "{names:?}");
    for (index, name) in names.iter().enumerate() {
        assert!(!names[index + 1..].contains(name), "{name:?} is there twice");
    }
    Ok(())
}

#[tokio::test]
async fn long_release_name_gives_valid_names() -> Result<()> {
    let release = "r".repeat(53);
    for object in objects(&render(&release, "ns1", &["--set", "crds.install=false"]).await?)? {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let is_in_namespace = !object["metadata"]["namespace"].is_null();
        assert!(!name.is_empty() && (!is_in_namespace || name.len() <= 63), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn pod_is_restricted_and_its_root_read_only() -> Result<()> {
    let rendered = objects(&render("pgrouting", "ns1", &[]).await?)?;
    let pod = &find(&rendered, "Deployment").context("no Deployment")?["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let context = &pod["containers"][0]["securityContext"];
    assert_eq!(context["readOnlyRootFilesystem"], true);
    assert_eq!(context["allowPrivilegeEscalation"], false);
    assert_eq!(context["capabilities"]["drop"][0], "ALL");
    Ok(())
}

#[tokio::test]
async fn digest_wins_over_tag() -> Result<()> {
    let digest = format!("proxyImage.digest=sha256:{}", "0".repeat(64));
    let rendered = render("pgrouting", "ns1", &["--set", &digest, "--set", "proxyImage.tag=x"]).await?;
    assert!(rendered.contains("--proxy-image=localhost/pgrouting-proxy@sha256:000"), "{rendered}");
    Ok(())
}

fn find<'a>(objects: &'a [Value], kind: &str) -> Option<&'a Value> {
    objects.iter().find(|object| object["kind"] == kind)
}

/// The path of every value that is no mapping with keys of its own.
fn paths(value: &Value, prefix: &str, leaves: &mut Vec<String>) {
    match value.as_mapping() {
        // Resources are passed on as they are, so they are one value.
        Some(mapping) if !mapping.is_empty() && prefix != "resources" => {
            for (key, value) in mapping {
                let key = key.as_str().unwrap_or_default();
                paths(
                    value,
                    &if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") },
                    leaves,
                );
            }
        }
        _ => leaves.push(prefix.to_owned()),
    }
}

/// For every value of values.yaml another one, as JSON.
fn other_values() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([
        ("replicaCount", "2"),
        ("image.repository", r#""registry.example/operator""#),
        ("image.tag", r#""other""#),
        ("image.digest", r#""sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa""#),
        ("image.pullPolicy", r#""Always""#),
        ("proxyImage.repository", r#""registry.example/proxy""#),
        ("proxyImage.tag", r#""other""#),
        ("proxyImage.digest", r#""sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa""#),
        ("imagePullSecrets", r#"["registry"]"#),
        ("crds.install", "false"),
        ("watch.namespaces", r#"["shop"]"#),
        ("rbac.create", "false"),
        ("rbac.aggregate", "false"),
        ("serviceAccount.create", "false"),
        ("serviceAccount.name", r#""mine""#),
        ("serviceAccount.annotations", r#"{"a": "b"}"#),
        ("logging.format", r#""text""#),
        ("prometheus.url", r#""http://prometheus.monitoring:9090""#),
        ("logging.level", r#""debug""#),
        ("metrics.service.enabled", "false"),
        ("metrics.service.port", "9090"),
        ("metrics.service.annotations", r#"{"a": "b"}"#),
        ("resources", r#"{"requests": {"cpu": "1"}}"#),
        ("terminationGracePeriodSeconds", "10"),
        ("priorityClassName", r#""high""#),
        ("nodeSelector", r#"{"a": "b"}"#),
        ("tolerations", r#"[{"operator": "Exists"}]"#),
        ("affinity", r#"{"nodeAffinity": {}}"#),
        ("topologySpreadConstraints", r#"[{"maxSkew": 1}]"#),
        ("podAnnotations", r#"{"a": "b"}"#),
        ("podLabels", r#"{"a": "b"}"#),
        ("extraEnv", r#"[{"name": "A", "value": "b"}]"#),
    ])
}

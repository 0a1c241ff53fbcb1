//! The chart as Helm renders it: needs no cluster.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use pgrouting_e2e::chart::values::{MONITORING, changed, leaves, other_values};
use pgrouting_e2e::chart::{folder, helm, objects, render};
use pgrouting_e2e::cluster::{root, run};
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

/// Case 241.
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

/// Case 241: what values.yaml documents is used.
#[tokio::test]
async fn every_value_changes_what_is_rendered() -> Result<()> {
    let leaves = leaves()?;
    for leaf in &leaves {
        let (all, base) = changed(leaf)?;
        let before = render_owned(&base).await?;
        let rendered = render_owned(&all).await?;
        assert!(rendered != before, "{leaf}: {all:?} changes nothing");
        objects(&rendered).with_context(|| leaf.clone())?;
    }
    assert_eq!(leaves.len(), other_values().len(), "a value of this test is not in values.yaml");
    Ok(())
}

/// Whoever reads docs/chart.md sees every value with the default that it has.
#[test]
fn documented_values_are_those_of_the_chart() -> Result<()> {
    let page = std::fs::read_to_string(root().join("docs/chart.md"))?;
    let values: Value = serde_yaml::from_str(&std::fs::read_to_string(folder().join("values.yaml"))?)?;
    let (_, rest) = page.split_once("## Values").context("a section of values")?;
    let section = rest.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let documented: BTreeMap<_, _> = rows
        .filter_map(|row| {
            let mut cells = row.split(" | ");
            Some((cells.next()?.trim_start_matches("| ").trim_matches('`'), cells.next()?.trim_matches('`')))
        })
        .collect();
    let leaves = leaves()?;
    for leaf in &leaves {
        let value = leaf.split('.').fold(&values, |value, key| &value[key]);
        let default = serde_json::to_string(value)?;
        assert_eq!(documented.get(leaf.as_str()), Some(&default.as_str()), "{leaf}");
    }
    let unknown: Vec<_> = documented.keys().filter(|key| !leaves.iter().any(|leaf| leaf == *key)).collect();
    assert!(unknown.is_empty(), "docs/chart.md has values that the chart has not: {unknown:?}");
    Ok(())
}

/// Case 241: everything in the schema is closed, but what is passed on as it is and what charts share.
#[test]
fn schema_lets_no_unknown_key_through() -> Result<()> {
    fn open(schema: &serde_json::Value, path: &str, found: &mut Vec<String>) {
        let properties = schema["properties"].as_object();
        if schema["type"] == "object" && schema["additionalProperties"] == serde_json::Value::Null {
            found.push(path.to_owned());
        }
        for (key, inner) in properties.into_iter().flatten() {
            open(inner, &format!("{path}.{key}"), found);
        }
    }
    let schema = std::fs::read_to_string(folder().join("values.schema.json"))?;
    let mut found = Vec::new();
    open(&serde_json::from_str(&schema)?, "", &mut found);
    assert_eq!(found, [".affinity", ".global", ".resources"]);
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

/// Case 243.
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

/// Case 243.
#[tokio::test]
async fn long_release_name_gives_valid_names() -> Result<()> {
    let release = "r".repeat(53);
    for object in objects(&render(&release, "ns1", &["--set", "crds.install=false"]).await?)? {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let is_in_namespace = !object["metadata"]["namespace"].is_null();
        assert!(!name.is_empty() && (!is_in_namespace || name.len() <= 63), "{name}");
        let labels = object["metadata"]["labels"].as_mapping().cloned().unwrap_or_default();
        assert!(
            labels.values().all(|value| value.as_str().is_some_and(|value| value.len() <= 63)),
            "{labels:?}"
        );
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

#[tokio::test]
async fn global_registry_takes_the_place_of_the_one_in_each_image() -> Result<()> {
    let set = "global.imageRegistry=registry.example:5000/mirror";
    for (repository, expected) in [
        ("localhost/pgrouting-operator", "registry.example:5000/mirror/pgrouting-operator"),
        ("ghcr.io/team/operator", "registry.example:5000/mirror/team/operator"),
        ("host:5000/operator", "registry.example:5000/mirror/operator"),
        ("team/operator", "registry.example:5000/mirror/team/operator"),
        ("operator", "registry.example:5000/mirror/operator"),
    ] {
        let image = format!("image.repository={repository},image.tag=v7");
        let proxy = format!("proxyImage.repository={repository},proxyImage.tag=v7");
        let rendered = render("a", "ns1", &["--set", set, "--set", &image, "--set", &proxy]).await?;
        let objects = objects(&rendered)?;
        let container = &find(&objects, "Deployment").context("no Deployment")?["spec"]["template"]["spec"]["containers"]
            [0];
        assert_eq!(container["image"], format!("{expected}:v7"), "{repository}");
        assert_eq!(container["args"][0], format!("--proxy-image={expected}:v7"), "{repository}");
    }
    Ok(())
}

#[tokio::test]
async fn pull_secrets_of_both_places_are_used_once_each() -> Result<()> {
    let secrets = r#"global.imagePullSecrets=["a",{"name":"b"}]"#;
    let rendered =
        render("a", "ns1", &["--set-json", secrets, "--set-json", r#"imagePullSecrets=["b","c"]"#]).await?;
    let objects = objects(&rendered)?;
    let pod = &find(&objects, "Deployment").context("no Deployment")?["spec"]["template"]["spec"];
    let names: Vec<_> =
        pod["imagePullSecrets"].as_sequence().into_iter().flatten().map(|one| &one["name"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    Ok(())
}

#[tokio::test]
async fn without_rights_in_the_cluster_nothing_cluster_wide_is_rendered() -> Result<()> {
    let sets =
        ["--set", "watch.namespaces={a}", "--set", "rbac.clusterWide=false", "--set", "crds.install=false"];
    for object in objects(&render("pgrouting", "ns1", &sets).await?)? {
        ensure!(!object["metadata"]["namespace"].is_null(), "{object:?}");
    }
    let error =
        render("pgrouting", "ns1", &["--set", "rbac.clusterWide=false"]).await.expect_err("no namespaces");
    assert!(error.to_string().contains("rbac.clusterWide=false needs watch.namespaces"), "{error}");
    Ok(())
}

#[tokio::test]
async fn monitors_say_what_is_missing_where_their_kinds_are_not_known() -> Result<()> {
    for (value, kind) in [("podMonitor", "PodMonitor"), ("prometheusRule", "PrometheusRule")] {
        let set = format!("metrics.{value}.enabled=true");
        let error = render("pgrouting", "ns1", &["--set", &set]).await.expect_err("no such kind").to_string();
        for part in
            [&format!("metrics.{value}.enabled needs the Prometheus operator"), kind, "--api-versions"]
        {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn proxies_are_scraped_in_the_namespaces_that_are_watched() -> Result<()> {
    for (namespaces, expected) in [("{}", "any: true\n"), ("{a,b}", "matchNames:\n- a\n- b\n")] {
        let kinds: Vec<_> = MONITORING.iter().map(|kind| format!("--api-versions={kind}")).collect();
        let watch = format!("watch.namespaces={namespaces}");
        let mut arguments = vec!["--set", "metrics.podMonitor.enabled=true"];
        if namespaces != "{}" {
            arguments.extend(["--set", &watch]);
        }
        arguments.extend(kinds.iter().map(String::as_str));
        let rendered = objects(&render("pgrouting", "ns1", &arguments).await?)?;
        let monitors: Vec<_> = rendered.iter().filter(|object| object["kind"] == "PodMonitor").collect();
        assert_eq!(monitors.len(), 2);
        assert_eq!(serde_yaml::to_string(&monitors[1]["spec"]["namespaceSelector"])?, expected);
    }
    Ok(())
}

#[tokio::test]
async fn admin_port_is_for_the_operator_and_for_proxies() -> Result<()> {
    let sets = ["--set", "networkPolicy.enabled=true", "--set", "watch.namespaces={a,b}"];
    let rendered = objects(&render("pgrouting", "ns1", &sets).await?)?;
    let policies: Vec<_> = rendered.iter().filter(|object| object["kind"] == "NetworkPolicy").collect();
    let places: Vec<_> = policies.iter().map(|policy| policy["metadata"]["namespace"].as_str()).collect();
    assert_eq!(places, [Some("ns1"), Some("a"), Some("b")], "the operator's, and one where proxies are");
    for policy in &policies[1..] {
        let rules = policy["spec"]["ingress"].as_sequence().context("rules")?;
        let admin: Vec<_> = rules.iter().filter(|rule| rule["ports"][0]["port"] == 9128).collect();
        assert_eq!(admin.len(), 1);
        let peers = admin[0]["from"].as_sequence().context("not from everybody")?;
        assert_eq!(peers.len(), 2);
        let operator = &peers[0];
        assert_eq!(operator["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], "ns1");
        assert_eq!(operator["podSelector"]["matchLabels"]["app.kubernetes.io/name"], "pgrouting-operator");
        assert!(peers[1]["namespaceSelector"].is_null(), "proxies of this namespace only");
        assert_eq!(peers[1]["podSelector"], policy["spec"]["podSelector"]);
    }
    Ok(())
}

/// Case 240: the operator's own time to end covers what it gives itself: 15 s for passes, 15 s for the Lease.
#[tokio::test]
async fn operator_gets_the_time_to_end_that_it_takes() -> Result<()> {
    let main = std::fs::read_to_string(root().join("operator/src/main.rs"))?;
    let line = main.lines().find(|line| line.contains("const STOP_TIMEOUT")).context("STOP_TIMEOUT")?;
    let seconds =
        line.split("from_secs(").nth(1).and_then(|rest| rest.split(')').next()).context("seconds")?;
    let rendered = objects(&render("pgrouting", "ns1", &[]).await?)?;
    let pod = &find(&rendered, "Deployment").context("no Deployment")?["spec"]["template"]["spec"];
    let grace = pod["terminationGracePeriodSeconds"].as_u64().context("a number")?;
    assert!(grace > 2 * seconds.parse::<u64>()?, "{grace} s");
    Ok(())
}

#[tokio::test]
async fn alerts_are_sound_and_fire_when_they_should() -> Result<()> {
    let rules = folder().join("files/alerts.yaml");
    run("promtool", &["check", "rules", rules.to_str().context("a plain path")?], "").await?;
    let tests = root().join("e2e/alerts/tests.yaml");
    run("promtool", &["test", "rules", tests.to_str().context("a plain path")?], "").await?;
    Ok(())
}

/// The promtool tests above hold each alert once where it fires and once where it does not.
#[test]
fn every_alert_is_tested_firing_and_silent() -> Result<()> {
    let read = |path: std::path::PathBuf| -> Result<Value> {
        Ok(serde_yaml::from_str(&std::fs::read_to_string(path)?)?)
    };
    let rules = read(folder().join("files/alerts.yaml"))?;
    let rules = rules["groups"].as_sequence().into_iter().flatten();
    let rules = rules.flat_map(|group| group["rules"].as_sequence().into_iter().flatten());
    let alerts: BTreeSet<_> =
        rules.map(|rule| rule["alert"].as_str().unwrap_or_default().to_owned()).collect();
    let tests = read(root().join("e2e/alerts/tests.yaml"))?;
    let (mut firing, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for test in tests["tests"].as_sequence().into_iter().flatten() {
        let expected = &test["alert_rule_test"][0];
        let is_firing = expected["exp_alerts"].as_sequence().is_some_and(|alerts| !alerts.is_empty());
        let name = expected["alertname"].as_str().unwrap_or_default().to_owned();
        if is_firing {
            firing.insert(name)
        } else {
            silent.insert(name)
        };
    }
    assert_eq!((&firing, &silent), (&alerts, &alerts));
    Ok(())
}

#[tokio::test]
async fn rules_and_dashboards_come_through_the_chart_unchanged() -> Result<()> {
    let kinds: Vec<_> = MONITORING.iter().map(|kind| format!("--api-versions={kind}")).collect();
    let mut arguments =
        vec!["--set", "metrics.prometheusRule.enabled=true", "--set", "metrics.dashboards.enabled=true"];
    arguments.extend(kinds.iter().map(String::as_str));
    let rendered = objects(&render("pgrouting", "ns1", &arguments).await?)?;
    let rule = find(&rendered, "PrometheusRule").context("no PrometheusRule")?;
    let file: Value = serde_yaml::from_str(&std::fs::read_to_string(folder().join("files/alerts.yaml"))?)?;
    assert_eq!(rule["spec"], file);
    let maps: Vec<_> = rendered.iter().filter(|object| object["kind"] == "ConfigMap").collect();
    assert_eq!(maps.len(), 2);
    for (map, name) in maps.iter().zip(["operator", "proxy"]) {
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        let text = map["data"][format!("pgrouting-{name}.json")].as_str().context("a dashboard")?;
        let file = std::fs::read_to_string(folder().join(format!("files/dashboards/{name}.json")))?;
        let (rendered, file): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(text)?, serde_json::from_str(&file)?);
        assert_eq!(rendered, file);
    }
    Ok(())
}

async fn render_owned(arguments: &[String]) -> Result<String> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    render("pgrouting", "ns1", &arguments).await
}

fn find<'a>(objects: &'a [Value], kind: &str) -> Option<&'a Value> {
    objects.iter().find(|object| object["kind"] == kind)
}

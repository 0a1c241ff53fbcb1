//! Every value of the chart, with another one than its own.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_yaml::Value;

use crate::cluster::root;

/// The path of every value in values.yaml.
///
/// # Errors
/// When it does not read.
pub fn leaves() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root().join("charts/pgrouting/values.yaml"))?;
    let mut leaves = Vec::new();
    collect(&serde_yaml::from_str(&text)?, "", &mut leaves);
    Ok(leaves)
}

/// Every value that is no mapping with keys of its own.
fn collect(value: &Value, prefix: &str, leaves: &mut Vec<String>) {
    match value.as_mapping() {
        Some(mapping) if !mapping.is_empty() && !PASSED_ON.contains(&prefix) => {
            for (key, value) in mapping {
                let key = key.as_str().unwrap_or_default();
                let path = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
                collect(value, &path, leaves);
            }
        }
        _ => leaves.push(prefix.to_owned()),
    }
}

/// Mappings that are one value: they are passed on as they are.
const PASSED_ON: [&str; 2] = ["resources", "metrics.dashboards.labels"];

/// The arguments that give a value another one, and those without which it would mean nothing.
///
/// # Errors
/// When there is no other one.
pub fn changed(leaf: &str) -> Result<(Vec<String>, Vec<String>)> {
    let json = *other_values().get(leaf).with_context(|| format!("{leaf}: no other value in values.rs"))?;
    let needed: &[&str] = match leaf {
        "serviceAccount.create" => &["serviceAccount.name=mine"],
        "rbac.clusterWide" => &["watch.namespaces={default}"],
        "metrics.podMonitor.labels" | "metrics.podMonitor.interval" => &["metrics.podMonitor.enabled=true"],
        "metrics.prometheusRule.labels" => &["metrics.prometheusRule.enabled=true"],
        "metrics.dashboards.labels" | "metrics.dashboards.annotations" => {
            &["metrics.dashboards.enabled=true"]
        }
        "networkPolicy.clientsFrom" | "networkPolicy.metricsFrom" => &["networkPolicy.enabled=true"],
        _ => &[],
    };
    let mut base: Vec<_> = MONITORING.iter().map(|kind| format!("--api-versions={kind}")).collect();
    base.extend(needed.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
    let mut all = base.clone();
    all.extend(["--set-json".to_owned(), format!("{leaf}={json}")]);
    Ok((all, base))
}

/// The kinds of the Prometheus operator, as `helm template` is told of them.
pub const MONITORING: [&str; 2] =
    ["monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule"];

/// For every value of values.yaml another one, as JSON, that the API server takes.
#[must_use]
pub fn other_values() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([
        ("global.imageRegistry", r#""registry.example:5000""#),
        ("global.imagePullSecrets", r#"["registry", {"name": "other"}]"#),
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
        ("watch.namespaces", r#"["default"]"#),
        ("rbac.create", "false"),
        ("rbac.clusterWide", "false"),
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
        ("metrics.podMonitor.enabled", "true"),
        ("metrics.podMonitor.labels", r#"{"release": "prometheus"}"#),
        ("metrics.podMonitor.interval", r#""10s""#),
        ("metrics.prometheusRule.enabled", "true"),
        ("metrics.prometheusRule.labels", r#"{"release": "prometheus"}"#),
        ("metrics.dashboards.enabled", "true"),
        ("metrics.dashboards.labels", r#"{"dashboards": "yes"}"#),
        ("metrics.dashboards.annotations", r#"{"grafana_folder": "PostgreSQL"}"#),
        ("networkPolicy.enabled", "true"),
        ("networkPolicy.clientsFrom", r#"[{"namespaceSelector": {"matchLabels": {"team": "shop"}}}]"#),
        ("networkPolicy.metricsFrom", r#"[{"podSelector": {"matchLabels": {"app": "prometheus"}}}]"#),
        ("resources", r#"{"requests": {"cpu": "1"}}"#),
        ("terminationGracePeriodSeconds", "60"),
        ("priorityClassName", r#""high""#),
        ("nodeSelector", r#"{"a": "b"}"#),
        ("tolerations", r#"[{"operator": "Exists"}]"#),
        ("affinity", r#"{"nodeAffinity": {}}"#),
        (
            "topologySpreadConstraints",
            r#"[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]"#,
        ),
        ("podAnnotations", r#"{"a": "b"}"#),
        ("podLabels", r#"{"a": "b"}"#),
        ("extraEnv", r#"[{"name": "A", "value": "b"}]"#),
    ])
}

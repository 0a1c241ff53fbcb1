//! The kinds of the Prometheus operator, and a real Prometheus that does what they say.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::cluster::{Cluster, run};
use crate::wait::{Look, until};

/// Applies the definitions of PodMonitor and PrometheusRule, out of the Prometheus operator's own module.
///
/// # Errors
/// When they are not there or the API server refuses.
pub async fn define(cluster: &Cluster) -> Result<()> {
    for file in definitions()? {
        cluster.kubectl(&["apply", "--server-side", "-f", &file]).await?;
    }
    for kind in KINDS {
        let name = format!("crd/{kind}.monitoring.coreos.com");
        cluster.kubectl(&["wait", "--for=condition=Established", &name, "--timeout=30s"]).await?;
    }
    Ok(())
}

/// Removes them, with all objects of their kinds.
///
/// # Errors
/// When the API server refuses.
pub async fn undefine(cluster: &Cluster) -> Result<()> {
    for file in definitions()? {
        cluster.kubectl(&["delete", "--ignore-not-found", "-f", &file]).await?;
    }
    Ok(())
}

const KINDS: [&str; 2] = ["podmonitors", "prometheusrules"];

fn definitions() -> Result<[String; 2]> {
    let folder = std::env::var("MONITORING_DEFINITIONS").context("MONITORING_DEFINITIONS: run.sh sets it")?;
    Ok(KINDS.map(|kind| format!("{folder}/monitoring.coreos.com_{kind}.yaml")))
}

/// The Prometheus that run.sh names. It ends when it is dropped.
///
/// It is built without the discovery of pods, so the pods that there are when it starts are written to files, with the labels
/// that the discovery would give them; what is kept of them, and how it is labelled, Prometheus itself decides.
pub struct Prometheus {
    _process: Child,
    folder: PathBuf,
    url: String,
}

impl Prometheus {
    /// Starts one that scrapes what the PodMonitors of a namespace select, and evaluates its PrometheusRules, as the
    /// Prometheus operator would have it do.
    ///
    /// # Errors
    /// When they do not read, or it does not start.
    pub async fn start(cluster: &Cluster, namespace: &str, listen: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("pgrouting-monitoring-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let list = |kind: &'static str| async move {
            let text = cluster.kubectl(&["-n", namespace, "get", kind, "-o", "json"]).await?;
            let list: Value = serde_json::from_str(&text)?;
            anyhow::Ok(list["items"].as_array().cloned().unwrap_or_default())
        };
        let mut jobs = Vec::new();
        for monitor in list("podmonitors").await? {
            let file = folder.join(format!("targets-{}.json", jobs.len()));
            std::fs::write(&file, discover(cluster, &monitor).await?.to_string())?;
            jobs.extend(scrape_configs(&monitor, &file));
        }
        let mut files = Vec::new();
        for rule in list("prometheusrules").await? {
            let file = folder.join(format!("rules-{}.json", files.len()));
            std::fs::write(&file, rule["spec"].to_string())?;
            files.push(file);
        }
        let config = json!({
            "global": {"evaluation_interval": "1s"}, "scrape_configs": jobs, "rule_files": files,
        });
        // JSON is YAML.
        std::fs::write(folder.join("prometheus.json"), config.to_string())?;
        let process = spawn(&folder, listen)?;
        let prometheus = Self { _process: process, folder, url: format!("http://{listen}") };
        until("Prometheus is ready", Duration::from_secs(30), || async {
            Ok(match prometheus.query("vector(1)").await {
                Ok(_) => Look::Done(()),
                Err(_) => Look::NotYet(std::fs::read_to_string(prometheus.folder.join("log"))?),
            })
        })
        .await?;
        Ok(prometheus)
    }

    /// Asks its API, as `query`, with one parameter.
    ///
    /// # Errors
    /// When it does not answer, or answers with an error.
    pub async fn ask(&self, path: &str, parameter: &str) -> Result<Value> {
        let url = format!("{}/api/v1/{path}", self.url);
        let arguments = ["-sS", "--max-time", "10", "-G", &url, "--data-urlencode", parameter];
        let answer: Value = serde_json::from_str(&run("curl", &arguments, "").await?)?;
        anyhow::ensure!(answer["status"] == "success", "{parameter}: {answer}");
        Ok(answer["data"].clone())
    }

    /// The series that a query gives now.
    ///
    /// # Errors
    /// When the query is wrong.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let data = self.ask("query", &format!("query={expression}")).await?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may be writing still; what is left is in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn spawn(folder: &Path, listen: &str) -> Result<Child> {
    let program = std::env::var("PROMETHEUS").context("PROMETHEUS names the program: run.sh sets it")?;
    Command::new(program)
        .arg(format!("--config.file={}", folder.join("prometheus.json").display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={listen}"))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(folder.join("log"))?)
        .kill_on_drop(true)
        .spawn()
        .context("Prometheus does not start")
}

/// The ports of the pods in the namespaces of a PodMonitor, labelled as Prometheus' discovery of pods does.
async fn discover(cluster: &Cluster, monitor: &Value) -> Result<Value> {
    let selector = &monitor["spec"]["namespaceSelector"];
    let own = [monitor["metadata"]["namespace"].clone()];
    let named = selector["matchNames"].as_array().map_or(own.as_slice(), Vec::as_slice);
    let text = cluster.kubectl(&["get", "pods", "--all-namespaces", "-o", "json"]).await?;
    let pods: Value = serde_json::from_str(&text)?;
    let pods = pods["items"].as_array().context("pods")?.iter();
    let mut targets = Vec::new();
    for pod in pods.filter(|pod| selector["any"] == true || named.contains(&pod["metadata"]["namespace"])) {
        let meta = &pod["metadata"];
        let mut labels = json!({
            "__meta_kubernetes_namespace": meta["namespace"], "__meta_kubernetes_pod_name": meta["name"],
        });
        for (label, value) in meta["labels"].as_object().into_iter().flatten() {
            labels[format!("__meta_kubernetes_pod_label_{}", sanitized(label))] = value.clone();
        }
        for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
            for port in container["ports"].as_array().into_iter().flatten() {
                labels["__meta_kubernetes_pod_container_port_name"] = json!(text_of(&port["name"]));
                let address = format!("{}:{}", text_of(&pod["status"]["podIP"]), port["containerPort"]);
                targets.push(json!({"targets": [address], "labels": labels}));
            }
        }
    }
    Ok(json!(targets))
}

/// A PodMonitor as jobs of Prometheus: the fields that the chart uses, as the Prometheus operator translates them.
fn scrape_configs(monitor: &Value, targets: &Path) -> Vec<Value> {
    let (meta, spec) = (&monitor["metadata"], &monitor["spec"]);
    let labels = spec["selector"]["matchLabels"].as_object().cloned().unwrap_or_default();
    let endpoints = spec["podMetricsEndpoints"].as_array().cloned().unwrap_or_default();
    let job = |(index, endpoint): (usize, &Value)| {
        let mut relabel: Vec<_> = labels
            .iter()
            .map(|(label, value)| keep(&format!("__meta_kubernetes_pod_label_{}", sanitized(label)), value))
            .collect();
        relabel.push(keep("__meta_kubernetes_pod_container_port_name", &endpoint["port"]));
        relabel.push(json!({"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"}));
        relabel.push(json!({"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"}));
        for one in endpoint["relabelings"].as_array().into_iter().flatten() {
            relabel.push(json!({"source_labels": one["sourceLabels"], "target_label": one["targetLabel"]}));
        }
        json!({
            "job_name": format!("podMonitor/{}/{}/{index}", text_of(&meta["namespace"]), text_of(&meta["name"])),
            "honor_labels": endpoint["honorLabels"] == true,
            "scrape_interval": endpoint["interval"],
            "scrape_timeout": endpoint["interval"],
            "file_sd_configs": [{"files": [targets]}],
            "relabel_configs": relabel,
        })
    };
    endpoints.iter().enumerate().map(job).collect()
}

fn keep(label: &str, value: &Value) -> Value {
    json!({"source_labels": [label], "regex": value, "action": "keep"})
}

fn sanitized(label: &str) -> String {
    label.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

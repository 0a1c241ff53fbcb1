//! The chart, rendered and installed by the real Helm.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_yaml::Value;

use crate::cluster::{root, run};

/// The chart's folder.
#[must_use]
pub fn folder() -> PathBuf {
    root().join("charts/pgrouting")
}

/// Runs `helm` and returns what it prints.
///
/// # Errors
/// When it fails, with what it says.
pub async fn helm(arguments: &[&str]) -> Result<String> {
    run("helm", arguments, "").await
}

/// Renders the chart for a release with the given arguments, as text.
///
/// # Errors
/// When Helm refuses.
pub async fn render(release: &str, namespace: &str, arguments: &[&str]) -> Result<String> {
    let folder = folder();
    let folder = folder.to_str().context("a path of plain characters")?;
    let mut all = vec!["template", release, folder, "--namespace", namespace];
    all.extend(arguments);
    helm(&all).await
}

/// Splits rendered text into objects.
///
/// # Errors
/// When it is not YAML.
pub fn objects(rendered: &str) -> Result<Vec<Value>> {
    use serde::Deserialize as _;
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(rendered) {
        let object = Value::deserialize(document)?;
        if !object.is_null() {
            objects.push(object);
        }
    }
    Ok(objects)
}

/// One operator: a release of the chart in a namespace of its own, keeping only that namespace's pools.
pub struct Release {
    /// The release's name.
    pub name: String,
    /// Where it is installed, and what it watches.
    pub namespace: String,
}

impl Release {
    /// Installs or upgrades, and waits until the operator is ready.
    ///
    /// # Errors
    /// When Helm fails.
    pub async fn apply(&self, command: &str, arguments: &[&str]) -> Result<String> {
        let folder = folder();
        let folder = folder.to_str().context("a path of plain characters")?;
        let watch = format!("watch.namespaces={{{}}}", self.namespace);
        let mut all = vec![command, &self.name, folder, "--namespace", &self.namespace];
        all.extend(["--set", &watch, "--wait", "--timeout", "90s"]);
        all.extend(arguments);
        helm(&all).await
    }

    /// The name of the operator's Deployment, and of its Lease.
    #[must_use]
    pub fn operator(&self) -> String {
        if self.name.contains("pgrouting") { self.name.clone() } else { format!("{}-pgrouting", self.name) }
    }
}

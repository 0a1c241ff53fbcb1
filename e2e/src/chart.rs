//! The chart, rendered and installed by the real Helm.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_yaml::Value;

use crate::cluster::{root, run};

pub mod values;

/// The chart's folder.
#[must_use]
pub fn folder() -> PathBuf {
    root().join("charts/pgrouting")
}

/// Writes a chart as a version before this one would have been: its images have the tag `before`, and its definition lacks a
/// field of the spec. The templates are this version's.
///
/// # Errors
/// When a file does not read or cannot be written.
pub fn write_older(target: &Path, without_field: &str) -> Result<()> {
    copy(&folder(), target)?;
    let chart = "apiVersion: v2\nname: pgrouting\nversion: 0.0.1\nappVersion: before\n";
    std::fs::write(target.join("Chart.yaml"), chart)?;
    let file = target.join("files/pgroutingpools.yaml");
    let mut definition: Value = serde_yaml::from_str(&std::fs::read_to_string(&file)?)?;
    let spec = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let fields = spec["properties"].as_mapping_mut().context("the definition has fields")?;
    fields.remove(without_field).with_context(|| format!("the definition has no {without_field}"))?;
    std::fs::write(&file, serde_yaml::to_string(&definition)?)?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
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
        self.apply_from(&folder(), command, arguments).await
    }

    /// Installs or upgrades to the chart of a folder, and waits until the operator is ready.
    ///
    /// # Errors
    /// When Helm fails.
    pub async fn apply_from(&self, folder: &Path, command: &str, arguments: &[&str]) -> Result<String> {
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

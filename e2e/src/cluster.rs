//! The cluster that the stories run on, spoken to by kube and by the commands that people use.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::wait::{Look, until};
use std::time::Duration;

/// A connection to the cluster of `KUBECONFIG`.
#[derive(Clone)]
pub struct Cluster {
    /// For everything that has a type.
    pub client: Client,
}

impl Cluster {
    /// Connects.
    ///
    /// # Errors
    /// Without a usable `KUBECONFIG`.
    pub async fn connect() -> Result<Self> {
        let client = Client::try_default().await.context("KUBECONFIG must name a cluster: see `make e2e`")?;
        Ok(Self { client })
    }

    /// Runs `kubectl` and returns what it prints.
    ///
    /// # Errors
    /// When it fails, with what it says.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        run("kubectl", arguments, "").await
    }

    /// Runs `kubectl` with a text on its standard input.
    ///
    /// # Errors
    /// When it fails, with what it says.
    pub async fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        run("kubectl", arguments, input).await
    }

    /// Makes a namespace that admits only pods of the `restricted` standard. One of that name is removed before.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn make_namespace(&self, name: &str) -> Result<()> {
        self.remove_namespace(name).await?;
        let namespace = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {
                "pod-security.kubernetes.io/enforce": "restricted",
                "pgrouting.dev/story": "true",
            }},
        }))?;
        Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &namespace).await?;
        Ok(())
    }

    /// Removes a namespace with all that is in it, and waits until it is gone.
    ///
    /// # Errors
    /// When it does not go.
    pub async fn remove_namespace(&self, name: &str) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        if namespaces.get_opt(name).await?.is_none() {
            return Ok(());
        }
        namespaces.delete(name, &DeleteParams::default()).await?;
        until(&format!("namespace {name} is gone"), Duration::from_secs(120), || async {
            Ok(match namespaces.get_opt(name).await? {
                None => Look::Done(()),
                Some(_) => Look::NotYet("it is still there".to_owned()),
            })
        })
        .await
    }

    /// Names of the objects of one kind in a namespace that carry a label.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn names<K>(&self, namespace: &str, selector: &str) -> Result<Vec<String>>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let objects = Api::<K>::namespaced(self.client.clone(), namespace)
            .list(&ListParams::default().labels(selector))
            .await?;
        Ok(objects.items.iter().filter_map(|object| object.meta().name.clone()).collect())
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it does not end well, with all that it printed.
pub async fn run(program: &str, arguments: &[&str], input: &str) -> Result<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{program} does not start"))?;
    let mut stdin = child.stdin.take().context("a pipe was asked for")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}\n{text}{errors}", arguments.join(" "), output.status);
    }
    Ok(text)
}

/// The project's root folder.
#[must_use]
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

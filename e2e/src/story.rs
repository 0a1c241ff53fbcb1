//! The stage on which a story plays: a namespace, an operator for it, PostgreSQL servers and a login.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::chart::{Release, render};
use crate::cluster::Cluster;
use crate::pool::Pool;
use crate::postgres::{Login, Postgres};
use crate::wait::{Look, until};

/// Everything that most stories need.
pub struct Story {
    /// The cluster.
    pub cluster: Cluster,
    /// The story's namespace.
    pub namespace: String,
    /// The shared servers. In the namespace they are the Services `pg-a` (the primary), `pg-b` and `pg-c`.
    pub postgres: Postgres,
    /// The story's role; the Secret `app` holds it.
    pub login: Login,
    /// The story's operator.
    pub release: Release,
}

impl Story {
    /// Sets the stage without an operator.
    ///
    /// # Errors
    /// When a part of it does not come up.
    pub async fn set(name: &str) -> Result<Self> {
        let cluster = Cluster::connect().await?;
        let postgres = Postgres::start(&cluster).await?;
        let namespace = format!("story-{name}");
        cluster.make_namespace(&namespace).await?;
        let login = postgres.make_login(&namespace).await?;
        postgres.expose(&cluster, &namespace, &["pg-a", "pg-b", "pg-c"]).await?;
        let release = Release { name: "pgrouting".to_owned(), namespace: namespace.clone() };
        let story = Self { cluster, namespace, postgres, login, release };
        story.write_secret("app").await?;
        Ok(story)
    }

    /// Sets the stage and installs the operator.
    ///
    /// # Errors
    /// When a part of it does not come up.
    pub async fn begin(name: &str) -> Result<Self> {
        let story = Self::set(name).await?;
        story.apply_definition().await?;
        story.release.apply("install", &["--set", "crds.install=false"]).await?;
        Ok(story)
    }

    /// Removes everything that the story made.
    ///
    /// # Errors
    /// When something does not go.
    pub async fn end(self) -> Result<()> {
        self.cluster.remove_namespace(&self.namespace).await
    }

    /// Applies the definition of PgRoutingPool as the chart has it.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn apply_definition(&self) -> Result<()> {
        let definition = render("definition", "default", &["--show-only", "templates/crd.yaml"]).await?;
        let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.cluster.kubectl_with(&arguments, &definition).await?;
        let name = "crd/pgroutingpools.pgrouting.dev";
        self.cluster.kubectl(&["wait", "--for=condition=Established", name, "--timeout=30s"]).await?;
        Ok(())
    }

    /// Removes the definition, for stories in which a release brings it. All pools go with it.
    ///
    /// # Errors
    /// When it does not go.
    pub async fn remove_definition(&self) -> Result<()> {
        let definitions = Api::<CustomResourceDefinition>::all(self.cluster.client.clone());
        if definitions.get_opt(DEFINITION).await?.is_some() {
            definitions.delete(DEFINITION, &DeleteParams::default()).await?;
        }
        until("the definition is gone", SOON, || async {
            Ok(match definitions.get_opt(DEFINITION).await? {
                None => Look::Done(()),
                Some(_) => Look::NotYet("it is still there".to_owned()),
            })
        })
        .await
    }

    /// Writes the login into a Secret of the namespace.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn write_secret(&self, name: &str) -> Result<()> {
        self.write_login(name, &self.login).await
    }

    /// Writes a login into a Secret of the namespace.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn write_login(&self, name: &str, login: &Login) -> Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {"username": login.user, "password": login.password},
        });
        let secrets = Api::<Secret>::namespaced(self.cluster.client.clone(), &self.namespace);
        secrets.patch(name, &PatchParams::apply("pgrouting-e2e").force(), &Patch::Apply(secret)).await?;
        Ok(())
    }

    /// Applies a pool over the given servers of `pg-a`, `pg-b` and `pg-c`, with further fields of the spec merged in,
    /// and waits until it serves. Its stage is in effect at once, unless the fields say that it is walked to.
    ///
    /// # Errors
    /// When it is refused or does not come to serve.
    pub async fn pool(&self, name: &str, servers: &[&str], spec: Value) -> Result<Pool> {
        let mut all = json!({
            "backends": {"type": "Static", "static": {"servers": servers_named(servers)}},
            "auth": {"type": "UserList", "users": [{"name": "app"}]},
            "proxy": {"drainTimeout": "20s", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}},
            "rollout": {"mode": "Immediate"},
        });
        merge(&mut all, spec);
        self.apply_pool(name, &all).await?;
        let pool = Pool::new(&self.cluster, &self.namespace, name);
        pool.wait_until_serving(60).await?;
        Ok(pool)
    }

    /// Applies a pool with exactly this spec, as `kubectl apply` does.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn apply_pool(&self, name: &str, spec: &Value) -> Result<String> {
        let manifest = json!({
            "apiVersion": "pgrouting.dev/v1alpha1", "kind": "PgRoutingPool", "metadata": {"name": name}, "spec": spec,
        });
        self.apply(&manifest.to_string()).await
    }

    /// Applies a manifest in the namespace.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn apply(&self, manifest: &str) -> Result<String> {
        self.cluster.kubectl_with(&["-n", &self.namespace, "apply", "-f", "-"], manifest).await
    }
}

/// Servers of a static list that are called as their Services are.
#[must_use]
pub fn servers_named(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name, "host": name})).collect()
}

/// Merges objects field by field; anything else is replaced.
pub fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// The name of the definition of PgRoutingPool.
pub const DEFINITION: &str = "pgroutingpools.pgrouting.dev";

/// The longest that a story waits for something that should take a second or two on an idle machine.
pub const SOON: Duration = Duration::from_secs(30);

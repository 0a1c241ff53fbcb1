//! A PostgreSQL primary and two streaming standbys as pods, which all stories share.
//!
//! Each story has a role and a database of its own there, and sees the servers as Services in its own namespace.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio_postgres::{Client, NoTls};

use crate::cluster::{Cluster, root};
use crate::wait::{Look, until};

/// The servers, the primary first.
pub struct Postgres {
    /// One pod each.
    pub servers: Vec<Server>,
    superuser_password: String,
}

/// One server.
#[derive(Debug, Clone)]
pub struct Server {
    /// Its pod: `pg-0` is the primary.
    pub pod: String,
    /// The pod's address.
    pub address: String,
}

/// A role that can log in, and the database that it owns.
#[derive(Debug, Clone)]
pub struct Login {
    /// Name of the role and of the database.
    pub user: String,
    /// The role's password.
    pub password: String,
}

impl Postgres {
    /// Brings the servers up, unless an earlier story did, and waits until both standbys stream.
    ///
    /// # Errors
    /// When they do not come up.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        let namespaces = Api::<Namespace>::all(cluster.client.clone());
        if namespaces.get_opt(NAMESPACE).await?.is_none() {
            cluster.make_namespace(NAMESPACE).await?;
        }
        Self::start_in(cluster, NAMESPACE).await
    }

    /// Brings servers up in a namespace, which no other story shares.
    ///
    /// # Errors
    /// When they do not come up.
    pub async fn start_in(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let manifest = root().join("e2e/cluster/postgres.yaml");
        let manifest = manifest.to_str().context("a path of plain characters")?;
        cluster.kubectl(&["-n", namespace, "apply", "--server-side", "-f", manifest]).await?;
        let ready = ["wait", "statefulset/pg", "--for=jsonpath={.status.readyReplicas}=3", "--timeout=120s"];
        cluster.kubectl(&[&["-n", namespace], &ready[..]].concat()).await?;

        let secret = Api::<Secret>::namespaced(cluster.client.clone(), namespace).get("pg-superuser").await?;
        let password = secret.data.as_ref().and_then(|data| data.get("password")).context("no password")?;
        let superuser_password = String::from_utf8(password.0.clone())?;
        let mut servers = Vec::new();
        for pod in ["pg-0", "pg-1", "pg-2"] {
            servers.push(Server { pod: pod.to_owned(), address: address_of(cluster, namespace, pod).await? });
        }
        let postgres = Self { servers, superuser_password };
        postgres.wait_for_standbys().await?;
        Ok(postgres)
    }

    async fn wait_for_standbys(&self) -> Result<()> {
        until("both standbys stream", Duration::from_secs(60), || async {
            let primary = self.superuser().await?;
            let query = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
            let count: i64 = primary.query_one(query, &[]).await?.get(0);
            Ok(if count == 2 { Look::Done(()) } else { Look::NotYet(format!("{count} stream")) })
        })
        .await
    }

    /// Makes a role and a database for a story; those of an earlier run are removed before.
    ///
    /// # Errors
    /// When the primary refuses.
    pub async fn make_login(&self, name: &str) -> Result<Login> {
        let user = name.replace('-', "_");
        ensure!(user.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{user:?} is no plain name");
        let login = Login { password: format!("first-password-of-{user}"), user };
        make_login_at(&self.superuser().await?, &login).await?;
        Ok(login)
    }

    /// Changes a role's password.
    ///
    /// # Errors
    /// When the primary refuses.
    pub async fn change_password(&self, login: &mut Login, password: &str) -> Result<()> {
        let primary = self.superuser().await?;
        primary.batch_execute(&format!("ALTER ROLE {} PASSWORD '{password}'", login.user)).await?;
        password.clone_into(&mut login.password);
        Ok(())
    }

    /// A connection to the primary, past every proxy, as the superuser.
    ///
    /// # Errors
    /// When the primary does not answer.
    pub async fn superuser(&self) -> Result<Client> {
        self.superuser_at(0).await
    }

    /// A connection to one database of the primary, past every proxy, as the superuser.
    ///
    /// # Errors
    /// When the primary does not answer.
    pub async fn superuser_in(&self, database: &str) -> Result<Client> {
        let login = Login { user: "postgres".to_owned(), password: self.superuser_password.clone() };
        connect(&self.servers[0].address, 5432, &login, database).await
    }

    /// A connection to one server, past every proxy, as the superuser.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn superuser_at(&self, server: usize) -> Result<Client> {
        let login = Login { user: "postgres".to_owned(), password: self.superuser_password.clone() };
        connect(&self.servers[server].address, 5432, &login, "postgres").await
    }

    /// A connection to one server, past every proxy, in the login's own database.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn direct(&self, server: usize, login: &Login) -> Result<Client> {
        connect(&self.servers[server].address, 5432, login, &login.user).await
    }

    /// Makes Services in a namespace, one a server in order, under names that pools there can use as hosts.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn expose(&self, cluster: &Cluster, namespace: &str, names: &[&str]) -> Result<()> {
        for (name, server) in names.iter().zip(&self.servers) {
            expose_addresses(cluster, namespace, name, &[&server.address]).await?;
        }
        Ok(())
    }
}

/// Makes a role and its database by a superuser's connection; those of an earlier run are removed before.
///
/// # Errors
/// When the server refuses.
pub async fn make_login_at(superuser: &Client, login: &Login) -> Result<()> {
    let Login { user, password } = login;
    superuser.batch_execute(&format!("DROP DATABASE IF EXISTS {user} WITH (FORCE)")).await?;
    superuser.batch_execute(&format!("DROP ROLE IF EXISTS {user}")).await?;
    superuser.batch_execute(&format!("CREATE ROLE {user} LOGIN PASSWORD '{password}'")).await?;
    superuser.batch_execute(&format!("CREATE DATABASE {user} OWNER {user}")).await?;
    Ok(())
}

/// The address of a pod.
///
/// # Errors
/// When it has none.
pub async fn address_of(cluster: &Cluster, namespace: &str, pod: &str) -> Result<String> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), namespace);
    let status = pods.get(pod).await?.status.unwrap_or_default();
    status.pod_ip.with_context(|| format!("{pod} has no address"))
}

/// Makes one Service whose endpoints are the given addresses, or changes it.
///
/// # Errors
/// When the API server refuses.
pub async fn expose_addresses(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    addresses: &[&str],
) -> Result<()> {
    let spec = json!({"ports": [{"name": "postgres", "port": 5432}]});
    expose_by(cluster, namespace, name, addresses, spec).await
}

/// The same for a Service without an address of its own: its name has the addresses as records.
///
/// # Errors
/// When the API server refuses.
pub async fn expose_by_name(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    addresses: &[&str],
) -> Result<()> {
    let spec = json!({"clusterIP": "None", "ports": [{"name": "postgres", "port": 5432}]});
    expose_by(cluster, namespace, name, addresses, spec).await
}

async fn expose_by(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    addresses: &[&str],
    spec: serde_json::Value,
) -> Result<()> {
    let apply = PatchParams::apply("pgrouting-e2e").force();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    let services = Api::<Service>::namespaced(cluster.client.clone(), namespace);
    let service = services.patch(name, &apply, &Patch::Apply(service)).await?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service.name_any()}},
        "addressType": "IPv4",
        "ports": [{"name": "postgres", "port": 5432}],
        "endpoints": addresses.iter().map(|address| json!({
            "addresses": [address], "conditions": {"ready": true},
        })).collect::<Vec<_>>(),
    });
    let slices = Api::<EndpointSlice>::namespaced(cluster.client.clone(), namespace);
    slices.patch(name, &apply, &Patch::Apply(slice)).await?;
    Ok(())
}

/// Logs in to whatever listens there: a server or a proxy.
///
/// # Errors
/// When it refuses or does not answer within ten seconds.
pub async fn connect(host: &str, port: u16, login: &Login, database: &str) -> Result<Client> {
    let mut config = tokio_postgres::Config::new();
    config.host(host).port(port).user(&login.user).password(&login.password).dbname(database);
    config.application_name("pgrouting-e2e").connect_timeout(Duration::from_secs(10));
    let (client, connection) = tokio::time::timeout(Duration::from_secs(10), config.connect(NoTls))
        .await
        .with_context(|| format!("{host}:{port} does not answer"))?
        .with_context(|| format!("login of {} at {host}:{port}", login.user))?;
    // The client sees how the connection ends in its own errors.
    tokio::spawn(connection);
    Ok(client)
}

/// The same through a Service that has just got its endpoints: nodes hear of them a moment later, and refuse until then.
///
/// # Errors
/// When it has not let anybody in within half a minute.
pub async fn connect_soon(host: &str, port: u16, login: &Login, database: &str) -> Result<Client> {
    until(&format!("{host}:{port} lets {} in", login.user), Duration::from_secs(30), || async {
        Ok(match connect(host, port, login, database).await {
            Ok(client) => Look::Done(client),
            Err(error) => Look::NotYet(format!("{error:#}")),
        })
    })
    .await
}

/// The namespace of the servers.
pub const NAMESPACE: &str = "postgres";

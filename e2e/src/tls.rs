//! Certificates for stories, and PostgreSQL servers that take TLS.

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;

use crate::postgres::Postgres;
use crate::story::Story;

/// A CA.
pub struct Authority {
    /// Its certificate, in PEM form.
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM form.
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// When the library refuses.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, issuer: Issuer::new(params, key) })
    }

    /// A certificate for hosts.
    ///
    /// # Errors
    /// When the library refuses.
    pub fn identity(&self, hosts: &[&str]) -> Result<Identity> {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts)?;
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }
}

/// Has all servers take TLS with this certificate.
///
/// # Errors
/// When a server refuses.
pub async fn serve_tls(postgres: &Postgres, identity: &Identity) -> Result<()> {
    for server in 0..postgres.servers.len() {
        let superuser = postgres.superuser_at(server).await?;
        for (name, content) in [("story.crt", &identity.certificate), ("story.key", &identity.key)] {
            // A key that others may read is refused.
            superuser
                .batch_execute(&format!(
                    "COPY (SELECT unnest(string_to_array('{content}', E'\\n'))) TO PROGRAM 'umask 077; cat >/data/{name}'"
                ))
                .await?;
        }
        for setting in ["ssl_cert_file = '/data/story.crt'", "ssl_key_file = '/data/story.key'", "ssl = on"] {
            superuser.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await?;
        }
        superuser.batch_execute("SELECT pg_reload_conf()").await?;
    }
    Ok(())
}

/// Has all servers speak in clear again.
///
/// # Errors
/// When a server refuses.
pub async fn serve_clear(postgres: &Postgres) -> Result<()> {
    for server in 0..postgres.servers.len() {
        let superuser = postgres.superuser_at(server).await?;
        for setting in ["ssl", "ssl_cert_file", "ssl_key_file"] {
            superuser.batch_execute(&format!("ALTER SYSTEM RESET {setting}")).await?;
        }
        superuser.batch_execute("SELECT pg_reload_conf()").await?;
    }
    Ok(())
}

/// How many connections of the story's role there are on all servers, by TLS and in clear. Those past the proxies count too.
///
/// # Errors
/// When a server does not answer.
pub async fn connections(story: &Story) -> Result<(i64, i64)> {
    let (mut encrypted, mut clear) = (0, 0);
    for server in 0..story.postgres.servers.len() {
        let query = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl) \
                     FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = $1";
        let row = story.postgres.superuser_at(server).await?.query_one(query, &[&story.login.user]).await?;
        encrypted += row.get::<_, i64>(0);
        clear += row.get::<_, i64>(1);
    }
    Ok((encrypted, clear))
}

/// Writes a certificate into a Secret as cert-manager does.
///
/// # Errors
/// When the API server refuses.
pub async fn write_identity(story: &Story, name: &str, identity: &Identity) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": identity.certificate, "tls.key": identity.key},
    });
    let secrets = Api::<Secret>::namespaced(story.cluster.client.clone(), &story.namespace);
    secrets.patch(name, &PatchParams::apply("pgrouting-e2e").force(), &Patch::Apply(secret)).await?;
    Ok(())
}

/// Writes a CA into a ConfigMap.
///
/// # Errors
/// When the API server refuses.
pub async fn write_authority(story: &Story, name: &str, authority: &Authority) -> Result<()> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {"ca.crt": authority.certificate},
    });
    let maps = Api::<ConfigMap>::namespaced(story.cluster.client.clone(), &story.namespace);
    maps.patch(name, &PatchParams::apply("pgrouting-e2e").force(), &Patch::Apply(map)).await?;
    Ok(())
}

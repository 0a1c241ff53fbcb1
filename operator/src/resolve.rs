//! Fetches what a spec points at: Secrets, endpoints, and what the operator wrote before.
//!
//! Takes the pool and reads the API. Gives [`ResolvedRefs`], from which the later steps work without a client.
//! What is missing is not an error here but a finding, so that the pool goes on with what it had.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use std::{fmt, slice};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt as _};
use pgrouting_contract::config::ProxyConfig;
use pgrouting_crds::spec::credentials::CredentialsSecret;
use pgrouting_crds::spec::tls::CaKind;
use pgrouting_crds::spec::{AuthType, BackendService, DnsBackends, PgRoutingPool};

use crate::dns::Dns;
use crate::names::{CONFIG_KEY, PoolNames};
use crate::resolve::files::{
    FileReference, ObjectReference, file_in_config_map, file_in_secret, referenced_files,
};

pub mod files;

/// The longest wait for one call to the API server.
pub const API_TIMEOUT: Duration = Duration::from_secs(10);
const READS_AT_ONCE: usize = 8;

/// What a spec points at, and what was written before.
#[derive(Debug, Clone, Default)]
pub struct ResolvedRefs {
    /// Each certificate, key and CA that the spec names, with what was found.
    pub files: BTreeMap<FileReference, Result<Vec<u8>, CredentialsFault>>,
    /// Each Secret that the spec names, with what was found.
    pub credentials: BTreeMap<CredentialsSecret, Result<Credentials, CredentialsFault>>,
    /// The primary's and the replicas' endpoints, for backends of type Services.
    pub endpoints: ResolvedEndpoints,
    /// The pool's ConfigMap as it is.
    pub config_map: Option<ConfigMap>,
    /// The document in it, when it reads.
    pub previous: Option<ProxyConfig>,
    /// The pool's admin Secret as it is.
    pub admin: Option<Secret>,
    /// The pool's users Secret as it is.
    pub users: Option<Secret>,
    /// Pods that hold server connections, those that leave among them.
    pub live_pods: u32,
    /// The highest generation of another document that a proxy is known to run.
    pub generation_floor: u64,
}

/// A user name and a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user name.
    pub username: Vec<u8>,
    /// The password.
    pub password: Vec<u8>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No log line can hold what is in here.
        f.write_str("Credentials")
    }
}

/// Why a Secret gives no credentials. The text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsFault {
    /// There is no such Secret.
    #[error("Secret {0} does not exist: create it, or name another one")]
    SecretNotFound(String),
    /// It lacks a key, or the key is empty.
    #[error("Secret {secret} has no {key}: add that key, or name another one in usernameKey or passwordKey")]
    KeyMissing {
        /// The Secret.
        secret: String,
        /// The key.
        key: String,
    },
    /// There is no such ConfigMap.
    #[error("ConfigMap {0} does not exist: create it, or name another one under spec.tls")]
    ConfigMapNotFound(String),
    /// It lacks a certificate, a key or a CA, or that is empty.
    #[error("{object} has no {key}: add that key, or name another one under spec.tls")]
    FileMissing {
        /// The Secret or ConfigMap.
        object: ObjectReference,
        /// The key.
        key: String,
    },
    /// What it has is of no use.
    #[error("{object}: {what}: correct it, or name another one under spec.tls")]
    BadCertificate {
        /// The Secret or ConfigMap.
        object: ObjectReference,
        /// What is wrong.
        what: String,
    },
    /// The operator may not read it.
    #[error("the operator may not get Secret {0}: grant it the verb get on secrets in this namespace")]
    Forbidden(String),
}

/// The servers behind Services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedEndpoints {
    /// Those found, each address once, in order of name.
    pub servers: Vec<EndpointServer>,
    /// What is wrong with the Services, each a sentence that says what to do.
    pub faults: Vec<String>,
}

/// One endpoint of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointServer {
    /// The name of the pod behind it, or of the address.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// Its zone.
    pub zone: Option<String>,
    /// Whether it takes connections now.
    pub is_ready: bool,
}

/// Why nothing can be resolved: the API server could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// It answered with an error.
    #[error("cannot read {kind} {name}: {}", said(source))]
    Api {
        /// What was read.
        kind: &'static str,
        /// Which one.
        name: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// It did not answer in time.
    #[error("cannot read {kind} {name}: no answer in time")]
    Timeout {
        /// What was read.
        kind: &'static str,
        /// Which one.
        name: String,
    },
}

/// The API server's own words, where there are any.
fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

impl ResolveError {
    /// Whether the operator lacks a right, which no second try brings.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Api { source, .. } if is_forbidden(source))
    }
}

/// The caches that this step reads.
#[derive(Debug, Clone)]
pub struct ResolveStores {
    /// Host names that pools take their servers from.
    pub dns: Dns,
    /// Pods of pools.
    pub pods: Store<Pod>,
    /// Endpoints of all Services.
    pub endpoint_slices: Store<EndpointSlice>,
}

/// Fetches everything that the pool's spec points at. Safe to cancel: it only reads.
///
/// # Errors
/// When the API server cannot be asked. A missing object is not an error.
pub async fn resolve(
    client: &Client,
    stores: &ResolveStores,
    pool: &PgRoutingPool,
    generation_floor: u64,
) -> Result<ResolvedRefs, ResolveError> {
    let namespace = pool.namespace().unwrap_or_default();
    let name = pool.name_any();
    let names = PoolNames(&name);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let (admin_name, users_name, config_name) =
        (names.admin_secret(), names.users_secret(), names.config_map());
    let (config_map, admin, users, credentials, files, endpoints) = futures::try_join!(
        read(&config_maps, "ConfigMap", &config_name),
        read(&secrets, "Secret", &admin_name),
        read(&secrets, "Secret", &users_name),
        resolve_credentials(&secrets, pool),
        resolve_files(&secrets, &config_maps, pool),
        resolve_servers(client, stores, pool),
    )?;
    let previous = config_map.as_ref().and_then(|map| {
        let text = map.data.as_ref()?.get(CONFIG_KEY)?;
        ProxyConfig::parse(text.as_bytes()).ok()
    });
    let selector = names.selector();
    let live_pods = stores
        .pods
        .state()
        .iter()
        .filter(|pod| {
            pod.metadata.namespace.as_deref() == Some(&namespace)
                && selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value))
                && !matches!(phase(pod), "Succeeded" | "Failed")
        })
        .count();
    Ok(ResolvedRefs {
        credentials,
        files,
        endpoints,
        config_map,
        previous,
        admin,
        users,
        live_pods: u32::try_from(live_pods).unwrap_or(u32::MAX),
        generation_floor,
    })
}

/// The Secrets that a spec names.
#[must_use]
pub fn referenced_secrets(pool: &PgRoutingPool) -> BTreeSet<CredentialsSecret> {
    let mirror = pool.spec.mirror.iter().filter_map(|mirror| mirror.credentials_secret.clone());
    login_secrets(pool).into_iter().chain(mirror).collect()
}

/// Those of the users and of the monitor: all but the mirror's.
#[must_use]
pub fn login_secrets(pool: &PgRoutingPool) -> BTreeSet<CredentialsSecret> {
    let auth = &pool.spec.auth;
    let users = match auth.kind {
        AuthType::UserList => auth.users.as_deref().unwrap_or_default(),
        AuthType::Query => {
            auth.query.as_ref().map_or(&[][..], |query| slice::from_ref(&query.credentials_secret))
        }
        AuthType::Passthrough => &[],
    };
    users.iter().chain(&pool.spec.backends.probe.credentials_secret).cloned().collect()
}

/// Whether a pool's servers are the endpoints of this Service.
#[must_use]
pub fn uses_service(pool: &PgRoutingPool, service: &str) -> bool {
    pool.spec.backends.services.iter().any(|services| {
        services.primary.name == service
            || services.replicas.as_ref().is_some_and(|replicas| replicas.name == service)
    })
}

async fn resolve_credentials(
    secrets: &Api<Secret>,
    pool: &PgRoutingPool,
) -> Result<BTreeMap<CredentialsSecret, Result<Credentials, CredentialsFault>>, ResolveError> {
    let references = referenced_secrets(pool);
    let names: BTreeSet<String> = references.iter().map(|reference| reference.name.clone()).collect();
    let mut found = BTreeMap::new();
    let mut reads = futures::stream::iter(names.into_iter().map(|name| async move {
        let read = read(secrets, "Secret", &name).await;
        (name, read)
    }))
    .buffer_unordered(READS_AT_ONCE);
    while let Some((name, read)) = reads.next().await {
        let secret = match read {
            Ok(Some(secret)) => Ok(secret),
            Ok(None) => Err(CredentialsFault::SecretNotFound(name.clone())),
            Err(ResolveError::Api { source, .. }) if is_forbidden(&source) => {
                Err(CredentialsFault::Forbidden(name.clone()))
            }
            Err(error) => return Err(error),
        };
        found.insert(name, secret);
    }
    Ok(references
        .into_iter()
        .filter_map(|reference| {
            let read = found.get(&reference.name)?;
            let credentials = read.as_ref().map_err(Clone::clone).and_then(|s| credentials_of(&reference, s));
            Some((reference, credentials))
        })
        .collect())
}

/// Certificates, keys and CAs: a handful, read one after the other.
async fn resolve_files(
    secrets: &Api<Secret>,
    config_maps: &Api<ConfigMap>,
    pool: &PgRoutingPool,
) -> Result<BTreeMap<FileReference, Result<Vec<u8>, CredentialsFault>>, ResolveError> {
    let mut found = BTreeMap::new();
    for reference in referenced_files(&pool.spec).into_iter().flatten() {
        let FileReference { object, key } = &reference;
        let content = match object.kind {
            CaKind::Secret => match read(secrets, "Secret", &object.name).await {
                Ok(Some(secret)) => Ok(file_in_secret(&secret, key)),
                Ok(None) => Err(CredentialsFault::SecretNotFound(object.name.clone())),
                Err(ResolveError::Api { source, .. }) if is_forbidden(&source) => {
                    Err(CredentialsFault::Forbidden(object.name.clone()))
                }
                Err(error) => return Err(error),
            },
            CaKind::ConfigMap => match read(config_maps, "ConfigMap", &object.name).await? {
                Some(map) => Ok(file_in_config_map(&map, key)),
                None => Err(CredentialsFault::ConfigMapNotFound(object.name.clone())),
            },
        };
        let missing = || CredentialsFault::FileMissing { object: object.clone(), key: key.clone() };
        let content = content.and_then(|content| content.ok_or_else(missing));
        found.insert(reference, content);
    }
    Ok(found)
}

fn credentials_of(reference: &CredentialsSecret, secret: &Secret) -> Result<Credentials, CredentialsFault> {
    let value = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key)).filter(|value| !value.0.is_empty());
        value.map(|value| value.0.clone()).ok_or_else(|| CredentialsFault::KeyMissing {
            secret: reference.name.clone(),
            key: key.to_owned(),
        })
    };
    Ok(Credentials { username: value(&reference.username_key)?, password: value(&reference.password_key)? })
}

async fn resolve_servers(
    client: &Client,
    stores: &ResolveStores,
    pool: &PgRoutingPool,
) -> Result<ResolvedEndpoints, ResolveError> {
    match &pool.spec.backends.dns {
        Some(backends) => Ok(resolve_names(&stores.dns, backends).await),
        None => resolve_endpoints(client, &stores.endpoint_slices, pool).await,
    }
}

/// All addresses of the names.
async fn resolve_names(dns: &Dns, backends: &DnsBackends) -> ResolvedEndpoints {
    let mut resolved = ResolvedEndpoints::default();
    for name in [Some(&backends.primary), backends.replicas.as_ref()].into_iter().flatten() {
        let (addresses, fault) = dns.addresses(&name.host, backends.refresh.get()).await;
        let host = &name.host;
        resolved.faults.extend(fault.map(|fault| {
            format!(
                "host name {host} cannot be looked up: {fault}; correct spec.backends.dns, or the DNS server"
            )
        }));
        resolved.servers.extend(addresses.into_iter().map(|address| EndpointServer {
            name: server_name(&address.to_string()),
            address: address.to_string(),
            port: name.port,
            zone: None,
            is_ready: true,
        }));
    }
    resolved.servers = each_address_once(resolved.servers);
    resolved
}

async fn resolve_endpoints(
    client: &Client,
    slices: &Store<EndpointSlice>,
    pool: &PgRoutingPool,
) -> Result<ResolvedEndpoints, ResolveError> {
    let Some(backends) = &pool.spec.backends.services else { return Ok(ResolvedEndpoints::default()) };
    let namespace = pool.namespace().unwrap_or_default();
    let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
    let slices: Vec<_> =
        slices.state_filter(|slice| slice.metadata.namespace.as_deref() == Some(namespace.as_str()));
    let mut resolved = ResolvedEndpoints::default();
    for backend in [Some(&backends.primary), backends.replicas.as_ref()].into_iter().flatten() {
        let service = read(&services, "Service", &backend.name).await?;
        let slices = slices
            .iter()
            .filter(|slice| slice.labels().get("kubernetes.io/service-name") == Some(&backend.name));
        match endpoints_of(backend, service.as_ref(), slices.map(AsRef::as_ref)) {
            Ok(servers) => resolved.servers.extend(servers),
            Err(fault) => resolved.faults.push(fault),
        }
    }
    resolved.servers = each_address_once(resolved.servers);
    Ok(resolved)
}

/// The endpoints of one Service, or what is wrong with it.
fn endpoints_of<'a>(
    backend: &BackendService,
    service: Option<&Service>,
    slices: impl Iterator<Item = &'a EndpointSlice>,
) -> Result<Vec<EndpointServer>, String> {
    let name = &backend.name;
    let Some(spec) = service.and_then(|service| service.spec.as_ref()) else {
        return Err(format!(
            "Service {name} does not exist: create it, or name another one in spec.backends"
        ));
    };
    let ports = spec.ports.as_deref().unwrap_or_default();
    let Some(port) = ports.iter().find(|port| port.port == i32::from(backend.port)) else {
        let known: Vec<_> = ports.iter().map(|port| port.port.to_string()).collect();
        return Err(format!(
            "Service {name} has no port {}, it has {}: correct spec.backends",
            backend.port,
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        ));
    };
    let port_name = port.name.as_deref().unwrap_or_default();
    let mut servers = Vec::new();
    for slice in slices {
        let target =
            slice.ports.iter().flatten().find(|p| p.name.as_deref().unwrap_or_default() == port_name);
        let Some(target) = target.and_then(|port| u16::try_from(port.port?).ok()) else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.as_ref();
            if conditions.and_then(|c| c.terminating) == Some(true) {
                continue;
            }
            let Some(address) = endpoint.addresses.first() else { continue };
            let pod = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"));
            let pod = pod.and_then(|target| target.name.as_deref());
            servers.push(EndpointServer {
                name: server_name(pod.unwrap_or(address)),
                address: address.clone(),
                port: target,
                zone: endpoint.zone.clone(),
                is_ready: conditions.and_then(|c| c.ready) != Some(false),
            });
        }
    }
    if servers.is_empty() {
        return Err(format!(
            "Service {name} has no endpoints: check its selector and that the PostgreSQL pods are ready"
        ));
    }
    Ok(servers)
}

/// Each address once, ready if any Service says so, in order of name, each name once.
fn each_address_once(servers: Vec<EndpointServer>) -> Vec<EndpointServer> {
    let mut by_address: BTreeMap<(String, u16), EndpointServer> = BTreeMap::new();
    for server in servers {
        let is_ready = server.is_ready;
        let seen = by_address.entry((server.address.clone(), server.port)).or_insert(server);
        seen.is_ready |= is_ready;
    }
    let mut names = BTreeSet::new();
    let mut servers: Vec<_> = by_address.into_values().collect();
    for server in &mut servers {
        if !names.insert(server.name.clone()) {
            server.name = server_name(&format!("{}-{}-{}", server.name, server.address, server.port));
            names.insert(server.name.clone());
        }
    }
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    servers
}

/// A name as the document wants it: lower-case letters, digits and dashes, at most 63.
fn server_name(text: &str) -> String {
    let name: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    // The end of a pod's name is what tells it from the others.
    let start = name.len().saturating_sub(63);
    let name = name.get(start..).unwrap_or_default().trim_matches('-');
    if name.is_empty() { "server".to_owned() } else { name.to_owned() }
}

async fn read<K>(api: &Api<K>, kind: &'static str, name: &str) -> Result<Option<K>, ResolveError>
where
    K: Clone + serde::de::DeserializeOwned + fmt::Debug,
{
    match tokio::time::timeout(API_TIMEOUT, api.get_opt(name)).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(source)) => Err(ResolveError::Api { kind, name: name.to_owned(), source: Box::new(source) }),
        Err(_) => Err(ResolveError::Timeout { kind, name: name.to_owned() }),
    }
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_forbidden())
}

/// The phase of a pod, empty when it has none yet.
#[must_use]
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests;

//! Turns a spec and what it points at into a pool that can be built, or says what is wrong.
//!
//! Takes the spec and [`ResolvedRefs`]; has no client, no clock. A missing Secret or an empty Service is a finding, and
//! the pool goes on with what it had; what makes no sense at all is an [`InvalidSpec`].

use std::time::Duration;

use k8s_openapi::api::core::v1::{PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource as _, ResourceExt as _};
use pgrouting_contract::config::{AUTH_QUERY, AuthConfig, ServerConfig, UserConfig};
use pgrouting_contract::mirror::MirrorConfig;
use pgrouting_crds::spec::console::Console;
use pgrouting_crds::spec::credentials::CredentialsSecret;
use pgrouting_crds::spec::pooling::Pooling;
use pgrouting_crds::spec::proxy::{DisruptionBudget, ImagePullPolicy};
use pgrouting_crds::spec::split::Split;
use pgrouting_crds::spec::{AuthType, BackendsType, NetworkPolicyMode, PgRoutingPool, PoolService};

use crate::names::copy_stem;
use crate::position::Position;
use crate::resolve::{Credentials, CredentialsFault, ResolvedRefs, login_secrets};
use crate::validate::mirror::{MirrorLogin, mirror, mirror_faults};
use crate::validate::tls::{ValidatedTls, tls};

pub mod mirror;
pub mod tls;

/// A pool whose objects can be built.
#[derive(Debug, Clone)]
pub struct ValidatedPool {
    /// Its name, at most 46 characters.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The reference that makes its objects its own.
    pub owner: OwnerReference,
    /// The servers, at least one.
    pub servers: Vec<ServerConfig>,
    /// What is wrong with the Services that the servers come from; empty when nothing is.
    pub backend_faults: Vec<String>,
    /// The monitor's database.
    pub probe_database: String,
    /// The monitor's own credentials.
    pub probe_user: Option<UserConfig>,
    /// The monitor's longest wait.
    pub probe_timeout: Duration,
    /// Who may log in.
    pub auth: ValidatedAuth,
    /// The contents of the users Secret: a key each.
    pub user_files: Vec<UserFiles>,
    /// TLS on both sides, with copies of its files for the users Secret.
    pub tls: ValidatedTls,
    /// What is wrong with the Secrets and ConfigMaps that the spec names.
    pub credential_faults: Vec<CredentialsFault>,
    /// What the proxies are told of the rollout.
    pub position: Position,
    /// How reads are told from writes, and where they go.
    pub split: Split,
    /// Where a copy of the traffic goes, with each proxy's part of its limits.
    pub mirror: Option<MirrorConfig>,
    /// Who may use the console.
    pub console: Console,
    /// How connections are shared.
    pub pooling: Pooling,
    /// Pods that share limits of the fleet: those that there are or should be.
    pub sharing_pods: u32,
    /// Each proxy's part of `pooling.maxServerConnections`.
    pub server_connections_per_proxy: u32,
    /// The share of each proxy of what one user may have.
    pub server_connections_per_user: Option<u32>,
    /// The pods.
    pub proxy: ValidatedProxy,
    /// The Services.
    pub service: PoolService,
    /// Whether a NetworkPolicy limits who may connect.
    pub network_policy: NetworkPolicyMode,
}

/// Who may log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValidatedAuth {
    /// Every role that can log in to the primary.
    Passthrough,
    /// The users whose names and passwords are in these files.
    UserList(Vec<UserConfig>),
    /// Those that a query knows.
    Query {
        /// Who asks.
        user: UserConfig,
        /// The query.
        sql: String,
    },
}

/// One user's part of the users Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserFiles {
    /// The stem of its two keys.
    pub stem: String,
    /// What they hold: what the Secret holds now, or held when it was last good.
    pub credentials: Credentials,
}

/// The pods.
#[derive(Debug, Clone)]
pub struct ValidatedProxy {
    /// How many.
    pub replicas: i32,
    /// Their image.
    pub image: String,
    /// When it is pulled.
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Secrets for the registry.
    pub image_pull_secrets: Vec<String>,
    /// Requests and limits.
    pub resources: Option<ResourceRequirements>,
    /// What the user lays under our template.
    pub pod_template: PodTemplateSpec,
    /// How long clients have to leave.
    pub drain_timeout: Duration,
    /// The most pods that may be evicted at once; absent without a budget.
    pub max_unavailable: Option<i32>,
    /// The user's ServiceAccount; absent, one is made.
    pub service_account: Option<String>,
}

/// Why a spec makes no sense. Each reason is a sentence with the path of the field first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .reasons.join("; "))]
pub struct InvalidSpec {
    /// What kind of mistake it is.
    pub fault: SpecFault,
    /// At least one.
    pub reasons: Vec<String>,
}

/// What kind of mistake a spec has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecFault {
    /// A field makes no sense: a person must edit the spec.
    Field,
    /// There is no server to build for yet: this may pass by itself.
    NoServers,
    /// There is a Secret missing without which nobody could log in, and no pod yet that lives on what was before.
    NoLogins(Vec<CredentialsFault>),
}

/// Where the users Secret is mounted in a pod.
pub const USERS_MOUNT: &str = "/etc/pgrouting/users";

/// Checks a pool.
///
/// # Errors
/// With every reason, when the spec makes no sense or no server is known.
pub fn validate(
    pool: &PgRoutingPool,
    refs: &ResolvedRefs,
    position: &Position,
    default_image: &str,
) -> Result<ValidatedPool, InvalidSpec> {
    let mut faults = Vec::new();
    let spec = &pool.spec;
    let pod_template: PodTemplateSpec =
        read_untyped(&spec.proxy.pod_template, "spec.proxy.podTemplate", &mut faults).unwrap_or_default();
    let resources = read_untyped(&spec.proxy.resources, "spec.proxy.resources", &mut faults);
    if spec.auth.kind == AuthType::Passthrough && spec.backends.probe.credentials_secret.is_none() {
        faults.push(
            "spec.backends.probe.credentialsSecret: auth type Passthrough needs a role that may read \
             pg_catalog.pg_authid; name a Secret with its user name and password"
                .to_owned(),
        );
    }
    if spec.auth.kind == AuthType::Query && spec.auth.query.is_none() {
        faults.push("spec.auth.query: auth type Query needs it".to_owned());
    }
    let image = spec.proxy.image.clone().unwrap_or_else(|| default_image.to_owned());
    if image.trim().is_empty() {
        faults
            .push("spec.proxy.image: must not be empty; leave it out for the operator's default".to_owned());
    }
    let owner = pool.controller_owner_ref(&());
    if owner.is_none() {
        faults.push("metadata: the object has no name or UID".to_owned());
    }
    let (servers, backend_faults) = servers(pool, refs, &mut faults);
    mirror_faults(spec, &servers, &mut faults);
    let (Some(owner), true) = (owner, faults.is_empty()) else {
        return Err(InvalidSpec { fault: SpecFault::Field, reasons: faults });
    };
    if servers.is_empty() {
        return Err(InvalidSpec { fault: SpecFault::NoServers, reasons: backend_faults });
    }
    let (user_files, mut credential_faults) = user_files(refs);
    let is_unknown = |reference: &CredentialsSecret| !is_known(reference, &user_files);
    if refs.previous.is_none() && login_secrets(pool).iter().any(is_unknown) {
        let reasons = credential_faults.iter().map(ToString::to_string).collect();
        return Err(InvalidSpec { fault: SpecFault::NoLogins(credential_faults), reasons });
    }
    let tls = tls(spec, refs, USERS_MOUNT);
    credential_faults.extend(tls.faults.iter().cloned());
    let (auth, probe_user) = logins(pool, refs, &user_files);
    let sharing_pods = sharing_pods(spec.proxy.replicas, refs.live_pods);
    let each = |limit| share(limit, sharing_pods);
    let login = mirror_login(pool, &user_files);
    let (mirror, stage) = mirror(spec, position, login, &tls.mirror, refs.previous.as_ref(), each);
    Ok(ValidatedPool {
        name: pool.name_any(),
        namespace: pool.namespace().unwrap_or_default(),
        owner,
        servers,
        backend_faults,
        probe_database: spec.backends.probe.database.clone(),
        probe_user,
        probe_timeout: spec.backends.probe.timeout.get(),
        auth,
        user_files,
        tls,
        credential_faults,
        position: Position { stage, ..*position },
        split: spec.split.clone(),
        mirror,
        console: spec.console.clone(),
        pooling: spec.pooling.clone(),
        sharing_pods,
        server_connections_per_proxy: each(spec.pooling.max_server_connections),
        server_connections_per_user: spec.pooling.max_server_connections_per_user.map(&each),
        proxy: ValidatedProxy {
            replicas: spec.proxy.replicas,
            image,
            image_pull_policy: spec.proxy.image_pull_policy,
            image_pull_secrets: spec.proxy.image_pull_secrets.clone(),
            resources,
            pod_template,
            drain_timeout: spec.proxy.drain_timeout.get(),
            max_unavailable: match spec.proxy.disruption.budget {
                DisruptionBudget::Managed => Some(spec.proxy.disruption.max_unavailable),
                DisruptionBudget::None => None,
            },
            service_account: spec.proxy.service_account_name.clone().filter(|name| !name.is_empty()),
        },
        service: spec.service.clone(),
        network_policy: spec.network_policy,
    })
}

fn read_untyped<T: serde::de::DeserializeOwned>(
    value: &Option<serde_json::Value>,
    path: &str,
    faults: &mut Vec<String>,
) -> Option<T> {
    let value = value.clone()?;
    serde_json::from_value(value)
        .map_err(|error| faults.push(format!("{path}: {error}; write it as in a Kubernetes pod")))
        .ok()
}

/// The servers, and what is wrong with where they come from.
fn servers(
    pool: &PgRoutingPool,
    refs: &ResolvedRefs,
    faults: &mut Vec<String>,
) -> (Vec<ServerConfig>, Vec<String>) {
    let backends = &pool.spec.backends;
    match backends.kind {
        BackendsType::Static => {
            let servers = backends.fixed.iter().flat_map(|fixed| &fixed.servers);
            let servers: Vec<_> = servers
                .map(|server| ServerConfig {
                    name: server.name.clone(),
                    host: server.host.clone(),
                    port: server.port,
                    weight: server.weight,
                    zone: server.zone.clone(),
                })
                .collect();
            if servers.is_empty() {
                faults.push("spec.backends.static.servers: name at least one server".to_owned());
            }
            (servers, Vec::new())
        }
        BackendsType::Services | BackendsType::Dns => {
            if backends.kind == BackendsType::Services && backends.services.is_none() {
                faults.push("spec.backends.services: type Services needs it".to_owned());
            }
            if backends.kind == BackendsType::Dns && backends.dns.is_none() {
                faults.push("spec.backends.dns: type Dns needs it".to_owned());
            }
            let mut backend_faults = refs.endpoints.faults.clone();
            let previous = refs.previous.as_ref().map_or(&[][..], |previous| &previous.servers[..]);
            let mut servers = endpoint_servers(refs, previous);
            if !backend_faults.is_empty() && keep_known(&mut servers, previous) {
                backend_faults.push("the servers known before stay in use".to_owned());
            }
            if servers.is_empty() && backend_faults.is_empty() {
                backend_faults.push(
                    "no endpoint of the Services in spec.backends is ready: wait, or check the pods"
                        .to_owned(),
                );
            }
            (servers, backend_faults)
        }
    }
}

/// A new server enters when it is ready; a known one stays while it is there, since the proxies look for themselves.
fn endpoint_servers(refs: &ResolvedRefs, previous: &[ServerConfig]) -> Vec<ServerConfig> {
    refs.endpoints
        .servers
        .iter()
        .filter(|server| {
            let is_known = previous.iter().any(|p| p.host == server.address && p.port == server.port);
            server.is_ready || is_known
        })
        .map(|server| ServerConfig {
            name: server.name.clone(),
            host: server.address.clone(),
            port: server.port,
            weight: 100,
            zone: server.zone.clone(),
        })
        .collect()
}

/// Adds the servers known before, and tells whether there was any to add. A Service that is missing or empty must not
/// take the primary out of a running pool; the proxies see for themselves which of them answer.
fn keep_known(servers: &mut Vec<ServerConfig>, previous: &[ServerConfig]) -> bool {
    let is_new = |known: &ServerConfig| {
        let clashes = |server: &ServerConfig| {
            server.name == known.name || (server.host == known.host && server.port == known.port)
        };
        !servers.iter().any(clashes)
    };
    let kept: Vec<_> = previous.iter().filter(|known| is_new(known)).cloned().collect();
    let has_kept = !kept.is_empty();
    servers.extend(kept);
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    has_kept
}

/// What the users Secret holds, and what is wrong with the Secrets it is copied from.
fn user_files(refs: &ResolvedRefs) -> (Vec<UserFiles>, Vec<CredentialsFault>) {
    let mut files: Vec<UserFiles> = Vec::new();
    let mut faults = Vec::new();
    let mut has_unknown = false;
    for (reference, found) in &refs.credentials {
        let stem = file_stem(reference);
        let credentials = match found {
            Ok(credentials) => Some(credentials.clone()),
            Err(fault) => {
                faults.push(fault.clone());
                last_good(refs, &stem)
            }
        };
        match credentials {
            Some(credentials) => files.push(UserFiles { stem, credentials }),
            None => has_unknown = true,
        }
    }
    if has_unknown {
        // The logins of before stay in use, and so must what they read.
        let stored = refs.users.iter().filter_map(|secret| secret.data.as_ref()).flatten();
        for stem in stored.filter_map(|(key, _)| key.strip_suffix(USERNAME_SUFFIX)) {
            if !files.iter().any(|known| known.stem == stem)
                && let Some(credentials) = last_good(refs, stem)
            {
                files.push(UserFiles { stem: stem.to_owned(), credentials });
            }
        }
    }
    (files, faults)
}

/// Who may log in, and who the monitor logs in as. While a Secret is named that nobody has ever seen, the logins of
/// before stay as a whole, so that a mistyped name locks nobody out.
fn logins(
    pool: &PgRoutingPool,
    refs: &ResolvedRefs,
    user_files: &[UserFiles],
) -> (ValidatedAuth, Option<UserConfig>) {
    if let Some(previous) = &refs.previous
        && !login_secrets(pool).iter().all(|reference| is_known(reference, user_files))
    {
        let auth = match &previous.auth {
            AuthConfig::Passthrough {} => ValidatedAuth::Passthrough,
            AuthConfig::UserList { users } => ValidatedAuth::UserList(users.clone()),
            AuthConfig::Query { user, sql } => ValidatedAuth::Query { user: user.clone(), sql: sql.clone() },
        };
        return (auth, previous.probe.user.clone());
    }
    let user = |reference: &CredentialsSecret| user_config(&file_stem(reference));
    let auth = match (pool.spec.auth.kind, &pool.spec.auth.query) {
        (AuthType::Query, Some(query)) => ValidatedAuth::Query {
            user: user(&query.credentials_secret),
            sql: query.sql.clone().unwrap_or_else(|| AUTH_QUERY.to_owned()),
        },
        (AuthType::Passthrough | AuthType::Query, _) => ValidatedAuth::Passthrough,
        (AuthType::UserList, _) => {
            ValidatedAuth::UserList(pool.spec.auth.users.iter().flatten().map(user).collect())
        }
    };
    (auth, pool.spec.backends.probe.credentials_secret.as_ref().map(user))
}

/// Who the proxies log in as at the mirror.
fn mirror_login(pool: &PgRoutingPool, user_files: &[UserFiles]) -> MirrorLogin {
    match pool.spec.mirror.as_ref().and_then(|mirror| mirror.credentials_secret.as_ref()) {
        None => MirrorLogin::OwnRoles,
        Some(reference) if is_known(reference, user_files) => {
            MirrorLogin::User(user_config(&file_stem(reference)))
        }
        Some(_) => MirrorLogin::Unseen,
    }
}

fn is_known(reference: &CredentialsSecret, user_files: &[UserFiles]) -> bool {
    let stem = file_stem(reference);
    user_files.iter().any(|user| user.stem == stem)
}

fn last_good(refs: &ResolvedRefs, stem: &str) -> Option<Credentials> {
    let data = refs.users.as_ref()?.data.as_ref()?;
    let username = data.get(&username_key(stem))?.0.clone();
    let password = data.get(&password_key(stem))?.0.clone();
    Some(Credentials { username, password })
}

/// A name for a Secret and the two keys in it.
fn file_stem(reference: &CredentialsSecret) -> String {
    let CredentialsSecret { name, username_key, password_key } = reference;
    copy_stem(name, &[name, username_key, password_key])
}

const USERNAME_SUFFIX: &str = ".username";

/// The key of a user's name in the users Secret.
#[must_use]
pub fn username_key(stem: &str) -> String {
    format!("{stem}{USERNAME_SUFFIX}")
}

/// The key of a user's password in the users Secret.
#[must_use]
pub fn password_key(stem: &str) -> String {
    format!("{stem}.password")
}

fn user_config(stem: &str) -> UserConfig {
    UserConfig {
        name: None,
        name_file: Some(format!("{USERS_MOUNT}/{}", username_key(stem))),
        password: None,
        password_file: Some(format!("{USERS_MOUNT}/{}", password_key(stem))),
    }
}

/// Pods that start or leave hold connections too.
fn sharing_pods(replicas: i32, live_pods: u32) -> u32 {
    live_pods.max(u32::try_from(replicas).unwrap_or(0)).max(1)
}

/// Each proxy's part of a limit that counts for the fleet.
fn share(limit: u32, pods: u32) -> u32 {
    (limit / pods).max(1)
}

#[cfg(test)]
mod tests;

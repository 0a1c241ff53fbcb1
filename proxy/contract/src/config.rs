//! The config document: everything that a proxy needs to serve one pool.
//!
//! It is YAML for people and compact JSON (which is YAML too) for the operator; both read into the same value, and
//! the hash is taken over that value's canonical bytes, so layout and comments do not change it. Secrets are not in
//! it: it names files. A document is taken whole or refused whole, with every reason at once.

use std::fmt;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::console::ConsoleConfig;
use crate::duration::DurationText;
use crate::mirror::MirrorConfig;
use crate::peers::PeersConfig;
pub use crate::pooling::{PinPolicy, PoolMode, PoolingConfig, Traffic};
use crate::split::SplitConfig;
use crate::stage::Stage;
use crate::tls::TlsConfig;

/// The number of a document among those of its pool. The higher one wins, whatever the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The SHA-256 of a document's canonical bytes, as 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConfigHash(String);

impl ConfigHash {
    /// All 64 digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first eight digits, for people.
    #[must_use]
    pub fn short(&self) -> &str {
        self.0.get(..8).unwrap_or(&self.0)
    }
}

impl fmt::Display for ConfigHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The largest document that is read, in bytes. A ConfigMap holds at most 1 MiB.
pub const DOCUMENT_BYTES_MAX: usize = 512 * 1024;

/// One pool as a proxy serves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProxyConfig {
    /// The version of this format: 1.
    pub version: u32,
    /// Which document of this pool it is.
    pub generation: Generation,
    /// The pool's name for logs and metrics; `namespace/name` on Kubernetes.
    pub pool: String,
    /// The stage in effect.
    #[serde(default)]
    pub stage: Stage,
    /// Sockets and threads. Read at start only: a later document must not change it.
    #[serde(default)]
    pub process: ProcessConfig,
    /// The PostgreSQL servers, 1 to 64, each name once. Which of them is the primary is found out by asking them.
    pub servers: Vec<ServerConfig>,
    /// The monitor's own connections.
    #[serde(default)]
    pub probe: ProbeConfig,
    /// Who may log in, and how the proxy logs in to the servers for them.
    pub auth: AuthConfig,
    /// Limits and waits.
    #[serde(default)]
    pub pooling: PoolingConfig,
    /// How reads are told from writes and where they go; in effect from stage `Split` on.
    #[serde(default)]
    pub split: SplitConfig,
    /// Another database that gets a copy of the traffic; in effect at stage `Mirror`, which needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorConfig>,
    /// The other proxies of the pool, which are asked about cancel requests with an unknown key; nobody is where this is
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeersConfig>,
    /// TLS on both sides; none where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// The console over psql; nobody may use it where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub console: Option<ConsoleConfig>,
    /// How long clients have to reach a transaction boundary after SIGTERM.
    #[serde(default = "default_drain_timeout")]
    pub drain_timeout: DurationText,
}

/// Sockets and threads of the process. A change needs a restart, so a document that changes it is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProcessConfig {
    /// Where clients connect, `address:port`.
    pub listen: String,
    /// Where clients connect whose every statement must run on the primary, `address:port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_listen: Option<String>,
    /// Where clients connect whose every statement must run on a replica, `address:port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_listen: Option<String>,
    /// Where the admin API listens, `address:port`.
    pub admin_listen: String,
    /// Mutual TLS for `GET /report` and `PUT /config`. `/healthz`, `/readyz` and `/metrics` are served without it on
    /// `probeListen`.
    pub admin_tls: Option<AdminTls>,
    /// A file with the bearer token that `GET /report` and `PUT /config` ask for where there is no mutual TLS.
    pub admin_token_file: Option<String>,
    /// Where `/healthz`, `/readyz` and `/metrics` are served in plain HTTP, `address:port`.
    pub probe_listen: String,
    /// Threads that serve clients; 0 is one for each core that the process may use.
    pub workers: u16,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self {
            listen: "0.0.0.0:6432".to_owned(),
            primary_listen: None,
            read_only_listen: None,
            admin_listen: "127.0.0.1:9128".to_owned(),
            admin_tls: None,
            admin_token_file: None,
            probe_listen: "0.0.0.0:9127".to_owned(),
            workers: 0,
        }
    }
}

/// Files in PEM form; they are read again when they change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdminTls {
    /// The proxy's certificate chain.
    pub certificate_file: String,
    /// Its key.
    pub key_file: String,
    /// The CA that callers' certificates must come from.
    pub client_ca_file: String,
}

/// One PostgreSQL server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerConfig {
    /// Its name in reports and metrics: lower-case letters, digits and dashes, at most 63.
    pub name: String,
    /// Its host name or address.
    pub host: String,
    /// Its port.
    #[serde(default = "default_port")]
    pub port: u16,
    /// Its share of reads among the replicas, 0 to 1000; 0 takes none.
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// Its zone, for zone preference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// The monitor: who it logs in as, and how often it asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProbeConfig {
    /// The database it connects to.
    pub database: String,
    /// Who it logs in as; the first user of the list where this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<UserConfig>,
    /// The time from one probe to the next.
    pub interval: DurationText,
    /// The longest wait for an answer.
    pub timeout: DurationText,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            database: "postgres".to_owned(),
            user: None,
            interval: DurationText::from_secs(1),
            timeout: DurationText::from_secs(1),
        }
    }
}

/// Who may log in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum AuthConfig {
    /// The users of a list, whose passwords the proxy reads from files.
    UserList {
        /// At most 128, each name once.
        users: Vec<UserConfig>,
    },
    /// Every role that can log in to the primary. The proxy reads its stored SCRAM verifier as the probe user (who
    /// must be allowed to read `pg_catalog.pg_authid`), checks the client against it, and logs in to the servers with
    /// the key that the client's proof reveals. It never sees a password.
    Passthrough {},
    /// Every role that a query knows.
    Query {
        /// Who asks, on the primary, in `probe.database`; the monitor's user too, where `probe.user` is absent.
        user: UserConfig,
        /// One statement, with the name of the client's user as its only parameter, `$1`. In its first row the second column
        /// is what is stored of the role's password, or that itself; without a row nobody gets in. It runs with `search_path`
        /// set to `pg_catalog`, so that whatever is elsewhere is named with its schema.
        #[serde(default = "default_auth_query")]
        sql: String,
    },
}

/// What `pg_authid` says of those who may log in now.
pub const AUTH_QUERY: &str = "SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1 AND rolcanlogin \
                              AND (rolvaliduntil IS NULL OR rolvaliduntil > now())";

fn default_auth_query() -> String {
    AUTH_QUERY.to_owned()
}

/// A user name and password, each given in place or by a file (as Kubernetes mounts a Secret's keys).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UserConfig {
    /// The name, in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The file that holds the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_file: Option<String>,
    /// The password, in place. The operator never writes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// The file that holds the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<String>,
}

impl fmt::Debug for UserConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The password is left out, so that no log line can hold one.
        f.debug_struct("UserConfig")
            .field("name", &self.name)
            .field("name_file", &self.name_file)
            .field("password_file", &self.password_file)
            .finish_non_exhaustive()
    }
}

/// Why a document was refused: every reason, each a sentence with the path of the field first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .reasons.join("; "))]
pub struct InvalidConfig {
    /// The generation, when it could be read.
    pub generation: Option<Generation>,
    /// At least one.
    pub reasons: Vec<String>,
}

impl ProxyConfig {
    /// Reads a document (YAML or JSON) and checks it.
    ///
    /// # Errors
    /// With every reason, when it is too large, not a document of this version, or not sound.
    pub fn parse(document: &[u8]) -> Result<Self, InvalidConfig> {
        let refuse = |generation, reason: String| InvalidConfig { generation, reasons: vec![reason] };
        if document.len() > DOCUMENT_BYTES_MAX {
            let size = document.len();
            return Err(refuse(
                None,
                format!("document: {size} bytes, at most {DOCUMENT_BYTES_MAX} are read"),
            ));
        }
        let config: Self = serde_yaml::from_slice(document)
            .map_err(|error| refuse(generation_of(document), format!("document: {error}")))?;
        let reasons = config.faults();
        if reasons.is_empty() {
            Ok(config)
        } else {
            Err(InvalidConfig { generation: Some(config.generation), reasons })
        }
    }

    /// The bytes that are hashed, pushed and mounted: compact JSON, fields in the order of declaration, maps sorted.
    ///
    /// # Panics
    /// Never: every field of a document has a JSON form.
    #[must_use]
    pub fn canonical_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("every field of a document has a JSON form")
    }

    /// The hash of the canonical bytes.
    #[must_use]
    pub fn hash(&self) -> ConfigHash {
        let mut text = String::with_capacity(64);
        for byte in Sha256::digest(self.canonical_bytes()) {
            let _ = write!(text, "{byte:02x}");
        }
        ConfigHash(text)
    }
}

/// The generation of a document that does not read as a whole, so that a refusal can name it.
fn generation_of(document: &[u8]) -> Option<Generation> {
    #[derive(Deserialize)]
    struct OnlyGeneration {
        generation: Generation,
    }
    serde_yaml::from_slice::<OnlyGeneration>(document).ok().map(|only| only.generation)
}

const fn default_port() -> u16 {
    5432
}

const fn default_weight() -> u32 {
    100
}

const fn default_drain_timeout() -> DurationText {
    DurationText::from_secs(60)
}

pub(crate) mod faults;
#[cfg(test)]
mod tests;

//! The proxies of one pool as each other's peers: a cancel request arrives at any of them.
//!
//! `POST /cancel` on the admin API takes the body of a CancelRequest packet, whole as it came from the client.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The name in the certificate that a proxy shows on its admin API and to its peers. Whoever shows it may cancel there
/// and nothing else.
pub const PROXY_SERVER_NAME: &str = "pgrouting-proxy";

/// The path on the admin API where peers hand on cancel requests. The answer is 204 where a session has that key, and
/// 404 where none has.
pub const CANCEL_PATH: &str = "/cancel";

/// The shortest secret that peers may share, in bytes.
pub const PEERS_SECRET_LEN_MIN: usize = 16;

/// Where the other proxies of the pool are. One is asked to cancel what no session here has the key of. It is no fault
/// when the proxy itself is among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeersConfig {
    /// A DNS name with an address for each proxy, as a headless Service has. Either this or `addresses`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The port of their admin API, where `host` is given.
    #[serde(default = "default_port")]
    pub port: u16,
    /// Their admin APIs, `address:port`, where there is no such name. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<SocketAddr>,
    /// A file with a secret of 16 bytes at least, the same for all proxies of the pool. It marks the keys that they give
    /// to clients, so that garbage is told from a key of a peer without asking anybody.
    pub secret_file: String,
}

impl PeersConfig {
    pub(crate) fn faults(&self, faults: &mut Vec<String>) {
        if self.host.is_some() != self.addresses.is_empty() {
            faults.push("peers: give either host or addresses".to_owned());
        }
        if self.host.as_ref().is_some_and(|host| host.is_empty() || host.len() > 253) {
            faults.push("peers.host: must have 1 to 253 characters".to_owned());
        }
        if self.port == 0 || self.addresses.iter().any(|address| address.port() == 0) {
            faults.push("peers: a port must be 1 to 65535".to_owned());
        }
        if self.addresses.len() > 64 {
            faults.push(format!("peers.addresses: {} given, at most 64 are allowed", self.addresses.len()));
        }
        if self.secret_file.is_empty() {
            faults.push("peers.secretFile: must not be empty".to_owned());
        }
    }
}

const fn default_port() -> u16 {
    9128
}

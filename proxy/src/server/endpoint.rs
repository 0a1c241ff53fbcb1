//! Where a server is, and how it is spoken to.

use std::sync::Arc;

use crate::tls::servers::ServerTls;
use crate::tls::store::Side;

/// The place.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Its host name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether it is spoken to over TLS, and what is verified then; a document may change that at any time.
    pub tls: Arc<Side<ServerTls>>,
}

impl PartialEq for Endpoint {
    fn eq(&self, other: &Self) -> bool {
        self.host == other.host && self.port == other.port && Arc::ptr_eq(&self.tls, &other.tls)
    }
}

impl Eq for Endpoint {}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

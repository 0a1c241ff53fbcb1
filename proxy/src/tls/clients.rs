//! TLS with clients, as the document has it: which certificate is shown, and what is asked of theirs.

use std::sync::Arc;

use pgrouting_contract::tls::{ClientCertificate, ClientTlsConfig, ClientTlsMode};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;

use crate::tls::binding::server_end_point;
use crate::tls::files::{FileFault, Identity, roots};

/// The name of PostgreSQL's protocol in a TLS handshake (ALPN), which direct TLS has to give.
pub const PROTOCOL: &[u8] = b"postgresql";

/// What a handshake with a client is made by.
#[derive(Debug)]
pub struct ClientTls {
    /// Whether a client has to come over TLS.
    pub is_required: bool,
    /// For the handshake.
    pub config: Arc<ServerConfig>,
    /// What logins can be bound to.
    pub binding: Option<Vec<u8>>,
    /// What is asked of a client's certificate.
    pub asks: Option<ClientCertificate>,
    /// When our certificate expires, in seconds since 1970.
    pub not_after: Option<i64>,
}

/// The files that it needs, where it is not disabled.
#[must_use]
pub fn paths(config: &ClientTlsConfig) -> Option<Vec<String>> {
    if config.mode == ClientTlsMode::Disabled {
        return None;
    }
    let files = [&config.certificate_file, &config.key_file, &config.client_ca_file];
    Some(files.into_iter().flatten().cloned().collect())
}

impl ClientTls {
    /// Made of the texts of [`paths`].
    ///
    /// # Errors
    /// When a text is no certificate or key, or they do not fit.
    pub fn new(config: &ClientTlsConfig, texts: &[Vec<u8>]) -> Result<Arc<Self>, FileFault> {
        let (identity, ca) = match texts {
            [chain, key] => (Identity::parse(chain, key)?, None),
            [chain, key, ca] => (Identity::parse(chain, key)?, Some(Arc::new(roots(ca)?))),
            _ => return Err("a certificate and its key are needed".into()),
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match ca {
            None => builder.with_no_client_auth(),
            // Whoever shows none is told so once the login has begun, as PostgreSQL does.
            Some(ca) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(ca, provider).allow_unauthenticated().build()?,
            ),
        };
        let not_after = identity.not_after();
        let binding = identity.chain.first().and_then(|certificate| server_end_point(certificate));
        let mut tls = builder.with_single_cert(identity.chain, identity.key)?;
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
        tls.ticketer = ring::Ticketer::new()?;
        Ok(Arc::new(Self {
            is_required: config.mode == ClientTlsMode::Require,
            config: Arc::new(tls),
            binding,
            asks: config.asks(),
            not_after,
        }))
    }
}

/// Whether a certificate has that common name, and no other.
#[must_use]
pub fn has_common_name(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return false };
    let mut names = parsed.subject().iter_common_name();
    names.next().is_some_and(|found| found.as_str() == Ok(name)) && names.next().is_none()
}

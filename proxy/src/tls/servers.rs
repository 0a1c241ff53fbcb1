//! TLS with servers, as the document has it: whether it is asked for, what is verified, which certificate is shown.

use std::sync::Arc;

use pgrouting_contract::tls::{ServerTlsConfig, ServerTlsMode};
use rustls::ClientConfig;
use rustls::crypto::ring;

use crate::tls::clients::PROTOCOL;
use crate::tls::files::{FileFault, Identity, roots};
use crate::tls::verifier::{Trust, Verifier};

/// What a handshake with a server is made by.
#[derive(Debug)]
pub struct ServerTls {
    /// Whether the connection goes on in clear text where the server does not take TLS.
    pub is_optional: bool,
    /// Whether the server's certificate is looked at.
    pub is_verified: bool,
    /// For the handshake.
    pub config: Arc<ClientConfig>,
    /// When the certificate that is shown expires, in seconds since 1970.
    pub not_after: Option<i64>,
}

/// The files that it needs, where it is not disabled.
#[must_use]
pub fn paths(config: &ServerTlsConfig) -> Option<Vec<String>> {
    if config.mode == ServerTlsMode::Disabled {
        return None;
    }
    let files = [&config.ca_file, &config.certificate_file, &config.key_file];
    Some(files.into_iter().flatten().cloned().collect())
}

impl ServerTls {
    /// Made of the texts of [`paths`].
    ///
    /// # Errors
    /// When a text is no certificate or key, or they do not fit.
    pub fn new(config: &ServerTlsConfig, texts: &[Vec<u8>]) -> Result<Arc<Self>, FileFault> {
        let mut texts = texts.iter();
        let mut of = |file: &Option<String>| file.as_ref().and_then(|_| texts.next());
        let ca = of(&config.ca_file).map(|text| roots(text).map(Arc::new)).transpose()?;
        let identity = match (of(&config.certificate_file), of(&config.key_file)) {
            (Some(chain), Some(key)) => Some(Identity::parse(chain, key)?),
            (_, _) => None,
        };
        let trust = match (config.mode, ca) {
            (ServerTlsMode::VerifyCa, Some(ca)) => Trust::Ca(ca),
            (ServerTlsMode::VerifyFull, Some(ca)) => Trust::Name(ca),
            (ServerTlsMode::VerifyCa | ServerTlsMode::VerifyFull, None) => {
                return Err("the CA is missing".into());
            }
            (ServerTlsMode::Disabled | ServerTlsMode::Prefer | ServerTlsMode::Require, _) => Trust::Anything,
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier::new(trust, provider)));
        let not_after = identity.as_ref().and_then(Identity::not_after);
        let mut tls = match identity {
            Some(identity) => builder.with_client_auth_cert(identity.chain, identity.key)?,
            None => builder.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Arc::new(Self {
            is_optional: config.mode == ServerTlsMode::Prefer,
            is_verified: matches!(config.mode, ServerTlsMode::VerifyCa | ServerTlsMode::VerifyFull),
            config: Arc::new(tls),
            not_after,
        }))
    }
}

//! What is verified of a server's certificate, by the mode: nothing, its CA, or its CA and its name.
//!
//! Whatever the mode, the server must prove that it has the certificate's key.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// What a certificate must be.
#[derive(Debug)]
pub enum Trust {
    /// Anything, as with libpq's `require` where there is no root certificate.
    Anything,
    /// Of the CA, whatever its name.
    Ca(Arc<RootCertStore>),
    /// Of the CA, and of the name.
    Name(Arc<RootCertStore>),
}

/// The check of a server's certificate.
#[derive(Debug)]
pub struct Verifier {
    trust: Trust,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    /// By that trust.
    #[must_use]
    pub const fn new(trust: Trust, provider: Arc<CryptoProvider>) -> Self {
        Self { trust, provider }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (roots, is_named) = match &self.trust {
            Trust::Anything => return Ok(ServerCertVerified::assertion()),
            Trust::Ca(roots) => (roots, false),
            Trust::Name(roots) => (roots, true),
        };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        if is_named {
            verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

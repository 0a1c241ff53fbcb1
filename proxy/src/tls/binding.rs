//! The channel binding `tls-server-end-point`: a hash of the server's certificate.
//!
//! RFC 5929, section 4.1: the hash of the certificate's own signature, but SHA-256 in place of MD5 and SHA-1. What has no
//! hash of its own, as Ed25519, is not bound to; PostgreSQL does the same
//! (<https://www.postgresql.org/docs/current/sasl-authentication.html>).

use sha2::{Digest as _, Sha256, Sha384, Sha512};
use x509_parser::signature_algorithm::SignatureAlgorithm;

/// The binding to a certificate, in DER form; `None` where it cannot be bound to.
#[must_use]
pub fn server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let algorithm = &parsed.signature_algorithm;
    let oid = match SignatureAlgorithm::try_from(algorithm).ok()? {
        SignatureAlgorithm::RSASSA_PSS(parameters) => parameters.hash_algorithm_oid().to_id_string(),
        _ => algorithm.algorithm.to_id_string(),
    };
    Some(match hash_of(&oid)? {
        Hash::Sha256 => Sha256::digest(certificate).to_vec(),
        Hash::Sha384 => Sha384::digest(certificate).to_vec(),
        Hash::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// The hash that goes with a signature's algorithm, or with a hash's.
fn hash_of(oid: &str) -> Option<Hash> {
    Some(match oid {
        // RSA with MD5 and SHA-1, ECDSA with SHA-1, SHA-1 itself.
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" | "1.3.14.3.2.26"
        // RSA and ECDSA with SHA-256, SHA-256 itself.
        | "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" | "2.16.840.1.101.3.4.2.1" => Hash::Sha256,
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" | "2.16.840.1.101.3.4.2.2" => Hash::Sha384,
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" | "2.16.840.1.101.3.4.2.3" => Hash::Sha512,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SignatureAlgorithm};

    use super::*;

    fn certificate(algorithm: &'static SignatureAlgorithm) -> Vec<u8> {
        let key = KeyPair::generate_for(algorithm).unwrap();
        CertificateParams::new(vec!["db".to_owned()]).unwrap().self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_hash_is_that_of_the_certificates_signature() {
        let short = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
        assert_eq!(server_end_point(&short), Some(Sha256::digest(&short).to_vec()));
        let long = certificate(&rcgen::PKCS_ECDSA_P384_SHA384);
        assert_eq!(server_end_point(&long), Some(Sha384::digest(&long).to_vec()));
    }

    #[test]
    fn a_certificate_without_a_hash_is_not_bound_to() {
        assert_eq!(server_end_point(&certificate(&rcgen::PKCS_ED25519)), None);
        assert_eq!(server_end_point(b"no certificate"), None);
    }

    #[test]
    fn weak_hashes_are_replaced() {
        assert_eq!(hash_of("1.2.840.113549.1.1.5"), Some(Hash::Sha256));
        assert_eq!(hash_of("1.2.840.113549.1.1.13"), Some(Hash::Sha512));
    }
}

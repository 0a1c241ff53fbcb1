//! The CA of a pool's admin API and the two certificates that it signs.
//!
//! The proxies serve with one, and hand on cancel requests to each other with it; the operator calls with the other. Knows
//! PEM and dates, not Kubernetes.

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan as _};
use pgrouting_contract::peers::PROXY_SERVER_NAME;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::parse_x509_certificate;
use x509_parser::pem::parse_x509_pem;

/// The name in the operator's certificate.
pub const OPERATOR_NAME: &str = "pgrouting-operator";

/// A certificate and its key, in PEM form.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// Everything that the admin API's mutual TLS needs, in PEM form.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminCertificates {
    /// The CA.
    pub ca: Identity,
    /// The proxies'.
    pub server: Identity,
    /// The operator's.
    pub client: Identity,
}

/// Why no certificate could be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The library refused.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The calendar ends.
    #[error("cannot compute the end of a certificate: {0}")]
    Date(#[from] jiff::Error),
}

const CA_DAYS: i64 = 3650;
const LEAF_DAYS: i64 = 365;
const RENEW_CA_DAYS: i64 = 365;
const RENEW_LEAF_DAYS: i64 = 30;

impl AdminCertificates {
    /// Keeps what is good for a while yet, and makes the rest. Without a good CA everything is made anew.
    ///
    /// # Errors
    /// When a certificate cannot be made.
    pub fn keep_or_make(stored: Option<Self>, now: Timestamp) -> Result<Self, CertificateError> {
        let Some(stored) = stored.filter(|stored| is_good(&stored.ca, now, RENEW_CA_DAYS)) else {
            let ca = make_ca(now)?;
            let server = make_leaf(&ca, Purpose::Server, now)?;
            let client = make_leaf(&ca, Purpose::Client, now)?;
            return Ok(Self { ca, server, client });
        };
        let Self { ca, server, client } = stored;
        let keep_or_make_leaf = |leaf: Identity, purpose| {
            let is_kept = is_good(&leaf, now, RENEW_LEAF_DAYS)
                && is_signed_by(&leaf, &ca)
                && serves_proxies_at_both_ends(&leaf, purpose);
            if is_kept { Ok(leaf) } else { make_leaf(&ca, purpose, now) }
        };
        let server = keep_or_make_leaf(server, Purpose::Server)?;
        let client = keep_or_make_leaf(client, Purpose::Client)?;
        Ok(Self { ca, server, client })
    }
}

#[derive(Clone, Copy)]
enum Purpose {
    /// A proxy's: to serve with, and to call its peers with.
    Server,
    /// The operator's: to call proxies with.
    Client,
}

fn make_ca(now: Timestamp) -> Result<Identity, CertificateError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "pgrouting admin CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, CA_DAYS)?;
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn make_leaf(ca: &Identity, purpose: Purpose, now: Timestamp) -> Result<Identity, CertificateError> {
    let (server, client) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
    let (name, usages) = match purpose {
        Purpose::Server => (PROXY_SERVER_NAME, vec![server, client]),
        Purpose::Client => (OPERATOR_NAME, vec![client]),
    };
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages;
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, now, LEAF_DAYS)?;
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, KeyPair::from_pem(&ca.key)?)?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Whole days, from yesterday on, so that a clock that is a little behind does not refuse.
fn set_validity(params: &mut CertificateParams, now: Timestamp, days: i64) -> Result<(), CertificateError> {
    let today = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    let at = |date: Date| {
        rcgen::date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    params.not_before = at(today.checked_sub(1.day())?);
    params.not_after = at(today.checked_add(days.days())?);
    Ok(())
}

fn is_good(identity: &Identity, now: Timestamp, days_left_min: i64) -> bool {
    let Ok(key) = KeyPair::from_pem(&identity.key) else { return false };
    let Ok((_, pem)) = parse_x509_pem(identity.certificate.as_bytes()) else { return false };
    let Ok(certificate) = pem.parse_x509() else { return false };
    let seconds = now.as_second();
    let validity = certificate.validity();
    certificate.public_key().subject_public_key.data.as_ref() == key.public_key_raw()
        && validity.not_before.timestamp() <= seconds
        && validity.not_after.timestamp() > seconds.saturating_add(days_left_min * 86_400)
}

/// When a certificate ends that somebody else has made, whose chain and key stand in PEM form.
///
/// # Errors
/// With what is wrong, when they are of no use to a proxy.
pub fn pair_end(chain: &[u8], key: &[u8]) -> Result<Timestamp, String> {
    let leaf = certificates(chain)?.into_iter().next().ok_or("tls.crt has no certificate")?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| format!("tls.key has no private key ({error})"))?;
    let key =
        any_supported_type(&key).map_err(|error| format!("the key in tls.key cannot be used ({error})"))?;
    let certificate = parsed(&leaf)?;
    let public_key = key.public_key().ok_or("the key in tls.key cannot be used")?;
    if certificate.public_key().raw != &*public_key {
        return Err("the key in tls.key is not that of the certificate in tls.crt".to_owned());
    }
    end_of(&certificate)
}

/// When the last certificate of a CA ends, which stand in PEM form.
///
/// # Errors
/// With what is wrong, when there is none, or one cannot be read.
pub fn ca_end(pem: &[u8]) -> Result<Timestamp, String> {
    let ends = certificates(pem)?.iter().map(|der| end_of(&parsed(der)?)).collect::<Result<Vec<_>, _>>()?;
    ends.into_iter().max().ok_or_else(|| "it has no certificate".to_owned())
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    read.map_err(|error| format!("a certificate cannot be read ({error})"))
}

fn parsed<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    let (_, certificate) =
        parse_x509_certificate(der).map_err(|error| format!("a certificate cannot be read ({error})"))?;
    Ok(certificate)
}

fn end_of(certificate: &X509Certificate<'_>) -> Result<Timestamp, String> {
    let seconds = certificate.validity().not_after.timestamp();
    Timestamp::from_second(seconds)
        .map_err(|error| format!("the end of a certificate cannot be read ({error})"))
}

/// Whether a proxy's certificate is good for a caller too, which those of earlier versions are not.
fn serves_proxies_at_both_ends(leaf: &Identity, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Client => true,
        Purpose::Server => {
            let Ok((_, pem)) = parse_x509_pem(leaf.certificate.as_bytes()) else { return false };
            let Ok(certificate) = pem.parse_x509() else { return false };
            let usages = certificate.extended_key_usage();
            usages.is_ok_and(|usages| {
                usages.is_some_and(|usages| usages.value.server_auth && usages.value.client_auth)
            })
        }
    }
}

fn is_signed_by(leaf: &Identity, ca: &Identity) -> bool {
    let Ok((_, leaf_pem)) = parse_x509_pem(leaf.certificate.as_bytes()) else { return false };
    let Ok((_, ca_pem)) = parse_x509_pem(ca.certificate.as_bytes()) else { return false };
    let (Ok(leaf), Ok(ca)) = (leaf_pem.parse_x509(), ca_pem.parse_x509()) else { return false };
    let wanted = ca.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        x509_parser::extensions::ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    });
    let signer = leaf.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        x509_parser::extensions::ParsedExtension::AuthorityKeyIdentifier(id) => {
            id.key_identifier.as_ref().map(|id| id.0)
        }
        _ => None,
    });
    wanted.is_some() && wanted == signer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn good_certificates_are_kept_as_they_are() {
        let made = AdminCertificates::keep_or_make(None, at("2026-11-29T12:00:00Z")).unwrap();
        let kept = AdminCertificates::keep_or_make(Some(made.clone()), at("2027-10-01T12:00:00Z")).unwrap();
        assert!(kept == made);
    }

    #[test]
    fn leaves_are_renewed_in_their_last_month_under_the_same_ca() {
        let made = AdminCertificates::keep_or_make(None, at("2026-11-29T12:00:00Z")).unwrap();
        let later = AdminCertificates::keep_or_make(Some(made.clone()), at("2027-11-15T12:00:00Z")).unwrap();
        assert!(later.ca == made.ca);
        assert!(later.server != made.server && later.client != made.client);
    }

    #[test]
    fn ca_is_renewed_in_its_last_year() {
        let made = AdminCertificates::keep_or_make(None, at("2026-11-29T12:00:00Z")).unwrap();
        let later = AdminCertificates::keep_or_make(Some(made.clone()), at("2036-01-01T12:00:00Z")).unwrap();
        assert!(later.ca != made.ca);
    }

    #[test]
    fn a_proxys_certificate_that_is_no_callers_is_replaced() {
        let now = at("2026-11-29T12:00:00Z");
        let made = AdminCertificates::keep_or_make(None, now).unwrap();
        let mut params = CertificateParams::new(vec![PROXY_SERVER_NAME.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, now, LEAF_DAYS).unwrap();
        let ca_key = KeyPair::from_pem(&made.ca.key).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&made.ca.certificate, ca_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        let server = Identity { certificate, key: key.serialize_pem() };
        let before = AdminCertificates { server, ..made.clone() };
        let after = AdminCertificates::keep_or_make(Some(before.clone()), now).unwrap();
        assert!(after.ca == made.ca && after.client == made.client && after.server != before.server);
    }

    #[test]
    fn garbage_and_foreign_leaves_are_replaced() {
        let now = at("2026-11-29T12:00:00Z");
        let made = AdminCertificates::keep_or_make(None, now).unwrap();
        let other = AdminCertificates::keep_or_make(None, now).unwrap();
        let mixed = AdminCertificates { server: other.server, ..made.clone() };
        let fixed = AdminCertificates::keep_or_make(Some(mixed.clone()), now).unwrap();
        assert!(fixed.server != mixed.server && fixed.client == made.client);
        let garbage = Identity { certificate: "x".into(), key: "y".into() };
        let fixed = AdminCertificates::keep_or_make(Some(AdminCertificates { ca: garbage, ..made }), now);
        assert!(fixed.is_ok());
    }
}

//! The two Secrets of a pool: the admin API's certificates, and copies of the users' names and passwords.
//!
//! The users' Secrets are not mounted themselves: a list of volumes is a part of the pod template, so that each new user
//! would restart every proxy. Copies in one Secret, mounted once as a directory, change without a restart.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use crate::certificates::{AdminCertificates, CertificateError, Identity};
use crate::desired::labels::metadata;
use crate::names::PoolNames;
use crate::validate::{ValidatedPool, password_key, username_key};

const CA_CERTIFICATE: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const SERVER_CERTIFICATE: &str = "tls.crt";
const SERVER_KEY: &str = "tls.key";
const CLIENT_CERTIFICATE: &str = "client.crt";
const CLIENT_KEY: &str = "client.key";

/// The keys of the admin Secret that proxies need. They never see the CA's key and the operator's certificate.
pub const PROXY_KEYS: [&str; 3] = [SERVER_CERTIFICATE, SERVER_KEY, CA_CERTIFICATE];

/// The Secret of the admin API's certificates: the stored ones while they are good, new ones else.
///
/// # Errors
/// When a certificate cannot be made.
pub fn admin_secret(
    pool: &ValidatedPool,
    stored: Option<&Secret>,
    now: Timestamp,
) -> Result<Secret, CertificateError> {
    let AdminCertificates { ca, server, client } =
        AdminCertificates::keep_or_make(stored.and_then(admin_certificates), now)?;
    let data = BTreeMap::from([
        (CA_CERTIFICATE.to_owned(), bytes(ca.certificate)),
        (CA_KEY.to_owned(), bytes(ca.key)),
        (SERVER_CERTIFICATE.to_owned(), bytes(server.certificate)),
        (SERVER_KEY.to_owned(), bytes(server.key)),
        (CLIENT_CERTIFICATE.to_owned(), bytes(client.certificate)),
        (CLIENT_KEY.to_owned(), bytes(client.key)),
    ]);
    Ok(secret(pool, PoolNames(&pool.name).admin_secret(), data))
}

/// The certificates in an admin Secret, when all of them are there.
#[must_use]
pub fn admin_certificates(secret: &Secret) -> Option<AdminCertificates> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    let identity =
        |certificate: &str, key: &str| Some(Identity { certificate: text(certificate)?, key: text(key)? });
    Some(AdminCertificates {
        ca: identity(CA_CERTIFICATE, CA_KEY)?,
        server: identity(SERVER_CERTIFICATE, SERVER_KEY)?,
        client: identity(CLIENT_CERTIFICATE, CLIENT_KEY)?,
    })
}

/// The Secret of the users' names and passwords.
#[must_use]
pub fn users_secret(pool: &ValidatedPool) -> Secret {
    let data = pool.user_files.iter().flat_map(|user| {
        [
            (username_key(&user.stem), ByteString(user.credentials.username.clone())),
            (password_key(&user.stem), ByteString(user.credentials.password.clone())),
        ]
    });
    secret(pool, PoolNames(&pool.name).users_secret(), data.collect())
}

fn secret(pool: &ValidatedPool, name: String, data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        metadata: metadata(pool, name),
        type_: Some("Opaque".to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}

fn bytes(text: String) -> ByteString {
    ByteString(text.into_bytes())
}

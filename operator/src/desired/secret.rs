//! The two Secrets of a pool: what the admin API needs, and copies of the users' names and passwords and of
//! certificates, keys and CAs.
//!
//! The users' Secrets are not mounted themselves: a list of volumes is a part of the pod template, so that each new user
//! would restart every proxy. Copies in one Secret, mounted once as a directory, change without a restart.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use pgrouting_contract::peers::PEERS_SECRET_LEN_MIN;

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

/// The key of what the proxies of the pool share to mark the cancel keys that they give out.
pub const PEERS_SECRET: &str = "peers.secret";

/// The keys of the admin Secret that proxies need. They never see the CA's key and the operator's certificate.
pub const PROXY_KEYS: [&str; 4] = [SERVER_CERTIFICATE, SERVER_KEY, CA_CERTIFICATE, PEERS_SECRET];

/// The Secret of the admin API: the stored certificates while they are good, new ones else; and the peers' secret, which
/// is made once, since a change of it makes proxies deaf for a while to each other's cancel keys.
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
        (PEERS_SECRET.to_owned(), stored.and_then(peers_secret).unwrap_or_else(make_peers_secret)),
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

/// The peers' secret in an admin Secret, when there is one that proxies would take.
fn peers_secret(secret: &Secret) -> Option<ByteString> {
    let stored = secret.data.as_ref()?.get(PEERS_SECRET)?;
    (stored.0.len() >= PEERS_SECRET_LEN_MIN).then(|| stored.clone())
}

fn make_peers_secret() -> ByteString {
    ByteString(rand::random::<[u8; 32]>().to_vec())
}

/// The Secret of the users' names and passwords, and of what TLS needs.
#[must_use]
pub fn users_secret(pool: &ValidatedPool) -> Secret {
    let data = pool.user_files.iter().flat_map(|user| {
        [
            (username_key(&user.stem), ByteString(user.credentials.username.clone())),
            (password_key(&user.stem), ByteString(user.credentials.password.clone())),
        ]
    });
    let tls = pool.tls.files.iter().map(|file| (file.key.clone(), ByteString(file.content.clone())));
    secret(pool, PoolNames(&pool.name).users_secret(), data.chain(tls).collect())
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

//! The files that a spec points at: certificates, keys and CAs in Secrets and ConfigMaps. Pure.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pgrouting_crds::spec::PgRoutingPoolSpec;
use pgrouting_crds::spec::tls::{CaKind, CaReference, MirrorTls, Tls};

/// The key of a certificate in a Secret of type kubernetes.io/tls.
const CERTIFICATE: &str = "tls.crt";

/// The key of its key.
const KEY: &str = "tls.key";

/// An object in the pool's namespace that files are in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectReference {
    /// What kind it is.
    pub kind: CaKind,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            CaKind::Secret => write!(f, "Secret {}", self.name),
            CaKind::ConfigMap => write!(f, "ConfigMap {}", self.name),
        }
    }
}

/// One file in such an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileReference {
    /// The object.
    pub object: ObjectReference,
    /// The key in it.
    pub key: String,
}

impl FileReference {
    /// A CA.
    #[must_use]
    pub fn ca(reference: &CaReference) -> Self {
        let object = ObjectReference { kind: reference.kind, name: reference.name.clone() };
        Self { object, key: reference.key.clone() }
    }

    /// A certificate and its key.
    #[must_use]
    pub fn pair(secret: &str) -> [Self; 2] {
        let object = ObjectReference { kind: CaKind::Secret, name: secret.to_owned() };
        [CERTIFICATE, KEY].map(|key| Self { object: object.clone(), key: key.to_owned() })
    }
}

/// What belongs together: a certificate and its key, or a CA.
pub type FileGroup = Vec<FileReference>;

/// What TLS with clients and servers needs.
#[must_use]
pub fn pool_files(tls: &Tls) -> Vec<FileGroup> {
    let pairs = [&tls.certificate_secret, &tls.server_client_certificate_secret];
    groups(&pairs, &[&tls.client_ca, &tls.server_ca])
}

/// What TLS with the mirror needs.
#[must_use]
pub fn mirror_files(tls: &MirrorTls) -> Vec<FileGroup> {
    groups(&[&tls.server_client_certificate_secret], &[&tls.server_ca])
}

fn groups(pairs: &[&Option<String>], cas: &[&Option<CaReference>]) -> Vec<FileGroup> {
    let pairs =
        pairs.iter().filter_map(|secret| secret.as_ref()).map(|secret| FileReference::pair(secret).to_vec());
    let cas = cas.iter().filter_map(|ca| ca.as_ref()).map(|ca| vec![FileReference::ca(ca)]);
    pairs.chain(cas).collect()
}

/// All groups that a spec names, each once.
#[must_use]
pub fn referenced_files(spec: &PgRoutingPoolSpec) -> BTreeSet<FileGroup> {
    let mirror = spec.mirror.iter().flat_map(|mirror| mirror_files(&mirror.tls));
    pool_files(&spec.tls).into_iter().chain(mirror).collect()
}

/// A file in a Secret, unless it is empty.
#[must_use]
pub fn file_in_secret(secret: &Secret, key: &str) -> Option<Vec<u8>> {
    let found = secret.data.as_ref()?.get(key)?;
    (!found.0.is_empty()).then(|| found.0.clone())
}

/// A file in a ConfigMap, unless it is empty.
#[must_use]
pub fn file_in_config_map(map: &ConfigMap, key: &str) -> Option<Vec<u8>> {
    let text = map.data.as_ref().and_then(|data| data.get(key)).map(|text| text.as_bytes().to_vec());
    let bytes = map.binary_data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone());
    text.or(bytes).filter(|content| !content.is_empty())
}

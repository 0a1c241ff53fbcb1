//! TLS as the document has it; while a file of it has never been seen, all of it as it was before.

use jiff::Timestamp;
use pgrouting_contract::tls::{ClientTlsConfig, ClientTlsMode, ServerTlsConfig, ServerTlsMode, TlsConfig};
use pgrouting_crds::spec::PgRoutingPoolSpec;
use pgrouting_crds::spec::tls::{CaReference, ClientTls, ServerTls, Tls};

use crate::certificates::{ca_end, pair_end};
use crate::names::copy_stem;
use crate::resolve::files::{FileGroup, FileReference, mirror_files, pool_files, referenced_files};
use crate::resolve::{CredentialsFault, ResolvedRefs};

/// What the keys of these files in the users Secret begin with.
const PREFIX: &str = "tls.";

/// TLS of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValidatedTls {
    /// With clients and servers; nothing is encrypted where this is absent.
    pub pool: Option<TlsConfig>,
    /// With the mirror.
    pub mirror: MirrorTlsState,
    /// Copies of the files, for the users Secret.
    pub files: Vec<TlsFile>,
    /// What is wrong with where they come from.
    pub faults: Vec<CredentialsFault>,
    /// When certificates end.
    pub ends: Vec<CertificateEnd>,
}

/// TLS with the mirror.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum MirrorTlsState {
    /// As this says.
    Known(Option<ServerTlsConfig>),
    /// It needs a file that nobody has ever seen.
    #[default]
    Unseen,
}

/// A file of TLS.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsFile {
    /// Its key in the users Secret, and its name in the folder where that is mounted.
    pub key: String,
    /// What it holds: what its object holds now, or held when it was last good.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for TlsFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // No log line can hold a private key.
        f.write_str(&self.key)
    }
}

/// When what an object holds ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateEnd {
    /// The object, as `Secret orders-tls`.
    pub object: String,
    /// The last moment of its certificate.
    pub at: Timestamp,
}

/// TLS with clients, servers and the mirror, whose files are mounted at `mount`.
#[must_use]
pub fn tls(spec: &PgRoutingPoolSpec, refs: &ResolvedRefs, mount: &str) -> ValidatedTls {
    let mut made = ValidatedTls::default();
    let mut unseen = Vec::new();
    for group in referenced_files(spec) {
        match contents(&group, refs, &mut made) {
            Some(contents) => made.files.extend(
                group.iter().zip(contents).map(|(file, content)| TlsFile { key: file_key(file), content }),
            ),
            None => unseen.push(group),
        }
    }
    if !unseen.is_empty() {
        // What was before stays in use, and so must what it reads.
        keep_stored(refs, &mut made.files);
    }
    let is_seen = |groups: &[FileGroup]| groups.iter().all(|group| !unseen.contains(group));
    made.pool = match &refs.previous {
        Some(previous) if !is_seen(&pool_files(&spec.tls)) => previous.tls.clone(),
        // Without one of before the proxies wait for what they need, rather than serve without it.
        Some(_) | None => pool_config(&spec.tls, mount),
    };
    made.mirror = match spec.mirror.as_ref().map(|mirror| &mirror.tls) {
        Some(tls) if !is_seen(&mirror_files(tls)) => MirrorTlsState::Unseen,
        Some(tls) => MirrorTlsState::Known(server_config(
            tls.server,
            tls.server_ca.as_ref(),
            tls.server_client_certificate_secret.as_deref(),
            mount,
        )),
        None => MirrorTlsState::Known(None),
    };
    made
}

/// What the files of a group hold, or held when they were last good; `None` where nobody has ever seen them.
fn contents(group: &[FileReference], refs: &ResolvedRefs, made: &mut ValidatedTls) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut is_good = true;
    for file in group {
        match refs.files.get(file) {
            Some(Ok(content)) => found.push(content.clone()),
            Some(Err(fault)) => {
                is_good = false;
                if !made.faults.contains(fault) {
                    made.faults.push(fault.clone());
                }
            }
            None => is_good = false,
        }
    }
    let object = &group.first()?.object;
    if is_good {
        let end = match found.as_slice() {
            [certificate, key] => pair_end(certificate, key),
            [ca] => ca_end(ca),
            _ => return None,
        };
        match end {
            Ok(at) => {
                made.ends.push(CertificateEnd { object: object.to_string(), at });
                return Some(found);
            }
            Err(what) => made.faults.push(CredentialsFault::BadCertificate { object: object.clone(), what }),
        }
    }
    let stored = refs.users.as_ref()?.data.as_ref()?;
    group.iter().map(|file| stored.get(&file_key(file)).map(|content| content.0.clone())).collect()
}

fn keep_stored(refs: &ResolvedRefs, files: &mut Vec<TlsFile>) {
    let stored = refs.users.iter().filter_map(|secret| secret.data.as_ref()).flatten();
    for (key, content) in stored.filter(|(key, _)| key.starts_with(PREFIX)) {
        if !files.iter().any(|known| known.key == *key) {
            files.push(TlsFile { key: key.clone(), content: content.0.clone() });
        }
    }
}

fn pool_config(tls: &Tls, mount: &str) -> Option<TlsConfig> {
    let client = match tls.client {
        ClientTls::Disabled => None,
        ClientTls::Allow => Some(ClientTlsMode::Allow),
        ClientTls::Require => Some(ClientTlsMode::Require),
    };
    let client = client.map(|mode| {
        let [certificate_file, key_file] = pair_paths(tls.certificate_secret.as_deref(), mount);
        let client_ca_file = tls.client_ca.as_ref().map(|ca| path(&FileReference::ca(ca), mount));
        ClientTlsConfig { mode, certificate_file, key_file, client_ca_file, client_certificate: None }
    });
    let secret = tls.server_client_certificate_secret.as_deref();
    let server = server_config(tls.server, tls.server_ca.as_ref(), secret, mount);
    (client.is_some() || server.is_some()).then_some(TlsConfig { client, server })
}

fn server_config(
    mode: ServerTls,
    ca: Option<&CaReference>,
    certificate_secret: Option<&str>,
    mount: &str,
) -> Option<ServerTlsConfig> {
    let mode = match mode {
        ServerTls::Disabled => return None,
        ServerTls::Prefer => ServerTlsMode::Prefer,
        ServerTls::Require => ServerTlsMode::Require,
        ServerTls::VerifyCa => ServerTlsMode::VerifyCa,
        ServerTls::VerifyFull => ServerTlsMode::VerifyFull,
    };
    let [certificate_file, key_file] = pair_paths(certificate_secret, mount);
    let ca_file = ca.map(|ca| path(&FileReference::ca(ca), mount));
    Some(ServerTlsConfig { mode, ca_file, certificate_file, key_file })
}

fn pair_paths(secret: Option<&str>, mount: &str) -> [Option<String>; 2] {
    secret.map_or([None, None], |secret| FileReference::pair(secret).map(|file| Some(path(&file, mount))))
}

fn path(file: &FileReference, mount: &str) -> String {
    format!("{mount}/{}", file_key(file))
}

/// The key of a file in the users Secret.
fn file_key(file: &FileReference) -> String {
    let object = file.object.to_string();
    format!("{PREFIX}{}", copy_stem(&file.object.name, &[&object, &file.key]))
}

#[cfg(test)]
mod tests;

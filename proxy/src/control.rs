//! Keeps the process in step with its document and its files.
//!
//! Everything here runs on the control thread: documents that are offered, the files that a document names, and the
//! sweep of idle connections.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgrouting_contract::config::{AuthConfig, ProxyConfig, UserConfig};
use pgrouting_contract::peers::PEERS_SECRET_LEN_MIN;
use pgrouting_contract::report::{ConfigAnswer, ConfigOutcome, CredentialReport, CredentialState};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::auth::users::{Configured, Credentials, User};
use crate::cancel::CancelRegistry;
use crate::config::{ConfigStore, Source};
use crate::fleet::Fleet;
use crate::pool::limits::SWEEP_INTERVAL;
use crate::tls::store::TlsStore;

/// How often files are looked at, and idle connections swept.
const TICK: Duration = SWEEP_INTERVAL;

/// The document, the credentials and the fleet of one process.
#[derive(Debug)]
pub struct Control {
    /// The document.
    pub store: ConfigStore,
    /// The servers.
    pub fleet: Arc<Fleet>,
    /// The users.
    pub credentials: Arc<Credentials>,
    /// TLS with clients and servers.
    pub tls: Arc<TlsStore>,
    cancels: Arc<CancelRegistry>,
    path: PathBuf,
    files: Mutex<FileState>,
}

/// What was read last, to see what changed.
#[derive(Debug, Default)]
struct FileState {
    document: Vec<u8>,
    secrets: Vec<SecretText>,
    peers: Option<Result<Vec<u8>, String>>,
}

/// Whose login a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Client,
    Probe,
    Asker,
    Mirror,
}

/// A user as its files say, or why they do not.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SecretText {
    whose: Whose,
    text: Result<(String, String), (String, String)>,
}

impl Control {
    /// Begins with the document read from `path`, of which `document` are the bytes.
    #[must_use]
    pub fn new(
        store: ConfigStore,
        fleet: Arc<Fleet>,
        credentials: Arc<Credentials>,
        cancels: Arc<CancelRegistry>,
        tls: Arc<TlsStore>,
        path: PathBuf,
        document: Vec<u8>,
    ) -> Arc<Self> {
        let files = Mutex::new(FileState { document, ..FileState::default() });
        Arc::new(Self { store, fleet, credentials, tls, cancels, path, files })
    }

    /// Offers a document; when it is taken, it is in effect before the answer.
    pub fn offer(&self, document: &[u8], source: Source) -> ConfigAnswer {
        let answer = self.store.offer(document, source, |active| {
            let tls = self.tls.prepare(&active.config)?;
            self.tls.apply(tls);
            self.fleet.apply(active);
            Ok(())
        });
        match answer.outcome {
            ConfigOutcome::Applied => {
                info!(generation = answer.generation.0, hash = answer.hash.short(), "the document runs");
            }
            ConfigOutcome::Refused => {
                warn!(reasons = answer.reasons.join("; "), "the document is refused; the one before runs on");
            }
            ConfigOutcome::Unchanged | ConfigOutcome::Stale => {}
        }
        answer
    }

    /// Reads the document's file again because somebody asked.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn reload(&self) -> std::io::Result<ConfigAnswer> {
        let reloaded = tokio::fs::read(&self.path).await.map(|document| {
            let answer = self.offer(&document, Source::Reload);
            if answer.outcome == ConfigOutcome::Stale {
                warn!(reasons = answer.reasons.join("; "), "the file is not taken");
            }
            self.lock().document = document;
            answer
        });
        if let Err(error) = &reloaded {
            warn!(path = %self.path.display(), %error, "the document cannot be read");
        }
        self.refresh_secrets().await;
        self.tls.refresh();
        reloaded
    }

    /// Looks after files and idle connections for ever.
    pub async fn run(&self) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.cancels.tick(u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default());
            self.look_at_document().await;
            self.refresh_secrets().await;
            self.tls.refresh();
            self.fleet.view().pools.iter().for_each(|pool| pool.sweep());
        }
    }

    async fn look_at_document(&self) {
        let Ok(document) = tokio::fs::read(&self.path).await else { return };
        if document == self.lock().document {
            return;
        }
        self.offer(&document, Source::File);
        self.lock().document = document;
    }

    /// Reads the files that the document names, and takes what changed in them.
    pub async fn refresh_secrets(&self) {
        let active = self.store.active();
        self.refresh_peers(&active.config).await;
        let secrets = read_secrets(&active.config).await;
        if secrets == self.lock().secrets {
            return;
        }
        let is_list = matches!(active.config.auth, AuthConfig::UserList { .. });
        let previous = Arc::clone(&self.credentials);
        let texts = secrets.clone();
        // Deriving keys takes milliseconds for each user.
        let made = tokio::task::spawn_blocking(move || make_users(&texts, &previous, is_list)).await;
        let Ok(made) = made else { return };
        for report in &made.missing {
            warn!(user = report.user, message = report.message, "a credential cannot be read");
        }
        info!(users = made.users.len(), "credentials were read");
        let was_probe_known = self.credentials.probe().is_some();
        self.credentials.replace(made);
        self.lock().secrets = secrets;
        if !was_probe_known && self.credentials.probe().is_some() {
            self.fleet.view().hurries.iter().for_each(|hurry| hurry.notify_one());
        }
    }

    /// Takes the secret that the proxies of the pool share. While it cannot be read, the one before is good.
    async fn refresh_peers(&self, config: &ProxyConfig) {
        let Some(peers) = &config.peers else { return };
        let secret = read_shared(Path::new(&peers.secret_file)).await;
        if self.lock().peers.as_ref() == Some(&secret) {
            return;
        }
        match &secret {
            Ok(secret) => self.cancels.share(secret),
            Err(message) => {
                warn!(message, "peers.secretFile cannot be used; peers know no cancel keys of here")
            }
        }
        self.lock().peers = Some(secret);
    }

    fn lock(&self) -> MutexGuard<'_, FileState> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read_secrets(config: &ProxyConfig) -> Vec<SecretText> {
    let mut secrets = Vec::new();
    match &config.auth {
        AuthConfig::UserList { users } => {
            for user in users {
                secrets.push(SecretText { whose: Whose::Client, text: read_user(user).await });
            }
        }
        AuthConfig::Query { user, .. } => {
            secrets.push(SecretText { whose: Whose::Asker, text: read_user(user).await });
        }
        AuthConfig::Passthrough {} => {}
    }
    if let Some(probe) = &config.probe.user {
        secrets.push(SecretText { whose: Whose::Probe, text: read_user(probe).await });
    }
    if let Some(user) = config.mirror.as_ref().and_then(|mirror| mirror.user.as_ref()) {
        secrets.push(SecretText { whose: Whose::Mirror, text: read_user(user).await });
    }
    secrets
}

/// Name and password, or name and fault.
async fn read_user(user: &UserConfig) -> Result<(String, String), (String, String)> {
    let label = user.name.clone().or_else(|| user.name_file.clone()).unwrap_or_default();
    let name = read_text(user.name.as_ref(), user.name_file.as_ref()).await.map_err(|f| (label, f))?;
    let password = read_text(user.password.as_ref(), user.password_file.as_ref())
        .await
        .map_err(|fault| (name.clone(), fault))?;
    Ok((name, password))
}

async fn read_text(text: Option<&String>, file: Option<&String>) -> Result<String, String> {
    if let Some(text) = text {
        return Ok(text.clone());
    }
    let path = Path::new(file.map(String::as_str).unwrap_or_default());
    let text = tokio::fs::read_to_string(path).await.map_err(|e| format!("{}: {e}", path.display()))?;
    // Editors and `kubectl create secret --from-file` leave a line end behind.
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() { Err(format!("{}: empty", path.display())) } else { Ok(text.to_owned()) }
}

async fn read_shared(path: &Path) -> Result<Vec<u8>, String> {
    let secret = tokio::fs::read(path).await.map_err(|e| format!("{}: {e}", path.display()))?;
    if secret.len() < PEERS_SECRET_LEN_MIN {
        return Err(format!("{}: fewer than {PEERS_SECRET_LEN_MIN} bytes", path.display()));
    }
    Ok(secret)
}

/// Makes users of texts. One that is unchanged is kept as it is, with all that was learned of it; one whose file
/// cannot be read is kept too, so that a Secret that is gone for a moment locks nobody out.
fn make_users(secrets: &[SecretText], previous: &Credentials, is_list: bool) -> Configured {
    let Configured { mut users, mut probe, mut asker, mut mirror, mut missing } = Configured::default();
    for secret in secrets {
        let known = |name: &str| match secret.whose {
            Whose::Client => previous.user(name),
            Whose::Probe => previous.probe().filter(|user| user.name == name),
            Whose::Asker => previous.asker().filter(|user| user.name == name),
            Whose::Mirror => previous.mirror().filter(|user| user.name == name),
        };
        let user = match &secret.text {
            Ok((name, password)) => match known(name) {
                Some(user) if user.has_password(password) => user,
                before => Arc::new(User::renewed(name, password, before.as_deref())),
            },
            Err((name, message)) => {
                missing.push(CredentialReport {
                    user: name.clone(),
                    state: CredentialState::Missing,
                    message: message.clone(),
                });
                let Some(user) = known(name) else { continue };
                user
            }
        };
        match secret.whose {
            Whose::Client => {
                users.insert(user.name.clone(), user);
            }
            Whose::Probe => probe = Some(user),
            Whose::Asker => asker = Some(user),
            Whose::Mirror => mirror = Some(user),
        }
    }
    if probe.is_none() && is_list {
        let clients = secrets.iter().filter(|s| s.whose == Whose::Client);
        let first = clients.filter_map(|s| s.text.as_ref().ok()).map(|(name, _)| name).next();
        probe = first.and_then(|name| users.get(name)).cloned();
    }
    // The monitor's user asks where nobody else does, and the other way round.
    let probe = probe.or_else(|| asker.take());
    Configured { users, probe, asker, mirror, missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, password: &str) -> SecretText {
        SecretText { whose: Whose::Client, text: Ok((name.to_owned(), password.to_owned())) }
    }

    #[test]
    fn an_unchanged_user_is_kept_and_a_changed_one_knows_its_old_password() {
        let credentials = Credentials::default();
        let made = make_users(&[secret("a", "1"), secret("b", "1")], &credentials, true);
        assert_eq!(
            made.probe.as_ref().map(|p| p.name.as_str()),
            Some("a"),
            "the first user is the monitor's"
        );
        let before = made.users["a"].clone();
        credentials.replace(made);
        let Configured { users, .. } = make_users(&[secret("a", "1"), secret("b", "2")], &credentials, true);
        assert!(Arc::ptr_eq(&users["a"], &before));
        assert_eq!(users["b"].verifiers().len(), 2);
    }

    #[test]
    fn a_user_whose_file_is_gone_for_a_moment_is_kept_and_reported() {
        let credentials = Credentials::default();
        credentials.replace(make_users(&[secret("a", "1")], &credentials, true));
        let gone =
            SecretText { whose: Whose::Client, text: Err(("a".to_owned(), "no such file".to_owned())) };
        let Configured { users, missing, .. } = make_users(&[gone], &credentials, true);
        assert!(users.contains_key("a"));
        assert_eq!(missing[0].state, CredentialState::Missing);
    }
}

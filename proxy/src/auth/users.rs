//! The users that the proxy knows, and what it knows of their passwords.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgrouting_contract::report::{CredentialReport, CredentialState};
use tokio::time::Instant;

use crate::auth::md5::Md5Secret;
use crate::auth::scram::{ITERATIONS, Keys, Salting, Verifier};

/// How long a password that was replaced is still right, so that clients and servers may change over one by one.
pub const ROTATION_OVERLAP: Duration = Duration::from_secs(300);

/// Derived keys that are kept for one user: one for each salt that its servers use.
const DERIVED_KEYS_MAX: usize = 8;

/// One user.
#[derive(Debug)]
pub struct User {
    /// The role's name.
    pub name: String,
    /// How clients must salt.
    pub salting: Salting,
    /// What a client's proof is checked against: the password of now and, during a rotation, the one before.
    candidates: Vec<Candidate>,
    /// What is stored of the password, where that is of MD5: there is no candidate then.
    md5: Option<Md5Secret>,
    learned: Mutex<Option<Keys>>,
    derived: Mutex<Vec<(Salting, Keys)>>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Clone)]
struct Candidate {
    verifier: Verifier,
    password: Option<Arc<str>>,
    until: Option<Instant>,
}

#[derive(Debug)]
struct Seen {
    state: CredentialState,
    message: String,
}

/// A way to log in to a server as a user.
#[derive(Debug, Clone)]
pub enum LoginSecret {
    /// Keys that are ready.
    Keys(Keys),
    /// A password whose keys must be derived first, which takes milliseconds.
    Password(Arc<str>),
}

impl User {
    /// A user whose password (or stored verifier, in PostgreSQL's text form) is `secret`. `previous` is the same user
    /// before a rotation. Takes milliseconds: not for an I/O thread.
    #[must_use]
    pub fn from_secret(name: &str, secret: &str, salt: &[u8], previous: Option<&Self>) -> Self {
        if let Some((salting, verifier)) = Verifier::parse(secret) {
            return Self::from_verifier(name, salting, verifier);
        }
        if let Some(md5) = Md5Secret::parse(secret) {
            return Self::from_md5(name, md5);
        }
        let salting = Salting { salt: salt.to_vec(), iterations: ITERATIONS };
        let keys = Keys::derive(secret, &salting);
        let mut candidates =
            vec![Candidate { verifier: keys.verifier, password: Some(secret.into()), until: None }];
        let now = Instant::now();
        let replaced = previous.into_iter().flat_map(|user| &user.candidates);
        candidates.extend(
            replaced.filter(|old| old.password.as_deref() != Some(secret) && !old.is_over(now)).take(1).map(
                |old| Candidate { until: Some(old.until.unwrap_or(now + ROTATION_OVERLAP)), ..old.clone() },
            ),
        );
        Self::new(name, salting, candidates)
    }

    /// The same with the salt that the user had before, or a random one. Takes milliseconds too.
    #[must_use]
    pub fn renewed(name: &str, secret: &str, previous: Option<&Self>) -> Self {
        let salt: [u8; 16] = rand::random();
        // One of whom only MD5 was known has none.
        let before = previous.map(|user| &user.salting.salt[..]).filter(|salt| !salt.is_empty());
        let salt = before.unwrap_or(&salt);
        Self::from_secret(name, secret, salt, previous)
    }

    /// A user of whom only a stored verifier is known: the keys for servers come from a client's proof.
    #[must_use]
    pub fn from_verifier(name: &str, salting: Salting, verifier: Verifier) -> Self {
        Self::new(name, salting, vec![Candidate { verifier, password: None, until: None }])
    }

    /// A user of whom only what MD5 stores is known, which is enough for both sides where they use MD5.
    #[must_use]
    pub fn from_md5(name: &str, md5: Md5Secret) -> Self {
        let salting = Salting { salt: Vec::new(), iterations: ITERATIONS };
        Self { md5: Some(md5), ..Self::new(name, salting, Vec::new()) }
    }

    fn new(name: &str, salting: Salting, candidates: Vec<Candidate>) -> Self {
        Self {
            name: name.to_owned(),
            salting,
            candidates,
            md5: None,
            learned: Mutex::default(),
            derived: Mutex::default(),
            seen: Mutex::new(Seen { state: CredentialState::Unused, message: String::new() }),
        }
    }

    /// Whether a stored verifier is the one that this user was made from.
    #[must_use]
    pub fn has_verifier(&self, salting: &Salting, verifier: &Verifier) -> bool {
        self.salting == *salting && self.candidates.iter().any(|c| c.verifier == *verifier)
    }

    /// Whether `secret` is its current password.
    #[must_use]
    pub fn has_password(&self, secret: &str) -> bool {
        if let Some(md5) = &self.md5 {
            return Md5Secret::parse(secret).as_ref() == Some(md5);
        }
        self.candidates.first().is_some_and(|c| match &c.password {
            Some(password) => **password == *secret,
            None => Verifier::parse(secret).is_some_and(|(s, v)| self.has_verifier(&s, &v)),
        })
    }

    /// What a client is checked by, where that is MD5.
    #[must_use]
    pub const fn md5(&self) -> Option<&Md5Secret> {
        self.md5.as_ref()
    }

    /// The passwords that may be right now, the newest first.
    #[must_use]
    pub fn passwords(&self) -> Vec<Arc<str>> {
        let now = Instant::now();
        self.candidates.iter().filter(|c| !c.is_over(now)).filter_map(|c| c.password.clone()).collect()
    }

    /// What a client's proof may fit.
    #[must_use]
    pub fn verifiers(&self) -> Vec<Verifier> {
        let now = Instant::now();
        self.candidates.iter().filter(|c| !c.is_over(now)).map(|c| c.verifier.clone()).collect()
    }

    /// Keeps the keys that a client proved to have.
    pub fn learn(&self, keys: Keys) {
        *locked(&self.learned) = Some(keys);
    }

    /// Ways to log in to a server that salts like this, the most likely first.
    #[must_use]
    pub fn login_secrets(&self, salting: &Salting) -> Vec<LoginSecret> {
        let mut secrets: Vec<_> = locked(&self.derived)
            .iter()
            .filter(|(known, _)| known == salting)
            .map(|(_, keys)| LoginSecret::Keys(keys.clone()))
            .collect();
        if self.salting == *salting {
            secrets.extend(locked(&self.learned).clone().map(LoginSecret::Keys));
        }
        secrets.extend(self.passwords().into_iter().map(LoginSecret::Password));
        secrets
    }

    /// Keeps keys that a server accepted, so that the next login derives nothing.
    pub fn keep_derived(&self, salting: Salting, keys: Keys) {
        let mut derived = locked(&self.derived);
        derived.retain(|(known, _)| *known != salting);
        if derived.len() >= DERIVED_KEYS_MAX {
            derived.remove(0);
        }
        derived.push((salting, keys));
    }

    /// Notes that a server accepted or refused this user.
    pub fn note(&self, state: CredentialState, message: impl Into<String>) {
        *locked(&self.seen) = Seen { state, message: message.into() };
    }

    fn report(&self) -> CredentialReport {
        let seen = locked(&self.seen);
        CredentialReport { user: self.name.clone(), state: seen.state, message: seen.message.clone() }
    }
}

impl Candidate {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// All users that are known now, shared by everyone who logs in or checks a login.
#[derive(Debug, Default)]
pub struct Credentials {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    users: HashMap<String, Arc<User>>,
    probe: Option<Arc<User>>,
    asker: Option<Arc<User>>,
    mirror: Option<Arc<User>>,
    missing: Vec<CredentialReport>,
}

/// What comes from the config's files.
#[derive(Debug, Default)]
pub struct Configured {
    /// The users of the list.
    pub users: HashMap<String, Arc<User>>,
    /// The monitor's user.
    pub probe: Option<Arc<User>>,
    /// Who asks for the users, where that is another than the monitor's.
    pub asker: Option<Arc<User>>,
    /// Who logs in to the mirror, where that is not the client's own role.
    pub mirror: Option<Arc<User>>,
    /// What could not be read.
    pub missing: Vec<CredentialReport>,
}

impl Credentials {
    /// The user of that name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<Arc<User>> {
        locked(&self.state).users.get(name).cloned()
    }

    /// The monitor's user.
    #[must_use]
    pub fn probe(&self) -> Option<Arc<User>> {
        locked(&self.state).probe.clone()
    }

    /// Who asks for the users: the monitor's user, where there is no other.
    #[must_use]
    pub fn asker(&self) -> Option<Arc<User>> {
        let state = locked(&self.state);
        state.asker.clone().or_else(|| state.probe.clone())
    }

    /// Who logs in to the mirror, where that is not the client's own role.
    #[must_use]
    pub fn mirror(&self) -> Option<Arc<User>> {
        locked(&self.state).mirror.clone()
    }

    /// Replaces everything that comes from the config's files.
    pub fn replace(&self, Configured { users, probe, asker, mirror, missing }: Configured) {
        *locked(&self.state) = State { users, probe, asker, mirror, missing };
    }

    /// Adds or replaces one user, as passthrough does at a login. At most `users_max` are kept.
    pub fn insert(&self, user: Arc<User>, users_max: usize) {
        let mut state = locked(&self.state);
        if state.users.len() >= users_max && !state.users.contains_key(&user.name) {
            let evicted = state.users.keys().next().cloned();
            evicted.map(|name| state.users.remove(&name));
        }
        state.users.insert(user.name.clone(), user);
    }

    /// Forgets one user, as passthrough does when the role is gone.
    pub fn remove(&self, name: &str) {
        locked(&self.state).users.remove(name);
    }

    /// What was seen of each, sorted by name; the monitor's user among them.
    #[must_use]
    pub fn report(&self) -> Vec<CredentialReport> {
        let state = locked(&self.state);
        let own = state
            .probe
            .iter()
            .chain(&state.asker)
            .chain(&state.mirror)
            .filter(|p| !state.users.contains_key(&p.name));
        let mut reports: Vec<_> = state.users.values().chain(own).map(|user| user.report()).collect();
        reports.extend(state.missing.iter().cloned());
        reports.sort_by(|a, b| a.user.cmp(&b.user));
        reports
    }
}

/// A panic while the lock was held cannot leave these plain values half written.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_replaced_password_is_right_for_the_overlap_only() {
        let old = User::from_secret("app", "old", b"salt", None);
        let new = User::from_secret("app", "new", b"salt", Some(&old));
        assert!(new.has_password("new") && !new.has_password("old"));
        assert_eq!(new.verifiers().len(), 2);
        tokio::time::advance(ROTATION_OVERLAP).await;
        assert_eq!(new.verifiers().len(), 1);
        assert_eq!(new.login_secrets(&Salting { salt: vec![1], iterations: 1 }).len(), 1);
    }

    #[test]
    fn a_renewed_user_keeps_its_salt_and_has_one_after_md5() {
        let first = User::renewed("app", "one", None);
        assert_eq!(User::renewed("app", "two", Some(&first)).salting, first.salting);
        let stored = User::from_md5("app", Md5Secret::derive("one", "app"));
        assert_eq!(User::renewed("app", "two", Some(&stored)).salting.salt.len(), 16);
    }

    #[test]
    fn a_verifier_alone_logs_in_only_after_a_client_proved_its_keys() {
        let salting = Salting { salt: vec![1, 2], iterations: 5 };
        let keys = Keys::derive("secret", &salting);
        let user = User::from_verifier("app", salting.clone(), keys.verifier.clone());
        assert!(user.login_secrets(&salting).is_empty());
        user.learn(keys);
        assert_eq!(user.login_secrets(&salting).len(), 1);
        assert!(user.login_secrets(&Salting { salt: vec![3], iterations: 5 }).is_empty());
    }

    #[test]
    fn keys_that_a_server_accepted_come_first() {
        let user = User::from_secret("app", "secret", b"salt", None);
        let salting = Salting { salt: vec![9], iterations: 3 };
        user.keep_derived(salting.clone(), Keys::derive("secret", &salting));
        assert!(matches!(user.login_secrets(&salting)[..], [LoginSecret::Keys(_), LoginSecret::Password(_)]));
    }

    #[test]
    fn no_more_users_are_kept_than_allowed() {
        let credentials = Credentials::default();
        for name in ["a", "b", "c"] {
            credentials.insert(Arc::new(User::from_secret(name, "x", b"s", None)), 2);
        }
        assert_eq!(credentials.report().len(), 2);
        assert!(credentials.user("c").is_some());
    }
}

//! Reads the stored verifiers of roles from the primary, for pass-through logins.
//!
//! The monitor's user must be allowed to read `pg_catalog.pg_authid`
//! (<https://www.postgresql.org/docs/current/catalog-pg-authid.html>). Verifiers are kept for seconds only, so that a
//! changed password, an expired or a dropped role counts soon; while the primary cannot be asked, the last known
//! verifier counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::auth::scram::Verifier;
use crate::auth::users::{Credentials, User};
use crate::server::connect::ConnectError;
use crate::server::connection::ServerConnection;
use crate::server::endpoint::Endpoint;
use crate::server::own::Own;
use crate::server::settings::Settings;

/// How long a verifier counts without being asked for again.
const FRESH: Duration = Duration::from_secs(5);

/// Roles that are kept.
const ROLES_MAX: usize = 10_000;

/// The longest that one question may take.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks for verifiers, one question at a time on one connection.
#[derive(Debug)]
pub struct Roles {
    credentials: Arc<Credentials>,
    settings: Arc<Settings>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<(Endpoint, Box<ServerConnection>)>,
    asked_at: HashMap<String, Instant>,
}

impl Roles {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(credentials: Arc<Credentials>, settings: Arc<Settings>) -> Self {
        Self { credentials, settings, state: Mutex::default() }
    }

    /// The user of that name as the primary knows it; `None` when it may not log in with SCRAM.
    ///
    /// # Errors
    /// When the primary cannot be asked and nothing is known from before.
    pub async fn user(
        &self,
        name: &str,
        primary: Option<&Endpoint>,
        database: &str,
    ) -> Result<Option<Arc<User>>, ConnectError> {
        let known = self.credentials.user(name);
        let mut state = self.state.lock().await;
        if state.asked_at.get(name).is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(known);
        }
        let answer = match primary {
            Some(primary) => {
                tokio::time::timeout(QUESTION_TIMEOUT, self.ask(&mut state, name, primary, database))
                    .await
                    .unwrap_or(Err(ConnectError::Timeout(QUESTION_TIMEOUT)))
            }
            None => Err(ConnectError::Protocol("no primary is known")),
        };
        let verifier = match answer {
            Ok(verifier) => verifier,
            Err(error) => {
                state.connection = None;
                return if known.is_some() { Ok(known) } else { Err(error) };
            }
        };
        if state.asked_at.len() >= ROLES_MAX {
            state.asked_at.clear();
        }
        state.asked_at.insert(name.to_owned(), Instant::now());
        let Some((salting, verifier)) = verifier else {
            self.credentials.remove(name);
            return Ok(None);
        };
        if let Some(known) = known.filter(|known| known.has_verifier(&salting, &verifier)) {
            return Ok(Some(known));
        }
        let user = Arc::new(User::from_verifier(name, salting, verifier));
        self.credentials.insert(Arc::clone(&user), ROLES_MAX);
        Ok(Some(user))
    }

    async fn ask(
        &self,
        state: &mut State,
        name: &str,
        primary: &Endpoint,
        database: &str,
    ) -> Result<Option<(crate::auth::scram::Salting, Verifier)>, ConnectError> {
        let is_usable = state.connection.as_mut().is_some_and(|(to, connection)| {
            to == primary && connection.cancel.revision == primary.tls.revision() && connection.is_fit()
        });
        if !is_usable {
            let own = Own {
                credentials: Arc::clone(&self.credentials),
                database: database.to_owned(),
                settings: Arc::clone(&self.settings),
                name: "pgrouting-auth",
                timeout: QUESTION_TIMEOUT,
            };
            state.connection = Some((primary.clone(), own.connect(primary).await?));
        }
        let Some((_, connection)) = state.connection.as_mut() else { return Ok(None) };
        let sql = format!(
            "SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = {} AND rolcanlogin \
             AND (rolvaliduntil IS NULL OR rolvaliduntil > pg_catalog.now())",
            crate::server::settings::quoted_text(name)
        );
        let rows = connection.run(&sql).await?;
        Ok(rows.into_iter().flatten().flatten().next().and_then(|text| Verifier::parse(&text)))
    }
}

//! Asks the primary for what it has stored of a role's password, for pass-through logins and for those that a query decides on.
//!
//! For pass-through the monitor's user must be allowed to read `pg_catalog.pg_authid`
//! (<https://www.postgresql.org/docs/current/catalog-pg-authid.html>). Answers are kept for seconds only, so that a
//! changed password, an expired or a dropped role counts soon; while the primary cannot be asked, the last known
//! answer counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::config::AUTH_QUERY;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::auth::md5::Md5Secret;
use crate::auth::scram::Verifier;
use crate::auth::users::{Credentials, User};
use crate::server::connect::ConnectError;
use crate::server::connection::ServerConnection;
use crate::server::endpoint::Endpoint;
use crate::server::own::Own;
use crate::server::settings::{Settings, quoted_text};

/// How long an answer counts without being asked for again.
const FRESH: Duration = Duration::from_secs(5);

/// Roles that are kept.
const ROLES_MAX: usize = 10_000;

/// The longest that one question may take.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// What is asked, with the role's name as `$1`.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// What the server has stored: only a verifier counts.
    Stored,
    /// A query of the document: a password counts too.
    Query(&'a str),
}

impl<'a> Asked<'a> {
    const fn sql(self) -> &'a str {
        match self {
            Self::Stored => AUTH_QUERY,
            Self::Query(sql) => sql,
        }
    }
}

/// Asks for roles, one question at a time on one connection.
#[derive(Debug)]
pub struct Roles {
    credentials: Arc<Credentials>,
    settings: Arc<Settings>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    line: Option<Line>,
    /// What was asked with, so that nothing counts that another query has said.
    sql: String,
    asked_at: HashMap<String, Instant>,
}

/// A connection on which the query has been prepared.
#[derive(Debug)]
struct Line {
    endpoint: Endpoint,
    user: Arc<User>,
    sql: String,
    connection: Box<ServerConnection>,
}

impl Roles {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(credentials: Arc<Credentials>, settings: Arc<Settings>) -> Self {
        Self { credentials, settings, state: Mutex::default() }
    }

    /// The user of that name as the primary knows it; `None` when it may not log in.
    ///
    /// # Errors
    /// When the primary cannot be asked and nothing is known from before.
    pub async fn user(
        &self,
        name: &str,
        primary: Option<&Endpoint>,
        database: &str,
        asked: Asked<'_>,
    ) -> Result<Option<Arc<User>>, ConnectError> {
        let mut state = self.state.lock().await;
        // Whoever waited for another's answer sees what came of it.
        let known = self.credentials.user(name);
        if state.sql != asked.sql() {
            state.asked_at.clear();
            asked.sql().clone_into(&mut state.sql);
        }
        if state.asked_at.get(name).is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(known);
        }
        let answer = match primary {
            Some(primary) => {
                let question = self.ask(&mut state, name, primary, database, asked.sql());
                let answer = tokio::time::timeout(QUESTION_TIMEOUT, question).await;
                answer.unwrap_or(Err(ConnectError::Timeout(QUESTION_TIMEOUT)))
            }
            None => Err(ConnectError::Protocol("no primary is known")),
        };
        let secret = match answer {
            Ok(secret) => secret,
            Err(error) => {
                state.line = None;
                return if known.is_some() { Ok(known) } else { Err(error) };
            }
        };
        if state.asked_at.len() >= ROLES_MAX {
            state.asked_at.clear();
        }
        state.asked_at.insert(name.to_owned(), Instant::now());
        let made = match secret {
            Some(secret) => self.made(name, secret, known, asked).await,
            None => None,
        };
        match &made {
            Some(user) => self.credentials.insert(Arc::clone(user), ROLES_MAX),
            None => self.credentials.remove(name),
        }
        Ok(made)
    }

    /// The user with this secret: the one that is known, where it still has it.
    async fn made(
        &self,
        name: &str,
        secret: String,
        known: Option<Arc<User>>,
        asked: Asked<'_>,
    ) -> Option<Arc<User>> {
        if let Some(known) = known.as_ref().filter(|known| known.has_password(&secret)) {
            return Some(Arc::clone(known));
        }
        if let Some((salting, verifier)) = Verifier::parse(&secret) {
            return Some(Arc::new(User::from_verifier(name, salting, verifier)));
        }
        if let Some(md5) = Md5Secret::parse(&secret) {
            return Some(Arc::new(User::from_md5(name, md5)));
        }
        if matches!(asked, Asked::Stored) || secret.is_empty() {
            tracing::warn!(user = name, "what is stored of the password is of no use");
            return None;
        }
        let name = name.to_owned();
        // Deriving keys takes milliseconds.
        let derived =
            tokio::task::spawn_blocking(move || Arc::new(User::renewed(&name, &secret, known.as_deref())));
        derived.await.ok()
    }

    /// The second column of the first row.
    async fn ask(
        &self,
        state: &mut State,
        name: &str,
        primary: &Endpoint,
        database: &str,
        sql: &str,
    ) -> Result<Option<String>, ConnectError> {
        let asker = self.credentials.asker();
        let asker = asker.ok_or(ConnectError::Protocol("the user who asks for others is not known"))?;
        let is_usable = state.line.as_mut().is_some_and(|line| {
            line.endpoint == *primary
                && line.connection.cancel.revision == primary.tls.revision()
                && line.sql == sql
                && line.user.name == asker.name
                && line.connection.is_fit()
        });
        if !is_usable {
            let own = Own {
                credentials: Arc::clone(&self.credentials),
                database: database.to_owned(),
                settings: Arc::clone(&self.settings),
                name: "pgrouting-auth",
                timeout: QUESTION_TIMEOUT,
            };
            let mut connection = own.connect_as(&asker, primary).await?;
            // Nothing that others have made is found before what is PostgreSQL's.
            connection.run("SET search_path = pg_catalog, pg_temp").await?;
            connection.run(&format!("PREPARE pgrouting_auth (pg_catalog.text) AS {sql}")).await?;
            let (endpoint, sql) = (primary.clone(), sql.to_owned());
            state.line = Some(Line { endpoint, user: asker, sql, connection });
        }
        let Some(line) = state.line.as_mut() else { return Ok(None) };
        let execute = format!("EXECUTE pgrouting_auth ({})", quoted_text(name));
        let Some(row) = line.connection.run(&execute).await?.into_iter().next() else { return Ok(None) };
        let [_, secret, ..] = row.as_slice() else {
            return Err(ConnectError::Protocol("the query for users gives fewer than two columns"));
        };
        Ok(secret.clone())
    }
}

//! Reads the catalogs of the databases that clients use, on connections of its own, and keeps them fresh.
//!
//! A snapshot is read from the primary when a database is first used, after a definition that passed through this proxy,
//! and when a cheap look at the catalog's row versions shows that somebody else has defined something.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pgrouting_contract::split::SplitConfig;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use crate::auth::users::Credentials;
use crate::catalog::{Catalog, CatalogCell};
use crate::catalogs::rows::{FINGERPRINT, builtin_queries, findings, queries};
use crate::classify::learn::learn;
use crate::fleet::Fleet;
use crate::server::connect::ConnectError;
use crate::server::connection::ServerConnection;
use crate::server::own::Own;
use crate::server::settings::Settings;

pub mod rows;

/// The longest that one question may take.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(30);

/// What is looked at waits for nobody for long.
const LIMITS: &str = "SET lock_timeout = '1s'; SET statement_timeout = '20s'";

/// How long the catalog of a database is kept fresh when no session uses it any more: clients come and go.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// The pause before a catalog that could not be read is asked for again.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// The least time between two looks that somebody asked for.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// The catalogs of all databases in use.
#[derive(Debug)]
pub struct Catalogs {
    fleet: Arc<Fleet>,
    credentials: Arc<Credentials>,
    settings: Arc<Settings>,
    runtime: Handle,
    known: Mutex<HashMap<String, Arc<CatalogCell>>>,
    /// What comes with PostgreSQL, by version.
    bases: Mutex<HashMap<u32, Arc<Catalog>>>,
    epochs: AtomicU64,
}

/// One database's reader.
struct Reader {
    catalogs: Weak<Catalogs>,
    cell: Arc<CatalogCell>,
    database: String,
    fingerprint: Option<String>,
    used_at: Instant,
    was_warned: bool,
}

impl Catalogs {
    /// Nothing is read yet. Must be called on the runtime that is to read.
    #[must_use]
    pub fn new(fleet: Arc<Fleet>, credentials: Arc<Credentials>, settings: Arc<Settings>) -> Arc<Self> {
        Arc::new(Self {
            fleet,
            credentials,
            settings,
            runtime: Handle::current(),
            known: Mutex::default(),
            bases: Mutex::default(),
            epochs: AtomicU64::new(1),
        })
    }

    /// The catalog of a database, which begins to be read when it is first asked for.
    #[must_use]
    pub fn of(self: &Arc<Self>, database: &str) -> Arc<CatalogCell> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = known.get(database) {
            return Arc::clone(cell);
        }
        // Databases that nobody uses any more stop to be read: see the reader's loop.
        let cell = Arc::new(CatalogCell::default());
        known.insert(database.to_owned(), Arc::clone(&cell));
        let reader = Reader {
            catalogs: Arc::downgrade(self),
            cell: Arc::clone(&cell),
            database: database.to_owned(),
            fingerprint: None,
            used_at: Instant::now(),
            was_warned: false,
        };
        self.runtime.spawn(reader.run());
        cell
    }

    fn own(&self, database: &str) -> Own {
        Own {
            credentials: Arc::clone(&self.credentials),
            database: database.to_owned(),
            settings: Arc::clone(&self.settings),
            name: "pgrouting-catalog",
            timeout: QUESTION_TIMEOUT,
        }
    }

    /// The databases whose catalogs are read, and whether one holds.
    #[must_use]
    pub fn states(&self) -> Vec<(String, bool)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut states: Vec<_> = known.iter().map(|(name, cell)| (name.clone(), cell.epoch() != 0)).collect();
        states.sort();
        states
    }
}

impl Reader {
    async fn run(mut self) {
        loop {
            let Some(catalogs) = self.catalogs.upgrade() else { return };
            // The registry and this reader hold the cell; when no session does, nobody waits for it.
            if Arc::strong_count(&self.cell) > 2 {
                self.used_at = Instant::now();
            } else if self.forget(&catalogs) {
                return;
            }
            if !self.cell.is_wanted() {
                drop(catalogs);
                tokio::select! {
                    () = sleep(RETRY_PAUSE) => {}
                    () = self.cell.hurried() => {}
                }
                continue;
            }
            let config = catalogs.fleet.view().active.clone();
            let pause = match timeout(QUESTION_TIMEOUT, self.look(&catalogs)).await {
                Ok(Ok(true)) => config.config.split.catalog_interval.get(),
                Ok(Ok(false)) => Duration::ZERO,
                Ok(Err(error)) => self.fail(&error.to_string()),
                Err(_) => self.fail("no answer in time"),
            };
            drop(catalogs);
            if !pause.is_zero() {
                tokio::select! {
                    () = sleep(pause) => {}
                    () = self.cell.hurried() => {
                        if self.cell.epoch() != 0 {
                            sleep(LOOK_PAUSE).await;
                        }
                    }
                }
            }
        }
    }

    /// Leaves the registry, unless somebody has just come.
    fn forget(&self, catalogs: &Catalogs) -> bool {
        if self.used_at.elapsed() < KEPT_FOR {
            return false;
        }
        let mut known = catalogs.known.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::strong_count(&self.cell) > 2 {
            return false;
        }
        known.remove(&self.database);
        true
    }

    fn fail(&mut self, error: &str) -> Duration {
        if std::mem::replace(&mut self.was_warned, true) {
            debug!(database = self.database, error, "the catalog cannot be read");
        } else {
            warn!(
                database = self.database,
                error, "the catalog cannot be read: its reads stay on the primary"
            );
        }
        RETRY_PAUSE
    }

    /// Reads a snapshot where the catalog has changed. Tells whether one holds now.
    async fn look(&mut self, catalogs: &Catalogs) -> Result<bool, ConnectError> {
        let view = catalogs.fleet.view();
        let primary =
            view.topology.primary.and_then(|index| view.pools.get(index)).map(|pool| pool.endpoint.clone());
        let Some(primary) = primary else { return Err(ConnectError::Protocol("no primary is known")) };
        // Closed after each look: a connection that is kept would be in the way of whoever drops the database.
        let mut connection = catalogs.own(&self.database).connect(&primary).await?;
        let looked = self.look_with(catalogs, &mut connection).await;
        connection.close();
        looked
    }

    async fn look_with(
        &mut self,
        catalogs: &Catalogs,
        connection: &mut ServerConnection,
    ) -> Result<bool, ConnectError> {
        let view = catalogs.fleet.view();
        let revisions = self.cell.revisions();
        let fingerprint = connection.run(FINGERPRINT).await?;
        let split = view.active.config.split.clone();
        let own =
            format!("{:?}{:?}{:?}", split.primary_functions, split.read_functions, split.primary_tables);
        let fingerprint =
            fingerprint.into_iter().flatten().flatten().chain([own]).collect::<Vec<_>>().join(",");
        if self.cell.epoch() != 0 && self.fingerprint.as_ref() == Some(&fingerprint) {
            return Ok(true);
        }
        connection.run(LIMITS).await?;
        let base = base(catalogs, connection).await?;
        let mut answers = Vec::new();
        for sql in queries(connection.major_version()) {
            answers.push(connection.run(&sql).await?);
        }
        let epoch = catalogs.epochs.fetch_add(1, Ordering::Relaxed);
        let version = connection.major_version() * 10_000;
        let catalog = tokio::task::spawn_blocking(move || {
            learn(&findings(version, answers, &split), Some(&base), epoch)
        });
        let Ok(catalog) = catalog.await else {
            return Err(ConnectError::Protocol("the catalog is not understood"));
        };
        debug!(database = self.database, names = catalog.names.len(), epoch, "the catalog was read");
        self.was_warned = false;
        self.fingerprint = Some(fingerprint);
        Ok(self.cell.publish(catalog, revisions))
    }
}

/// What comes with PostgreSQL of this connection's version; it is asked for once.
async fn base(catalogs: &Catalogs, connection: &mut ServerConnection) -> Result<Arc<Catalog>, ConnectError> {
    let version = connection.major_version();
    let bases = || catalogs.bases.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(base) = bases().get(&version) {
        return Ok(Arc::clone(base));
    }
    let mut answers = Vec::new();
    for sql in builtin_queries() {
        answers.push(connection.run(&sql).await?);
    }
    let learnt = tokio::task::spawn_blocking(move || {
        learn(&findings(version * 10_000, answers, &SplitConfig::default()), None, 0)
    });
    let Ok(base) = learnt.await else { return Err(ConnectError::Protocol("the catalog is not understood")) };
    let base = Arc::new(base);
    bases().insert(version, Arc::clone(&base));
    Ok(base)
}

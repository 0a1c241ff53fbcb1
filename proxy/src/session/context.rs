//! What all sessions of the process share, and what those of one thread do.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::audit::Audit;
use crate::auth::guesses::Guesses;
use crate::auth::users::Credentials;
use crate::cancel::{CancelRegistry, CancelVerdict};
use crate::catalogs::Catalogs;
use crate::classify::cache::Verdicts;
use crate::console::sources::Sources;
use crate::error::ErrorKind;
use crate::fleet::Fleet;
use crate::metrics::counter::Counter;
use crate::metrics::pools::Pools;
use crate::metrics::{ROUTES, WorkerMetrics};
use crate::mirror::hub::Hub;
use crate::peers::Peers;
use crate::roles::Roles;
use crate::roster::{Alarm, Roster};
use crate::route::{Access, Refusal, Why};
use crate::server::connection::{Identities, Parameters, WorkerId};
use crate::server::prepared::Statements;
use crate::server::settings::SettingsRegistry;
use crate::session::state::Databases;
use crate::sites::Sites;
use crate::tls::store::TlsStore;
use crate::transaction::PinReason;

/// Clients that are asked to leave in one second when the process stops, so that those who take them over are not
/// stormed.
const LEAVING_PER_SECOND: u64 = 1000;

/// The longest that an idle client may be left alone after the process was told to stop.
const LEAVING_WITHIN: Duration = Duration::from_secs(10);

/// What all sessions share.
#[derive(Debug)]
pub struct Context {
    /// The servers.
    pub fleet: Arc<Fleet>,
    /// Where this proxy is.
    pub zone: Option<String>,
    /// The users.
    pub credentials: Arc<Credentials>,
    /// The stored verifiers of roles, for pass-through.
    pub roles: Roles,
    /// The keys that clients cancel with.
    pub cancels: Arc<CancelRegistry>,
    /// Who is connected.
    pub roster: Arc<Roster>,
    /// The other proxies of the pool.
    pub peers: Peers,
    /// The prepared statements.
    pub statements: Statements,
    /// The catalogs of the databases in use.
    pub catalogs: Arc<Catalogs>,
    /// What texts were judged to be.
    pub verdicts: Arc<Verdicts>,
    /// The settings that clients have.
    pub settings: Arc<SettingsRegistry>,
    /// Where records for the mirror are left.
    pub mirror: Arc<Hub>,
    /// What sessions of one database share.
    pub databases: Databases,
    /// What clients do that ties them to a connection.
    pub audit: Arc<Audit>,
    /// Where clients read after they have written.
    pub sites: Arc<Sites>,
    /// What is counted of each role and database.
    pub pools: Arc<Pools>,
    /// Roles and databases.
    pub identities: Arc<Identities>,
    /// What servers report at a login.
    pub greetings: Greetings,
    /// What the console shows and changes.
    pub console: Arc<Sources>,
    /// TLS with clients and servers.
    pub tls: Arc<TlsStore>,
    /// Who has given wrong passwords lately.
    pub guesses: Mutex<Guesses>,
    /// What mock salts are made of.
    pub secret: [u8; 32],
}

/// One serving thread.
#[derive(Debug)]
pub struct Worker {
    /// Its number.
    pub id: WorkerId,
    /// What it counts.
    pub metrics: Arc<WorkerMetrics>,
    /// Raised before any token is cancelled; costs less to look at.
    pub alarm: Arc<Alarm>,
    /// Cancelled when clients have to leave at their transaction boundaries.
    pub drain: CancellationToken,
    /// Cancelled when they have to leave at once.
    pub kill: CancellationToken,
}

impl Worker {
    /// Whether the process is being stopped, or some session has to leave.
    #[must_use]
    pub fn is_alarmed(&self) -> bool {
        self.alarm.is_raised()
    }

    /// Ends when an idle session has to leave: some time after the thread began to drain, by lot, so that not all
    /// leave at once. `clients` is how many there are.
    pub async fn drained(&self, clients: u64) {
        self.drain.cancelled().await;
        let span =
            Duration::from_millis(clients.saturating_mul(1000) / LEAVING_PER_SECOND).min(LEAVING_WITHIN);
        let share = f64::from(rand::random::<u16>()) / f64::from(u16::MAX);
        tokio::time::sleep(span.mul_f64(share)).await;
    }
}

impl WorkerMetrics {
    /// Counts an error that the proxy made.
    pub fn count_error(&self, kind: ErrorKind) {
        count_one(&self.errors, &ErrorKind::ALL, kind);
    }

    /// Counts a transaction by where it went and why.
    pub fn count_route(&self, is_at_primary: bool, why: Why) {
        let routes = if is_at_primary { &self.routes_primary } else { &self.routes_replica };
        routes.count(why.index());
    }

    /// Counts a request that a replica refused and that runs on the primary.
    pub fn count_rescue(&self, refusal: Refusal) {
        count_one(&self.rescued, &Refusal::ALL, refusal);
    }

    /// Counts a client's cancel request.
    pub fn count_cancel(&self, verdict: CancelVerdict) {
        count_one(&self.cancel_requests, &CancelVerdict::ALL, verdict);
    }

    /// Counts a session that keeps its connection for another reason than before, if for any.
    pub fn count_pin(&self, before: Option<PinReason>, now: Option<PinReason>) {
        let index = |reason| PinReason::ALL.iter().position(|known| Some(*known) == reason);
        if let Some(counter) = index(before).and_then(|index| self.pinned.get(index)) {
            counter.take_one();
        }
        if let Some(index) = index(now) {
            self.pinned.get(index).into_iter().chain(self.pins.get(index)).for_each(Counter::add_one);
        }
    }
}

/// One counter for each reason that there is.
const _: () = assert!(Why::COUNT == ROUTES);

/// Counts one of several kinds, by its place among all.
fn count_one<T: PartialEq, const N: usize>(counters: &[Counter; N], all: &[T; N], kind: T) {
    let index = all.iter().position(|known| *known == kind);
    if let Some(counter) = index.and_then(|index| counters.get(index)) {
        counter.add_one();
    }
}

/// The values that a server reports to a new session, by identity and the settings asked for, so that a login needs
/// no server connection when an equal one came before.
#[derive(Debug, Default)]
pub struct Greetings {
    known: Mutex<HashMap<GreetingKey, (Instant, Arc<Greeting>)>>,
}

/// What a server reports to a new session.
#[derive(Debug)]
pub struct Greeting {
    /// The values that a client is told.
    pub parameters: Parameters,
    /// The settings asked for as the server spells them, but for the application's name.
    pub settings: BTreeMap<String, String>,
}

/// Identity, the port that the client came in at (a standby reports other values), and the settings but for the
/// application's name.
type GreetingKey = (u32, Access, Vec<(String, String)>);

/// Greetings that are kept.
const GREETINGS_MAX: usize = 1024;

/// How long a greeting counts: servers are upgraded, and defaults of roles change.
const GREETING_FRESH: Duration = Duration::from_secs(60);

impl Greetings {
    /// What a session of this kind was told within the last minute.
    #[must_use]
    pub fn find(&self, key: &GreetingKey) -> Option<Arc<Greeting>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(key)
            .filter(|(at, _)| at.elapsed() < GREETING_FRESH)
            .map(|(_, greeting)| Arc::clone(greeting))
    }

    /// Keeps what a session of this kind is told.
    pub fn keep(&self, key: GreetingKey, greeting: Arc<Greeting>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= GREETINGS_MAX {
            known.clear();
        }
        known.insert(key, (Instant::now(), greeting));
    }
}

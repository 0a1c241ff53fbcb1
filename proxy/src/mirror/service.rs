//! The thread that runs the copies: follows the document, opens connections to the mirror, and runs each client's units
//! one after the other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgrouting_contract::mirror::{MirrorConfig, MirrorStatements};
use pgrouting_contract::stage::Stage;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::auth::users::Credentials;
use crate::fleet::View;
use crate::mirror::hub::{Hub, Next, Stream};
use crate::mirror::ledger::locked;
use crate::mirror::loss::Loss;
use crate::mirror::replay::{Answered, Failure, give_settings, run};
use crate::mirror::rewrite::{RolledBack, may_set, rolled_back, texts};
use crate::mirror::unit::Unit;
use crate::pool::lease::Grant;
use crate::pool::lease::{Lease, Slot};
use crate::pool::limits::{PoolLimits, SWEEP_INTERVAL};
use crate::pool::server_pool::{Request, ServerPool, Taken};
use crate::server::connect::{ConnectError, Want, connect};
use crate::server::connection::{Identities, Identity, WorkerId};
use crate::server::endpoint::Endpoint;
use crate::server::settings::Settings;
use crate::tls::servers::ServerTls;
use crate::tls::store::Side;

/// How often the breaker is looked at.
pub const TICK: Duration = Duration::from_millis(100);

/// What has come in that time is looked at together: whoever brings it need not wake the thread then.
const REST: Duration = Duration::from_millis(1);

/// The thread's number among those that have connections.
const WORKER: WorkerId = WorkerId(u16::MAX - 1);

/// An idle connection to the mirror is closed after that long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest wait for the mirror to accept a connection and a login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest that cleaning a connection, or cancelling what it runs, may take.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(5);

/// What the thread needs of the others.
#[derive(Debug)]
pub struct Service {
    /// Where sessions leave their records.
    pub hub: Arc<Hub>,
    /// The document in effect.
    pub views: watch::Receiver<Arc<View>>,
    /// How to log in.
    pub credentials: Arc<Credentials>,
    /// Roles and databases.
    pub identities: Arc<Identities>,
    /// No settings.
    pub settings: Arc<Settings>,
    /// TLS with the mirror.
    pub tls: Arc<Side<ServerTls>>,
}

/// A mirror that is in effect.
#[derive(Debug)]
struct Target {
    pool: Arc<ServerPool>,
    config: Mutex<MirrorConfig>,
    /// Cancelled when it is not in effect any more.
    off: CancellationToken,
}

/// What the tasks share that run units.
struct Shared {
    hub: Arc<Hub>,
    credentials: Arc<Credentials>,
    identities: Arc<Identities>,
    settings: Arc<Settings>,
    tls: Arc<Side<ServerTls>>,
    target: Mutex<Option<Arc<Target>>>,
}

impl Service {
    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let shared = Arc::new(Shared {
            hub: self.hub,
            credentials: self.credentials,
            identities: self.identities,
            settings: self.settings,
            tls: self.tls,
            target: Mutex::default(),
        });
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut swept = Instant::now();
        let mut rested_at = swept;
        shared.follow(&self.views.borrow_and_update());
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                changed = self.views.changed() => match changed {
                    Ok(()) => shared.follow(&self.views.borrow_and_update()),
                    Err(_) => break,
                },
                streams = async {
                    sleep_until(rested_at).await;
                    shared.hub.ready().await
                } => {
                    for stream in streams {
                        tokio::spawn(Arc::clone(&shared).drain(stream));
                    }
                    rested_at = Instant::now() + REST;
                }
                _ = ticks.tick(), if shared.target().is_some() => {
                    shared.hub.tick();
                    if swept.elapsed() >= SWEEP_INTERVAL
                        && let Some(target) = shared.target()
                    {
                        swept = Instant::now();
                        target.pool.sweep();
                    }
                }
            }
        }
        shared.switch_off();
    }
}

impl Shared {
    fn target(&self) -> Option<Arc<Target>> {
        locked(&self.target).clone()
    }

    /// Takes the document in effect.
    fn follow(&self, view: &View) {
        let config = &view.active.config;
        let wanted =
            config.mirror.as_ref().filter(|mirror| config.stage == Stage::Mirror && mirror.percent > 0);
        let Some(wanted) = wanted else {
            self.switch_off();
            return;
        };
        if let Some(target) = self.target() {
            let mut known = locked(&target.config);
            if is_same(&known, wanted) {
                known.clone_from(wanted);
                target.pool.set_limits(limits_of(wanted));
                self.hub.set(Some(wanted));
                self.note_share(wanted);
                return;
            }
        }
        self.switch_off();
        let endpoint = Endpoint { host: wanted.host.clone(), port: wanted.port, tls: Arc::clone(&self.tls) };
        info!(%endpoint, statements = ?wanted.statements, "transactions are copied");
        self.hub.reset();
        self.hub.ledger.begin(endpoint.to_string());
        let target = Target {
            pool: ServerPool::new("mirror".to_owned(), endpoint, limits_of(wanted)),
            config: Mutex::new(wanted.clone()),
            off: CancellationToken::new(),
        };
        *locked(&self.target) = Some(Arc::new(target));
        self.hub.set(Some(wanted));
        self.note_share(wanted);
    }

    /// Where only some sessions' writes are copied the two databases are not the same.
    fn note_share(&self, config: &MirrorConfig) {
        if config.statements == MirrorStatements::All && config.percent < 100 {
            self.hub.ledger.diverge();
        }
    }

    fn switch_off(&self) {
        self.hub.set(None);
        if let Some(target) = locked(&self.target).take() {
            info!(endpoint = %target.pool.endpoint, "nothing is copied any more");
            target.off.cancel();
            target.pool.retire();
        }
    }

    /// Runs what a stream has, one unit after the other.
    async fn drain(self: Arc<Self>, stream: Arc<Stream>) {
        loop {
            match self.hub.next(&stream) {
                Next::Unit(unit) => self.serve(&stream, &unit).await,
                Next::Nothing => return,
                Next::Over => {
                    locked(&stream.kept).take();
                    return;
                }
            }
        }
    }

    async fn serve(&self, stream: &Stream, unit: &Unit) {
        let outcome = match self.target() {
            None => Err(Loss::Off),
            Some(target) => tokio::select! {
                biased;
                () = target.off.cancelled() => Err(Loss::Off),
                outcome = self.attempt(&target, stream, unit) => outcome,
            },
        };
        match outcome {
            Ok(answers) => {
                self.compare(unit, &answers);
                self.hub.ledger.mirror();
            }
            Err(loss) => {
                // What the session has there is not what it should be.
                locked(&stream.kept).take();
                self.hub.lose(unit, loss);
            }
        }
    }

    /// Runs a unit within its time.
    async fn attempt(
        &self,
        target: &Arc<Target>,
        stream: &Stream,
        unit: &Unit,
    ) -> Result<Vec<Answered>, Loss> {
        let deadline = unit.offered_at + locked(&target.config).transaction_timeout.get();
        let is_late = || (Instant::now() >= deadline).then_some(Loss::Deadline);
        if let Some(loss) = unfit(unit).or_else(|| self.hub.admits()).or_else(is_late) {
            return Err(loss);
        }
        let kept = locked(&stream.kept).take();
        let is_opening = AtomicBool::new(false);
        let mut lease = match (kept, unit.needs_state) {
            (Some(lease), _) if Arc::ptr_eq(lease.pool(), &target.pool) => lease,
            (_, true) => return Err(Loss::State),
            (_, false) => match timeout_at(deadline, self.lease(target, unit, &is_opening)).await {
                Ok(Ok(lease)) => lease,
                Ok(Err(error)) => {
                    debug!(%error, "the mirror cannot be reached");
                    self.hub.fail(error.to_string());
                    return Err(Loss::Connection);
                }
                Err(_) => {
                    // Where all connections are busy it is not known to be dead.
                    if is_opening.load(Ordering::Relaxed) {
                        self.hub.fail("no connection could be opened in time".to_owned());
                    }
                    return Err(Loss::Deadline);
                }
            },
        };
        let attempt = async {
            give_settings(&mut lease, unit).await?;
            run(&mut lease, unit).await
        };
        match timeout_at(deadline, attempt).await {
            Ok(Ok(answers)) => {
                self.hub.succeed();
                self.put_back(stream, unit, lease).await;
                Ok(answers)
            }
            Ok(Err(failure)) => {
                debug!(%failure, "a transaction cannot be run at the mirror");
                let is_settings = matches!(failure, Failure::Settings(_));
                if is_settings {
                    self.hub.ledger.note(failure.to_string());
                } else {
                    self.hub.fail(failure.to_string());
                }
                Err(if is_settings { Loss::Settings } else { Loss::Connection })
            }
            Err(_) => {
                self.hub.fail("a transaction took too long".to_owned());
                let cancel = Arc::clone(&lease.cancel);
                drop(lease);
                // What it still runs there is nobody's any more.
                let _ = timeout(CLEAN_TIMEOUT, cancel.request()).await;
                Err(Loss::Deadline)
            }
        }
    }

    /// A connection for a unit: an idle one, a new one, or one that becomes free. Tells while a new one is being opened.
    async fn lease(
        &self,
        target: &Target,
        unit: &Unit,
        is_opening: &AtomicBool,
    ) -> Result<Lease, ConnectError> {
        let config = locked(&target.config).clone();
        let (user, name) = if config.user.is_some() {
            let user = self.credentials.mirror();
            let name = user.as_ref().map(|user| user.name.clone());
            (user, name.unwrap_or_default())
        } else {
            (self.credentials.user(&unit.identity.user), unit.identity.user.clone())
        };
        let user = user.ok_or(ConnectError::Protocol("the mirror's user is not known"))?;
        let database = config.database.as_ref().unwrap_or(&unit.identity.database);
        let identity = self.identities.intern(&name, database, &self.settings, false);
        loop {
            let request = Request { identity: &identity, settings: &unit.settings, worker: WORKER };
            let granted = match target.pool.take(request) {
                Taken::Connection(lease) => Grant::Connection(lease),
                Taken::Slot(slot) => Grant::Slot(slot),
                Taken::Queued(granted) => {
                    granted.await.map_err(|_| ConnectError::Protocol("the mirror was changed"))?
                }
            };
            match granted {
                Grant::Connection(mut lease) => {
                    if lease.is_fit() {
                        return Ok(lease);
                    }
                }
                Grant::Slot(slot) => {
                    is_opening.store(true, Ordering::Relaxed);
                    return open(target, &identity, &user, slot).await;
                }
            }
        }
    }

    /// The unit is over: the connection goes back clean, or stays the session's.
    async fn put_back(&self, stream: &Stream, unit: &Unit, mut lease: Lease) {
        if unit.keeps {
            *locked(&stream.kept) = Some(lease);
            return;
        }
        if !lease.is_at_rest() {
            return;
        }
        if unit.touches || unit.needs_state || !unit.is_tracked {
            if !matches!(timeout(CLEAN_TIMEOUT, lease.run("DISCARD ALL")).await, Ok(Ok(_))) {
                return;
            }
            lease.prepared.clear();
            lease.settings = Arc::clone(&lease.identity.settings);
        }
        lease.give_back();
    }

    fn compare(&self, unit: &Unit, answers: &[Answered]) {
        for (step, answered) in unit.steps.iter().zip(answers) {
            let Some((answer, took)) = answered else { continue };
            let sql = texts(step).first().copied().unwrap_or_default();
            self.hub.ledger.compare(sql, (&step.answer, step.took), (answer, *took));
        }
    }
}

/// Why a unit cannot be run as it is to be; `None` where it can.
fn unfit(unit: &Unit) -> Option<Loss> {
    match unit.statements {
        MirrorStatements::All => None,
        // What protects the mirror would be taken back.
        MirrorStatements::ReadsOnly => {
            let is_set = unit.settings.value("default_transaction_read_only").is_some();
            (is_set || unit.steps.iter().any(may_set)).then_some(Loss::Unsupported)
        }
        // What the session leaves behind would be rolled back.
        MirrorStatements::RolledBackWrites if unit.needs_state || unit.keeps => Some(Loss::State),
        MirrorStatements::RolledBackWrites => {
            let is_unfit = unit.steps.iter().any(|step| rolled_back(step) == RolledBack::Unfit);
            is_unfit.then_some(Loss::Unsupported)
        }
    }
}

async fn open(
    target: &Target,
    identity: &Arc<Identity>,
    user: &Arc<crate::auth::users::User>,
    slot: Slot,
) -> Result<Lease, ConnectError> {
    let limits = target.pool.limits();
    let connection = connect(Want {
        endpoint: &target.pool.endpoint,
        identity,
        user,
        parameters: &limits.parameters,
        home: WORKER,
        timeout: limits.connect_timeout,
        is_told: false,
    })
    .await?;
    Ok(slot.fill(connection)?)
}

/// Whether nothing has changed but shares and limits.
fn is_same(one: &MirrorConfig, other: &MirrorConfig) -> bool {
    let essence = |config: &MirrorConfig| MirrorConfig {
        percent: 0,
        salt: 0,
        queue_bytes: 0,
        budget_bytes: 0,
        max_connections: 0,
        transaction_timeout: other.transaction_timeout,
        ..config.clone()
    };
    essence(one) == essence(other)
}

fn limits_of(config: &MirrorConfig) -> PoolLimits {
    let mut parameters: BTreeMap<_, _> = config.parameters.clone();
    parameters.entry("application_name".to_owned()).or_insert_with(|| "pgrouting-mirror".to_owned());
    if config.statements == MirrorStatements::ReadsOnly {
        // What is a read here may be none there.
        parameters.insert("default_transaction_read_only".to_owned(), "on".to_owned());
    }
    PoolLimits {
        connections_max: config.max_connections,
        per_user_max: None,
        idle_timeout: IDLE_TIMEOUT,
        lifetime: None,
        connect_timeout: CONNECT_TIMEOUT,
        parameters: parameters.into_iter().collect(),
    }
}

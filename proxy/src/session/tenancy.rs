//! A session's claim on the servers: chooses one, and takes, opens or waits for a connection, within one deadline.

use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::config::{PinPolicy, Traffic};
use pgrouting_contract::stage::Stage;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{ClientError, ErrorKind};
use crate::fleet::View;
use crate::metrics::WorkerMetrics;
use crate::metrics::pools::PoolMetrics;
use crate::pool::lease::{Grant, Lease, Slot};
use crate::pool::server_pool::{Request, Taken};
use crate::route::{Access, Aim, Route, Side, route};
use crate::server::connect::{ConnectError, Want, connect};
use crate::server::connection::Identity;
use crate::server::settings::Settings;
use crate::session::context::{Context, Worker};
use crate::session::end;
use crate::session::refusal::Limits;
use crate::wire::backend::error_field;
use crate::wire::sqlstate;

/// The pause before a server that could not be reached is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Why there is no connection.
#[derive(Debug)]
pub enum Refusal {
    /// An error of ours; the session may go on.
    Proxy(ClientError),
    /// The server's own refusal, which ends the session as it would without a proxy.
    Server(Vec<u8>),
}

/// Who a session is towards the servers, and what it knows of them.
#[derive(Debug)]
pub struct Tenancy {
    /// What all sessions share.
    pub context: Arc<Context>,
    /// The thread that it runs on.
    pub worker: Arc<Worker>,
    /// Tells when the view changes.
    views: watch::Receiver<Arc<View>>,
    /// The latest view that the session has seen.
    view: Arc<View>,
    /// Whether requests wait, by that view.
    is_paused: bool,
    /// What the client may ask for by that view.
    pub limits: Limits,
    /// Role and database.
    pub identity: Arc<Identity>,
    /// What this thread counts of its pool.
    pub counts: Arc<PoolMetrics>,
    /// Where its statements may run.
    pub access: Access,
    /// What the transaction at hand wants of the servers.
    pub aim: Aim,
    /// The server of the latest lease, by its index in the view.
    server: usize,
}

/// What a server's pool answered.
#[derive(Debug)]
pub struct Asked {
    view: Arc<View>,
    index: usize,
    taken: Taken,
}

impl Tenancy {
    /// The claim of a session that begins.
    #[must_use]
    pub fn new(context: Arc<Context>, worker: Arc<Worker>, identity: Arc<Identity>, access: Access) -> Self {
        let view = context.fleet.view();
        // For the login; every transaction decides anew.
        let side = match access {
            Access::ReadOnly => Side::Replica,
            Access::Routed if view.active.config.stage >= Stage::Split => Side::Any,
            Access::Routed | Access::Primary => Side::Primary,
        };
        Self {
            aim: Aim { side, ..Aim::PRIMARY },
            server: 0,
            views: context.fleet.subscribe(),
            limits: limits_of(&view),
            is_paused: is_paused(&view, &identity),
            view,
            counts: context.pools.of(&identity.user, &identity.database, worker.id.0),
            context,
            worker,
            identity,
            access,
        }
    }

    /// The view that the session has seen last.
    #[must_use]
    pub const fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Whether requests wait that need a connection.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether the latest lease is at the primary.
    #[must_use]
    pub fn is_at_primary(&self) -> bool {
        self.view.topology.primary == Some(self.server)
    }

    /// Goes back to a lease that was taken earlier.
    pub fn stand_at(&mut self, lease: &Lease) {
        let pools = &self.view.pools;
        // A server that has left the document is none of them.
        self.server = pools.iter().position(|pool| Arc::ptr_eq(pool, lease.pool())).unwrap_or(usize::MAX);
    }

    /// Has the server of the latest lease looked at: something is wrong with it.
    pub fn hurry(&self) {
        hurry(&self.view, self.server);
    }

    /// The name of the server of the latest lease.
    #[must_use]
    pub fn server_name(&self) -> Arc<str> {
        self.view.pools.get(self.server).map_or_else(|| "".into(), |pool| Arc::clone(&pool.name))
    }

    /// Takes the latest view; costs no lock while there is none.
    pub fn look_at_view(&mut self) {
        if self.views.has_changed().unwrap_or(false) {
            self.take_view();
        }
    }

    fn take_view(&mut self) {
        self.view = Arc::clone(&self.views.borrow_and_update());
        self.limits = limits_of(&self.view);
        self.is_paused = is_paused(&self.view, &self.identity);
    }

    /// The usual case: a connection is idle. Else gives what the server's pool answered, if there is a server.
    pub fn lease_at_once(&mut self, settings: &Arc<Settings>) -> Result<Lease, Option<Asked>> {
        self.look_at_view();
        let Some((index, taken)) = self.take(settings) else { return Err(None) };
        match taken {
            Taken::Connection(lease) => {
                self.server = index;
                self.fit(lease).ok_or(None)
            }
            taken => Err(Some(Asked { view: Arc::clone(&self.view), index, taken })),
        }
    }

    /// Waits for a connection, or opens one. Dropped, it leaves its place in line.
    pub async fn lease_in_time(
        &mut self,
        settings: &Arc<Settings>,
        asked: Option<Asked>,
    ) -> Result<Lease, Refusal> {
        let counted = CountedWait::begin(Arc::clone(&self.worker.metrics), Arc::clone(&self.counts));
        // Boxed, so that the rare wait does not make every session larger.
        Box::pin(self.wait(settings, counted.began, asked)).await
    }

    /// Asks the server of this moment for a connection; `None` where there is no such server.
    fn ask(&mut self, settings: &Arc<Settings>) -> Option<Asked> {
        self.look_at_view();
        let (index, taken) = self.take(settings)?;
        Some(Asked { view: Arc::clone(&self.view), index, taken })
    }

    fn take(&self, settings: &Arc<Settings>) -> Option<(usize, Taken)> {
        if self.is_paused {
            return None;
        }
        let Route::Server(index) = choose(&self.view, &self.aim, &self.context) else { return None };
        Some((index, self.view.pools.get(index)?.take(self.wanted(settings))))
    }

    async fn wait(
        &mut self,
        settings: &Arc<Settings>,
        mut began: Instant,
        first: Option<Asked>,
    ) -> Result<Lease, Refusal> {
        let mut asked = first;
        let mut trouble = None;
        loop {
            let Some(Asked { view, index, taken }) = asked.take().or_else(|| self.ask(settings)) else {
                self.await_server(&mut began, &mut trouble).await?;
                continue;
            };
            self.server = index;
            let deadline = began + view.active.config.pooling.checkout_timeout.get();
            let taken = match taken {
                Taken::Connection(lease) => Ok(lease),
                Taken::Slot(slot) => Err(slot),
                Taken::Queued(granted) => match timeout_at(deadline, granted).await {
                    Ok(Ok(Grant::Connection(lease))) => Ok(lease),
                    Ok(Ok(Grant::Slot(slot))) => Err(slot),
                    // The server has left the document: another one is asked.
                    Ok(Err(_)) => continue,
                    Err(_) => {
                        return Err(trouble.unwrap_or_else(|| timed_out(&view, &self.aim, &self.context)));
                    }
                },
            };
            self.look_at_view();
            if self.is_paused {
                // Who waits behind it will see that too.
                continue;
            }
            match taken {
                Ok(lease) => {
                    if let Some(lease) = self.fit(lease) {
                        return Ok(lease);
                    }
                }
                Err(slot) => match self.open(&view, index, slot).await {
                    Ok(lease) => {
                        // The pool has it in its list: whoever pauses waits for it, or is seen here.
                        self.look_at_view();
                        if !self.is_paused {
                            return Ok(lease);
                        }
                    }
                    Err(error) => {
                        let said = self.judge(&view, index, error)?;
                        if Instant::now() + RETRY_PAUSE >= deadline {
                            return Err(said);
                        }
                        trouble = Some(said);
                        if self.aim.side == Side::Primary {
                            sleep(RETRY_PAUSE).await;
                        } else if self.aim.avoided & (1 << (index % 64)) == 0 {
                            // Another one may be there.
                            self.aim.avoided |= 1 << (index % 64);
                        } else {
                            sleep(RETRY_PAUSE).await;
                        }
                    }
                },
            }
        }
    }

    /// Waits for a view that may have a server: to the deadline, which only begins where nothing is paused.
    async fn await_server(
        &mut self,
        began: &mut Instant,
        trouble: &mut Option<Refusal>,
    ) -> Result<(), Refusal> {
        if self.is_paused {
            self.await_resume(*began).await?;
            *began = Instant::now();
            return Ok(());
        }
        let view = Arc::clone(&self.view);
        let pooling = &view.active.config.pooling;
        view.hurries.iter().for_each(|hurry| hurry.notify_one());
        let deadline = *began + pooling.checkout_timeout.get();
        let changed = timeout_at(deadline, self.views.changed()).await;
        // What was awaited counts as seen, so it has to be taken here.
        self.take_view();
        match changed {
            Ok(_) => Ok(()),
            Err(_) => Err(trouble.take().unwrap_or_else(|| timed_out(&view, &self.aim, &self.context))),
        }
    }

    /// Waits while the document pauses traffic, as long as whoever ordered it wants, or while the console pauses the
    /// database, no longer than the document allows.
    async fn await_resume(&mut self, began: Instant) -> Result<(), Refusal> {
        while self.is_paused {
            let config = &self.view.active.config;
            let changed = if config.pooling.traffic == Traffic::Paused {
                self.views.changed().await
            } else {
                let limit = config.console.clone().unwrap_or_default().pause_timeout;
                match timeout_at(began + limit.get(), self.views.changed()).await {
                    Ok(changed) => changed,
                    Err(_) => return Err(Refusal::Proxy(end::paused(&self.identity.database))),
                }
            };
            // What was awaited counts as seen, so it has to be taken here.
            self.take_view();
            changed.map_err(|_| Refusal::Proxy(end::shutdown()))?;
        }
        Ok(())
    }

    /// The connection on this thread, if it is still good; else it is closed.
    fn fit(&self, mut lease: Lease) -> Option<Lease> {
        // Another thread may not have looked at the socket lately.
        lease.was_idle_long |= lease.home != self.worker.id;
        // Asked before it is moved: a socket that was just registered anew has nothing reported yet.
        if !lease.is_fit() {
            return None;
        }
        if lease.home != self.worker.id {
            self.worker.metrics.moves.add_one();
            lease = lease.rehome(self.worker.id).ok()?;
        }
        Some(lease)
    }

    async fn open(&self, view: &View, index: usize, slot: Slot) -> Result<Lease, ConnectError> {
        let (Some(pool), Some(user)) =
            (view.pools.get(index), self.context.credentials.user(&self.identity.user))
        else {
            return Err(ConnectError::Login(crate::auth::answer::AnswerFault::NoSecret));
        };
        let limits = pool.limits();
        let connection = connect(Want {
            endpoint: &pool.endpoint,
            identity: &self.identity,
            user: &user,
            parameters: &limits.parameters,
            home: self.worker.id,
            timeout: limits.connect_timeout,
            is_told: true,
        })
        .await?;
        Ok(slot.fill(connection)?)
    }

    /// Whether to try again: gives what to say if the time runs out, or the refusal that is final.
    fn judge(&self, view: &View, index: usize, error: ConnectError) -> Result<Refusal, Refusal> {
        hurry(view, index);
        let name = view.pools.get(index).map(|pool| &*pool.name).unwrap_or_default();
        tracing::debug!(server = name, %error, "no connection could be opened");
        let is_transient = error.is_transient();
        match error {
            ConnectError::Refused(message) => {
                let is_full = error_field(&message, b'C') == Some(sqlstate::TOO_MANY_CONNECTIONS.as_bytes());
                if is_transient || is_full {
                    Ok(Refusal::Server(message))
                } else {
                    Err(Refusal::Server(message))
                }
            }
            ConnectError::Login(fault) => Err(Refusal::Proxy(
                ClientError::fatal(
                    ErrorKind::Server,
                    sqlstate::INVALID_AUTHORIZATION,
                    format!("cannot log in to server \"{name}\" as \"{}\": {fault}", self.identity.user),
                )
                .with_hint(
                    "The user may have been removed from the pool, or its password changed: log in again.",
                ),
            )),
            ConnectError::Unreachable(_)
            | ConnectError::Tls(_)
            | ConnectError::Timeout(_)
            | ConnectError::Protocol(_) => Ok(Refusal::Proxy(
                ClientError::error(
                    ErrorKind::Server,
                    sqlstate::CANNOT_CONNECT,
                    format!("cannot connect to server \"{name}\""),
                )
                .with_hint("The proxy's log and its report say why."),
            )),
        }
    }

    fn wanted<'a>(&'a self, settings: &'a Arc<Settings>) -> Request<'a> {
        Request { identity: &self.identity, settings, worker: self.worker.id }
    }
}

/// A wait for a connection, which is over, and counted, when this is dropped: whoever gives up has waited too.
struct CountedWait {
    metrics: Arc<WorkerMetrics>,
    counts: Arc<PoolMetrics>,
    began: Instant,
}

impl CountedWait {
    fn begin(metrics: Arc<WorkerMetrics>, counts: Arc<PoolMetrics>) -> Self {
        counts.waiting.add_one();
        Self { metrics, counts, began: Instant::now() }
    }
}

impl Drop for CountedWait {
    fn drop(&mut self) {
        let waited = self.began.elapsed();
        self.counts.waiting.take_one();
        self.counts.waits.add_one();
        self.counts.wait_micros.add(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX));
        self.metrics.arms.waits.count(waited);
    }
}

/// Asks for a probe of a server before its time.
fn hurry(view: &View, index: usize) {
    if let Some(hurry) = view.hurries.get(index) {
        hurry.notify_one();
    }
}

/// Whether requests wait.
fn is_paused(view: &View, identity: &Identity) -> bool {
    view.active.config.pooling.traffic == Traffic::Paused || view.halts.is_paused(&identity.database)
}

fn limits_of(view: &View) -> Limits {
    let pooling = &view.active.config.pooling;
    Limits {
        message_bytes_max: usize::try_from(pooling.max_message_bytes).unwrap_or(usize::MAX),
        prepared_bytes_max: usize::try_from(pooling.max_prepared_bytes).unwrap_or(usize::MAX),
        slow: Some(pooling.slow_query_threshold.get()).filter(|slow| !slow.is_zero()),
        rejects_pins: pooling.pin_policy == PinPolicy::Reject,
    }
}

fn choose(view: &View, aim: &Aim, context: &Context) -> Route {
    let outstanding = |index: usize| {
        view.pools.get(index).map_or(0, |pool| {
            let counts = pool.counts();
            counts.active + counts.waiting
        })
    };
    let replayed = |index: usize| view.positions.get(index).map_or(0, |position| position.lsn());
    let zone = context.zone.as_deref().filter(|_| view.active.config.split.prefer_zone);
    route(&view.topology, aim, zone, outstanding, replayed, rand::random)
}

fn timed_out(view: &View, aim: &Aim, context: &Context) -> Refusal {
    let waited = view.active.config.pooling.checkout_timeout;
    let (sqlstate, message, hint) = match choose(view, aim, context) {
        Route::Server(_) => (
            sqlstate::TOO_MANY_CONNECTIONS,
            format!("no server connection became free in {waited}"),
            "Shorten transactions, or raise pooling.maxServerConnections or pooling.checkoutTimeout.",
        ),
        Route::NoPrimary => (
            sqlstate::CANNOT_CONNECT_NOW,
            format!("no primary was found in {waited}"),
            "The proxy's report says what each server answered.",
        ),
        Route::NoReplica => (
            sqlstate::CANNOT_CONNECT_NOW,
            format!("no replica was found in {waited}"),
            "The proxy's report says what each server answered.",
        ),
    };
    Refusal::Proxy(ClientError::error(ErrorKind::Limit, sqlstate, message).with_hint(hint))
}

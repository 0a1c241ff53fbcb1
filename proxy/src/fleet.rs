//! The servers of the pool as they are served now: for each its connections and its monitor.
//!
//! A new document is applied as a difference: a server that stays at its address keeps its connections, whatever else
//! changed about it. Sessions see one immutable [`View`] at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pgrouting_contract::config::{ProxyConfig, ServerConfig};
use pgrouting_contract::report::ServerReport;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::info;

use crate::auth::users::Credentials;
use crate::config::ActiveConfig;
use crate::fleet::halts::Halts;
use crate::fleet::members::{Member, Members};
use crate::monitor::{Monitor, Observation};
use crate::pool::limits::PoolLimits;
use crate::pool::server_pool::ServerPool;
use crate::positions::{Lag, Position, Sampler};
use crate::server::endpoint::Endpoint;
use crate::server::own::Own;
use crate::server::settings::Settings;
use crate::standing::Steadiness;
use crate::tls::servers::ServerTls;
use crate::tls::store::Side;
use crate::topology::{ServerState, Topology};

pub mod halts;
pub mod members;

/// Everything that a session looks at to find a server.
#[derive(Debug, Clone)]
pub struct View {
    /// The document in effect.
    pub active: Arc<ActiveConfig>,
    /// The servers.
    pub topology: Topology,
    /// Their connections, in the same order.
    pub pools: Vec<Arc<ServerPool>>,
    /// Ask for a probe of a server before its time, in the same order.
    pub hurries: Vec<Arc<Notify>>,
    /// How far they have come, in the same order.
    pub positions: Vec<Arc<Position>>,
    /// What the console has stopped.
    pub halts: Arc<Halts>,
}

/// All servers.
#[derive(Debug)]
pub struct Fleet {
    view: watch::Sender<Arc<View>>,
    members: Mutex<Members>,
    /// Whether the monitors are to find something out quickly.
    urgency: watch::Sender<bool>,
    credentials: Arc<Credentials>,
    settings: Arc<Settings>,
    tls: Arc<Side<ServerTls>>,
}

impl Fleet {
    /// Starts with a document. Must be called on the runtime that is to run the monitors.
    #[must_use]
    pub fn start(
        active: &Arc<ActiveConfig>,
        credentials: Arc<Credentials>,
        settings: Arc<Settings>,
        tls: Arc<Side<ServerTls>>,
    ) -> Arc<Self> {
        let empty = View {
            active: Arc::clone(active),
            topology: Topology::default(),
            pools: Vec::new(),
            hurries: Vec::new(),
            positions: Vec::new(),
            halts: Arc::default(),
        };
        let fleet = Arc::new(Self {
            view: watch::Sender::new(Arc::new(empty)),
            members: Mutex::default(),
            urgency: watch::Sender::new(true),
            credentials,
            settings,
            tls,
        });
        fleet.apply(active);
        fleet
    }

    /// What sessions follow.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<View>> {
        self.view.subscribe()
    }

    /// The view now.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Puts a document into effect. Must be called on the runtime that runs the monitors.
    pub fn apply(self: &Arc<Self>, active: &Arc<ActiveConfig>) {
        let config = &active.config;
        let mut members = self.lock();
        let previous = self.view().active.clone();
        let server_tls = |config: &ProxyConfig| config.tls.as_ref().and_then(|tls| tls.server.clone());
        let is_tls_kept = server_tls(&previous.config) == server_tls(config);
        let are_monitors_kept =
            previous.config.probe == config.probe && previous.config.auth == config.auth && is_tls_kept;
        let mut old: Vec<_> = members.all.drain(..).collect();
        let limits = limits_of(config);
        for server in &config.servers {
            let place = old
                .iter()
                .position(|m| m.pool.endpoint.host == server.host && m.pool.endpoint.port == server.port);
            let member = match place.map(|index| old.swap_remove(index)) {
                Some(kept) => {
                    if !is_tls_kept {
                        // What was opened under other settings serves no further transaction.
                        kept.pool.recycle();
                    }
                    self.keep(kept, server, config, &limits, are_monitors_kept)
                }
                None => self.add(server, config, limits.clone()),
            };
            members.all.push(member);
        }
        for member in old {
            info!(server = member.config.name, "the server is not in the document any more");
            member.monitor.abort();
            member.sampler.abort();
            member.pool.retire();
        }
        self.publish(&mut members, active);
    }

    fn keep(
        self: &Arc<Self>,
        mut member: Member,
        server: &ServerConfig,
        config: &ProxyConfig,
        limits: &PoolLimits,
        is_monitor_kept: bool,
    ) -> Member {
        member.pool.set_limits(limits.clone());
        if !is_monitor_kept || member.config.name != server.name {
            member.monitor.abort();
            member.sampler.abort();
            member.monitor = self.watch(server, config, &member.hurry);
            member.sampler = self.sample(server, config, &member.position);
        }
        member.state.name.clone_from(&server.name);
        member.state.weight = server.weight;
        member.state.zone.clone_from(&server.zone);
        member.config = server.clone();
        member
    }

    fn add(self: &Arc<Self>, server: &ServerConfig, config: &ProxyConfig, limits: PoolLimits) -> Member {
        let endpoint = self.endpoint(server);
        let hurry = Arc::new(Notify::new());
        let position = Arc::new(Position::default());
        Member {
            sampler: self.sample(server, config, &position),
            position,
            pool: ServerPool::new(server.name.clone(), endpoint, limits),
            state: ServerState {
                zone: server.zone.clone(),
                ..ServerState::unknown(server.name.clone(), server.weight)
            },
            monitor: self.watch(server, config, &hurry),
            hurry,
            config: server.clone(),
            steadiness: Steadiness::default(),
            up_at: None,
        }
    }

    fn endpoint(&self, server: &ServerConfig) -> Endpoint {
        Endpoint { host: server.host.clone(), port: server.port, tls: Arc::clone(&self.tls) }
    }

    /// As whom the pool's own connections log in.
    fn own(&self, config: &ProxyConfig, name: &'static str) -> Own {
        Own {
            credentials: Arc::clone(&self.credentials),
            database: config.probe.database.clone(),
            settings: Arc::clone(&self.settings),
            name,
            timeout: config.probe.timeout.get(),
        }
    }

    fn sample(&self, server: &ServerConfig, config: &ProxyConfig, position: &Arc<Position>) -> AbortHandle {
        let sampler = Sampler {
            endpoint: self.endpoint(server),
            own: self.own(config, "pgrouting-positions"),
            position: Arc::clone(position),
        };
        tokio::spawn(sampler.run()).abort_handle()
    }

    fn watch(
        self: &Arc<Self>,
        server: &ServerConfig,
        config: &ProxyConfig,
        hurry: &Arc<Notify>,
    ) -> AbortHandle {
        let monitor = Monitor {
            endpoint: self.endpoint(server),
            own: self.own(config, "pgrouting-monitor"),
            interval: config.probe.interval.get(),
            hurry: Arc::clone(hurry),
            urgency: self.urgency.subscribe(),
        };
        let fleet = Arc::downgrade(self);
        let name = server.name.clone();
        tokio::spawn(monitor.run(move |observation, asked_at| {
            if let Some(fleet) = fleet.upgrade() {
                fleet.observe(&name, observation, asked_at);
            }
        }))
        .abort_handle()
    }

    /// Takes what a monitor found when it asked at that moment.
    pub fn observe(&self, server: &str, observation: Observation, asked_at: Instant) {
        let mut members = self.lock();
        let Some(member) = members.all.iter_mut().find(|member| member.config.name == server) else { return };
        member.observe(observation, asked_at);
        let active = self.view().active.clone();
        self.publish(&mut members, &active);
    }

    /// Stops something, or lets it go on. When this comes back, whoever looks at the view sees it.
    pub fn halt<T>(&self, change: impl FnOnce(&mut Halts) -> T) -> T {
        let mut members = self.lock();
        let mut halts = Halts::clone(&members.halts);
        let changed = change(&mut halts);
        if halts != *members.halts {
            members.halts = Arc::new(halts);
            let active = self.view().active.clone();
            self.publish(&mut members, &active);
        }
        changed
    }

    /// How far replicas are behind, by name, where known.
    #[must_use]
    pub fn lags(&self) -> HashMap<String, Lag> {
        let members = self.lock();
        let now = Instant::now();
        let lag = |member: &Member| Some((member.state.name.clone(), members.lag(member, now)?));
        members.all.iter().filter_map(lag).collect()
    }

    /// What the report says of the servers.
    #[must_use]
    pub fn report(&self) -> Vec<ServerReport> {
        let members = self.lock();
        let now = Instant::now();
        members
            .all
            .iter()
            .map(|member| {
                let lag = members.lag(member, now);
                let counts = member.pool.counts();
                ServerReport {
                    name: member.config.name.clone(),
                    address: member.pool.endpoint.to_string(),
                    role: member.state.role,
                    health: member.state.health,
                    rotation: member.state.rotation,
                    lag_ms: lag.map(|lag| u64::try_from(lag.time.as_millis()).unwrap_or(u64::MAX)),
                    lag_bytes: lag.map(|lag| lag.bytes),
                    message: if member.state.message.is_empty() {
                        member.state.reason.clone()
                    } else {
                        member.state.message.clone()
                    },
                    timeline: member.state.timeline,
                    system_identifier: member.state.system_identifier.map(|id| id.to_string()),
                    connections_active: counts.active,
                    connections_idle: counts.idle,
                    connections_max: counts.max,
                }
            })
            .collect()
    }

    /// Finds out who is the primary and who takes part, and tells it where anything of it is new.
    fn publish(&self, members: &mut Members, active: &Arc<ActiveConfig>) {
        let topology = members.settle(&active.config.split, Instant::now());
        self.urgency.send_if_modified(|is_urgent| {
            let before = std::mem::replace(is_urgent, members.is_urgent(&topology));
            before != *is_urgent
        });
        let is_same = |view: &View| {
            view.topology == topology
                && Arc::ptr_eq(&view.active, active)
                && Arc::ptr_eq(&view.halts, &members.halts)
                && view.pools.len() == members.all.len()
                && view.pools.iter().zip(&members.all).all(|(pool, member)| Arc::ptr_eq(pool, &member.pool))
        };
        if is_same(&self.view.borrow()) {
            return;
        }
        let all = &members.all;
        let view = View {
            active: Arc::clone(active),
            topology,
            pools: all.iter().map(|m| Arc::clone(&m.pool)).collect(),
            hurries: all.iter().map(|m| Arc::clone(&m.hurry)).collect(),
            positions: all.iter().map(|m| Arc::clone(&m.position)).collect(),
            halts: Arc::clone(&members.halts),
        };
        self.view.send_replace(Arc::new(view));
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn limits_of(config: &ProxyConfig) -> PoolLimits {
    let pooling = &config.pooling;
    PoolLimits {
        connections_max: pooling.max_server_connections,
        per_user_max: pooling.max_server_connections_per_user,
        idle_timeout: pooling.server_idle_timeout.get(),
        lifetime: Some(pooling.server_lifetime.get()).filter(|lifetime| !lifetime.is_zero()),
        connect_timeout: pooling.connect_timeout.get(),
        parameters: pooling.parameters.iter().map(|(n, v)| (n.clone(), v.clone())).collect(),
    }
}

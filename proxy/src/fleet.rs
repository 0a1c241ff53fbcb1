//! The servers of the pool as they are served now: for each its connections and its monitor.
//!
//! A new document is applied as a difference: a server that stays at its address keeps its connections, whatever else
//! changed about it. Sessions see one immutable [`View`] at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pgrouting_contract::config::{ProxyConfig, ServerConfig};
use pgrouting_contract::report::{Health, Role, ServerReport};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tracing::info;

use crate::auth::users::Credentials;
use crate::config::ActiveConfig;
use crate::monitor::{Monitor, Observation};
use crate::pool::server_pool::{PoolLimits, ServerPool};
use crate::positions::{Position, Sampler};
use crate::server::connect::Endpoint;
use crate::server::own::Own;
use crate::server::settings::Settings;
use crate::topology::{ServerState, Topology};

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
}

/// All servers.
#[derive(Debug)]
pub struct Fleet {
    view: watch::Sender<Arc<View>>,
    members: Mutex<Vec<Member>>,
    credentials: Arc<Credentials>,
    settings: Arc<Settings>,
}

#[derive(Debug)]
struct Member {
    config: ServerConfig,
    pool: Arc<ServerPool>,
    hurry: Arc<Notify>,
    state: ServerState,
    monitor: AbortHandle,
    position: Arc<Position>,
    sampler: AbortHandle,
}

impl Fleet {
    /// Starts with a document. Must be called on the runtime that is to run the monitors.
    #[must_use]
    pub fn start(
        active: &Arc<ActiveConfig>,
        credentials: Arc<Credentials>,
        settings: Arc<Settings>,
    ) -> Arc<Self> {
        let empty = View {
            active: Arc::clone(active),
            topology: Topology::default(),
            pools: Vec::new(),
            hurries: Vec::new(),
            positions: Vec::new(),
        };
        let fleet = Arc::new(Self {
            view: watch::Sender::new(Arc::new(empty)),
            members: Mutex::default(),
            credentials,
            settings,
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
        let are_monitors_kept = previous.config.probe == config.probe && previous.config.auth == config.auth;
        let mut old: Vec<_> = members.drain(..).collect();
        let limits = limits_of(config);
        for server in &config.servers {
            let place = old
                .iter()
                .position(|m| m.pool.endpoint.host == server.host && m.pool.endpoint.port == server.port);
            let member = match place.map(|index| old.swap_remove(index)) {
                Some(kept) => self.keep(kept, server, config, &limits, are_monitors_kept),
                None => self.add(server, config, limits.clone()),
            };
            members.push(member);
        }
        for member in old {
            info!(server = member.config.name, "the server is not in the document any more");
            member.monitor.abort();
            member.sampler.abort();
            member.pool.retire();
        }
        self.publish(&members, active);
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
        member.config = server.clone();
        member
    }

    fn add(self: &Arc<Self>, server: &ServerConfig, config: &ProxyConfig, limits: PoolLimits) -> Member {
        let endpoint = Endpoint { host: server.host.clone(), port: server.port };
        let hurry = Arc::new(Notify::new());
        let position = Arc::new(Position::default());
        Member {
            sampler: self.sample(server, config, &position),
            position,
            pool: ServerPool::new(server.name.clone(), endpoint, limits),
            state: ServerState::unknown(server.name.clone(), server.weight),
            monitor: self.watch(server, config, &hurry),
            hurry,
            config: server.clone(),
        }
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
            endpoint: Endpoint { host: server.host.clone(), port: server.port },
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
            endpoint: Endpoint { host: server.host.clone(), port: server.port },
            own: self.own(config, "pgrouting-monitor"),
            interval: config.probe.interval.get(),
            hurry: Arc::clone(hurry),
        };
        let fleet = Arc::downgrade(self);
        let name = server.name.clone();
        tokio::spawn(monitor.run(move |observation| {
            if let Some(fleet) = fleet.upgrade() {
                fleet.observe(&name, observation);
            }
        }))
        .abort_handle()
    }

    /// Takes what a monitor found.
    pub fn observe(&self, server: &str, observation: Observation) {
        let mut members = self.lock();
        let Some(member) = members.iter_mut().find(|member| member.config.name == server) else { return };
        let before = member.state.clone();
        member.state.health = observation.health();
        match observation {
            Observation::Answered { role, timeline, system_identifier } => {
                member.state.message.clear();
                member.state.role = role;
                member.state.timeline = timeline;
                member.state.system_identifier = system_identifier;
            }
            Observation::Silent(message)
            | Observation::Unasked(message)
            | Observation::Refused(message)
            | Observation::Down(message) => member.state.message = message,
        }
        if member.state == before {
            return;
        }
        let is_changed = before.role != member.state.role || before.health != member.state.health;
        if is_changed {
            info!(
                server,
                role = ?member.state.role,
                health = ?member.state.health,
                message = member.state.message,
                "the server changed"
            );
            let was_known = before.role != Role::Unknown;
            if (was_known && before.role != member.state.role) || member.state.health == Health::Down {
                // Connections to a server that has become something else must not be used for what it was.
                member.pool.recycle();
                member.position.forget();
            }
        }
        let active = self.view().active.clone();
        self.publish(&members, &active);
    }

    /// What the report says of the servers.
    #[must_use]
    pub fn report(&self) -> Vec<ServerReport> {
        let members = self.lock();
        members
            .iter()
            .map(|member| {
                let counts = member.pool.counts();
                ServerReport {
                    name: member.config.name.clone(),
                    address: member.pool.endpoint.to_string(),
                    role: member.state.role,
                    health: member.state.health,
                    message: member.state.message.clone(),
                    timeline: member.state.timeline,
                    system_identifier: member.state.system_identifier.map(|id| id.to_string()),
                    connections_active: counts.active,
                    connections_idle: counts.idle,
                    connections_max: counts.max,
                }
            })
            .collect()
    }

    fn publish(&self, members: &[Member], active: &Arc<ActiveConfig>) {
        let view = View {
            active: Arc::clone(active),
            topology: Topology { servers: members.iter().map(|m| m.state.clone()).collect() },
            pools: members.iter().map(|m| Arc::clone(&m.pool)).collect(),
            hurries: members.iter().map(|m| Arc::clone(&m.hurry)).collect(),
            positions: members.iter().map(|m| Arc::clone(&m.position)).collect(),
        };
        self.view.send_replace(Arc::new(view));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn limits_of(config: &ProxyConfig) -> PoolLimits {
    let pooling = &config.pooling;
    PoolLimits {
        connections_max: pooling.max_server_connections,
        idle_timeout: pooling.server_idle_timeout.get(),
        connect_timeout: pooling.connect_timeout.get(),
        parameters: pooling.parameters.iter().map(|(n, v)| (n.clone(), v.clone())).collect(),
    }
}

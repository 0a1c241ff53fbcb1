//! The servers of the pool as they are served now: for each its connections and its monitor.
//!
//! A new document is applied as a difference: a server that stays at its address keeps its connections, whatever else
//! changed about it. Sessions see one immutable [`View`] at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use std::time::Duration;

use pgrouting_contract::config::{ProxyConfig, ServerConfig};
use pgrouting_contract::report::{Health, Role, Rotation, ServerReport};
use pgrouting_contract::split::SplitConfig;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::info;

use crate::auth::users::Credentials;
use crate::config::ActiveConfig;
use crate::election::{Elected, Leader, elect, leader_after};
use crate::monitor::{Monitor, Observation};
use crate::pool::server_pool::{PoolLimits, ServerPool};
use crate::positions::{Lag, Position, Sampler};
use crate::server::connect::Endpoint;
use crate::server::own::Own;
use crate::server::settings::Settings;
use crate::standing::{Facts, Steadiness, rotation};
use crate::topology::{ServerState, Topology};

/// How long a replica that has come up is measured in a hurry.
const MEASURED_WITHIN: Duration = Duration::from_secs(5);

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
    members: Mutex<Members>,
    /// Whether the monitors are to find something out quickly.
    urgency: watch::Sender<bool>,
    credentials: Arc<Credentials>,
    settings: Arc<Settings>,
}

/// The servers, and what their monitors have found out together.
#[derive(Debug, Default)]
struct Members {
    all: Vec<Member>,
    /// The primary that was known last.
    leader: Option<Leader>,
    term: u64,
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
    steadiness: Steadiness,
    /// When it came up last.
    up_at: Option<Instant>,
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
            urgency: watch::Sender::new(true),
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
        let mut old: Vec<_> = members.all.drain(..).collect();
        let limits = limits_of(config);
        for server in &config.servers {
            let place = old
                .iter()
                .position(|m| m.pool.endpoint.host == server.host && m.pool.endpoint.port == server.port);
            let member = match place.map(|index| old.swap_remove(index)) {
                Some(kept) => self.keep(kept, server, config, &limits, are_monitors_kept),
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
        let endpoint = Endpoint { host: server.host.clone(), port: server.port };
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
        };
        self.view.send_replace(Arc::new(view));
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    /// Takes what its monitor found.
    fn observe(&mut self, observation: Observation, asked_at: Instant) {
        let before = (self.state.role, self.state.health);
        self.state.health = observation.health();
        match observation {
            Observation::Answered { role, timeline, system_identifier, follows, sample } => {
                self.state.message.clear();
                self.state.role = role;
                self.state.timeline = timeline;
                self.state.follows = follows;
                self.state.system_identifier = system_identifier;
                if before.0 != role {
                    self.position.forget();
                }
                if let Some(sample) = sample {
                    self.position.take(sample, asked_at);
                }
            }
            Observation::Silent(message)
            | Observation::Unasked(message)
            | Observation::Refused(message)
            | Observation::Down(message) => self.state.message = message,
        }
        self.steadiness.note(self.state.health, asked_at);
        let after = (self.state.role, self.state.health);
        if before == after {
            return;
        }
        self.up_at = (after.1 == Health::Up).then_some(asked_at);
        let ServerState { name, role, health, message, .. } = &self.state;
        info!(server = name, ?role, ?health, message, "the server changed");
        let was_known = before.0 != Role::Unknown;
        if (was_known && before.0 != after.0) || after.1 == Health::Down {
            // Connections to a server that has become something else must not be used for what it was. Nothing but reads is
            // under way at a replica: they can be answered elsewhere.
            if before.0 == Role::Replica && after.0 == Role::Replica {
                self.pool.abandon();
            } else {
                self.pool.recycle();
            }
            self.position.forget();
        }
    }
}

impl Members {
    /// Finds out who is the primary and who takes part.
    fn settle(&mut self, split: &SplitConfig, now: Instant) -> Topology {
        let states: Vec<_> = self.all.iter().map(|member| member.state.clone()).collect();
        let elected = elect(&states, self.leader.as_ref());
        let leader = leader_after(&states, &elected, self.leader.as_ref());
        if elected.primary.is_some() && leader != self.leader {
            let is_new = |before: &Leader| {
                leader
                    .as_ref()
                    .is_some_and(|leader| leader.name != before.name || leader.timeline != before.timeline)
            };
            if self.leader.as_ref().is_some_and(is_new) {
                info!(?leader, "another server, or another timeline, takes writes");
                self.term += 1;
            }
            self.leader = leader;
        }
        for index in 0..self.all.len() {
            self.settle_one(index, &elected, split, now);
        }
        let names = |indexes: &[usize]| -> String {
            let names = indexes.iter().filter_map(|index| Some(&*states.get(*index)?.name));
            names.collect::<Vec<_>>().join(", ")
        };
        let conflict = (!elected.fenced.is_empty()).then(|| {
            let taken = elected.primary.map_or_else(|| "none".to_owned(), |index| names(&[index]));
            format!("{} say they are the primary too; {taken} is taken for it", names(&elected.fenced))
        });
        Topology {
            servers: self.all.iter().map(|member| member.state.clone()).collect(),
            primary: elected.primary,
            term: self.term,
            timeline: elected.primary.and(self.leader.as_ref()).and_then(|leader| leader.timeline),
            conflict,
            slow_start: split.slow_start.get(),
        }
    }

    fn settle_one(&mut self, index: usize, elected: &Elected, split: &SplitConfig, now: Instant) {
        let primary = elected.primary.and_then(|index| self.all.get(index));
        let Some(member) = self.all.get(index) else { return };
        let (rotation, reason) = rotation(&Facts {
            server: &member.state,
            is_fenced: elected.fenced.contains(&index),
            is_foreign: elected.foreign.contains(&index),
            is_steady: member.steadiness.is_steady(),
            primary: primary.map(|primary| primary.state.timeline),
            is_ahead: primary.is_some_and(|primary| member.position.is_ahead_of(&primary.position)),
            lag: primary.and_then(|primary| primary.position.lag_of(member.position.lsn(), now)),
            eject_lag: split.eject_lag.get(),
        });
        let Some(member) = self.all.get_mut(index) else { return };
        let state = &mut member.state;
        if state.rotation != rotation {
            info!(server = state.name, was = ?state.rotation, is = ?rotation, reason, "the server's part changed");
            state.rises_since = (rotation == Rotation::In && state.role == Role::Replica).then_some(now);
            state.rotation = rotation;
        }
        if state
            .rises_since
            .is_some_and(|since| now.saturating_duration_since(since) >= split.slow_start.get())
        {
            state.rises_since = None;
        }
        state.reason = reason;
        // One that is out of reach may still have clients of ours.
        let is_past = state.role == Role::Primary && elected.primary.is_some_and(|primary| primary != index);
        member.pool.set_fenced(is_past);
    }

    /// How far a replica is behind the primary.
    fn lag(&self, member: &Member, now: Instant) -> Option<Lag> {
        if member.state.role != Role::Replica {
            return None;
        }
        let is_leader = |m: &&Member| self.leader.as_ref().is_some_and(|leader| leader.name == m.state.name);
        let primary = self.all.iter().find(is_leader)?;
        primary.position.lag_of(member.position.lsn(), now)
    }

    /// Whether there is no primary, or a replica that came up lately has yet to be measured.
    fn is_urgent(&self, topology: &Topology) -> bool {
        let is_new = |member: &Member| {
            member.state.rotation == Rotation::Unmeasured
                && member.state.health == Health::Up
                && member.up_at.is_some_and(|at| at.elapsed() < MEASURED_WITHIN)
        };
        topology.primary.is_none() || self.all.iter().any(is_new)
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

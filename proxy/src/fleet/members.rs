//! The servers and what their monitors have found out, one by one and together.

use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::config::ServerConfig;
use pgrouting_contract::report::{Health, Role, Rotation};
use pgrouting_contract::split::SplitConfig;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::info;

use crate::election::{Elected, Leader, elect, leader_after};
use crate::fleet::halts::Halts;
use crate::monitor::Observation;
use crate::pool::server_pool::ServerPool;
use crate::positions::{Lag, Position};
use crate::standing::{Facts, Steadiness, rotation};
use crate::topology::{ServerState, Topology};

/// How long a replica that has come up is measured in a hurry.
const MEASURED_WITHIN: Duration = Duration::from_secs(5);

/// The servers, and what their monitors have found out together.
#[derive(Debug, Default)]
pub struct Members {
    pub(super) all: Vec<Member>,
    /// The primary that was known last.
    pub(super) leader: Option<Leader>,
    pub(super) term: u64,
    /// What the console has stopped.
    pub(super) halts: Arc<Halts>,
}

/// One server.
#[derive(Debug)]
pub struct Member {
    pub(super) config: ServerConfig,
    pub(super) pool: Arc<ServerPool>,
    pub(super) hurry: Arc<Notify>,
    pub(super) state: ServerState,
    pub(super) monitor: AbortHandle,
    pub(super) position: Arc<Position>,
    pub(super) sampler: AbortHandle,
    pub(super) steadiness: Steadiness,
    /// When it came up last.
    pub(super) up_at: Option<Instant>,
}

impl Member {
    /// Takes what its monitor found.
    pub(super) fn observe(&mut self, observation: Observation, asked_at: Instant) {
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
    pub(super) fn settle(&mut self, split: &SplitConfig, now: Instant) -> Topology {
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
    pub(super) fn lag(&self, member: &Member, now: Instant) -> Option<Lag> {
        if member.state.role != Role::Replica {
            return None;
        }
        let is_leader = |m: &&Member| self.leader.as_ref().is_some_and(|leader| leader.name == m.state.name);
        let primary = self.all.iter().find(is_leader)?;
        primary.position.lag_of(member.position.lsn(), now)
    }

    /// Whether there is no primary, or a replica that came up lately has yet to be measured.
    pub(super) fn is_urgent(&self, topology: &Topology) -> bool {
        let is_new = |member: &Member| {
            member.state.rotation == Rotation::Unmeasured
                && member.state.health == Health::Up
                && member.up_at.is_some_and(|at| at.elapsed() < MEASURED_WITHIN)
        };
        topology.primary.is_none() || self.all.iter().any(is_new)
    }
}

//! Where a session's transactions go: what it has asked for, what it may read, and how far a server of reads may be
//! sent what follows in the same write.

use std::sync::Arc;

use pgrouting_contract::config::PoolMode;
use pgrouting_contract::split::{Cohort, Consistency, SplitConfig, WhenNoReplica};
use pgrouting_contract::stage::Stage;
use tokio::time::Instant;

use crate::classify::verdict::{Reason, Verdict};
use crate::fleet::View;
use crate::positions::reachable;
use crate::route::{Access, Aim, Question, ServerRole, Side, Why, admits, side};
use crate::session::judge::{Judge, Segment};
use crate::session::prepared::ClientStatements;
use crate::session::rescue::Rescue;

/// What a session may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Floor {
    /// Anything: it has written nothing.
    #[default]
    None,
    /// What was there at that moment and later, wherever that is in the log.
    Since(Instant),
    /// What a server shows that has replayed this position.
    At(u64),
}

/// Where a transaction went, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// What it wants of the servers.
    pub aim: Aim,
    /// Why.
    pub why: Why,
    /// What its first request was judged to be.
    pub verdict: Verdict,
}

/// A session's part in routing.
#[derive(Debug)]
pub struct Routing {
    /// Judges its statements.
    pub judge: Judge,
    /// What the client has asked for.
    pub role: ServerRole,
    /// Whether the client's reads may go to the primary too; as the pool says where it has said nothing.
    pub primary_reads: Option<bool>,
    /// What it may read.
    pub floor: Floor,
    /// How the last transaction went: the server's name and why.
    pub last: Option<(Arc<str>, Why)>,
    /// What is kept to run a request on the primary that a replica refuses.
    pub rescue: Rescue,
    /// What may be sent to the server of this exchange.
    pub gate: Gate,
    /// The session's lot, below 10,000: it is in the share that is split where that is larger.
    lot: u16,
}

/// What may be sent to a server that only takes reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gate {
    /// The server only takes reads, so that every request is looked at.
    pub is_watched: bool,
    /// The request that is being sent may go there.
    pub is_open: bool,
    /// A READ ONLY transaction is open, or about to be, and all of it goes there.
    pub is_in_block: bool,
}

impl Gate {
    /// What passes is proved to do nothing to its session.
    #[must_use]
    pub const fn is_proved(self) -> bool {
        self.is_watched && !self.is_in_block
    }
}

impl Routing {
    /// At the beginning of a session.
    #[must_use]
    pub fn new(judge: Judge) -> Self {
        Self {
            judge,
            role: ServerRole::Auto,
            primary_reads: None,
            floor: Floor::None,
            last: None,
            rescue: Rescue::default(),
            gate: Gate::default(),
            lot: rand::random::<u16>() % 10_000,
        }
    }

    /// Where the transaction that begins with this request goes.
    pub fn decide(
        &mut self,
        view: &View,
        access: Access,
        user: &str,
        isolation: Option<&str>,
        segment: &Segment,
    ) -> Decision {
        let config = &view.active.config;
        let split = &config.split;
        let question = Question {
            access,
            is_split: config.stage >= Stage::Split,
            is_in_cohort: self.is_in_cohort(split),
            is_primary_user: split.primary_users.iter().any(|name| name == user),
            is_exclusive: config.pooling.mode == PoolMode::Session,
            is_serializable: isolation.is_some_and(|level| level.eq_ignore_ascii_case("serializable")),
            role: self.role,
            hint: segment.hint,
            verdict: segment.verdict,
            is_learned: segment.is_learned,
            is_rescued: self.rescue.take_rescued(),
        };
        let (mut side, mut why) = side(&question);
        // Whatever follows a Flush belongs to the same transaction and is not known yet.
        let is_unread = segment.is_unread || (segment.is_open && segment.runs);
        if is_unread && access == Access::Routed && side == Side::Replica {
            (side, why) = (Side::Primary, Why::Unread);
        }
        let mut aim = Aim {
            side,
            falls_back: access == Access::Routed && split.when_no_replica == WhenNoReplica::UsePrimary,
            counts_primary: access == Access::Routed && self.counts_primary(split),
            ..Aim::PRIMARY
        };
        if side == Side::Replica && access == Access::Routed {
            if view.topology.replicas().next().is_none() {
                why = if aim.falls_back { Why::NoReplica } else { why };
            } else if split.consistency == Consistency::Session {
                match self.floor_at(view) {
                    Some(floor) => aim.floor = floor,
                    None => (aim.side, why) = (Side::Primary, Why::Freshness),
                }
            }
        }
        Decision { aim, why, verdict: segment.verdict }
    }

    fn is_in_cohort(&self, split: &SplitConfig) -> bool {
        let lot = match split.cohort {
            Cohort::Session => self.lot,
            Cohort::Transaction if split.percent >= 100 => 0,
            Cohort::Transaction => rand::random::<u16>() % 10_000,
        };
        lot < u16::from(split.percent) * 100
    }

    fn counts_primary(&self, split: &SplitConfig) -> bool {
        self.role == ServerRole::Any || self.primary_reads.unwrap_or(split.primary_reads)
    }

    /// The position that a replica must have replayed for this session; `None` where none has, or that is not known.
    pub fn floor_at(&mut self, view: &View) -> Option<u64> {
        if self.floor == Floor::None {
            return Some(0);
        }
        let now = Instant::now();
        if let Floor::Since(written) = self.floor {
            let primary = view.topology.primary().and_then(|index| view.positions.get(index))?;
            match primary.sampled_after(written) {
                Some(end) => self.floor = Floor::At(reachable(end)),
                None => {
                    primary.want(now);
                    return None;
                }
            }
        }
        let Floor::At(floor) = self.floor else { return None };
        let (mut some, mut all) = (false, true);
        for index in view.topology.replicas() {
            let Some(position) = view.positions.get(index) else { continue };
            if position.lsn() >= floor {
                some = true;
            } else {
                all = false;
                position.want(now);
            }
        }
        if some && all {
            self.floor = Floor::None;
            return Some(0);
        }
        some.then_some(floor)
    }

    /// A transaction has ended on the primary that may have written.
    pub fn note_written(&mut self, view: &View) {
        let now = Instant::now();
        self.floor = Floor::Since(now);
        if view.topology.replicas().next().is_none() {
            return;
        }
        let primary = view.topology.primary().and_then(|index| view.positions.get(index));
        if let Some(primary) = primary {
            primary.want(now);
        }
        for index in view.topology.replicas() {
            if let Some(position) = view.positions.get(index) {
                position.want(now);
            }
        }
    }

    /// Begins an exchange with a server that only takes reads, or with one that takes everything.
    pub fn begin(&mut self, is_watched: bool, decision: &Decision) {
        let is_in_block = decision.verdict == Verdict::ReadOnlyBlock;
        self.gate = Gate { is_watched, is_open: is_watched, is_in_block: is_watched && is_in_block };
    }

    /// Whether the request at the front of these bytes may go to a server that only takes reads.
    #[must_use]
    pub fn lets_pass(&self, bytes: &[u8], statements: &ClientStatements) -> Pass {
        let Some(segment) = self.judge.segment(bytes, statements) else { return Pass::Wait };
        let role = segment.hint.unwrap_or(self.role);
        let is_fine = segment.verdict != Verdict::ReadOnlyBlock
            && admits(role, segment.verdict)
            && !segment.is_unread
            && !segment.is_learned
            && !(segment.is_open && segment.runs);
        if is_fine { Pass::Yes } else { Pass::No }
    }
}

/// Whether a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// It may.
    Yes,
    /// It may not.
    No,
    /// More of it is needed to know.
    Wait,
}

/// Whether a transaction whose only request was judged like this has written nothing.
#[must_use]
pub const fn leaves_no_trace(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Read | Verdict::ReadOnlyBlock | Verdict::Primary(Reason::SessionState))
}

//! Which server a transaction runs on, and why; pure.

use crate::classify::verdict::{Reason, Verdict};
use crate::topology::Topology;

/// Where a session's statements may run, by the port that its client came in at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// As the stage says.
    Routed,
    /// On the primary only.
    Primary,
    /// On replicas only.
    ReadOnly,
}

/// What a client, or a hint in a statement, asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ServerRole {
    /// As statements are judged.
    #[default]
    Auto,
    /// The primary.
    Primary,
    /// A replica, for whatever is not known to belong on the primary.
    Replica,
    /// As statements are judged, and reads may go to the primary too.
    Any,
}

impl ServerRole {
    /// Its name in commands.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Primary => "primary",
            Self::Replica => "replica",
            Self::Any => "any",
        }
    }
}

/// Everything that decides about a transaction, but for the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The port.
    pub access: Access,
    /// The pool splits.
    pub is_split: bool,
    /// The session, or the transaction, belongs to the share that is split.
    pub is_in_cohort: bool,
    /// The user's statements all run on the primary.
    pub is_primary_user: bool,
    /// The session has its connection for itself.
    pub is_exclusive: bool,
    /// The session's transactions are serializable, which no standby takes.
    pub is_serializable: bool,
    /// What the session has asked for.
    pub role: ServerRole,
    /// What a comment in the statement asks for.
    pub hint: Option<ServerRole>,
    /// What the request is.
    pub verdict: Verdict,
    /// A replica has refused the like of it lately.
    pub is_learned: bool,
    /// A replica has refused it just now.
    pub is_rescued: bool,
}

/// The kind of server that a transaction needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The primary.
    Primary,
    /// One that may take reads.
    Replica,
    /// Whatever there is, the primary first.
    Any,
}

/// Why a transaction goes where it goes; the list is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// It is a read, or not, and why not.
    Verdict(Verdict),
    /// The stage does not split.
    Stage,
    /// The port.
    Port,
    /// The user.
    User,
    /// The session is not in the share that is split.
    Cohort,
    /// The session has asked for it.
    Role,
    /// A comment in the statement asks for it.
    Hint,
    /// The session has its connection for itself.
    SessionMode,
    /// What the session has on its connection keeps it there.
    Pinned,
    /// Its transactions are serializable.
    Isolation,
    /// The session would not see what it has written.
    Freshness,
    /// No replica can take it.
    NoReplica,
    /// A replica refused the like of it lately.
    Learned,
    /// A replica refused it just now.
    Rescued,
    /// It was too large, or not whole, when it had to be sent.
    Unread,
}

/// Reasons that are no verdict.
const OTHER: [Why; 14] = [
    Why::Stage,
    Why::Port,
    Why::User,
    Why::Cohort,
    Why::Role,
    Why::Hint,
    Why::SessionMode,
    Why::Pinned,
    Why::Isolation,
    Why::Freshness,
    Why::NoReplica,
    Why::Learned,
    Why::Rescued,
    Why::Unread,
];

impl Why {
    /// How many there are.
    pub const COUNT: usize = 2 + Reason::ALL.len() + OTHER.len();

    /// All of them, in the order of their indexes.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Verdict(Verdict::Read), Self::Verdict(Verdict::ReadOnlyBlock)]
            .into_iter()
            .chain(Reason::ALL.into_iter().map(|reason| Self::Verdict(Verdict::Primary(reason))))
            .chain(OTHER)
    }

    /// Its place among all.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Verdict(Verdict::Read) => 0,
            Self::Verdict(Verdict::ReadOnlyBlock) => 1,
            Self::Verdict(Verdict::Primary(reason)) => 2 + reason as usize,
            other => {
                let index = OTHER.iter().position(|known| *known == other).unwrap_or_default();
                2 + Reason::ALL.len() + index
            }
        }
    }

    /// Its name in metrics and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Verdict(Verdict::Read) => "read",
            Self::Verdict(Verdict::ReadOnlyBlock) => "read_only_transaction",
            Self::Verdict(Verdict::Primary(reason)) => reason.as_str(),
            Self::Stage => "stage",
            Self::Port => "port",
            Self::User => "user",
            Self::Cohort => "cohort",
            Self::Role => "role",
            Self::Hint => "hint",
            Self::SessionMode => "session_mode",
            Self::Pinned => "pinned",
            Self::Isolation => "isolation",
            Self::Freshness => "freshness",
            Self::NoReplica => "no_replica",
            Self::Learned => "learned",
            Self::Rescued => "rescued",
            Self::Unread => "unread",
        }
    }
}

/// The kind of server that a transaction needs, and why.
#[must_use]
pub fn side(question: &Question) -> (Side, Why) {
    use Side::{Primary, Replica};
    match question.access {
        Access::Primary => return (Primary, Why::Port),
        Access::ReadOnly => return (Replica, Why::Port),
        Access::Routed => {}
    }
    if question.is_exclusive {
        return (Primary, Why::SessionMode);
    }
    if !question.is_split {
        return (Primary, Why::Stage);
    }
    if question.is_primary_user {
        return (Primary, Why::User);
    }
    if question.is_rescued {
        return (Primary, Why::Rescued);
    }
    let (role, why) = match question.hint {
        Some(hint) => (hint, Why::Hint),
        None => (question.role, Why::Role),
    };
    if role == ServerRole::Primary {
        return (Primary, why);
    }
    if !admits(role, question.verdict) {
        return (Primary, Why::Verdict(question.verdict));
    }
    if question.is_serializable {
        return (Primary, Why::Isolation);
    }
    if question.is_learned {
        return (Primary, Why::Learned);
    }
    if role == ServerRole::Replica {
        return (Replica, why);
    }
    if question.is_in_cohort { (Replica, Why::Verdict(question.verdict)) } else { (Primary, Why::Cohort) }
}

/// One of the two groups of reads that a rollout compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The lot sends them to replicas.
    Cohort,
    /// The lot keeps them on the primary.
    Control,
}

/// The group of a request that went this way; `None` where anything but the lot decided. What is judged at a stage that
/// does not split is what the lot would keep on the primary.
#[must_use]
pub fn group(question: &Question, why: Why) -> Option<Group> {
    match why {
        Why::Verdict(Verdict::Read | Verdict::ReadOnlyBlock) => Some(Group::Cohort),
        Why::Cohort => Some(Group::Control),
        Why::Stage => {
            let kept = side(&Question { is_split: true, is_in_cohort: false, ..*question });
            (kept == (Side::Primary, Why::Cohort)).then_some(Group::Control)
        }
        _ => None,
    }
}

/// Whether what was judged like this may run on a replica for a client that asks for such a server. Nothing that is
/// known to write, to define or to change its session ever does; who asks for a replica is believed where nothing is
/// known.
#[must_use]
pub const fn admits(role: ServerRole, verdict: Verdict) -> bool {
    match (role, verdict) {
        (ServerRole::Primary, _) => false,
        (_, Verdict::Read | Verdict::ReadOnlyBlock) => true,
        (ServerRole::Auto | ServerRole::Any, Verdict::Primary(_)) => false,
        (ServerRole::Replica, Verdict::Primary(reason)) => matches!(
            reason,
            Reason::VolatileFunction
                | Reason::UnknownFunction
                | Reason::ServerState
                | Reason::View
                | Reason::Operator
                | Reason::Type
                | Reason::Explain
                | Reason::Unparsed
                | Reason::TooLong
                | Reason::NotUtf8
                | Reason::NoCatalog
        ),
    }
}

/// Why a replica's error is not the client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The replica cannot do it: it is in recovery.
    Misroute,
    /// Recovery needed what the statement held.
    Conflict,
    /// It does not know something, which it may not have replayed yet.
    Missing,
    /// It went away.
    Gone,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Misroute, Self::Conflict, Self::Missing, Self::Gone];

    /// The label in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Misroute => "misroute",
            Self::Conflict => "conflict",
            Self::Missing => "missing",
            Self::Gone => "gone",
        }
    }
}

/// Where to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// To the server with this index in the topology.
    Server(usize),
    /// Nowhere now: no server is known to be the primary.
    NoPrimary,
    /// Nowhere now: no replica is up.
    NoReplica,
}

/// What a transaction wants of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aim {
    /// The kind of server.
    pub side: Side,
    /// Where no replica can take it, the primary does.
    pub falls_back: bool,
    /// The primary counts as one of the replicas.
    pub counts_primary: bool,
    /// The position that a replica must have replayed.
    pub floor: u64,
    /// Servers that could not be reached just now, by index.
    pub avoided: u64,
}

impl Aim {
    /// At the primary.
    pub const PRIMARY: Self =
        Self { side: Side::Primary, falls_back: false, counts_primary: false, floor: 0, avoided: 0 };
}

/// Chooses the server. Reads are spread by taking the better of two replicas that are drawn by weight: `outstanding` tells
/// how many clients a server has, `replayed` how far it has come, `random` gives any number. Those in `zone` come before
/// others.
pub fn route(
    topology: &Topology,
    aim: &Aim,
    zone: Option<&str>,
    outstanding: impl Fn(usize) -> u32,
    replayed: impl Fn(usize) -> u64,
    random: impl FnOnce() -> u64,
) -> Route {
    let primary = topology.primary;
    if aim.side == Side::Primary {
        return primary.map_or(Route::NoPrimary, Route::Server);
    }
    if let (Side::Any, Some(primary)) = (aim.side, primary) {
        return Route::Server(primary);
    }
    let is_avoided = |index: usize| aim.avoided & (1 << (index % 64)) != 0;
    let weighed = |index: usize| (index, topology.share(index));
    let mut replicas: Vec<_> = topology
        .replicas()
        .filter(|index| !is_avoided(*index) && (aim.floor == 0 || replayed(*index) >= aim.floor))
        .chain(primary.filter(|_| aim.counts_primary))
        .map(weighed)
        .collect();
    if let Some(zone) = zone {
        let is_near = |(index, _): &(usize, u64)| {
            topology.servers.get(*index).is_some_and(|server| server.zone.as_deref() == Some(zone))
        };
        if replicas.iter().any(is_near) {
            replicas.retain(is_near);
        }
    }
    let random = random();
    match (draw(&replicas, random & u64::from(u32::MAX)), draw(&replicas, random >> 32)) {
        (Some(first), Some(second)) => {
            let load =
                |(index, share): (usize, u64)| u64::from(outstanding(index)) * 1_000_000 / share.max(1);
            Route::Server(if load(second) < load(first) { second.0 } else { first.0 })
        }
        _ if aim.falls_back => primary.map_or(Route::NoPrimary, Route::Server),
        _ => Route::NoReplica,
    }
}

/// Draws one of several with shares.
fn draw(replicas: &[(usize, u64)], random: u64) -> Option<(usize, u64)> {
    let all: u64 = replicas.iter().map(|(_, share)| share).sum();
    let mut place = random.checked_rem(all)?;
    replicas.iter().copied().find(|(_, share)| {
        let is_found = place < *share;
        place = place.saturating_sub(*share);
        is_found
    })
}

#[cfg(test)]
mod tests;

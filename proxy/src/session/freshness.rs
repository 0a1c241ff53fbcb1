//! How old what a session reads may be: at least its own writes, or what its pool or a token says.

use std::time::Duration;

use pgrouting_contract::split::{Consistency, SplitConfig};
use tokio::time::Instant;

use crate::classify::token::Token;
use crate::fleet::View;
use crate::positions::reachable;

/// What a session may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Floor {
    /// Anything: it has written nothing.
    #[default]
    None,
    /// What was there at that moment and later, wherever that is in the log.
    Since(Instant),
    /// What a server shows that has replayed this position, which was found for that moment.
    At(u64, Instant),
}

/// What a session has written, and must see.
#[derive(Debug)]
pub struct Freshness {
    /// What it may read.
    floor: Floor,
    /// The term of the primary that the floor is a position of.
    term: u64,
    /// The highest floor so far, which the session's token tells; `None` while that is not known.
    told: Option<Token>,
    /// A token that its settings have, until it is taken.
    pub token_setting: Option<Token>,
    /// The session was given a token, so that its floor counts whatever the pool says.
    has_token: bool,
}

impl Default for Freshness {
    fn default() -> Self {
        Self {
            floor: Floor::None,
            term: 0,
            told: Some(Token::default()),
            token_setting: None,
            has_token: false,
        }
    }
}

impl Freshness {
    /// The position that a replica must have replayed for a read, as the pool's consistency says; `None` where none has, or
    /// that is not known.
    pub fn floor_for(&mut self, view: &View, split: &SplitConfig) -> Option<u64> {
        match (split.consistency, split.max_staleness) {
            (Consistency::Eventual, _) if !self.has_token => Some(0),
            (Consistency::Bounded, Some(staleness)) => {
                let own = self.floor_at(view);
                let all = floor_of_all(view, staleness.get());
                Some(own?.max(all?))
            }
            _ => self.floor_at(view),
        }
    }

    /// The position that a replica must have replayed for this session; `None` where none has, or that is not known.
    pub fn floor_at(&mut self, view: &View) -> Option<u64> {
        if self.floor == Floor::None {
            return Some(0);
        }
        let now = Instant::now();
        if self.term != view.topology.term {
            // The positions of another primary mean nothing.
            self.floor = Floor::Since(now);
            self.told = None;
            self.term = view.topology.term;
        }
        if let Floor::Since(written) = self.floor {
            let primary = view.topology.primary.and_then(|index| view.positions.get(index))?;
            match primary.sampled_after(written) {
                Some(end) => {
                    let floor = reachable(end);
                    self.floor = Floor::At(floor, written);
                    self.told = Some(Token { timeline: view.topology.timeline.unwrap_or(0), lsn: floor });
                }
                None => {
                    primary.want(now);
                    return None;
                }
            }
        }
        let Floor::At(mut floor, written) = self.floor else { return None };
        let primary = view.topology.primary.and_then(|index| view.positions.get(index));
        if let Some(flushed) = primary.and_then(|primary| primary.flushed_after(written)) {
            floor = floor.min(flushed);
            self.floor = Floor::At(floor, written);
        }
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
        if let Some(primary) = primary.filter(|_| !some) {
            primary.want(now);
        }
        some.then_some(floor)
    }

    /// Whether the session has written so short a time ago.
    #[must_use]
    pub fn has_written_within(&self, time: Duration) -> bool {
        match self.floor {
            Floor::None => false,
            Floor::Since(written) | Floor::At(_, written) => written.elapsed() < time,
        }
    }

    /// The position that covers what the session has written; `None` while it is not known.
    #[must_use]
    pub const fn token(&self) -> Option<Token> {
        self.told
    }

    /// What the session has written has no position that could be told.
    pub const fn forget_token(&mut self) {
        self.told = None;
    }

    /// From now on the session reads nothing older than this.
    pub fn take_token(&mut self, token: Token, view: &View) {
        self.has_token = true;
        if token.lsn == 0 {
            return;
        }
        let is_of_this_timeline =
            token.timeline == 0 || view.topology.timeline.is_none_or(|timeline| timeline == token.timeline);
        match self.floor {
            // What the primary has now is later than whatever it had.
            _ if !is_of_this_timeline => self.note_written(view),
            Floor::Since(_) => {}
            Floor::At(floor, _) if floor >= token.lsn => {}
            Floor::None | Floor::At(..) => {
                self.floor = Floor::At(token.lsn, Instant::now());
                let is_less = |told: &Token| told.timeline == token.timeline && told.lsn > token.lsn;
                self.told = self.told.filter(is_less).or(Some(token));
                self.term = view.topology.term;
            }
        }
    }

    /// A transaction has ended on the primary that may have written.
    pub fn note_written(&mut self, view: &View) {
        let now = Instant::now();
        self.floor = Floor::Since(now);
        self.told = None;
        self.term = view.topology.term;
        if view.topology.replicas().next().is_none() {
            return;
        }
        let primary = view.topology.primary.and_then(|index| view.positions.get(index));
        if let Some(primary) = primary {
            primary.want(now);
        }
        for index in view.topology.replicas() {
            if let Some(position) = view.positions.get(index) {
                position.want(now);
            }
        }
    }
}

/// The position that a replica must have replayed to show all that was committed before `staleness` ago; `None` where
/// none is known to have.
fn floor_of_all(view: &View, staleness: Duration) -> Option<u64> {
    let now = Instant::now();
    let position = |index: usize| view.positions.get(index);
    let primary = view.topology.primary.and_then(position)?;
    let floor = primary.floor_within(staleness, now);
    primary.want(now);
    let mut is_there = false;
    for replica in view.topology.replicas().filter_map(position) {
        replica.want(now);
        is_there |= floor.is_some_and(|floor| replica.lsn() >= floor);
    }
    floor.filter(|_| is_there)
}

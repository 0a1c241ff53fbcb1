//! What is known at one moment, as a rollout is decided by it.

use std::time::Duration;

use jiff::Timestamp;
use pgrouting_crds::status::rollout::Baseline;

use crate::rollout::reading::Reading;

/// What is known at this moment, beside the rollout itself.
#[derive(Debug, Clone)]
pub struct Sight<'a> {
    /// What each gate has to say.
    pub readings: &'a [Reading],
    /// Whether each span has been over once since the step, or this process, began.
    pub were_all_over: bool,
    /// What no step may begin with.
    pub obstacle: Option<Obstacle>,
    /// Whether it is the pool's turn.
    pub turn: Turn,
    /// What reads on the primary are like now.
    pub baseline: Option<Baseline>,
    /// What transactions are like that are not copied.
    pub mirror_baseline: Option<Baseline>,
    /// How much the clock has leapt ahead since the last time: what did not pass does not count.
    pub leap: Duration,
    /// Whether figures may be renewed though nothing else has changed.
    pub may_refresh: bool,
    /// The time.
    pub now: Timestamp,
}

/// What no step may begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// Not every pod is up, is new, and runs the document.
    Deployment(String),
    /// There is another primary than a moment ago.
    PrimaryChanged(String),
    /// Clients are held back, or were a moment ago.
    TrafficPaused(String),
    /// No proxy says anything.
    Silent,
}

/// Whether it is the pool's turn among those that move one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Turn {
    /// It is, or it takes turns with nobody.
    #[default]
    Mine,
    /// Another pool has to be there first.
    After(String),
    /// Another pool was rolled back.
    Halted(String),
}

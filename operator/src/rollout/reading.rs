//! What a gate has to say at one moment.

use pgrouting_crds::spec::gates::GateMode;

/// What a gate has to say at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The gate's name.
    pub name: String,
    /// Whether it counts.
    pub mode: GateMode,
    /// What it has to say.
    pub outcome: Outcome,
    /// What is allowed.
    pub limit: String,
    /// How many times in a row it has to fail.
    pub threshold: i32,
    /// Whether a failure is one of the split, also while the mirror is on.
    pub is_of_split: bool,
    /// What a person should do when it fails.
    pub remedy: String,
}

/// What a gate has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing new: not enough was measured yet.
    Open {
        /// What has been measured so far.
        samples: u64,
        /// What it waits for.
        wait: String,
    },
    /// The figures could not be had.
    Error(String),
    /// What is measured says nothing of the rest.
    NoData {
        /// What was measured, with its unit.
        value: String,
        /// How many were measured.
        samples: u64,
    },
    /// What was measured.
    Judged {
        /// Whether it is allowed.
        passes: bool,
        /// What was measured, with its unit.
        value: String,
        /// How many were measured.
        samples: u64,
    },
}

impl Reading {
    /// Whether it holds the rollout or fails it.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.mode == GateMode::Enforce
    }
}

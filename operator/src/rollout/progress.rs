//! What there is to say of a rollout: a word out of a closed list, and a sentence.

use pgrouting_crds::status::ConditionStatus;
use pgrouting_crds::status::rollout::Hold;

/// What there is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// In a word.
    pub word: Word,
    /// For a person, with figures and the next step.
    pub message: String,
    /// The gate that fails, if one does.
    pub failing: Option<String>,
    /// Whether the sentence is not worth a write where the word is the same as before: it tells of figures that grow.
    pub is_stale: bool,
}

/// In a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// All gates pass, and time passes.
    Soaking,
    /// The next step has begun.
    StepAdvanced,
    /// The gates are being looked at.
    Evaluating,
    /// This gate fails before there is anything to take back.
    Blocked(String),
    /// The pool is where it should be.
    StageReached,
    /// The mode says so.
    Paused,
    /// A person has to say so.
    AwaitingApproval,
    /// Another pool comes first.
    WaitingForWave,
    /// Another pool was rolled back.
    WaveHalted,
    /// This gate failed, and the pool went back or stays.
    Failed(String),
    /// Pods are being replaced.
    WaitingForDeployment,
    /// What was measured says nothing.
    NoData,
    /// Too little was measured.
    InsufficientSamples,
    /// Nothing could be measured.
    MetricsUnavailable,
    /// There is another primary.
    PrimaryChanged,
}

impl Word {
    /// Whether a move is under way and allowed.
    #[must_use]
    pub const fn status(&self) -> ConditionStatus {
        match self {
            Self::Soaking | Self::StepAdvanced | Self::Evaluating => ConditionStatus::True,
            Self::StageReached
            | Self::Paused
            | Self::AwaitingApproval
            | Self::WaitingForWave
            | Self::WaveHalted
            | Self::Blocked(_)
            | Self::Failed(_)
            | Self::WaitingForDeployment => ConditionStatus::False,
            Self::NoData | Self::InsufficientSamples | Self::MetricsUnavailable | Self::PrimaryChanged => {
                ConditionStatus::Unknown
            }
        }
    }
}

impl Progress {
    /// A word with its sentence.
    #[must_use]
    pub fn of(word: Word, message: impl Into<String>) -> Self {
        Self { word, message: message.into(), failing: None, is_stale: false }
    }

    /// A pool that stays until somebody has done something.
    #[must_use]
    pub fn held(hold: &Hold) -> Self {
        Self {
            word: Word::Failed(hold.gate.clone()),
            message: hold.message.clone(),
            failing: Some(hold.gate.clone()),
            is_stale: false,
        }
    }

    /// Whether the pool has somewhere to go, so that it is worth looking often.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        !matches!(self.word, Word::StageReached | Word::Failed(_))
    }

    /// Whether a person is needed.
    #[must_use]
    pub const fn needs_person(&self) -> bool {
        matches!(self.word, Word::Failed(_))
            || (matches!(self.word, Word::StageReached) && self.failing.is_some())
    }
}

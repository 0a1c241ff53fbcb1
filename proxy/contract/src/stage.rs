//! The steps of a rollout.

use serde::{Deserialize, Serialize};

/// How far a pool's rollout has come. The order is the order of promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum Stage {
    /// Connections are shared; every statement runs on the primary.
    #[default]
    PoolingOnly,
    /// Reads go to replicas, by percent.
    Split,
    /// As `Split`, and traffic is copied to another database.
    Mirror,
}

impl Stage {
    /// The name as it stands in documents, metrics and columns.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PoolingOnly => "PoolingOnly",
            Self::Split => "Split",
            Self::Mirror => "Mirror",
        }
    }
}

//! The stages of a rollout.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The stages of a rollout, in the order of promotion.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
)]
pub enum Stage {
    /// Connections are shared; every statement runs on the primary.
    #[default]
    PoolingOnly,
    /// Reads go to replicas.
    Split,
    /// Reads go to replicas, and the traffic is copied to another database.
    Mirror,
}

impl Stage {
    /// The name as it stands in the spec.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PoolingOnly => "PoolingOnly",
            Self::Split => "Split",
            Self::Mirror => "Mirror",
        }
    }
}

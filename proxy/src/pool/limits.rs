//! The limits of the connections to one server.

use std::time::Duration;

/// The time from one sweep to the next.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The limits of one pool; a new document may change them at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolLimits {
    /// The most connections.
    pub connections_max: u32,
    /// The most of one user.
    pub per_user_max: Option<u32>,
    /// An idle connection is closed after that long.
    pub idle_timeout: Duration,
    /// One that is not in use is closed that long after it was opened, or up to a fifth earlier.
    pub lifetime: Option<Duration>,
    /// The longest that opening one may take.
    pub connect_timeout: Duration,
    /// Settings that connections start with.
    pub parameters: Vec<(String, String)>,
}

//! Why transactions are not run at the mirror.

/// Why a transaction is not run there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It is not proved to be a read, and only reads are copied.
    NotRead,
    /// It is of a kind that cannot be run elsewhere.
    Unsupported,
    /// It is about LISTEN.
    Listen,
    /// Its session ended in the middle of it.
    Cut,
    /// It needs what its session had there before, and that is not there.
    State,
    /// It is longer than one client's queue.
    TooLarge,
    /// It does not fit into its client's queue.
    QueueFull,
    /// It does not fit beside those of all clients.
    Budget,
    /// It took too long.
    Deadline,
    /// The mirror failed too often lately.
    Breaker,
    /// The connection could not be opened, or broke.
    Connection,
    /// The mirror does not take a setting of the session.
    Settings,
    /// The mirror was switched off.
    Off,
}

impl Loss {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 13] = [
        Self::NotRead,
        Self::Unsupported,
        Self::Listen,
        Self::Cut,
        Self::State,
        Self::TooLarge,
        Self::QueueFull,
        Self::Budget,
        Self::Deadline,
        Self::Breaker,
        Self::Connection,
        Self::Settings,
        Self::Off,
    ];

    /// Its name in metrics and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotRead => "not_read",
            Self::Unsupported => "unsupported",
            Self::Listen => "listen",
            Self::Cut => "cut",
            Self::State => "state",
            Self::TooLarge => "too_large",
            Self::QueueFull => "queue_full",
            Self::Budget => "budget",
            Self::Deadline => "deadline",
            Self::Breaker => "breaker",
            Self::Connection => "connection",
            Self::Settings => "settings",
            Self::Off => "off",
        }
    }

    /// Whether it is none of those that are to be copied, rather than one that could not be.
    #[must_use]
    pub const fn is_skip(self) -> bool {
        matches!(self, Self::NotRead | Self::Unsupported | Self::Listen | Self::Cut | Self::State)
    }
}

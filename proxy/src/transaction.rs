//! Where a server connection stands between its client's transactions, as a pure machine.

/// The status byte of `ReadyForQuery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    /// Not in a transaction block (`I`).
    Idle,
    /// In a transaction block (`T`).
    Open,
    /// In a transaction block that failed; only its end is accepted (`E`).
    Failed,
}

impl TransactionStatus {
    /// Reads the status byte; `None` when it is none of the three.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'I' => Some(Self::Idle),
            b'T' => Some(Self::Open),
            b'E' => Some(Self::Failed),
            _ => None,
        }
    }
}

/// Why a session keeps its server connection after its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PinReason {
    /// The pool's mode is session.
    SessionMode,
    /// Temporary tables, views, functions or types.
    TempTable,
    /// A cursor WITH HOLD.
    Cursor,
    /// LISTEN.
    Listen,
    /// SQL-level PREPARE.
    Prepare,
    /// Session-level advisory locks.
    AdvisoryLock,
    /// LOAD.
    Load,
    /// Something was done that nobody can ask the server about, such as a setting under a name that was computed, or
    /// the server did not say.
    Opaque,
}

impl PinReason {
    /// All reasons, for metrics.
    pub const ALL: [Self; 8] = [
        Self::SessionMode,
        Self::TempTable,
        Self::Cursor,
        Self::Listen,
        Self::Prepare,
        Self::AdvisoryLock,
        Self::Load,
        Self::Opaque,
    ];

    /// The label in metrics and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SessionMode => "session_mode",
            Self::TempTable => "temp_table",
            Self::Cursor => "cursor",
            Self::Listen => "listen",
            Self::Prepare => "prepare",
            Self::AdvisoryLock => "advisory_lock",
            Self::Load => "load",
            Self::Opaque => "opaque",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_byte_is_one_of_three() {
        assert_eq!(TransactionStatus::from_byte(b'I'), Some(TransactionStatus::Idle));
        assert_eq!(TransactionStatus::from_byte(b'T'), Some(TransactionStatus::Open));
        assert_eq!(TransactionStatus::from_byte(b'E'), Some(TransactionStatus::Failed));
        assert_eq!(TransactionStatus::from_byte(b'x'), None);
    }
}

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
    /// A setting was changed by SET or RESET.
    Setting,
    /// LISTEN.
    Listen,
    /// SQL-level PREPARE.
    Prepare,
    /// DECLARE CURSOR, which may be WITH HOLD.
    Cursor,
    /// LOAD.
    Load,
}

impl PinReason {
    /// All reasons, for metrics.
    pub const ALL: [Self; 6] =
        [Self::SessionMode, Self::Setting, Self::Listen, Self::Prepare, Self::Cursor, Self::Load];

    /// The label in metrics and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SessionMode => "session_mode",
            Self::Setting => "setting",
            Self::Listen => "listen",
            Self::Prepare => "prepare",
            Self::Cursor => "cursor",
            Self::Load => "load",
        }
    }
}

/// What a finished command did to the state of its session, read from its command tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagEffect {
    /// Nothing that outlives the transaction.
    None,
    /// State that stays on the server connection, so that the session has to stay too.
    Pins(PinReason),
    /// `DISCARD ALL`: every state is gone, prepared statements included.
    DiscardsAll,
    /// `DEALLOCATE ALL`, or `DISCARD PLANS`' kin: every prepared statement is gone.
    DeallocatesAll,
}

/// The effect of a command by its tag, as `CommandComplete` carries it.
///
/// Tags are those of PostgreSQL's `cmdtaglist.h`. A tag does not tell `SET LOCAL` from `SET`, nor a cursor that is
/// held from one that is not, so both pin: a session that stays longer than it has to is right, one that leaves its
/// state behind is not.
#[must_use]
pub fn tag_effect(tag: &[u8]) -> TagEffect {
    match tag {
        b"SET" | b"RESET" => TagEffect::Pins(PinReason::Setting),
        b"LISTEN" => TagEffect::Pins(PinReason::Listen),
        b"PREPARE" => TagEffect::Pins(PinReason::Prepare),
        b"DECLARE CURSOR" => TagEffect::Pins(PinReason::Cursor),
        b"LOAD" => TagEffect::Pins(PinReason::Load),
        b"DISCARD ALL" => TagEffect::DiscardsAll,
        b"DEALLOCATE ALL" => TagEffect::DeallocatesAll,
        _ => TagEffect::None,
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

    #[test]
    fn state_that_stays_on_the_connection_pins() {
        for (tag, effect) in [
            (&b"SELECT 1"[..], TagEffect::None),
            (b"INSERT 0 1", TagEffect::None),
            (b"SET", TagEffect::Pins(PinReason::Setting)),
            (b"SET CONSTRAINTS", TagEffect::None),
            (b"RESET", TagEffect::Pins(PinReason::Setting)),
            (b"LISTEN", TagEffect::Pins(PinReason::Listen)),
            (b"PREPARE", TagEffect::Pins(PinReason::Prepare)),
            (b"PREPARE TRANSACTION", TagEffect::None),
            (b"DECLARE CURSOR", TagEffect::Pins(PinReason::Cursor)),
            (b"LOAD", TagEffect::Pins(PinReason::Load)),
            (b"DISCARD ALL", TagEffect::DiscardsAll),
            (b"DISCARD TEMP", TagEffect::None),
            (b"DEALLOCATE ALL", TagEffect::DeallocatesAll),
            (b"DEALLOCATE", TagEffect::None),
            (b"", TagEffect::None),
        ] {
            assert_eq!(tag_effect(tag), effect, "{}", String::from_utf8_lossy(tag));
        }
    }
}

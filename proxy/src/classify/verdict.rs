//! What is known of a statement: it may run on a replica, or it must not, and why.

/// Whether a statement may run on a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is proved to be a read.
    Read,
    /// It begins a transaction that is declared READ ONLY, so that all of it may run there.
    ReadOnlyBlock,
    /// It has to run on the primary.
    Primary(Reason),
}

/// Why a statement has to run on the primary; the list is closed, and its names are those of metrics, of EXPLAIN ROUTE
/// and of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// INSERT, UPDATE, DELETE, MERGE, TRUNCATE, or a part of the statement that is one.
    Write,
    /// FOR UPDATE and its kin, or LOCK.
    Locking,
    /// SELECT INTO.
    SelectInto,
    /// CREATE, ALTER, DROP and whatever else defines things, VACUUM and the like.
    Ddl,
    /// SET, DISCARD, LISTEN and whatever else is about the session.
    SessionState,
    /// BEGIN without READ ONLY, COMMIT, SAVEPOINT.
    Transaction,
    /// DECLARE, FETCH, MOVE, CLOSE.
    Cursor,
    /// PREPARE, EXECUTE, DEALLOCATE in SQL.
    Prepared,
    /// DO, CALL, or a call of a function by the protocol.
    Procedure,
    /// COPY FROM, or COPY to or from a file or a program of the server.
    Copy,
    /// EXPLAIN of something that cannot be judged.
    Explain,
    /// It calls a function that may have an effect.
    VolatileFunction,
    /// It calls a function that the catalog does not know.
    UnknownFunction,
    /// It asks about the server or the session that answers.
    ServerState,
    /// It reads an unlogged table, whose rows only the primary has.
    UnloggedTable,
    /// It reads a foreign table.
    ForeignTable,
    /// It reads a sequence, whose position a replica does not know.
    Sequence,
    /// It reads a view, or a table with row security, that does one of these things.
    View,
    /// It uses an operator whose function may have an effect.
    Operator,
    /// It uses a type whose functions may have an effect.
    Type,
    /// It is not understood.
    Unparsed,
    /// Its text is longer than is looked at.
    TooLong,
    /// Its text is not UTF-8.
    NotUtf8,
    /// The catalog of its database is not known, or not known any more.
    NoCatalog,
}

impl Reason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 24] = [
        Self::Write,
        Self::Locking,
        Self::SelectInto,
        Self::Ddl,
        Self::SessionState,
        Self::Transaction,
        Self::Cursor,
        Self::Prepared,
        Self::Procedure,
        Self::Copy,
        Self::Explain,
        Self::VolatileFunction,
        Self::UnknownFunction,
        Self::ServerState,
        Self::UnloggedTable,
        Self::ForeignTable,
        Self::Sequence,
        Self::View,
        Self::Operator,
        Self::Type,
        Self::Unparsed,
        Self::TooLong,
        Self::NotUtf8,
        Self::NoCatalog,
    ];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Locking => "locking",
            Self::SelectInto => "select_into",
            Self::Ddl => "ddl",
            Self::SessionState => "session_state",
            Self::Transaction => "transaction",
            Self::Cursor => "cursor",
            Self::Prepared => "prepared",
            Self::Procedure => "procedure",
            Self::Copy => "copy",
            Self::Explain => "explain",
            Self::VolatileFunction => "volatile_function",
            Self::UnknownFunction => "unknown_function",
            Self::ServerState => "server_state",
            Self::UnloggedTable => "unlogged_table",
            Self::ForeignTable => "foreign_table",
            Self::Sequence => "sequence",
            Self::View => "view",
            Self::Operator => "operator",
            Self::Type => "type",
            Self::Unparsed => "unparsed",
            Self::TooLong => "too_long",
            Self::NotUtf8 => "not_utf8",
            Self::NoCatalog => "no_catalog",
        }
    }
}

impl Verdict {
    /// As a small number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Read => 0,
            Self::ReadOnlyBlock => 1,
            Self::Primary(reason) => reason as u8 + 2,
        }
    }

    /// The verdict of such a number.
    #[must_use]
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Read,
            1 => Self::ReadOnlyBlock,
            code => Reason::ALL
                .get(usize::from(code - 2))
                .map_or(Self::Primary(Reason::Unparsed), |reason| Self::Primary(*reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_has_a_number_and_a_name_of_its_own() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            assert_eq!(Verdict::from_code(Verdict::Primary(*reason).code()), Verdict::Primary(*reason));
            assert_eq!(Reason::ALL.iter().filter(|other| other.as_str() == reason.as_str()).count(), 1);
        }
        for verdict in [Verdict::Read, Verdict::ReadOnlyBlock] {
            assert_eq!(Verdict::from_code(verdict.code()), verdict);
        }
    }
}

//! Kinds of state that a session can leave on its server connection.

/// A set of kinds of session state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Kinds(u16);

impl Kinds {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// A setting, the role and the session's authorization among them.
    pub const SETTING: Self = Self(1);
    /// Temporary tables and what else lives in `pg_temp`.
    pub const TEMP: Self = Self(1 << 1);
    /// Cursors WITH HOLD.
    pub const CURSOR: Self = Self(1 << 2);
    /// LISTEN.
    pub const LISTEN: Self = Self(1 << 3);
    /// SQL-level PREPARE.
    pub const PREPARE: Self = Self(1 << 4);
    /// Session-level advisory locks.
    pub const LOCK: Self = Self(1 << 5);
    /// LOAD: cannot be undone.
    pub const LOAD: Self = Self(1 << 6);
    /// Something that nobody can ask the server about.
    pub const OPAQUE: Self = Self(1 << 7);
    /// A setting for this transaction only: nothing outlives it.
    pub const LOCAL: Self = Self(1 << 8);
    /// Definitions of functions: what is known of them may be outdated.
    pub const FUNCTIONS: Self = Self(1 << 9);
    /// An object is created; it is a temporary one where the search path says so.
    pub const CREATE: Self = Self(1 << 10);
    /// The position of a sequence in this session (`currval`, `lastval`) or the server process's identity is read.
    pub const READS_SESSION: Self = Self(1 << 11);
    /// ON COMMIT DROP: a temporary table that ends with its transaction.
    pub const BRIEF: Self = Self(1 << 12);
    /// A database is dropped, renamed or copied, which needs it to be without connections.
    pub const DATABASE: Self = Self(1 << 13);

    /// Something is defined that may change where statements run: a function, a view, a table of another kind.
    pub const CATALOG: Self = Self(1 << 14);

    /// The names of temporary objects, of which it is known that there are some.
    pub const TEMP_NAMES: Self = Self(1 << 15);

    /// All that the server can be asked about.
    pub const ASKABLE: Self = Self(
        Self::SETTING.0 | Self::TEMP.0 | Self::CURSOR.0 | Self::LISTEN.0 | Self::PREPARE.0 | Self::LOCK.0,
    );

    /// All that keeps a session on its connection.
    pub const PINNING: Self = Self(
        Self::TEMP.0
            | Self::CURSOR.0
            | Self::LISTEN.0
            | Self::PREPARE.0
            | Self::LOCK.0
            | Self::LOAD.0
            | Self::OPAQUE.0,
    );

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are in both.
    #[must_use]
    pub const fn among(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of the other's are in it.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

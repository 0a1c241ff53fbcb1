//! The commands to the proxy that a client has prepared.

use std::collections::HashMap;

use crate::classify::commands::Command;

/// Commands under the names that a client has prepared and bound them by.
#[derive(Debug, Default)]
pub struct NamedCommands {
    /// By the names of statements.
    pub statements: HashMap<Vec<u8>, Command>,
    /// By the names of portals.
    pub portals: HashMap<Vec<u8>, Command>,
}

//! The idle connections of one server, by identity, the one used last on top.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::server::connection::{ServerConnection, WorkerId};
use crate::server::settings::Settings;

/// Idle connections of one identity that are looked through for the best fit.
const FIT_SEARCH_MAX: usize = 8;

/// Idle connections of one identity, the one used last on top. Boxed, since a connection moves often and is large.
pub type IdleStack = Vec<Box<ServerConnection>>;

/// All of them.
#[derive(Debug, Default)]
pub struct Shelf {
    idle: BTreeMap<u32, IdleStack>,
    count: u32,
}

impl Shelf {
    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &ServerConnection> {
        self.idle.values().flatten().map(|connection| &**connection)
    }

    /// Puts one back.
    pub fn put(&mut self, connection: Box<ServerConnection>) {
        self.count += 1;
        self.idle.entry(connection.identity.id).or_default().push(connection);
    }

    /// The best of one identity: the latest used with the same settings on the same thread, else the latest used.
    pub fn take(
        &mut self,
        identity: u32,
        settings: &Arc<Settings>,
        worker: WorkerId,
    ) -> Option<Box<ServerConnection>> {
        let connections = self.idle.get_mut(&identity)?;
        let latest = connections.len().checked_sub(1)?;
        let is_fit = |c: &ServerConnection| c.home == worker && Arc::ptr_eq(&c.settings, settings);
        let best = connections
            .iter()
            .enumerate()
            .rev()
            .take(FIT_SEARCH_MAX)
            .find(|(_, connection)| is_fit(connection))
            .map_or(latest, |(index, _)| index);
        let connection = connections.remove(best);
        self.count -= 1;
        Some(connection)
    }

    /// The one that has been idle longest, counted in sweeps, of one user or of all.
    pub fn take_longest_idle(&mut self, sweeps: u32, user: Option<&str>) -> Option<Box<ServerConnection>> {
        let is_meant = |c: &ServerConnection| user.is_none_or(|user| c.identity.user == user);
        let identity = self
            .idle
            .iter()
            .filter_map(|(identity, connections)| {
                let first = connections.first().filter(|first| is_meant(first))?;
                Some((sweeps.wrapping_sub(first.idle_since), *identity))
            })
            .max()
            .map(|(_, identity)| identity)?;
        let connections = self.idle.get_mut(&identity)?;
        let connection = connections.remove(0);
        if connections.is_empty() {
            self.idle.remove(&identity);
        }
        self.count -= 1;
        Some(connection)
    }

    /// Those that are so.
    pub fn take_if(&mut self, mut is_taken: impl FnMut(&mut ServerConnection) -> bool) -> IdleStack {
        let mut taken = IdleStack::new();
        for connections in self.idle.values_mut() {
            taken.extend(connections.extract_if(.., |connection| is_taken(connection)));
        }
        self.idle.retain(|_, connections| !connections.is_empty());
        self.count -= u32::try_from(taken.len()).unwrap_or(u32::MAX);
        taken
    }
}

//! What is known of one database's objects at one moment, by name: immutable.
//!
//! A name stands for all objects that have it, in whatever schema: whichever of them a search path would find, the worst
//! counts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// All that is known of a database.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Which snapshot it is; no two of a process share a number.
    pub epoch: u64,
    /// The objects by name.
    pub names: HashMap<Box<str>, Named, foldhash::fast::RandomState>,
    /// Operators whose functions may have an effect.
    pub operators: Vec<Box<str>>,
    /// Operators whose functions look names up.
    pub resolving_operators: Vec<Box<str>>,
}

/// What objects of one name are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Named {
    /// The functions.
    pub function: Option<FunctionClass>,
    /// One of the functions takes a single argument, so that it may be called as if it were a column, and is not safe.
    pub is_attribute: bool,
    /// The relations, where one of them cannot be read on a replica.
    pub relation: Option<RelationClass>,
    /// A type is among them whose functions may have an effect.
    pub is_unsafe_type: bool,
    /// One of them looks names up, or puts objects into words, when it runs: what it gives depends on the temporary
    /// objects of its session.
    pub resolves: bool,
}

/// What the functions of a name do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionClass {
    /// They only compute and read.
    Safe,
    /// One of them may have an effect.
    Volatile,
    /// One of them tells of the server or the session that runs it.
    ServerState,
    /// `current_setting`: it depends on the setting.
    Setting,
}

/// Why a relation cannot be read on a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelationClass {
    /// Its rows are not replicated.
    Unlogged,
    /// Its rows are elsewhere.
    Foreign,
    /// A sequence.
    Sequence,
    /// A view or policy does something that is not a read, or is about the server.
    View,
}

/// The latest snapshot of one database, and whether it still holds.
#[derive(Debug, Default)]
pub struct CatalogCell {
    /// The epoch of the snapshot that holds; 0 while none does.
    epoch: AtomicU64,
    current: Mutex<Option<Arc<Catalog>>>,
    /// How often somebody has said that it does not hold any more.
    revisions: AtomicU64,
    is_suspected: AtomicBool,
    is_wanted: AtomicBool,
    hurry: Notify,
}

impl CatalogCell {
    /// The epoch of the snapshot that holds; 0 while none does.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The snapshot that holds.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Catalog>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Somebody needs a snapshot.
    pub fn want(&self) {
        if !self.is_wanted.swap(true, Ordering::AcqRel) {
            self.hurry.notify_one();
        }
    }

    /// Whether somebody has needed one.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }

    /// Somebody has defined something: no snapshot holds until a new one is read.
    pub fn invalidate(&self) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        self.revisions.fetch_add(1, Ordering::AcqRel);
        self.epoch.store(0, Ordering::Release);
        *current = None;
        drop(current);
        self.hurry.notify_one();
    }

    /// Something may have been defined: whoever reads snapshots is to look.
    pub fn suspect(&self) {
        if !self.is_suspected.swap(true, Ordering::AcqRel) {
            self.hurry.notify_one();
        }
    }

    /// How often it was said that no snapshot holds; to be asked before one is read.
    #[must_use]
    pub fn revisions(&self) -> u64 {
        self.is_suspected.store(false, Ordering::Release);
        self.revisions.load(Ordering::Acquire)
    }

    /// Takes a snapshot, unless it was read before something was defined: tells whether it holds.
    pub fn publish(&self, catalog: Catalog, revisions: u64) -> bool {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if self.revisions.load(Ordering::Acquire) != revisions {
            return false;
        }
        self.epoch.store(catalog.epoch, Ordering::Release);
        *current = Some(Arc::new(catalog));
        true
    }

    /// Ends when somebody wants a new look.
    pub async fn hurried(&self) {
        self.hurry.notified().await;
    }
}

impl Catalog {
    /// What is known of a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Named {
        self.names.get(name).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_from_before_a_definition_never_holds() {
        let cell = CatalogCell::default();
        let before = cell.revisions();
        cell.invalidate();
        assert!(!cell.publish(Catalog { epoch: 1, ..Catalog::default() }, before));
        assert_eq!(cell.epoch(), 0);
        let after = cell.revisions();
        assert!(cell.publish(Catalog { epoch: 2, ..Catalog::default() }, after));
        assert_eq!((cell.epoch(), cell.current().unwrap().epoch), (2, 2));
        cell.invalidate();
        assert!(cell.current().is_none());
    }
}

//! What the console shows and changes.

use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::console::ConsoleConfig;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::console::command::Shutdown;
use crate::console::history::History;
use crate::control::Control;
use crate::fleet::View;
use crate::metrics::pools::Pools;
use crate::mirror::hub::Hub;
use crate::roster::{Roster, Seat};

/// What is shown of the process, and what can be done to it.
#[derive(Debug)]
pub struct Sources {
    /// The document and the servers.
    pub control: Arc<Control>,
    /// The runtime that documents are put into effect on.
    pub runtime: Handle,
    /// Who is connected.
    pub roster: Arc<Roster>,
    /// What is counted of each role and database.
    pub pools: Arc<Pools>,
    /// The same as it was a while ago.
    pub history: Arc<History>,
    /// What came of the copies.
    pub mirror: Arc<Hub>,
    /// How the process is to end, once somebody says so.
    pub shutdown: watch::Sender<Option<Shutdown>>,
}

impl Sources {
    /// With nobody connected yet; what the console says of the process's end is received. Must be called on the runtime that
    /// documents are put into effect on.
    #[must_use]
    pub fn new(
        control: &Arc<Control>,
        pools: &Arc<Pools>,
        mirror: &Arc<Hub>,
    ) -> (Arc<Self>, watch::Receiver<Option<Shutdown>>) {
        let (shutdown, shutdowns) = watch::channel(None);
        let sources = Self {
            control: Arc::clone(control),
            runtime: Handle::current(),
            roster: Arc::default(),
            pools: Arc::clone(pools),
            history: Arc::new(History::new(Arc::clone(pools))),
            mirror: Arc::clone(mirror),
            shutdown,
        };
        (Arc::new(sources), shutdowns)
    }

    /// The servers, and the document in effect.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.control.fleet.view()
    }

    /// Who may do what at the console, and where it is.
    #[must_use]
    pub fn config(&self) -> ConsoleConfig {
        self.view().active.config.console.clone().unwrap_or_default()
    }

    /// Clients that are not at the console.
    #[must_use]
    pub fn clients(&self) -> Vec<Arc<Seat>> {
        let console = self.config().database;
        let mut seats = self.roster.all();
        seats.retain(|seat| seat.identity.database != console);
        seats
    }
}

/// The time from one look to the next while something is waited for.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(10);

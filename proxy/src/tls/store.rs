//! TLS of the process: what the document in effect says, with its files as they were when they were good last.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::tls::{ClientTlsConfig, ServerTlsConfig, TlsFilesState, TlsReport};
use tracing::{error, info};

use crate::tls::clients::{self, ClientTls};
use crate::tls::files::{FileFault, Files};
use crate::tls::servers::{self, ServerTls};
use crate::tls::tally::Tally;

/// Each side, by who is spoken to.
#[derive(Debug)]
pub struct TlsStore {
    /// With clients.
    pub client: Arc<Side<ClientTls>>,
    /// With the servers of the pool.
    pub server: Arc<Side<ServerTls>>,
    /// With the mirror.
    pub mirror: Arc<Side<ServerTls>>,
}

/// One side.
#[derive(Debug)]
pub struct Side<T> {
    /// Its name in reports and metrics.
    pub name: &'static str,
    /// Its handshakes.
    pub tally: Tally,
    /// Changes with the settings, and not with the files.
    revision: AtomicU64,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    current: Option<Made<T>>,
    fault: String,
}

/// What settings and files make.
type Made<T> = (Settings<T>, Files<Arc<T>>);

/// How a side is made of its files.
type Make<T> = Arc<dyn Fn(&[Vec<u8>]) -> Result<Arc<T>, FileFault> + Send + Sync>;

struct Settings<T> {
    /// The part of the document, to see whether it changes.
    text: String,
    make: Make<T>,
    not_after: fn(&T) -> Option<i64>,
}

impl<T> std::fmt::Debug for Settings<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("text", &self.text).finish_non_exhaustive()
    }
}

impl Default for TlsStore {
    fn default() -> Self {
        Self { client: Side::new("client"), server: Side::new("server"), mirror: Side::new("mirror") }
    }
}

/// Sides that are ready to be put into effect together.
#[derive(Debug)]
pub struct Prepared {
    client: Option<Made<ClientTls>>,
    server: Option<Made<ServerTls>>,
    mirror: Option<Made<ServerTls>>,
}

impl TlsStore {
    /// Reads the files that a document names.
    ///
    /// # Errors
    /// With every reason why they cannot be used. Where nothing but the content of files has changed since the document
    /// before, and has become bad, that is no reason: what they were is kept.
    pub fn prepare(&self, config: &ProxyConfig) -> Result<Prepared, Vec<String>> {
        let tls = config.tls.clone().unwrap_or_default();
        let mirror = config.mirror.as_ref().and_then(|mirror| mirror.tls.clone());
        let mut faults = Vec::new();
        let prepared = Prepared {
            client: self.client.prepare(tls.client.and_then(client_settings), "tls.client", &mut faults),
            server: self.server.prepare(tls.server.and_then(server_settings), "tls.server", &mut faults),
            mirror: self.mirror.prepare(mirror.and_then(server_settings), "mirror.tls", &mut faults),
        };
        if faults.is_empty() { Ok(prepared) } else { Err(faults) }
    }

    /// Puts into effect what was prepared.
    pub fn apply(&self, prepared: Prepared) {
        let Prepared { client, server, mirror } = prepared;
        self.client.apply(client);
        self.server.apply(server);
        self.mirror.apply(mirror);
    }

    /// Looks whether files have changed.
    pub fn refresh(&self) {
        self.client.refresh();
        self.server.refresh();
        self.mirror.refresh();
    }

    /// The name of each side, the numbers of its [`Tally`], and when its certificate expires, in seconds since 1970.
    #[must_use]
    pub fn counts(&self) -> [(&'static str, [u64; 3], Option<i64>); 3] {
        [self.client.counts(), self.server.counts(), self.mirror.counts()]
    }

    /// What the report says of the files.
    #[must_use]
    pub fn report(&self) -> Vec<TlsReport> {
        [self.client.report(), self.server.report(), self.mirror.report()].into_iter().flatten().collect()
    }
}

impl<T> Side<T> {
    fn new(name: &'static str) -> Arc<Self> {
        let state = Mutex::new(State { current: None, fault: String::new() });
        Arc::new(Self { name, tally: Tally::default(), revision: AtomicU64::new(0), state })
    }

    /// What a handshake of now is made by; `None` where there is none to be.
    #[must_use]
    pub fn current(&self) -> Option<Arc<T>> {
        let state = self.lock();
        let (_, files) = state.current.as_ref()?;
        files.last().cloned()
    }

    /// The number of the settings in effect: a connection that was opened under another should not be used any more.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// When the certificate that is shown expires, in seconds since 1970.
    fn not_after(&self) -> Option<i64> {
        let state = self.lock();
        let (settings, files) = state.current.as_ref()?;
        (settings.not_after)(files.last()?)
    }

    /// `None` where nothing changes.
    fn prepare(
        &self,
        wanted: Option<(Settings<T>, Vec<String>)>,
        path: &str,
        faults: &mut Vec<String>,
    ) -> Option<Made<T>> {
        let (settings, paths) = wanted?;
        let state = self.lock();
        let known = state.current.as_ref().filter(|(known, _)| known.text == settings.text);
        let is_known = known.is_some();
        drop(state);
        let mut files = Files::new(paths);
        match files.refresh(&*settings.make) {
            Ok(_) => {}
            Err(_) if is_known => {}
            Err(error) => faults.push(format!("{path}: {error}")),
        }
        Some((settings, files))
    }

    fn apply(&self, wanted: Option<Made<T>>) {
        let mut state = self.lock();
        let text = |made: &Option<Made<T>>| made.as_ref().map(|(settings, _)| settings.text.clone());
        if text(&state.current) == text(&wanted) {
            // Files that have changed are looked at in their turn.
            return;
        }
        state.current = wanted;
        state.fault.clear();
        self.revision.fetch_add(1, Ordering::Relaxed);
    }

    fn refresh(&self) {
        let mut state = self.lock();
        let State { current: Some((settings, files)), fault } = &mut *state else { return };
        let before = files.last().cloned();
        let refreshed: io::Result<Arc<T>> = files.refresh(&*settings.make);
        match refreshed {
            Ok(made) => {
                if before.is_none_or(|before| !Arc::ptr_eq(&before, &made)) || !fault.is_empty() {
                    info!(side = self.name, "files of TLS were read again");
                }
                fault.clear();
            }
            Err(found) => {
                let found = found.to_string();
                if *fault != found {
                    error!(side = self.name, found, "files of TLS cannot be used; the last good ones are");
                    self.tally.note_broken();
                    *fault = found;
                }
            }
        }
    }

    fn counts(&self) -> (&'static str, [u64; 3], Option<i64>) {
        (self.name, self.tally.numbers(), self.not_after())
    }

    fn report(&self) -> Option<TlsReport> {
        let not_after = self.not_after();
        let state = self.lock();
        state.current.as_ref()?;
        Some(TlsReport {
            side: self.name.to_owned(),
            state: if state.fault.is_empty() { TlsFilesState::Valid } else { TlsFilesState::Broken },
            message: state.fault.clone(),
            not_after: not_after
                .and_then(|at| jiff::Timestamp::from_second(at).ok())
                .map(|at| at.to_string()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn client_settings(config: ClientTlsConfig) -> Option<(Settings<ClientTls>, Vec<String>)> {
    let paths = clients::paths(&config)?;
    let text = format!("{config:?}");
    let make: Make<ClientTls> = Arc::new(move |texts| ClientTls::new(&config, texts));
    Some((Settings { text, make, not_after: |tls| tls.not_after }, paths))
}

fn server_settings(config: ServerTlsConfig) -> Option<(Settings<ServerTls>, Vec<String>)> {
    let paths = servers::paths(&config)?;
    let text = format!("{config:?}");
    let make: Make<ServerTls> = Arc::new(move |texts| ServerTls::new(&config, texts));
    Some((Settings { text, make, not_after: |tls| tls.not_after }, paths))
}

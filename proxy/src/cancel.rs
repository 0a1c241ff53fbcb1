//! Cancel requests: which server connection a client's key stands for at the moment, and the request itself.
//!
//! PostgreSQL cancels whatever the connection runs when the signal arrives, so a connection must not go to another
//! client while a request for it is on its way: a session waits for that before it gives its connection back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use subtle::ConstantTimeEq as _;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::cancel::mark::MarkSecret;
use crate::server::cancel_target::CancelTarget;
use crate::wire::startup::CancelKey;

pub mod mark;

/// The longest that handing a request to a server may take. A connection is held back no longer than that.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests on their way for one session; more are dropped, since they could not do more.
const IN_FLIGHT_MAX: u32 = 4;

/// All sessions that can be cancelled, by the process id of their keys.
#[derive(Debug)]
pub struct CancelRegistry {
    sessions: Mutex<HashMap<i32, Vec<Known>>>,
    marks: Mutex<Marks>,
    /// The time, as whoever keeps it has said last, in seconds since 1970: costs nothing to read.
    clock: AtomicU64,
}

/// A session that can be cancelled.
#[derive(Debug)]
struct Known {
    key: CancelKey,
    slot: Arc<CancelSlot>,
}

/// What keys are marked with now, and what they were marked with before that: sessions outlive a change.
#[derive(Debug)]
struct Marks {
    now: MarkSecret,
    before: Option<MarkSecret>,
}

/// What one session runs.
#[derive(Debug, Default)]
pub struct CancelSlot {
    state: Mutex<SlotState>,
    settled: Notify,
    asked: Notify,
    opened: Notify,
}

#[derive(Debug, Default)]
struct SlotState {
    running: Option<Arc<CancelTarget>>,
    /// The connection that the session keeps between its transactions.
    kept: Option<Arc<CancelTarget>>,
    /// When its latest request was taken up, in seconds since 1970.
    asked_at: u64,
    /// The connection runs what is ours first: requests wait.
    is_preparing: bool,
    in_flight: u32,
    /// Since when the session waits for a connection, if it does.
    waiting_since: Option<Instant>,
    /// The wait was asked to end.
    is_asked: bool,
}

/// What a session runs, for whoever looks.
#[derive(Debug, Clone, Default)]
pub struct Running {
    /// What cancels at the server connection that it has, for a transaction or longer.
    pub server: Option<Arc<CancelTarget>>,
    /// Whether anything is under way there.
    pub is_active: bool,
    /// Since when it waits for one, if it does.
    pub waiting_since: Option<Instant>,
    /// When its latest request was taken up, in seconds since 1970, give or take one; 0 where there was none.
    pub asked_at: u64,
}

/// A session's place in the registry; it leaves when this is dropped.
#[derive(Debug)]
pub struct CancelHandle {
    registry: Arc<CancelRegistry>,
    /// The key that the client was given.
    pub key: CancelKey,
    slot: Arc<CancelSlot>,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The server has it, or the session that waits for one.
    Sent,
    /// The session runs nothing: PostgreSQL too says nothing then.
    Idle,
    /// The server could not be reached.
    Failed,
    /// No session has that key.
    Unknown,
}

/// What became of a client's request over the whole pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelVerdict {
    /// A session here has the key.
    Known,
    /// A peer has the session.
    Forwarded,
    /// No proxy that could be asked has it.
    Unknown,
    /// No peer was asked: too many were being asked already.
    Limited,
}

impl CancelVerdict {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 4] = [Self::Known, Self::Forwarded, Self::Unknown, Self::Limited];

    /// The verdict as a metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Forwarded => "forwarded",
            Self::Unknown => "unknown",
            Self::Limited => "limited",
        }
    }
}

impl Default for CancelRegistry {
    fn default() -> Self {
        let marks = Marks { now: MarkSecret::random(), before: None };
        Self { sessions: Mutex::default(), marks: Mutex::new(marks), clock: AtomicU64::new(0) }
    }
}

impl CancelRegistry {
    /// Marks keys with what the proxies of the pool share, from now on. Keys that were given before stay good.
    pub fn share(&self, secret: &[u8]) {
        let secret = MarkSecret::shared(secret);
        let mut marks = locked(&self.marks);
        if marks.now != secret {
            marks.before = Some(std::mem::replace(&mut marks.now, secret));
        }
    }

    /// Tells the time, in seconds since 1970. To be called once in a second.
    pub fn tick(&self, seconds: u64) {
        self.clock.store(seconds, Ordering::Relaxed);
    }

    /// Whether a proxy that shares our secret may have given that key.
    #[must_use]
    pub fn is_marked(&self, key: &CancelKey) -> bool {
        let marks = locked(&self.marks);
        marks.now.is_on(key) || marks.before.as_ref().is_some_and(|before| before.is_on(key))
    }

    /// Registers a session under a new random key whose secret has that many bytes.
    pub fn register(self: &Arc<Self>, secret_len: usize) -> CancelHandle {
        let slot = Arc::new(CancelSlot::default());
        let key = self.add(rand::random::<i32>() & i32::MAX, secret_len, &slot);
        CancelHandle { registry: Arc::clone(self), key, slot }
    }

    /// Adds a session under a new key with that process id, which others may have too.
    fn add(&self, process_id: i32, secret_len: usize, slot: &Arc<CancelSlot>) -> CancelKey {
        let mark = locked(&self.marks).now.clone();
        let mut sessions = locked(&self.sessions);
        let namesakes = sessions.entry(process_id).or_default();
        let key = loop {
            let key = mark.make_key(process_id, secret_len);
            if namesakes.iter().all(|known| known.key != key) {
                break key;
            }
        };
        namesakes.push(Known { key: key.clone(), slot: Arc::clone(slot) });
        key
    }

    fn remove(&self, key: &CancelKey) {
        let mut sessions = locked(&self.sessions);
        if let Some(namesakes) = sessions.get_mut(&key.process_id) {
            namesakes.retain(|known| known.key != *key);
            if namesakes.is_empty() {
                sessions.remove(&key.process_id);
            }
        }
    }

    /// Passes a client's request on to the server connection that its session holds now.
    pub async fn request(&self, key: &CancelKey) -> CancelOutcome {
        let Some(slot) = self.find(key) else { return CancelOutcome::Unknown };
        if slot.ask() {
            return CancelOutcome::Sent;
        }
        // What does not come to be within that time is not worth a request.
        let prepared = timeout(REQUEST_TIMEOUT, slot.prepared()).await;
        match prepared.ok().and_then(|()| Flight::start(&slot)) {
            Some(flight) => flight.send().await,
            None => CancelOutcome::Idle,
        }
    }

    /// The session with that key. The secret is compared in constant time, so that it cannot be found byte by byte.
    fn find(&self, key: &CancelKey) -> Option<Arc<CancelSlot>> {
        let sessions = locked(&self.sessions);
        let namesakes = sessions.get(&key.process_id)?;
        let known = namesakes.iter().find(|known| known.key.secret.ct_eq(&key.secret).into())?;
        Some(Arc::clone(&known.slot))
    }
}

/// A request on its way; dropped, it has arrived or never will.
#[derive(Debug)]
pub struct Flight {
    slot: Arc<CancelSlot>,
    target: Arc<CancelTarget>,
}

impl Flight {
    fn start(slot: &Arc<CancelSlot>) -> Option<Self> {
        let target = {
            let mut state = locked(&slot.state);
            if state.in_flight >= IN_FLIGHT_MAX {
                return None;
            }
            let running = state.running.clone()?;
            state.in_flight += 1;
            running
        };
        Some(Self { slot: Arc::clone(slot), target })
    }

    /// Hands it to the server.
    pub async fn send(self) -> CancelOutcome {
        match timeout(REQUEST_TIMEOUT, self.target.request()).await {
            Ok(Ok(())) => CancelOutcome::Sent,
            Ok(Err(_)) | Err(_) => CancelOutcome::Failed,
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        locked(&self.slot.state).in_flight -= 1;
        self.slot.settled.notify_waiters();
    }
}

impl CancelSlot {
    /// Ends when the connection runs what is the client's, or nothing.
    async fn prepared(&self) {
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            if !locked(&self.state).is_preparing {
                return;
            }
            opened.await;
        }
    }

    /// Asks a session that waits for a connection to give up. Tells whether it waits.
    fn ask(&self) -> bool {
        let mut state = locked(&self.state);
        let is_waiting = state.waiting_since.is_some();
        if is_waiting {
            state.is_asked = true;
            self.asked.notify_waiters();
        }
        is_waiting
    }

    /// A request of ours for what the session runs, which it waits for from now on before it gives its connection to others.
    /// None where it runs nothing of the client's.
    #[must_use]
    pub fn request(self: &Arc<Self>) -> Option<Flight> {
        if locked(&self.state).is_preparing { None } else { Flight::start(self) }
    }

    /// What the session runs.
    #[must_use]
    pub fn running(&self) -> Running {
        let state = locked(&self.state);
        Running {
            server: state.running.as_ref().or(state.kept.as_ref()).cloned(),
            is_active: state.running.is_some(),
            waiting_since: state.waiting_since,
            asked_at: state.asked_at,
        }
    }
}

/// A session that waits for a connection, until this is dropped.
struct Wait<'a>(&'a CancelSlot);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).waiting_since = None;
    }
}

impl CancelHandle {
    /// What the session runs, for others to look at.
    #[must_use]
    pub const fn slot(&self) -> &Arc<CancelSlot> {
        &self.slot
    }

    /// The session keeps this connection between its transactions from now on, or none.
    pub fn keep(&self, target: Option<&Arc<CancelTarget>>) {
        locked(&self.slot.state).kept = target.cloned();
    }

    /// Takes the process id of the server process that serves this session from now on to its end, and a new secret
    /// with it. The client must not have been given its key yet.
    pub fn take_process_id(&mut self, process_id: i32) {
        let key = self.registry.add(process_id, self.key.secret.len(), &self.slot);
        self.registry.remove(&self.key);
        self.key = key;
    }

    /// Ends when a request comes while this is awaited, which is for as long as the session waits for a connection.
    pub async fn cancelled(&self) {
        {
            let mut state = locked(&self.slot.state);
            state.waiting_since = Some(Instant::now());
            state.is_asked = false;
        }
        let wait = Wait(&self.slot);
        loop {
            let asked = wait.0.asked.notified();
            tokio::pin!(asked);
            asked.as_mut().enable();
            if locked(&wait.0.state).is_asked {
                return;
            }
            asked.await;
        }
    }

    /// From now on the key stands for this server connection.
    ///
    /// Where `is_preparing`, requests wait for [`Self::open`]: the connection runs something of ours first.
    pub fn begin(&self, target: &Arc<CancelTarget>, is_preparing: bool) {
        let mut state = locked(&self.slot.state);
        state.running = Some(Arc::clone(target));
        state.asked_at = self.registry.clock.load(Ordering::Relaxed);
        state.is_preparing = is_preparing;
    }

    /// What runs from now on is the client's.
    pub fn open(&self) {
        locked(&self.slot.state).is_preparing = false;
        self.slot.opened.notify_waiters();
    }

    /// From now on the key stands for nothing. Tells whether a request is still on its way.
    #[must_use]
    pub fn end(&self) -> bool {
        let mut state = locked(&self.slot.state);
        state.running = None;
        if std::mem::take(&mut state.is_preparing) {
            self.slot.opened.notify_waiters();
        }
        state.in_flight > 0
    }

    /// Waits until no request is on its way. Cancel-safe.
    pub async fn settled(&self) {
        loop {
            let settled = self.slot.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if locked(&self.slot.state).in_flight == 0 {
                return;
            }
            settled.await;
        }
    }
}

impl Drop for CancelHandle {
    fn drop(&mut self) {
        self.registry.remove(&self.key);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::server::endpoint::Endpoint;
    use crate::tls::store::TlsStore;
    use crate::wire::startup::{LONG_SECRET_LEN, SHORT_SECRET_LEN};

    #[tokio::test]
    async fn a_request_reaches_the_connection_that_the_session_holds() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let registry = Arc::new(CancelRegistry::default());
        let handle = registry.register(SHORT_SECRET_LEN);
        assert_eq!(registry.request(&handle.key).await, CancelOutcome::Idle);
        let peer = server.local_addr().unwrap();
        let target = CancelTarget {
            peer,
            key: CancelKey { process_id: 7, secret: vec![1, 2, 3, 4] },
            endpoint: Endpoint {
                host: "127.0.0.1".to_owned(),
                port: peer.port(),
                tls: TlsStore::default().server,
            },
            revision: 0,
        };
        handle.begin(&Arc::new(target), false);
        let accept = async {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut packet = [0; 16];
            stream.read_exact(&mut packet).await.unwrap();
            assert!(handle.end(), "the request is on its way until the server closes");
            drop(stream);
            handle.settled().await;
            packet
        };
        let (outcome, packet) = tokio::join!(registry.request(&handle.key), accept);
        assert_eq!(outcome, CancelOutcome::Sent);
        assert_eq!(packet[8..], [0, 0, 0, 7, 1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn a_request_ends_a_wait_for_a_connection_and_no_later_one() {
        let registry = Arc::new(CancelRegistry::default());
        let handle = registry.register(SHORT_SECRET_LEN);
        let ((), outcome) = tokio::join!(handle.cancelled(), registry.request(&handle.key));
        assert_eq!(outcome, CancelOutcome::Sent);
        assert_eq!(registry.request(&handle.key).await, CancelOutcome::Idle);
        let later = timeout(Duration::from_millis(1), handle.cancelled()).await;
        assert!(later.is_err(), "a request for nothing is not kept");
    }

    #[tokio::test]
    async fn a_key_means_nothing_after_its_session() {
        let registry = Arc::new(CancelRegistry::default());
        let handle = registry.register(SHORT_SECRET_LEN);
        let key = handle.key.clone();
        drop(handle);
        assert_eq!(registry.request(&key).await, CancelOutcome::Unknown);
        assert!(registry.sessions.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_key_is_known_by_its_whole_secret_only() {
        let registry = Arc::new(CancelRegistry::default());
        let handle = registry.register(LONG_SECRET_LEN);
        let CancelKey { process_id, secret } = handle.key.clone();
        for wrong in [secret[..31].to_vec(), [&secret[..], b"x"].concat(), Vec::new(), vec![0; 32]] {
            let wrong = CancelKey { process_id, secret: wrong };
            assert_eq!(registry.request(&wrong).await, CancelOutcome::Unknown);
        }
    }

    #[tokio::test]
    async fn sessions_of_two_servers_may_have_one_process_id() {
        let registry = Arc::new(CancelRegistry::default());
        let mut handles = [(); 3].map(|()| registry.register(SHORT_SECRET_LEN));
        let former = handles[0].key.clone();
        handles.iter_mut().for_each(|handle| handle.take_process_id(77));
        assert_eq!(registry.request(&former).await, CancelOutcome::Unknown);
        let [first, second, third] = handles;
        let gone = second.key.clone();
        drop(second);
        assert_eq!(registry.request(&gone).await, CancelOutcome::Unknown);
        for handle in [first, third] {
            assert_eq!((handle.key.process_id, handle.key.secret.len()), (77, SHORT_SECRET_LEN));
            assert!(registry.is_marked(&handle.key));
            let ((), outcome) = tokio::join!(handle.cancelled(), registry.request(&handle.key));
            assert_eq!(outcome, CancelOutcome::Sent);
        }
        assert!(locked(&registry.sessions).is_empty());
    }

    #[test]
    fn keys_that_were_given_before_a_change_of_the_secret_stay_good() {
        let [here, there] = [(); 2].map(|()| Arc::new(CancelRegistry::default()));
        [&here, &there].into_iter().for_each(|registry| registry.share(b"shared"));
        let before = here.register(SHORT_SECRET_LEN);
        [&here, &there].into_iter().for_each(|registry| registry.share(b"changed"));
        let after = here.register(SHORT_SECRET_LEN);
        for registry in [&here, &there] {
            registry.share(b"changed");
            assert!(registry.is_marked(&before.key) && registry.is_marked(&after.key));
        }
    }
}

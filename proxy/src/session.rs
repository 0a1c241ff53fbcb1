//! One client from its login to its end: waits for a request, leases a connection, exchanges, gives it back.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Buf as _;
use pgrouting_contract::config::PoolMode;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::cancel::CancelHandle;
use crate::error::ClientError;
use crate::fleet::View;
use crate::pool::lease::Lease;
use crate::route::Access;
use crate::server::connection::Identity;
use crate::session::client::Client;
use crate::session::context::{Context, Worker};
use crate::session::exchange::{Exchange, Stop};
use crate::session::leasing::Refusal;
use crate::session::relay::Seen;
use crate::session::request::{Progress, RequestFault, client_header, progress};
use crate::transaction::PinReason;
use crate::wire::backend::put_ready;
use crate::wire::frontend::{FLUSH, FUNCTION_CALL, QUERY, SYNC};

pub mod client;
pub mod context;
pub mod end;
pub mod exchange;
pub mod forward;
pub mod leasing;
pub mod prepared;
pub mod relay;
pub mod request;
pub mod startup;

/// The longest that cleaning a connection up for the next client may take.
const RESET_TIMEOUT: Duration = Duration::from_secs(5);

/// A client that is logged in.
#[derive(Debug)]
pub struct Session {
    client: Client,
    context: Arc<Context>,
    worker: Arc<Worker>,
    views: watch::Receiver<Arc<View>>,
    /// The latest view that the session has seen.
    view: Arc<View>,
    identity: Arc<Identity>,
    access: Access,
    cancel: CancelHandle,
    /// The connection that the session keeps, and why.
    kept: Option<(PinReason, Lease)>,
}

/// Why a session ends.
#[derive(Debug)]
pub enum End {
    /// The client said goodbye or has gone: there is nobody to tell anything.
    Left,
    /// The client is told why.
    Told(ClientError),
    /// The client is passed what a server said, an ErrorResponse that ends the connection.
    Refused(Vec<u8>),
    /// The client has been told already.
    Closed,
}

/// Signals that end sessions, looked at where a session waits.
struct Signals<'a> {
    worker: &'a Worker,
    drain: Pin<&'a mut (dyn Future<Output = ()> + Send)>,
    kill: Pin<&'a mut (dyn Future<Output = ()> + Send)>,
    /// Whether the task will be woken by either. A task keeps its waker, so once is enough.
    is_registered: bool,
    /// Whether it is this session's turn to leave.
    is_drained: bool,
}

impl Session {
    /// Serves the client until it leaves or has to.
    pub async fn run(mut self) {
        let worker = Arc::clone(&self.worker);
        worker.metrics.clients.add_one();
        let mut drain = pin!(worker.drained(self.context.clients.count()));
        let mut kill = pin!(worker.kill.cancelled());
        let mut signals = Signals {
            worker: &worker,
            drain: drain.as_mut(),
            kill: kill.as_mut(),
            is_registered: false,
            is_drained: false,
        };
        let greeted = tokio::select! {
            biased;
            greeted = self.greet() => greeted,
            () = signals.kill.as_mut() => Err(End::Told(end::shutdown())),
        };
        let end = match greeted {
            Err(end) => {
                worker.metrics.logins_failed.add_one();
                end
            }
            Ok(()) => {
                worker.metrics.logins.add_one();
                loop {
                    if let Err(end) = self.transaction(&mut signals).await {
                        break end;
                    }
                }
            }
        };
        debug!(?end, user = self.identity.user, database = self.identity.database, "the session ends");
        let metrics = Arc::clone(&worker.metrics);
        match &end {
            End::Told(error) => {
                metrics.count_error(error.kind);
                error.put(self.client.outbox.bytes());
            }
            End::Refused(message) => self.client.outbox.bytes().extend_from_slice(message),
            End::Left | End::Closed => {}
        }
        if !matches!(end, End::Left) {
            end::send_last(&mut self.client.stream, &mut self.client.outbox).await;
        }
        let kept = self.kept.take();
        drop(self);
        metrics.clients.take_one();
        if let Some((_, lease)) = kept {
            reset(lease).await;
        }
    }

    /// Waits for one request and serves it to the end of its transaction.
    async fn transaction(&mut self, signals: &mut Signals<'_>) -> Result<(), End> {
        let (reason, lease) = match self.kept.take() {
            Some((reason, lease)) => (Some(reason), lease),
            None => {
                self.request(signals).await?;
                self.look_at_view();
                let leased = match self.lease_at_once() {
                    Ok(lease) => Ok(lease),
                    Err(asked) => tokio::select! {
                        biased;
                        leased = self.lease_in_time(asked) => leased,
                        () = signals.kill.as_mut() => return Err(End::Told(end::shutdown())),
                    },
                };
                match leased {
                    Ok(lease) => (None, lease),
                    Err(refusal) => return self.refuse(refusal),
                }
            }
        };
        self.exchange(reason, lease, signals).await
    }

    /// Waits until the client has sent a whole request. What needs no server is answered here.
    async fn request(&mut self, signals: &mut Signals<'_>) -> Result<(), End> {
        let message_bytes_max = self.message_bytes_max();
        let client = &mut self.client;
        let mut scanned = 0;
        poll_fn(|cx| {
            loop {
                match client.poll_send(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(End::Left)),
                    Poll::Pending => return signals.poll_kill(cx),
                }
                match next(client, &mut scanned, message_bytes_max) {
                    Ok(Next::Request) => return Poll::Ready(Ok(())),
                    Ok(Next::Terminate) => return Poll::Ready(Err(End::Left)),
                    Ok(Next::Answered) => continue,
                    Ok(Next::Read) => {}
                    Err(fault) => return Poll::Ready(Err(End::Told(end::fault(&fault)))),
                }
                match client.poll_read(cx) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(End::Left)),
                    Poll::Ready(Ok(_)) => {}
                    Poll::Pending => {
                        client.rest();
                        return signals.poll_drain(cx);
                    }
                }
            }
        })
        .await
    }

    async fn exchange(
        &mut self,
        mut reason: Option<PinReason>,
        mut lease: Lease,
        signals: &mut Signals<'_>,
    ) -> Result<(), End> {
        self.cancel.begin(lease.peer, &lease.cancel_key);
        self.worker.metrics.clients_active.add_one();
        let message_bytes_max = self.message_bytes_max();
        let mut exchange = Exchange {
            client: &mut self.client,
            server: &mut lease,
            statements: &self.context.statements,
            message_bytes_max,
            seen: Seen::default(),
            is_begun: false,
        };
        let stop = poll_fn(|cx| match exchange.poll(cx) {
            Poll::Ready(stop) => Poll::Ready(Ok(stop)),
            // Between transactions a session that keeps its connection can be asked to leave.
            Poll::Pending if !exchange.is_begun => signals.poll_drain(cx).map_ok(|()| Stop::AtRest),
            Poll::Pending => signals.poll_kill(cx).map_ok(|()| Stop::AtRest),
        })
        .await;
        let seen = exchange.seen;
        self.worker.metrics.clients_active.take_one();
        self.worker.count(&seen);
        if self.cancel.end() {
            // A cancel request is on its way and must not hit the connection's next client.
            self.cancel.settled().await;
        }
        if seen.is_unpinned && reason != Some(PinReason::SessionMode) {
            reason = None;
        }
        reason = reason.or(seen.pin).or_else(|| self.mode_pin());
        match stop {
            Ok(Stop::AtRest) => self.rest(reason, lease),
            Ok(stop) => Err(end::of(stop, reason, lease, &mut self.kept, seen.is_fatal)),
            Err(end) => {
                if lease.is_at_rest() {
                    self.kept = Some((reason.unwrap_or(PinReason::SessionMode), lease));
                }
                Err(end)
            }
        }
    }

    /// The transaction is over: the connection goes back, or stays.
    fn rest(&mut self, reason: Option<PinReason>, lease: Lease) -> Result<(), End> {
        match reason {
            Some(reason) => {
                if self.kept.is_none() {
                    self.worker.metrics.count_pin(reason);
                }
                self.kept = Some((reason, lease));
            }
            None => lease.give_back(),
        }
        if self.worker.is_stopping() && self.worker.drain.is_cancelled() {
            return Err(End::Told(end::shutdown()));
        }
        Ok(())
    }

    /// Takes the latest view; costs no lock while there is none.
    fn look_at_view(&mut self) {
        if self.views.has_changed().unwrap_or(false) {
            self.view = Arc::clone(&self.views.borrow_and_update());
        }
    }

    fn mode_pin(&self) -> Option<PinReason> {
        match self.view.active.config.pooling.mode {
            PoolMode::Session => Some(PinReason::SessionMode),
            PoolMode::Transaction => None,
        }
    }

    fn message_bytes_max(&self) -> usize {
        usize::try_from(self.view.active.config.pooling.max_message_bytes).unwrap_or(usize::MAX)
    }

    /// Answers the request at the front of the inbox with an error, as a server would.
    fn refuse(&mut self, refusal: Refusal) -> Result<(), End> {
        let error = match refusal {
            Refusal::Proxy(error) => error,
            Refusal::Server(message) => return Err(End::Refused(message)),
        };
        self.worker.metrics.count_error(error.kind);
        let client = &mut self.client;
        error.put(client.outbox.bytes());
        let message_bytes_max = usize::MAX;
        match client_header(&client.inbox, message_bytes_max) {
            Ok(Some(header)) if matches!(header.kind, QUERY | FUNCTION_CALL) => {
                client.discarding = header.total;
                put_ready(client.outbox.bytes(), b'I');
            }
            Ok(_) => client.is_skipping = true,
            Err(fault) => return Err(End::Told(end::fault(&fault))),
        }
        Ok(())
    }
}

impl Signals<'_> {
    /// Ends a session that has to leave at once.
    fn poll_kill<T>(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<T, End>> {
        self.poll(cx, false)
    }

    /// Ends a session between transactions that has to leave.
    fn poll_drain<T>(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<T, End>> {
        self.poll(cx, true)
    }

    fn poll<T>(&mut self, cx: &mut TaskContext<'_>, is_between: bool) -> Poll<Result<T, End>> {
        if self.is_registered && !self.worker.is_stopping() {
            return Poll::Pending;
        }
        self.is_registered = true;
        self.is_drained = self.is_drained || self.drain.as_mut().poll(cx).is_ready();
        if self.kill.as_mut().poll(cx).is_ready() || (self.is_drained && is_between) {
            return Poll::Ready(Err(End::Told(end::shutdown())));
        }
        Poll::Pending
    }
}

/// What the front of the inbox asks for.
enum Next {
    /// A server.
    Request,
    /// Goodbye.
    Terminate,
    /// Nothing more: it has been answered or dropped.
    Answered,
    /// More bytes.
    Read,
}

/// Looks at the front of the inbox; answers there what needs no server.
fn next(client: &mut Client, scanned: &mut usize, message_bytes_max: usize) -> Result<Next, RequestFault> {
    if client.discarding > 0 {
        return Ok(if client.discard() { Next::Read } else { Next::Answered });
    }
    let Some(header) = client_header(&client.inbox, message_bytes_max)? else { return Ok(Next::Read) };
    let is_there = client.inbox.len() >= header.total;
    if *scanned == 0 && is_there && matches!(header.kind, SYNC | FLUSH) {
        client.inbox.advance(header.total);
        if header.kind == SYNC {
            client.is_skipping = false;
            put_ready(client.outbox.bytes(), b'I');
        }
        return Ok(Next::Answered);
    }
    if client.is_skipping {
        client.discarding = header.total;
        return Ok(Next::Answered);
    }
    Ok(match progress(&client.inbox, scanned, message_bytes_max)? {
        Progress::Whole => Next::Request,
        Progress::Partial(_) => Next::Read,
        Progress::Terminate => Next::Terminate,
        Progress::Meaningless(total) => {
            client.discarding = total;
            Next::Answered
        }
    })
}

/// Cleans a connection that a session kept, and gives it back; one that cannot be cleaned is closed.
async fn reset(mut lease: Lease) {
    if !lease.is_fit() {
        return;
    }
    match timeout(RESET_TIMEOUT, lease.run("DISCARD ALL")).await {
        Ok(Ok(_)) => {
            lease.prepared.clear();
            lease.unnamed = None;
            lease.settings = Arc::clone(&lease.opened_with);
            lease.give_back();
        }
        Ok(Err(error)) => warn!(%error, "a connection could not be reset and is closed"),
        Err(_) => warn!("a connection could not be reset in time and is closed"),
    }
}

/// The socket's error as a reason to end.
impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Left
    }
}

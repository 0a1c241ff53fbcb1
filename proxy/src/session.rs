//! One client from its login to its end: waits for a request, leases a connection, exchanges, gives it back.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use pgrouting_contract::stage::Stage;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use crate::cancel::CancelHandle;
use crate::pool::lease::Lease;
use crate::route::{Access, Refusal as ReplicaRefusal, Side, Why};
use crate::server::connect::ConnectError;
use crate::session::choice::{await_position, decide, is_loose, note_kept, note_route};
use crate::session::client::Client;
use crate::session::context::{Context, Worker};
use crate::session::end::End;
use crate::session::exchange::{Exchange, Stop};
use crate::session::relay::{Seen, tell_restored};
use crate::session::request::client_header;
use crate::session::routing::{Decision, leaves_no_trace};
use crate::session::signals::Signals;
use crate::session::startup::Newcomer;
use crate::session::tenancy::{Refusal, Tenancy};
use crate::transaction::PinReason;
use crate::wire::backend::put_ready;
use crate::wire::frontend::{FUNCTION_CALL, QUERY};

pub mod cancel;
pub mod choice;
pub mod client;
pub mod command;
pub mod context;
pub mod end;
pub mod exchange;
pub mod explanation;
pub mod forward;
pub mod freshness;
pub mod gate;
pub mod greeting;
pub mod judge;
pub mod named_commands;
pub mod outdated;
pub mod prepared;
pub mod refusal;
pub mod relay;
pub mod request;
pub mod rescue;
pub mod routing;
pub mod signals;
pub mod startup;
pub mod state;
pub mod tenancy;
pub mod tie;
pub mod waiting;

/// The longest that a server may take to say what the state of a session is.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(30);

/// A client that is logged in.
#[derive(Debug)]
struct Session {
    client: Client,
    tenancy: Tenancy,
    cancel: CancelHandle,
    /// The connection that the session keeps, and why.
    kept: Option<(PinReason, Lease)>,
    /// The decision on the transaction at hand.
    decision: Decision,
    /// For what it is counted as one that keeps its connection.
    pinned: Option<PinReason>,
}

/// Serves one accepted socket to its end.
pub async fn serve(stream: TcpStream, context: Arc<Context>, worker: Arc<Worker>, access: Access) {
    // Boxed, so that the login's memory is given back when it is over.
    let entered = Box::pin(startup::enter(stream, context, worker, access)).await;
    let Some(newcomer) = entered else { return };
    let Newcomer { client, tenancy, cancel, counted } = newcomer;
    let decision = Decision::UNKNOWN;
    Box::pin(Session { client, tenancy, cancel, kept: None, decision, pinned: None }.run()).await;
    drop(counted);
}

impl Session {
    /// Serves the client until it leaves or has to.
    async fn run(mut self) {
        let worker = Arc::clone(&self.tenancy.worker);
        worker.metrics.clients.add_one();
        let mut drain = pin!(worker.drained(self.tenancy.context.clients.count()));
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
            greeted = greeting::greet(&mut self.client, &mut self.tenancy, &mut self.cancel) => greeted,
            () = signals.kill.as_mut() => Err(End::Told(end::shutdown())),
        };
        let end = match greeted {
            Err(end) => {
                worker.metrics.logins_failed.add_one();
                end
            }
            Ok(lease) => {
                worker.metrics.logins.add_one();
                if let Some(lease) = lease {
                    self.count_pin(Some(PinReason::SessionMode));
                    self.kept = Some((PinReason::SessionMode, lease));
                }
                loop {
                    if let Err(end) = self.transaction(&mut signals).await {
                        break end;
                    }
                }
            }
        };
        let identity = &self.tenancy.identity;
        debug!(?end, user = identity.user, database = identity.database, "the session ends");

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
        self.count_pin(None);
        // What cannot be undone goes with its connection.
        let kept = self.kept.take().filter(|_| !self.client.state.is_spoilt());
        drop(self);
        metrics.clients.take_one();
        if let Some((_, lease)) = kept {
            end::reset(lease).await;
        }
    }

    /// Waits for one request and serves it to the end of its transaction.
    async fn transaction(&mut self, signals: &mut Signals<'_>) -> Result<(), End> {
        match self.kept.take() {
            None => {
                let message_bytes_max = self.tenancy.limits.message_bytes_max;
                waiting::request(&mut self.client, signals, message_bytes_max).await?;
                self.serve(signals).await
            }
            Some((reason, lease)) if is_loose(&self.client, &mut self.tenancy, reason) => {
                self.wait_beside(reason, lease, signals).await?;
                self.serve(signals).await
            }
            Some((reason, lease)) => {
                let is_pinned = reason != PinReason::SessionMode;
                self.decision = Decision::UNKNOWN;
                note_kept(
                    &mut self.client,
                    &mut self.tenancy,
                    &lease,
                    if is_pinned { Why::Pinned } else { Why::SessionMode },
                );
                self.exchange(lease, signals).await
            }
        }
    }

    /// Serves the request at the front of the inbox: on the connection that the session keeps, if it has to run there,
    /// else on one that is leased for it.
    async fn serve(&mut self, signals: &mut Signals<'_>) -> Result<(), End> {
        self.client.routing.look_at_settings(&self.client.state.settings);
        if command::may_ask_token(&self.client) {
            Box::pin(await_position(&mut self.client, &mut self.tenancy)).await;
        }
        if command::take(&mut self.client, self.tenancy.view(), self.tenancy.access) {
            return Ok(());
        }
        self.decision = decide(&mut self.client, &mut self.tenancy);
        if self.decision.aim.side == Side::Primary
            && let Some((_, lease)) = self.kept.take()
        {
            note_kept(&mut self.client, &mut self.tenancy, &lease, self.decision.why);
            return self.exchange(lease, signals).await;
        }
        let settings = &self.client.state.settings;
        let leased = match self.tenancy.lease_at_once(settings) {
            Ok(lease) => Ok(lease),
            Err(asked) => tokio::select! {
                biased;
                leased = self.tenancy.lease_in_time(settings, asked) => leased,
                () = self.cancel.cancelled() => Err(Refusal::Proxy(end::cancelled())),
                () = signals.kill.as_mut() => return Err(End::Told(end::shutdown())),
            },
        };
        match (leased, self.kept.take()) {
            (Ok(lease), kept) => {
                self.kept = kept;
                note_route(&mut self.client, &self.tenancy, &self.decision);
                self.exchange(lease, signals).await
            }
            (Err(_), Some((_, lease))) => {
                note_kept(&mut self.client, &mut self.tenancy, &lease, Why::NoReplica);
                self.exchange(lease, signals).await
            }
            (Err(refusal), None) => self.refuse(refusal),
        }
    }

    /// Waits for a whole request while the connection that the session keeps may have something to say, such as a
    /// notification.
    async fn wait_beside(
        &mut self,
        reason: PinReason,
        mut lease: Lease,
        signals: &mut Signals<'_>,
    ) -> Result<(), End> {
        let (stop, seen) = self.converse(&mut lease, Some(0), false, signals).await;
        self.note_notified(&seen);
        match stop {
            Ok(Stop::Asked) => {
                self.kept = Some((reason, lease));
                Ok(())
            }
            Ok(stop) => Err(end::of(stop, Some(reason), lease, &mut self.kept, seen.is_fatal)),
            Err(()) => {
                self.kept = Some((reason, lease));
                Err(End::Told(end::shutdown()))
            }
        }
    }

    /// What a session is notified of it can read.
    fn note_notified(&mut self, seen: &Seen) {
        if seen.is_notified {
            self.client.routing.freshness.note_written(self.tenancy.view());
        }
    }

    async fn exchange(&mut self, mut lease: Lease, signals: &mut Signals<'_>) -> Result<(), End> {
        let is_preparing = !Arc::ptr_eq(&lease.settings, &self.client.state.settings);
        self.cancel.begin(lease.peer, &lease.cancel_key, is_preparing);
        self.tenancy.worker.metrics.clients_active.add_one();
        let (stop, seen) = self.converse(&mut lease, None, is_preparing, signals).await;
        self.tenancy.worker.metrics.clients_active.take_one();
        self.tenancy.worker.count(&seen);
        if seen.is_read_only || matches!(stop, Ok(Stop::ServerGone(_))) {
            self.tenancy.hurry();
        }
        if self.cancel.end() {
            // A cancel request is on its way and must not hit the connection's next client.
            self.cancel.settled().await;
        }
        if let Some(ended) = self.rescue(&stop).or_else(|| self.outlive(&stop, &lease)) {
            if matches!(stop, Ok(Stop::AtRest)) {
                lease.give_back();
            }
            return ended;
        }
        self.note_floor(&seen);
        self.note_notified(&seen);
        if self.kept.is_some() {
            return come_back(stop, lease, seen.is_fatal);
        }
        let reason = self.reason();
        match stop {
            // The server has said that it ends the connection, which matters to whoever has something on it.
            Ok(Stop::AtRest) if seen.is_fatal && self.client.state.is_free() => Ok(()),
            Ok(Stop::AtRest) if seen.is_fatal => Err(End::Closed),
            Ok(Stop::AtRest) => {
                let lease = self.ask(lease).await?;
                let reason = self.reason();
                self.rest(reason, lease)
            }
            // Nothing has been sent: the request goes to the new primary.
            Ok(Stop::Fenced(false)) if reason.is_none() => Ok(()),
            Ok(stop) => Err(end::of(stop, reason, lease, &mut self.kept, seen.is_fatal)),
            Err(()) => {
                if lease.is_at_rest() {
                    self.kept = Some((reason.unwrap_or(PinReason::SessionMode), lease));
                }
                Err(End::Told(end::shutdown()))
            }
        }
    }

    /// Moves bytes both ways until there is a reason to stop; `awaited` as in [`Exchange`], `is_preparing` while the
    /// connection is being given the client's settings.
    async fn converse(
        &mut self,
        lease: &mut Lease,
        awaited: Option<usize>,
        mut is_preparing: bool,
        signals: &mut Signals<'_>,
    ) -> (Result<Stop, ()>, Seen) {
        let view = self.tenancy.view();
        let mut exchange = Exchange {
            client: &mut self.client,
            server: lease,
            statements: &self.tenancy.context.statements,
            limits: self.tenancy.limits,
            view,
            seen: Seen::default(),
            is_begun: false,
            awaited,
        };
        let stop = poll_fn(|cx| {
            let polled = exchange.poll(cx);
            if is_preparing && exchange.is_begun && !exchange.server.replies.is_preparing() {
                is_preparing = false;
                self.cancel.open();
            }
            if let Some(databases) = exchange.client.state.take_databases() {
                // The server waits for a moment until nobody is connected to them any more.
                view.pools.iter().for_each(|pool| pool.empty(&databases));
            }
            match polled {
                Poll::Ready(stop) => Poll::Ready(Ok(stop)),
                // Between transactions a session that keeps its connection can be asked to leave.
                Poll::Pending if !exchange.is_begun => signals.poll_drain(cx).map(|()| Err(())),
                Poll::Pending => signals.poll_kill(cx).map(|()| Err(())),
            }
        })
        .await;
        (stop, exchange.seen)
    }

    /// Puts a request that a replica refused back, to be run on the primary.
    fn rescue(&mut self, stop: &Result<Stop, ()>) -> Option<Result<(), End>> {
        let routing = &mut self.client.routing;
        if matches!(stop, Ok(Stop::ServerGone(_))) && routing.rescue.is_armed() && routing.gate.is_proved() {
            routing.rescue.refuse(ReplicaRefusal::Gone);
        }
        let is_over = matches!(stop, Ok(Stop::AtRest | Stop::ServerGone(_)));
        if !is_over || !routing.rescue.is_dropping() {
            routing.rescue.disarm();
            return None;
        }
        let (refusal, request, statements) = routing.rescue.take()?;
        self.tenancy.worker.metrics.count_rescue(refusal);
        if refusal == ReplicaRefusal::Misroute {
            routing.judge.learn_request(&request, &self.client.statements);
        }
        if matches!(refusal, ReplicaRefusal::Misroute | ReplicaRefusal::Missing) {
            routing.judge.cell().suspect();
        }
        debug!(?refusal, "a replica refuses a request, which runs on the primary");
        if let Some(statements) = statements {
            self.client.statements = statements;
        }
        self.client.inbox.put_back(&request);
        Some(Ok(()))
    }

    /// A replica that goes away in the middle of an answer takes the request with it, and not the session: nothing but
    /// reads was under way, outside a transaction.
    fn outlive(&mut self, stop: &Result<Stop, ()>, lease: &Lease) -> Option<Result<(), End>> {
        let client = &mut self.client;
        let is_whole = lease.passing == 0 && client.streaming == 0 && lease.replies.unanswered() <= 1;
        if !matches!(stop, Ok(Stop::ServerGone(_))) || !client.routing.gate.is_proved() || !is_whole {
            return None;
        }
        let error = end::replica_lost();
        self.tenancy.worker.metrics.count_error(error.kind);
        error.put(client.outbox.bytes());
        if lease.replies.unanswered() == 1 {
            put_ready(client.outbox.bytes(), b'I');
        } else {
            client.is_skipping = true;
        }
        Some(Ok(()))
    }

    /// Notes whether the transaction may have written.
    fn note_floor(&mut self, seen: &Seen) {
        let routing = &mut self.client.routing;
        let is_split = self.tenancy.view().active.config.stage >= Stage::Split;
        if !is_split && !routing.is_sampled() {
            return;
        }
        let is_known = seen.queries <= 1 && leaves_no_trace(self.decision.verdict);
        let is_replica = routing.gate.is_watched || self.tenancy.access == Access::ReadOnly;
        if seen.queries > 0 && !is_known && !is_replica && self.client.state.is_tracked {
            let view = Arc::clone(self.tenancy.view());
            self.client.routing.freshness.note_written(&view);
        }
    }

    /// Why the session has to keep its connection.
    fn reason(&self) -> Option<PinReason> {
        if self.client.state.is_tracked { self.client.state.reason() } else { Some(PinReason::SessionMode) }
    }

    /// Asks the server what the session's state is now, where the transaction may have changed it.
    async fn ask(&mut self, mut lease: Lease) -> Result<Lease, End> {
        while self.client.state.end_transaction()
            && let Some((mut question, sql)) = self.client.state.question(lease.major_version())
        {
            let aside = self.client.outbox.bytes();
            // Boxed, so that the rare question does not make every session larger.
            let answer = Box::pin(timeout(QUESTION_TIMEOUT, lease.run_beside(&sql, aside))).await;
            match answer {
                Ok(Ok(rows)) => {
                    rows.into_iter().for_each(|row| question.take_row(row));
                    if let Some(given) = self.client.state.answered(question, &lease.identity.user) {
                        lease.settings = given;
                        tell_restored(&mut self.client, &mut lease);
                    }
                }
                Ok(Err(ConnectError::Refused(message))) => {
                    let reason = String::from_utf8_lossy(&message).into_owned();
                    debug!(reason, "the server does not say what the session's state is");
                    self.client.state.unanswered(question);
                }
                Ok(Err(_)) | Err(_) => return Err(end::lost(&lease)),
            }
        }
        Ok(lease)
    }

    fn count_pin(&mut self, reason: Option<PinReason>) {
        if self.pinned != reason {
            self.tenancy.worker.metrics.count_pin(self.pinned, reason);
            self.pinned = reason;
        }
    }

    /// The transaction is over: the connection goes back, or stays.
    fn rest(&mut self, reason: Option<PinReason>, lease: Lease) -> Result<(), End> {
        self.count_pin(reason);
        self.client.routing.tie = reason.map(|_| self.client.state.tie());
        match reason {
            Some(reason) => self.kept = Some((reason, lease)),
            None => lease.give_back(),
        }
        if self.tenancy.worker.is_stopping() && self.tenancy.worker.drain.is_cancelled() {
            return Err(End::Told(end::shutdown()));
        }
        Ok(())
    }

    /// Answers the request at the front of the inbox with an error, as a server would.
    fn refuse(&mut self, refusal: Refusal) -> Result<(), End> {
        let error = match refusal {
            Refusal::Proxy(error) => error,
            Refusal::Server(message) => return Err(End::Refused(message)),
        };
        self.tenancy.worker.metrics.count_error(error.kind);
        let client = &mut self.client;
        error.put(client.outbox.bytes());
        let message_bytes_max = usize::MAX;
        match client_header(&client.inbox, message_bytes_max) {
            Ok(Some(header)) if matches!(header.kind, QUERY | FUNCTION_CALL) => {
                client.discarding = header.total;
                put_ready(client.outbox.bytes(), client.routing.status());
            }
            Ok(_) => client.is_skipping = true,
            Err(fault) => return Err(End::Told(end::fault(&fault))),
        }
        Ok(())
    }
}

/// A read of a session that keeps another connection is over.
fn come_back(stop: Result<Stop, ()>, lease: Lease, is_told: bool) -> Result<(), End> {
    match stop {
        Ok(Stop::AtRest) => {
            lease.give_back();
            Ok(())
        }
        Ok(stop) => Err(end::of(stop, None, lease, &mut None, is_told)),
        Err(()) => Err(End::Told(end::shutdown())),
    }
}

//! One client from its login to its end: waits for a request, leases a connection, exchanges, gives it back.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use pgrouting_contract::stage::Stage;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::cancel::CancelHandle;
use crate::classify::verdict::{Reason, Verdict};
use crate::fleet::View;
use crate::pool::server_pool::Lease;
use crate::route::{Access, Aim, Refusal as ReplicaRefusal, Side, Why};
use crate::server::connect::ConnectError;
use crate::server::settings::APPLICATION_NAME;
use crate::session::client::Client;
use crate::session::context::{Context, Worker};
use crate::session::end::End;
use crate::session::exchange::{Exchange, Stop};
use crate::session::judge::{Segment, first_text, shape};
use crate::session::relay::{Seen, tell_restored};
use crate::session::request::client_header;
use crate::session::routing::{Decision, Gate, leaves_no_trace};
use crate::session::signals::Signals;
use crate::session::startup::Newcomer;
use crate::session::tenancy::{Refusal, Tenancy};
use crate::transaction::PinReason;
use crate::wire::backend::put_ready;
use crate::wire::frontend::{FUNCTION_CALL, QUERY};

pub mod cancel;
pub mod client;
pub mod command;
pub mod context;
pub mod end;
pub mod exchange;
pub mod forward;
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
pub mod waiting;

/// The longest that cleaning a connection up for the next client may take.
const RESET_TIMEOUT: Duration = Duration::from_secs(5);

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
    let decision = Decision { aim: Aim::PRIMARY, why: Why::Pinned, verdict: Verdict::Read };
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
            reset(lease).await;
        }
    }

    /// Waits for one request and serves it to the end of its transaction.
    async fn transaction(&mut self, signals: &mut Signals<'_>) -> Result<(), End> {
        let lease = match self.kept.take() {
            Some((reason, lease)) => {
                let why = if reason == PinReason::SessionMode { Why::SessionMode } else { Why::Pinned };
                self.client.routing.gate = Gate::default();
                self.client.routing.last = Some((Some(Arc::clone(&lease.pool().name)), why));
                self.tenancy.worker.metrics.count_route(self.tenancy.is_at_primary(), why);
                lease
            }
            None => {
                let message_bytes_max = self.tenancy.limits.message_bytes_max;
                waiting::request(&mut self.client, signals, message_bytes_max).await?;
                self.client.routing.look_at_settings(&self.client.state.settings);
                if command::take(&mut self.client, self.tenancy.view(), self.tenancy.access) {
                    return Ok(());
                }
                self.decide();
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
                match leased {
                    Ok(lease) => {
                        self.note_route();
                        lease
                    }
                    Err(refusal) => return self.refuse(refusal),
                }
            }
        };
        self.exchange(lease, signals).await
    }

    /// Decides where the transaction goes that begins with the request at hand.
    fn decide(&mut self) {
        self.tenancy.look_at_view();
        let is_split = self.tenancy.view().active.config.stage >= Stage::Split;
        let is_judged = is_split || (self.client.routing.is_sampled() && self.tenancy.worker.is_sampled());
        if !is_judged {
            let side = if self.tenancy.access == Access::ReadOnly { Side::Replica } else { Side::Primary };
            let why = if self.tenancy.access == Access::Routed { Why::Stage } else { Why::Port };
            let verdict = Verdict::Primary(Reason::Unparsed);
            self.decision = Decision { aim: Aim { side, ..Aim::PRIMARY }, why, verdict };
            self.tenancy.aim = self.decision.aim;
            return;
        }
        let view = Arc::clone(self.tenancy.view());
        let client = &mut self.client;
        client.routing.judge.cache_bytes = view.active.config.split.verdict_cache_bytes;
        client.routing.judge.refresh();
        let segment = client.routing.judge.segment(&client.inbox, &client.statements);
        let mut segment = segment.unwrap_or(Segment::UNREAD);
        if client.routing.is_put_off() {
            let shape = shape(client.inbox.get(..segment.length).unwrap_or_default(), &client.statements);
            if segment.verdict != Verdict::Read || !shape.is_movable {
                segment.verdict = Verdict::Primary(Reason::Transaction);
            }
        }
        self.decision = client.routing.decide(&view, self.tenancy.access, &segment);
        self.tenancy.aim = self.decision.aim;
        if !is_split {
            self.forecast(&view, &segment);
        } else if self.decision.why == Why::Freshness {
            self.note_site();
        } else if self.decision.aim.side == Side::Replica
            && self.tenancy.access == Access::Routed
            && view.active.config.split.rescue
            && !segment.is_open
            && segment.verdict == Verdict::Read
            && !client.routing.is_put_off()
        {
            let statements = segment.defines.then(|| client.statements.clone());
            client.routing.rescue.keep(client.inbox.get(..segment.length).unwrap_or_default(), statements);
        }
    }

    /// Counts what a transaction is that is not routed.
    fn forecast(&mut self, view: &View, segment: &Segment) {
        let metrics = &self.tenancy.worker.metrics;
        let why = if segment.is_unread { Why::Unread } else { Why::Verdict(segment.verdict) };
        metrics.forecast.count(why.index());
        let reads = why == Why::Verdict(Verdict::Read);
        if reads && view.topology.replicas().next().is_some() && self.client.routing.floor_at(view).is_none()
        {
            metrics.forecast_stale.add_one();
            self.note_site();
        }
    }

    /// Notes a read that has to stay on the primary because its session has written.
    fn note_site(&self) {
        let application_name = self.client.state.settings.value(APPLICATION_NAME).unwrap_or_default();
        if let Some(sql) = first_text(&self.client.inbox, &self.client.statements) {
            self.tenancy.context.sites.count(application_name, sql);
        }
    }

    /// Notes where the transaction goes now that there is a connection.
    fn note_route(&mut self) {
        let is_at_primary = self.tenancy.is_at_primary();
        let is_watched = self.tenancy.access == Access::Routed
            && self.decision.aim.side == Side::Replica
            && !is_at_primary;
        self.tenancy.worker.metrics.count_route(is_at_primary, self.decision.why);
        let routing = &mut self.client.routing;
        // At a stage that does not split it is always the primary, whose name need not be kept.
        let name = (self.decision.why != Why::Stage).then(|| self.tenancy.server_name());
        routing.last = Some((name, self.decision.why));
        routing.begin(is_watched, &self.decision);
        if !is_watched {
            routing.rescue.disarm();
        }
    }

    async fn exchange(&mut self, mut lease: Lease, signals: &mut Signals<'_>) -> Result<(), End> {
        let mut is_preparing = !Arc::ptr_eq(&lease.settings, &self.client.state.settings);
        self.cancel.begin(lease.peer, &lease.cancel_key, is_preparing);
        self.tenancy.worker.metrics.clients_active.add_one();
        let view = self.tenancy.view();
        let mut exchange = Exchange {
            client: &mut self.client,
            server: &mut lease,
            statements: &self.tenancy.context.statements,
            limits: self.tenancy.limits,
            view,
            seen: Seen::default(),
            is_begun: false,
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
        let seen = exchange.seen;
        self.tenancy.worker.metrics.clients_active.take_one();
        self.tenancy.worker.count(&seen);
        if self.cancel.end() {
            // A cancel request is on its way and must not hit the connection's next client.
            self.cancel.settled().await;
        }
        if let Some(ended) = self.rescue(&stop).or_else(|| self.outlive(&stop, &lease)) {
            return ended;
        }
        self.note_floor(&seen);
        let reason = self.reason();
        match stop {
            Ok(Stop::AtRest) => {
                let lease = self.ask(lease).await?;
                let reason = self.reason();
                self.rest(reason, lease)
            }
            Ok(stop) => Err(end::of(stop, reason, lease, &mut self.kept, seen.is_fatal)),
            Err(()) => {
                if lease.is_at_rest() {
                    self.kept = Some((reason.unwrap_or(PinReason::SessionMode), lease));
                }
                Err(End::Told(end::shutdown()))
            }
        }
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
        let is_known = seen.queries <= 1 && leaves_no_trace(self.decision.verdict) && self.kept.is_none();
        let is_replica = routing.gate.is_watched || self.tenancy.access == Access::ReadOnly;
        if seen.queries > 0 && !is_known && !is_replica && self.client.state.is_tracked {
            let view = Arc::clone(self.tenancy.view());
            self.client.routing.note_written(&view);
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

/// Cleans a connection that a session kept, and gives it back; one that cannot be cleaned is closed.
async fn reset(mut lease: Lease) {
    if !lease.is_fit() {
        return;
    }
    match timeout(RESET_TIMEOUT, lease.run("DISCARD ALL")).await {
        Ok(Ok(_)) => {
            lease.prepared.clear();
            lease.unnamed = None;
            lease.settings = Arc::clone(&lease.identity.settings);
            lease.give_back();
        }
        Ok(Err(error)) => warn!(%error, "a connection could not be reset and is closed"),
        Err(_) => warn!("a connection could not be reset in time and is closed"),
    }
}

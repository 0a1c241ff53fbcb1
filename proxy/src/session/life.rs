//! One client from its greeting to its end: what it does next, and on which connection.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;
use tracing::debug;

use crate::cancel::CancelHandle;
use crate::pace::Doing;
use crate::pool::lease::Lease;
use crate::roster::Seated;
use crate::route::{Side, Why};
use crate::session::choice::{await_position, decide, is_loose, note_kept, note_route};
use crate::session::client::Client;
use crate::session::command::{may_ask_token, take};
use crate::session::copying;
use crate::session::end::{self, End};
use crate::session::exchange::{Exchange, Progress, Stop};
use crate::session::greeting::greet;
use crate::session::measured::Measured;
use crate::session::overdue;
use crate::session::request::client_header;
use crate::session::routing::Decision;
use crate::session::signals::Signals;
use crate::session::tenancy::{Asked, Refusal, Tenancy};
use crate::session::turns::Turns;
use crate::transaction::PinReason;
use crate::wire::backend::put_ready;
use crate::wire::frontend::{FUNCTION_CALL, QUERY};

/// A client that is logged in.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) tenancy: Tenancy,
    pub(super) cancel: CancelHandle,
    /// Its place on the roster.
    pub(super) seat: Seated,
    /// The connection that the session keeps, and why.
    pub(super) kept: Option<(PinReason, Lease)>,
    /// The decision on the transaction at hand.
    pub(super) decision: Decision,
    /// What it counts for in comparisons.
    pub(super) measured: Measured,
    /// For what it is counted as one that keeps its connection.
    pub(super) pinned: Option<PinReason>,
    /// How much of the request at hand has been looked at while it was not whole.
    pub(super) scanned: usize,
    /// The exchange that the usual case is in the middle of.
    pub(super) running: Option<Running>,
}

/// An exchange under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) lease: Lease,
    pub(super) progress: Progress,
    /// The connection is being given the client's settings.
    pub(super) is_preparing: bool,
}

impl Session {
    /// At the beginning.
    pub(super) fn new(client: Client, tenancy: Tenancy, cancel: CancelHandle, seat: Seated) -> Self {
        Self {
            client,
            tenancy,
            cancel,
            seat,
            kept: None,
            decision: Decision::UNKNOWN,
            measured: Measured::default(),
            pinned: None,
            scanned: 0,
            running: None,
        }
    }

    /// Serves the client, which came at this moment, until it leaves or has to.
    pub(super) async fn run(mut self, began: Instant) {
        let worker = Arc::clone(&self.tenancy.worker);
        let counts = Arc::clone(&self.tenancy.counts);
        counts.clients.add_one();
        let is_secure = self.client.stream.is_secure();
        if is_secure {
            worker.metrics.clients_secure.add_one();
        }
        let mut drain = pin!(worker.drained(self.tenancy.context.roster.admitted()));
        let seat = Arc::clone(&self.seat);
        let mut kill = pin!(seat.killed());
        let mut signals = Signals {
            worker: &worker,
            drain: drain.as_mut(),
            kill: kill.as_mut(),
            pace: &seat.pace,
            is_registered: false,
            is_drained: false,
        };
        let greeted = tokio::select! {
            biased;
            greeted = greet(&mut self.client, &mut self.tenancy, &mut self.cancel) => greeted,
            () = signals.kill.as_mut() => Err(End::Told(end::shutdown())),
        };
        let end = match greeted {
            Err(end) => {
                worker.metrics.logins_failed.add_one();
                end
            }
            Ok(lease) => {
                counts.logins.add_one();
                worker.metrics.times.logins.count(began.elapsed());
                if let Some(lease) = lease {
                    // It was given for all that the client will run.
                    counts.begun.add_one();
                    counts.ended.add_one();
                    self.cancel.keep(Some(&lease.cancel));
                    self.count_pin(Some(PinReason::SessionMode));
                    self.kept = Some((PinReason::SessionMode, lease));
                }
                seat.pace.note(Doing::Idle, 0);
                loop {
                    if let Err(end) = self.transaction(&mut signals).await {
                        break end;
                    }
                }
            }
        };
        let end = match end {
            End::Told(_) if seat.is_killed() && !worker.kill.is_cancelled() => End::Told(end::killed()),
            End::Told(error) => End::Told(seat.pace.expired().map_or(error, overdue::ended)),
            end => end,
        };
        let identity = &self.tenancy.identity;
        debug!(?end, user = identity.user, database = identity.database, "the session ends");

        let metrics = Arc::clone(&worker.metrics);
        if !matches!(end, End::Left) {
            self.measured.fail(&metrics.arms);
        }
        match &end {
            End::Told(error) => {
                metrics.count_error(error.kind);
                error.put(self.client.outbox.bytes());
            }
            End::Refused(message) => self.client.outbox.bytes().extend_from_slice(message),
            End::Left | End::Closed => {}
        }
        if matches!(end, End::Left) {
            self.client.stream.part_with(&[]);
        } else {
            end::send_last(&mut self.client.stream, &mut self.client.outbox).await;
        }
        self.count_pin(None);
        // What cannot be undone goes with its connection.
        let kept = self.kept.take().filter(|_| !self.client.state.is_spoilt());
        drop(self);
        counts.clients.take_one();
        if is_secure {
            metrics.clients_secure.take_one();
        }
        if let Some((_, lease)) = kept {
            end::reset(lease).await;
        }
    }

    /// Waits for one request and serves it to the end of its transaction.
    pub(super) async fn transaction(&mut self, signals: &mut Signals<'_>) -> Result<(), End> {
        match self.kept.take() {
            None => self.steady(signals).await,
            Some((reason, lease)) if is_loose(&self.client, &mut self.tenancy, reason) => {
                self.wait_beside(reason, lease, signals).await?;
                self.serve(signals).await
            }
            Some((reason, lease)) => {
                self.tenancy.counts.kept.add_one();
                let is_pinned = reason != PinReason::SessionMode;
                self.decision = Decision::UNKNOWN;
                self.measured.await_request(&self.client, &self.tenancy);
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
    pub(super) async fn serve(&mut self, signals: &mut Signals<'_>) -> Result<(), End> {
        self.client.routing.look_at_settings(&self.client.state.settings);
        if may_ask_token(&self.client) {
            Box::pin(await_position(&mut self.client, &mut self.tenancy)).await;
        }
        if take(&mut self.client, self.tenancy.view(), self.tenancy.access) {
            return Ok(());
        }
        self.take_up();
        if self.decision.aim.side == Side::Primary
            && let Some((_, lease)) = self.kept.take()
        {
            self.tenancy.counts.kept.add_one();
            note_kept(&mut self.client, &mut self.tenancy, &lease, self.decision.why);
            return self.exchange(lease, signals).await;
        }
        let leased = match self.tenancy.lease_at_once(&self.client.state.settings) {
            Ok(lease) => Ok(lease),
            // Whoever pauses waits for the connection that it keeps, so that it must not wait for another.
            Err(_) if self.kept.is_some() && self.tenancy.is_paused() => {
                Err(Refusal::Proxy(end::paused(&self.tenancy.identity.database)))
            }
            Err(asked) => self.lease_in_time(asked, signals).await?,
        };
        match (leased, self.kept.take()) {
            (Ok(lease), kept) => {
                self.kept = kept;
                note_route(&mut self.client, &self.tenancy, &self.decision);
                self.exchange(lease, signals).await
            }
            (Err(_), Some((_, lease))) => {
                self.tenancy.counts.kept.add_one();
                note_kept(&mut self.client, &mut self.tenancy, &lease, Why::NoReplica);
                self.exchange(lease, signals).await
            }
            (Err(refusal), None) => self.refuse(refusal),
        }
    }

    /// Decides about the request at the front of the inbox.
    #[inline]
    pub(super) fn take_up(&mut self) {
        self.decision = decide(&mut self.client, &mut self.tenancy);
        self.measured.begin(&self.client, &self.tenancy, self.decision.group);
    }

    /// Waits for a connection, or opens one, until the client gives up.
    pub(super) async fn lease_in_time(
        &mut self,
        asked: Option<Asked>,
        signals: &mut Signals<'_>,
    ) -> Result<Result<Lease, Refusal>, End> {
        self.client.pace.note(Doing::Waiting, 0);
        let leased = tokio::select! {
            biased;
            leased = self.tenancy.lease_in_time(&self.client.state.settings, asked) => leased,
            () = self.cancel.cancelled() => Err(Refusal::Proxy(end::cancelled())),
            () = signals.kill.as_mut() => return Err(End::Told(end::shutdown())),
        };
        if leased.is_ok() {
            self.tenancy.worker.metrics.arms.waited.add_one();
        }
        Ok(leased)
    }

    /// Waits for a whole request while the connection that the session keeps may have something to say, such as a
    /// notification.
    pub(super) async fn wait_beside(
        &mut self,
        reason: PinReason,
        lease: Lease,
        signals: &mut Signals<'_>,
    ) -> Result<(), End> {
        let progress = Progress { awaited: Some(0), ..Progress::default() };
        let mut running = Running { lease, progress, is_preparing: false };
        let stop = self.converse(&mut running, signals).await;
        let Running { lease, progress: Progress { seen, .. }, .. } = running;
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

    pub(super) async fn exchange(&mut self, lease: Lease, signals: &mut Signals<'_>) -> Result<(), End> {
        let mut running = self.begin(lease);
        let stop = self.converse(&mut running, signals).await;
        self.end(stop, running).await
    }

    /// Begins an exchange on a connection.
    pub(super) fn begin(&mut self, lease: Lease) -> Running {
        copying::begin(&mut self.client, &self.tenancy, &self.decision, self.pinned);
        let is_preparing = !Arc::ptr_eq(&lease.settings, &self.client.state.settings);
        self.cancel.begin(&lease.cancel, is_preparing);
        self.tenancy.counts.begun.add_one();
        Running { lease, progress: Progress::default(), is_preparing }
    }

    /// Moves bytes both ways until there is a reason to stop, or to leave.
    pub(super) async fn converse(
        &mut self,
        running: &mut Running,
        signals: &mut Signals<'_>,
    ) -> Result<Stop, ()> {
        poll_fn(|cx| {
            let polled = converse(
                &mut self.client,
                &self.tenancy,
                &self.cancel,
                running,
                signals,
                &mut Turns::of_a_poll(),
                cx,
            );
            if self.measured.is_awaited() && running.progress.is_begun {
                self.measured.came(&self.tenancy, polled.is_ready());
            }
            polled
        })
        .await
    }

    /// Answers the request at the front of the inbox with an error, as a server would.
    pub(super) fn refuse(&mut self, refusal: Refusal) -> Result<(), End> {
        let error = match refusal {
            Refusal::Proxy(error) => error,
            Refusal::Server(message) => return Err(End::Refused(message)),
        };
        let metrics = &self.tenancy.worker.metrics;
        metrics.count_error(error.kind);
        self.measured.fail(&metrics.arms);
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

/// Moves bytes both ways until there is a reason to stop, or to leave.
pub(super) fn converse(
    client: &mut Client,
    tenancy: &Tenancy,
    cancel: &CancelHandle,
    running: &mut Running,
    signals: &mut Signals<'_>,
    turns: &mut Turns,
    cx: &mut std::task::Context<'_>,
) -> Poll<Result<Stop, ()>> {
    let view = &**tenancy.view();
    let Running { lease, progress, is_preparing } = running;
    let polled = Exchange { client, server: lease, tenancy, progress }.poll(turns, cx);
    if *is_preparing && progress.is_begun && !lease.replies.is_preparing() {
        *is_preparing = false;
        cancel.open();
    }
    if let Some(databases) = client.state.take_databases() {
        // The server waits for a moment until nobody is connected to them any more.
        view.pools.iter().for_each(|pool| pool.empty(&databases));
    }
    match polled {
        Poll::Ready(stop) => Poll::Ready(Ok(stop)),
        Poll::Pending => {
            // Between transactions a session that keeps its connection can be asked to leave.
            let (doing, leaves) = if !progress.is_begun {
                (Doing::Idle, signals.poll_drain(cx))
            } else if lease.replies.is_empty() {
                (Doing::Open, signals.poll_kill(cx))
            } else {
                (Doing::Running, signals.poll_kill(cx))
            };
            let is_overdue = client.pace.note(doing, progress.seen.queries);
            if is_overdue { Poll::Ready(Err(())) } else { leaves.map(|()| Err(())) }
        }
    }
}

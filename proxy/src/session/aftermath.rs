//! What an exchange leaves behind: a request that has to run elsewhere, writes that the session must see, state that the
//! server is asked about, and the connection.

use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::stage::Stage;
use tokio::time::timeout;
use tracing::debug;

use crate::pace::Doing;
use crate::pool::lease::Lease;
use crate::route::{Access, Refusal as ReplicaRefusal, Why};
use crate::server::connect::ConnectError;
use crate::server::settings::APPLICATION_NAME;
use crate::session::copying;
use crate::session::end::{self, End};
use crate::session::exchange::{Progress, Stop};
use crate::session::judge::first_text;
use crate::session::life::{Running, Session};
use crate::session::relay::{Seen, tell_restored};
use crate::session::routing::leaves_no_trace;
use crate::transaction::PinReason;
use crate::wire::backend::put_ready;

/// The longest that a server may take to say what the state of a session is.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The setting with which a session declares all its transactions to be READ ONLY.
const READ_ONLY: &str = "default_transaction_read_only";

impl Session {
    /// An exchange has come to its end: sees to what it leaves behind.
    pub(super) async fn end(&mut self, stop: Result<Stop, ()>, running: Running) -> Result<(), End> {
        let Running { mut lease, progress: Progress { seen, .. }, .. } = running;
        self.count(&seen, &mut lease);
        self.client.clocked.forget();
        if stop.is_ok() {
            self.client.pace.note(Doing::Idle, 0);
        }
        if seen.is_read_only || matches!(stop, Ok(Stop::ServerGone(_))) {
            self.tenancy.hurry();
        }
        if self.cancel.end() {
            // A cancel request is on its way and must not hit the connection's next client.
            self.cancel.settled().await;
        }
        if seen.misroutes > 0 {
            self.note_misroutes(seen.misroutes);
        }
        if let Some(ended) = self.rescue(&stop, &seen).or_else(|| self.outlive(&stop, &lease)) {
            self.client.recorder.forget();
            if matches!(stop, Ok(Stop::AtRest)) {
                lease.give_back();
            }
            return ended;
        }
        if matches!(stop, Ok(Stop::AtRest)) {
            self.measured.finish(&self.tenancy.worker.metrics.arms, &seen);
        }
        self.note_floor(&seen);
        self.note_notified(&seen);
        let (before, touches) = (self.pinned, self.client.state.has_changed());
        if self.kept.is_some() {
            copying::finish(&mut self.client, before, before, touches);
            return come_back(stop, lease, seen.is_fatal);
        }
        let reason = self.reason();
        match stop {
            // The server has said that it ends the connection, which matters to whoever has something on it.
            Ok(Stop::AtRest) if seen.is_fatal && self.client.state.is_free() => {
                copying::finish(&mut self.client, before, None, touches);
                Ok(())
            }
            Ok(Stop::AtRest) if seen.is_fatal => Err(End::Closed),
            Ok(Stop::AtRest) => {
                let lease = self.ask(lease).await?;
                let reason = self.reason();
                copying::finish(&mut self.client, before, reason, touches);
                self.rest(reason, lease)
            }
            // Nothing has been sent: the request goes to the new primary.
            Ok(Stop::Fenced(false)) if reason.is_none() => {
                self.client.recorder.forget();
                self.measured.forget();
                Ok(())
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

    /// Counts an exchange that has ended.
    #[inline]
    pub(super) fn count(&mut self, seen: &Seen, lease: &mut Lease) {
        let counts = &self.tenancy.counts;
        counts.ended.add_one();
        counts.queries.add(seen.queries);
        counts.transactions.add(seen.transactions);
        counts.received.add(self.client.inbox.take_received());
        counts.sent.add(lease.inbox.take_received());
        if seen.errors > 0 {
            self.tenancy.worker.metrics.server_errors.add(seen.errors);
        }
        if self.client.statements.count(counts, &mut lease.parses) {
            lease.held.note_prepared(lease.prepared.len());
            self.seat.note_prepared(self.client.statements.len());
        }
    }

    /// What a session is notified of it can read.
    pub(super) fn note_notified(&mut self, seen: &Seen) {
        if seen.is_notified {
            self.client.routing.freshness.note_written(self.tenancy.view());
        }
    }

    /// Puts a request that a replica refused back, to be run on the primary.
    pub(super) fn rescue(&mut self, stop: &Result<Stop, ()>, seen: &Seen) -> Option<Result<(), End>> {
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
        let metrics = &self.tenancy.worker.metrics;
        metrics.count_rescue(refusal);
        // The end of the refused answer was seen too.
        let refused = u64::from(matches!(stop, Ok(Stop::AtRest)));
        let before = Seen { transactions: seen.transactions.saturating_sub(refused), ..*seen };
        self.measured.carry(&metrics.arms, &before);
        if refusal == ReplicaRefusal::Misroute {
            if !self.tenancy.is_at_primary() {
                let sql = first_text(&request, &self.client.statements).unwrap_or_default();
                self.tenancy.context.sites.count_refused(&self.tenancy.server_name(), sql);
            }
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

    /// Notes errors that reached the client because its statement was sent to a replica, unless the client asked for that or
    /// would have had them on the primary too.
    fn note_misroutes(&self, count: u64) {
        let asked_for_it = matches!(self.decision.why, Why::Role | Why::Hint);
        let says_off = |value: &str| ["off", "false", "no", "0"].contains(&value);
        let is_read_only = self.client.state.settings.value(READ_ONLY).is_some_and(|value| !says_off(value));
        if self.tenancy.is_at_primary() || asked_for_it || is_read_only {
            return;
        }
        self.tenancy.worker.metrics.arms.misrouted.add(count);
        let request = self.client.routing.rescue.shown().unwrap_or_default();
        let sql = first_text(request, &self.client.statements).unwrap_or_default();
        let server = self.tenancy.server_name();
        (0..count).for_each(|_| self.tenancy.context.sites.count_refused(&server, sql));
    }

    /// A replica that goes away in the middle of an answer takes the request with it, and not the session: nothing but
    /// reads was under way, outside a transaction.
    pub(super) fn outlive(&mut self, stop: &Result<Stop, ()>, lease: &Lease) -> Option<Result<(), End>> {
        let client = &mut self.client;
        let is_whole = lease.passing == 0 && client.streaming == 0 && lease.replies.unanswered() <= 1;
        if !matches!(stop, Ok(Stop::ServerGone(_))) || !client.routing.gate.is_proved() || !is_whole {
            return None;
        }
        let error = end::replica_lost();
        let metrics = &self.tenancy.worker.metrics;
        metrics.count_error(error.kind);
        self.measured.fail(&metrics.arms);
        error.put(client.outbox.bytes());
        if lease.replies.unanswered() == 1 {
            put_ready(client.outbox.bytes(), b'I');
        } else {
            client.is_skipping = true;
        }
        Some(Ok(()))
    }

    /// Notes whether the transaction may have written.
    pub(super) fn note_floor(&mut self, seen: &Seen) {
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
    pub(super) fn reason(&self) -> Option<PinReason> {
        if self.client.state.is_tracked { self.client.state.reason() } else { Some(PinReason::SessionMode) }
    }

    /// Asks the server what the session's state is now, where the transaction may have changed it.
    pub(super) async fn ask(&mut self, mut lease: Lease) -> Result<Lease, End> {
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
                        let name = self.client.state.settings.value(APPLICATION_NAME);
                        self.seat.rename(name.unwrap_or_default());
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

    pub(super) fn count_pin(&mut self, reason: Option<PinReason>) {
        if self.pinned != reason {
            self.tenancy.worker.metrics.count_pin(self.pinned, reason);
            self.pinned = reason;
        }
    }

    /// The transaction is over: the connection goes back, or stays.
    pub(super) fn rest(&mut self, reason: Option<PinReason>, lease: Lease) -> Result<(), End> {
        if self.pinned != reason {
            self.cancel.keep(reason.map(|_| &lease.cancel));
            self.count_pin(reason);
        }
        self.client.routing.tie = reason.map(|_| self.client.state.tie());
        match reason {
            Some(reason) => self.kept = Some((reason, lease)),
            None => lease.give_back(),
        }
        if self.tenancy.worker.is_alarmed() && self.tenancy.worker.drain.is_cancelled() {
            return Err(End::Told(end::shutdown()));
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

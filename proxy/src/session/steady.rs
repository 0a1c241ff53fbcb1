//! The usual case: a request finds an idle connection, and its exchange leaves nothing behind that would have to be
//! asked about. Request after request is served so in one poll each time that a socket has something; what takes its time
//! is left to the session.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use crate::pace::Doing;
use crate::session::choice::note_route;
use crate::session::command::{is_surely_none, may_ask_token, take};
use crate::session::copying;
use crate::session::end::End;
use crate::session::exchange::Stop;
use crate::session::life::{Running, Session, converse};
use crate::session::signals::Signals;
use crate::session::tenancy::Asked;
use crate::session::turns::Turns;
use crate::session::waiting::poll_request;

/// What is not the usual case.
enum Unusual {
    /// The request wants to know a position that may not be there yet.
    Question,
    /// No connection is idle: what the server's pool answered, where there is a server.
    Busy(Option<Asked>),
    /// The exchange has stopped in another way than usual.
    Stopped(Result<Stop, ()>, Running),
}

/// What a request that is there leads to.
enum Begun {
    Running(Running),
    /// It has been answered here.
    Answered,
    Unusual(Unusual),
}

impl Session {
    /// Serves requests until the session has to do something else than usual, and does that once.
    pub(super) async fn steady(&mut self, signals: &mut Signals<'_>) -> Result<(), End> {
        match poll_fn(|cx| self.poll_steady(signals, cx)).await? {
            Unusual::Question => self.serve(signals).await,
            Unusual::Busy(asked) => match self.lease_in_time(asked, signals).await? {
                Ok(lease) => {
                    note_route(&mut self.client, &self.tenancy, &self.decision);
                    self.exchange(lease, signals).await
                }
                Err(refusal) => self.refuse(refusal),
            },
            Unusual::Stopped(stop, running) => self.end(stop, running).await,
        }
    }

    fn poll_steady(&mut self, signals: &mut Signals<'_>, cx: &mut Context<'_>) -> Poll<Result<Unusual, End>> {
        let mut turns = Turns::of_a_poll();
        loop {
            let Some(running) = &mut self.running else {
                let message_bytes_max = self.tenancy.limits.message_bytes_max;
                ready!(poll_request(
                    &mut self.client,
                    &mut self.scanned,
                    signals,
                    message_bytes_max,
                    &mut turns,
                    cx
                ))?;
                match self.begin_at_once() {
                    Begun::Running(running) => self.running = Some(running),
                    Begun::Answered => {}
                    Begun::Unusual(unusual) => return Poll::Ready(Ok(unusual)),
                }
                continue;
            };
            let stop = ready!(converse(
                &mut self.client,
                &self.tenancy,
                &self.cancel,
                running,
                signals,
                &mut turns,
                cx
            ));
            // With a cancel request on its way there is something to wait for.
            if self.is_usual(&stop) && !self.cancel.end() {
                self.end_at_once()?;
            } else if let Some(running) = self.running.take() {
                return Poll::Ready(Ok(Unusual::Stopped(stop, running)));
            }
        }
    }

    /// Serves the request at the front of the inbox, as far as that needs no waiting.
    fn begin_at_once(&mut self) -> Begun {
        self.client.routing.look_at_settings(&self.client.state.settings);
        let (view, access) = (self.tenancy.view(), self.tenancy.access);
        if !is_surely_none(&self.client, view, access) {
            if may_ask_token(&self.client) {
                return Begun::Unusual(Unusual::Question);
            }
            if take(&mut self.client, view, access) {
                return Begun::Answered;
            }
        }
        self.take_up();
        match self.tenancy.lease_at_once(&self.client.state.settings) {
            Ok(lease) => {
                note_route(&mut self.client, &self.tenancy, &self.decision);
                Begun::Running(self.begin(lease))
            }
            Err(asked) => Begun::Unusual(Unusual::Busy(asked)),
        }
    }

    /// Whether an exchange leaves nothing behind but counters: the connection is at rest and can go back.
    fn is_usual(&self, stop: &Result<Stop, ()>) -> bool {
        matches!(stop, Ok(Stop::AtRest))
            && self.running.as_ref().is_some_and(|running| running.progress.seen.is_plain())
            && self.client.state.is_free()
            && self.pinned.is_none()
            && !self.client.routing.rescue.is_dropping()
    }

    fn end_at_once(&mut self) -> Result<(), End> {
        let Some(Running { mut lease, progress, .. }) = self.running.take() else { return Ok(()) };
        self.client.pace.note(Doing::Idle, 0);
        self.count(&progress.seen, &mut lease);
        self.measured.finish(&self.tenancy.worker.metrics.arms, &progress.seen);
        self.client.routing.rescue.disarm();
        self.note_floor(&progress.seen);
        self.client.state.end_transaction();
        copying::finish(&mut self.client, None, None, false);
        self.rest(None, lease)
    }
}

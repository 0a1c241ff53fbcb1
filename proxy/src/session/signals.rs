//! The signals that end sessions, looked at where a session waits.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::pace::Pace;
use crate::session::context::Worker;

/// Signals that end sessions, looked at where a session waits.
pub struct Signals<'a> {
    /// The thread, on which some may have to leave.
    pub worker: &'a Worker,
    /// Ends when it is this session's turn to leave.
    pub drain: Pin<&'a mut (dyn Future<Output = ()> + Send)>,
    /// Ends when all sessions have to leave.
    pub kill: Pin<&'a mut (dyn Future<Output = ()> + Send)>,
    /// Wakes the task when it takes too long.
    pub pace: &'a Pace,
    /// Whether the task will be woken by any of them. A task keeps its waker, so once is enough.
    pub is_registered: bool,
    /// Whether it is this session's turn to leave.
    pub is_drained: bool,
}

impl Signals<'_> {
    /// Ready for a session that has to leave at once.
    pub fn poll_kill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll(cx, false)
    }

    /// Ready for a session between transactions that has to leave.
    pub fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll(cx, true)
    }

    fn poll(&mut self, cx: &mut Context<'_>, is_between: bool) -> Poll<()> {
        if self.is_registered && !self.worker.is_alarmed() {
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.is_registered, true) {
            self.pace.register(cx.waker());
        }
        self.is_drained = self.is_drained || self.drain.as_mut().poll(cx).is_ready();
        if self.kill.as_mut().poll(cx).is_ready() || (self.is_drained && is_between) {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

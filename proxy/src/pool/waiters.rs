//! The line of clients that wait for a connection.
//!
//! First come, first served, but for one liberty: a connection that is given back by a thread goes to a client of
//! that thread where one stands near the front, since moving it to another thread costs system calls. The client at
//! the front is passed over a bounded number of times. Whoever may not have what there is, is passed over as often as it takes.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::server::connection::{Identity, WorkerId};

/// How far from the front a client of the same thread may stand.
const LOOK_AHEAD: usize = 8;

/// How often the client at the front may be passed over.
const PASSED_OVER_MAX: u32 = 8;

/// One client in line; `G` is what it waits for.
#[derive(Debug)]
pub struct Waiter<G> {
    /// Who it is to the server.
    pub identity: Arc<Identity>,
    /// The thread that it runs on.
    pub worker: WorkerId,
    /// Where it takes what it is handed; closed when it has given up.
    pub grant: oneshot::Sender<G>,
}

/// The line.
#[derive(Debug)]
pub struct Waiters<G> {
    line: VecDeque<Waiter<G>>,
    front_passed_over: u32,
}

impl<G> Default for Waiters<G> {
    fn default() -> Self {
        Self { line: VecDeque::new(), front_passed_over: 0 }
    }
}

impl<G> Waiters<G> {
    /// How many stand in line, those that have given up among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Whether nobody stands in line.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Joins the line at its end.
    pub fn push(&mut self, waiter: Waiter<G>) {
        self.line.push_back(waiter);
    }

    /// The next client, of those that may have it, for a connection whose home is this thread.
    pub fn pop(&mut self, home: WorkerId, may_have: impl Fn(&Identity) -> bool) -> Option<Waiter<G>> {
        self.drop_gone();
        let is_near = |w: &Waiter<G>| w.worker == home && !w.grant.is_closed() && may_have(&w.identity);
        let near = self.line.iter().take(LOOK_AHEAD).position(is_near);
        match near {
            Some(index) if index > 0 && self.front_passed_over < PASSED_OVER_MAX => {
                self.front_passed_over += 1;
                self.line.remove(index)
            }
            _ => self.pop_first(may_have),
        }
    }

    /// The client that has waited longest of those that may have what there is.
    pub fn pop_first(&mut self, may_have: impl Fn(&Identity) -> bool) -> Option<Waiter<G>> {
        self.drop_gone();
        let first = self.line.iter().position(|w| !w.grant.is_closed() && may_have(&w.identity))?;
        if first == 0 {
            self.front_passed_over = 0;
        }
        self.line.remove(first)
    }

    fn drop_gone(&mut self) {
        while self.line.front().is_some_and(|waiter| waiter.grant.is_closed()) {
            self.line.pop_front();
            self.front_passed_over = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::settings::SettingsRegistry;

    fn waiter(identity: u32, worker: u16) -> (Waiter<()>, oneshot::Receiver<()>) {
        let (grant, granted) = oneshot::channel();
        let identity = Arc::new(Identity {
            id: identity,
            user: format!("user-{}", identity % 2),
            database: "shop".to_owned(),
            settings: SettingsRegistry::default().none(),
            is_exclusive: false,
        });
        (Waiter { identity, worker: WorkerId(worker), grant }, granted)
    }

    #[test]
    fn those_who_gave_up_are_passed_over() {
        let mut waiters = Waiters::default();
        let (first, gone) = waiter(1, 0);
        let (second, _granted) = waiter(2, 0);
        waiters.push(first);
        waiters.push(second);
        drop(gone);
        assert_eq!(waiters.pop_first(|_| true).map(|w| w.identity.id), Some(2));
        assert!(waiters.pop_first(|_| true).is_none());
    }

    #[test]
    fn a_client_of_the_same_thread_goes_first_but_the_front_is_not_starved() {
        let mut waiters = Waiters::default();
        let mut kept = Vec::new();
        let mut push = |waiters: &mut Waiters<()>, identity, worker| {
            let (waiter, granted) = waiter(identity, worker);
            waiters.push(waiter);
            kept.push(granted);
        };
        push(&mut waiters, 1, 1);
        for identity in 2..30 {
            push(&mut waiters, identity, 0);
        }
        let order: Vec<_> =
            (0..12).filter_map(|_| waiters.pop(WorkerId(0), |_| true).map(|w| w.identity.id)).collect();
        assert_eq!(order, [2, 3, 4, 5, 6, 7, 8, 9, 1, 10, 11, 12]);
    }

    #[test]
    fn who_may_not_have_it_is_passed_over_and_keeps_its_place() {
        let mut waiters = Waiters::default();
        let mut kept = Vec::new();
        for identity in 1..=6 {
            let (waiter, granted) = waiter(identity, 0);
            waiters.push(waiter);
            kept.push(granted);
        }
        let is_even = |identity: &Identity| identity.user == "user-0";
        assert_eq!(waiters.pop_first(is_even).map(|w| w.identity.id), Some(2));
        assert_eq!(waiters.pop(WorkerId(0), is_even).map(|w| w.identity.id), Some(4));
        assert!(waiters.pop_first(|_| false).is_none());
        assert_eq!(waiters.pop_first(|_| true).map(|w| w.identity.id), Some(1));
    }
}

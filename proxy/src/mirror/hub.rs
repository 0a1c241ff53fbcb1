//! Where sessions leave their records, and the other thread finds them: queues with limits, and nobody waits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pgrouting_contract::mirror::{MirrorConfig, MirrorReport, MirrorState, MirrorStatements};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::mirror::breaker::Breaker;
use crate::mirror::ledger::{Ledger, locked};
use crate::mirror::loss::Loss;
use crate::mirror::unit::Unit;
use crate::pool::lease::Lease;

/// What waits of one client.
#[derive(Debug, Default)]
pub struct Stream {
    waiting: Mutex<Waiting>,
    /// What waits, in bytes.
    held: AtomicUsize,
    /// The connection that holds the session's state there; whoever runs its units has it.
    pub kept: Mutex<Option<Lease>>,
}

#[derive(Debug, Default)]
struct Waiting {
    units: VecDeque<Unit>,
    /// Somebody runs them, or will.
    is_scheduled: bool,
    /// The client has gone.
    is_over: bool,
}

/// What a stream has next.
#[derive(Debug)]
pub enum Next {
    /// A unit to be run.
    Unit(Box<Unit>),
    /// Nothing for now.
    Nothing,
    /// Nothing, and the client has gone.
    Over,
}

/// Where both sides meet.
#[derive(Debug, Default)]
pub struct Hub {
    /// Streams that have something, each once at most.
    ready: Mutex<VecDeque<Arc<Stream>>>,
    /// Tells that there is one, to whoever is asleep.
    bell: Notify,
    is_asleep: AtomicBool,
    /// Bytes of what is being recorded and of what waits.
    held: AtomicUsize,
    /// The limits of now.
    queue_max: AtomicU64,
    budget: AtomicU64,
    is_running: AtomicBool,
    /// The breaker says that nothing is to be sent; looked at each [`crate::mirror::service::TICK`].
    is_broken: AtomicBool,
    breaker: Mutex<Breaker>,
    /// What came of all.
    pub ledger: Ledger,
}

impl Hub {
    /// All streams that have something, once there are any. Cancel-safe.
    pub async fn ready(&self) -> VecDeque<Arc<Stream>> {
        loop {
            let streams = std::mem::take(&mut *locked(&self.ready));
            if !streams.is_empty() {
                return streams;
            }
            self.is_asleep.store(true, Ordering::SeqCst);
            // Whoever came just before that has not rung.
            if locked(&self.ready).is_empty() {
                self.bell.notified().await;
            }
        }
    }

    /// Takes the limits of a mirror that runs; `None` where none does.
    pub fn set(&self, config: Option<&MirrorConfig>) {
        if let Some(config) = config {
            self.queue_max.store(config.queue_bytes, Ordering::Relaxed);
            self.budget.store(config.budget_bytes, Ordering::Relaxed);
        }
        self.is_running.store(config.is_some(), Ordering::Relaxed);
    }

    /// Whether records are of any use now.
    #[must_use]
    pub fn admits(&self) -> Option<Loss> {
        if !self.is_running.load(Ordering::Relaxed) {
            Some(Loss::Off)
        } else if self.is_broken.load(Ordering::Relaxed) {
            Some(Loss::Breaker)
        } else {
            None
        }
    }

    /// Whether so many bytes more may wait of one client.
    #[must_use]
    pub fn has_room(&self, stream: &Stream, bytes: usize) -> bool {
        let all = stream.held.load(Ordering::Relaxed) + bytes;
        u64::try_from(all).is_ok_and(|all| all <= self.queue_max.load(Ordering::Relaxed))
    }

    /// Takes bytes of the budget, where there are so many; records and what waits are counted alike.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> bool {
        let all = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = u64::try_from(all).is_ok_and(|all| all <= self.budget.load(Ordering::Relaxed));
        if !fits {
            self.release(bytes);
        }
        fits
    }

    /// Gives bytes of the budget back.
    pub fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes a record, whose bytes are reserved, or drops it as a whole.
    pub fn offer(&self, stream: &Arc<Stream>, unit: Unit) {
        let bytes = unit.bytes;
        let mut waiting = locked(&stream.waiting);
        let loss = self.admits().or_else(|| (!self.has_room(stream, bytes)).then_some(Loss::QueueFull));
        if let Some(loss) = loss {
            drop(waiting);
            self.release(bytes);
            self.lose(&unit, loss);
            return;
        }
        stream.held.fetch_add(bytes, Ordering::Relaxed);
        waiting.units.push_back(unit);
        self.schedule(stream, &mut waiting);
    }

    /// The client has gone: when its units are run, its connection is closed.
    pub fn end(&self, stream: &Arc<Stream>) {
        let mut waiting = locked(&stream.waiting);
        waiting.is_over = true;
        self.schedule(stream, &mut waiting);
    }

    fn schedule(&self, stream: &Arc<Stream>, waiting: &mut Waiting) {
        if !std::mem::replace(&mut waiting.is_scheduled, true) {
            locked(&self.ready).push_back(Arc::clone(stream));
            // To wake a thread costs a system call.
            if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
                self.bell.notify_one();
            }
        }
    }

    /// The next unit of a stream that is being run.
    pub fn next(&self, stream: &Stream) -> Next {
        let mut waiting = locked(&stream.waiting);
        if let Some(unit) = waiting.units.pop_front() {
            stream.held.fetch_sub(unit.bytes, Ordering::Relaxed);
            self.release(unit.bytes);
            return Next::Unit(Box::new(unit));
        }
        waiting.is_scheduled = false;
        if waiting.is_over { Next::Over } else { Next::Nothing }
    }

    /// Counts a unit that is not run.
    pub fn lose(&self, unit: &Unit, loss: Loss) {
        self.ledger.lose(loss, unit.may_write && unit.statements == MirrorStatements::All);
    }

    /// A unit was run to its end.
    pub fn succeed(&self) {
        locked(&self.breaker).succeed();
        self.is_broken.store(false, Ordering::Relaxed);
    }

    /// A unit could not be run for what the mirror did.
    pub fn fail(&self, why: String) {
        self.ledger.note(why);
        if locked(&self.breaker).fail(Instant::now()) {
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }

    /// Lets units through again when a pause is over.
    pub fn tick(&self) {
        let is_broken = !locked(&self.breaker).admits(Instant::now());
        self.is_broken.store(is_broken, Ordering::Relaxed);
    }

    /// Forgets the failures of another mirror.
    pub fn reset(&self) {
        *locked(&self.breaker) = Breaker::default();
        self.is_broken.store(false, Ordering::Relaxed);
    }

    /// Whether copies are being sent. A mirror that failed is told as such until one has been run again.
    #[must_use]
    pub fn state(&self) -> MirrorState {
        if !self.is_running.load(Ordering::Relaxed) {
            MirrorState::Inactive
        } else if locked(&self.breaker).is_tripped() {
            MirrorState::Broken
        } else {
            MirrorState::Running
        }
    }

    /// All of it.
    #[must_use]
    pub fn report(&self) -> MirrorReport {
        let queued_bytes = u64::try_from(self.held.load(Ordering::Relaxed)).unwrap_or(u64::MAX);
        MirrorReport { state: self.state(), queued_bytes, ..self.ledger.report() }
    }
}

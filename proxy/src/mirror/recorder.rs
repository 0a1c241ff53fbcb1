//! Records what a session sends in one exchange, and digests what it is answered, for the mirror.
//!
//! The record holds the client's own messages and the statements that their names stand for, so that whoever runs them
//! elsewhere can prepare what is missing there. It is bounded, and given up as a whole where it does not fit.

use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::mirror::{MirrorConfig, MirrorStatements};
use tokio::time::Instant;

use crate::lot::Lot;
use crate::mirror::answer::{Answer, Digest, Met};
use crate::mirror::hub::{Hub, Stream};
use crate::mirror::loss::Loss;
use crate::mirror::unit::{Step, Unit};
use crate::server::connection::Identity;
use crate::server::prepared::Statement;
use crate::server::settings::Settings;
use crate::wire::frontend::{
    BIND, COPY_DATA, COPY_DONE, COPY_FAIL, DESCRIBE, FUNCTION_CALL, PARSE, QUERY, SYNC, Target, bind_names,
    parse, target,
};

/// What a message or a request costs beside its bytes.
const OVERHEAD: usize = 256;

/// What a record begins with.
#[derive(Debug)]
pub struct Beginning {
    /// The client's role and database.
    pub identity: Arc<Identity>,
    /// Its settings.
    pub settings: Arc<Settings>,
    /// Which transactions are copied.
    pub statements: MirrorStatements,
    /// Whether names of statements are ours at the servers.
    pub is_tracked: bool,
    /// The first request is proved to be a read.
    pub is_read: bool,
    /// The session has state on its connection.
    pub needs_state: bool,
    /// Bytes on their way to the client that are no answer to what follows.
    pub unsent: usize,
    /// The most bytes.
    pub bytes_max: usize,
}

/// How an exchange left its session.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    /// The session keeps state on its connection.
    pub keeps: bool,
    /// Settings may have changed.
    pub touches: bool,
    /// The session listens, which is nothing for a mirror.
    pub listens: bool,
}

#[derive(Debug)]
struct Draft {
    beginning: Beginning,
    steps: Vec<Step>,
    /// The last step is not ended yet.
    is_open: bool,
    /// How many steps are answered.
    answered: usize,
    bytes: usize,
    digest: Digest,
    /// Why it will not be run.
    loss: Option<Loss>,
}

/// A session's end of the mirror.
#[derive(Debug)]
pub struct Recorder {
    /// The session has run something while there was a mirror.
    pub has_run: bool,
    /// Says whether the session is in the share that is copied.
    lot: Lot,
    draft: Option<Box<Draft>>,
    hub: Arc<Hub>,
    /// What waits to be run.
    stream: Option<Arc<Stream>>,
}

impl Recorder {
    /// At the beginning of a session.
    #[must_use]
    pub fn new(hub: Arc<Hub>) -> Self {
        Self { has_run: false, lot: Lot::draw(), draft: None, hub, stream: None }
    }

    /// Whether the session is copied.
    #[must_use]
    pub fn is_in(&self, mirror: &MirrorConfig) -> bool {
        self.lot.is_in(mirror.percent, mirror.salt)
    }

    /// Whether the exchange is recorded.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.draft.is_some()
    }

    /// Begins a record, or only counts what it will be, where it is lost from the beginning.
    pub fn begin(&mut self, beginning: Beginning, loss: Option<Loss>) {
        let is_full = || {
            let stream = self.stream.as_ref()?;
            (!self.hub.has_room(stream, OVERHEAD)).then_some(Loss::QueueFull)
        };
        let admits = self.hub.admits();
        if admits == Some(Loss::Off) {
            // The mirror's thread has not heard of the document yet: this is from before.
            return;
        }
        let loss = loss.or(admits).or_else(is_full);
        self.draft = Some(Box::new(Draft {
            beginning,
            steps: Vec::new(),
            is_open: false,
            answered: 0,
            bytes: 0,
            digest: Digest::default(),
            loss,
        }));
    }

    /// Takes a message that is sent to the server, whole or its beginning; `find` knows the client's names.
    /// `is_proved` tells whether nothing but reads passes.
    pub fn take<'a>(
        &mut self,
        message: &[u8],
        is_proved: bool,
        find: impl FnOnce(&[u8]) -> Option<&'a Arc<Statement>>,
    ) {
        let Some(draft) = self.draft.as_deref_mut().filter(|draft| draft.loss.is_none()) else { return };
        let kind = message.first().copied().unwrap_or_default();
        let is_copy = matches!(kind, COPY_DATA | COPY_DONE | COPY_FAIL);
        if kind == SYNC && !draft.is_open && draft.sync_again() {
            draft.append(&self.hub, message);
            return;
        }
        if !draft.is_open && !is_copy {
            if !draft.steps.is_empty() && draft.beginning.is_read && !is_proved {
                // What follows a read may be none.
                draft.beginning.is_read = false;
                if draft.beginning.statements == MirrorStatements::ReadsOnly {
                    draft.lose(&self.hub, Loss::NotRead);
                    return;
                }
            }
            draft.open(&self.hub);
        }
        if kind == FUNCTION_CALL {
            // Functions have other numbers in another database.
            draft.lose(&self.hub, Loss::Unsupported);
            return;
        }
        draft.append(&self.hub, message);
        let Some(step) = draft.steps.last_mut() else { return };
        if let Some(name) = names(message) {
            step.uses.push(find(name).cloned());
        }
        step.ends_copy |= matches!(kind, COPY_DONE | COPY_FAIL);
        if matches!(kind, QUERY | SYNC) {
            step.sent_at = Instant::now();
            draft.is_open = false;
        }
    }

    /// Takes more of a message that was not whole.
    pub fn append(&mut self, bytes: &[u8]) {
        if let Some(draft) = self.draft.as_deref_mut().filter(|draft| draft.loss.is_none()) {
            draft.append(&self.hub, bytes);
        }
    }

    /// Something is sent, or answered, that cannot be copied.
    pub fn lose(&mut self, loss: Loss) {
        if let Some(draft) = self.draft.as_deref_mut() {
            draft.lose(&self.hub, loss);
        }
    }

    /// Takes what the client is answered.
    pub fn tap(&mut self, bytes: &[u8]) {
        let Some(draft) = self.draft.as_deref_mut().filter(|draft| draft.loss.is_none()) else { return };
        let earlier = draft.beginning.unsent.min(bytes.len());
        draft.beginning.unsent -= earlier;
        let mut bytes = bytes.get(earlier..).unwrap_or_default();
        while let Some((met, taken)) = draft.digest.take(bytes) {
            bytes = bytes.get(taken..).unwrap_or_default();
            let Met::Answer(answer) = met else { continue };
            let Some(step) = draft.steps.get_mut(draft.answered) else {
                draft.lose(&self.hub, Loss::Unsupported);
                return;
            };
            step.took = step.sent_at.elapsed();
            step.answer = answer;
            draft.answered += 1;
        }
    }

    /// The exchange has come to its rest: offers the record.
    pub fn finish(&mut self, ending: Ending) {
        let Some(draft) = self.draft.take() else { return };
        let Draft { beginning, steps, answered, bytes, loss, is_open, .. } = *draft;
        let may_write = !beginning.is_read;
        let is_whole = answered == steps.len() && !is_open;
        let mut causes = [(!is_whole, Loss::Unsupported), (ending.listens, Loss::Listen)].into_iter();
        let loss = loss.or_else(|| causes.find(|(is_so, _)| *is_so).map(|(_, loss)| loss));
        self.hub.ledger.offer();
        if let Some(loss) = loss {
            self.hub.release(bytes);
            self.hub.ledger.lose(loss, may_write && beginning.statements == MirrorStatements::All);
            return;
        }
        let stream = self.stream.get_or_insert_default();
        let Beginning { identity, settings, statements, is_tracked, needs_state, .. } = beginning;
        let unit = Unit {
            identity,
            settings,
            statements,
            is_tracked,
            steps,
            may_write,
            needs_state,
            keeps: ending.keeps,
            touches: ending.touches,
            bytes,
            offered_at: Instant::now(),
        };
        self.hub.offer(stream, unit);
    }

    /// The request of the exchange runs elsewhere, where another record begins.
    pub fn forget(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.hub.release(draft.bytes);
        }
    }

    /// The session ends in the middle of the exchange.
    fn cut(&mut self) {
        if self.draft.as_ref().is_none_or(|draft| draft.steps.is_empty()) {
            self.forget();
            return;
        }
        self.lose(Loss::Cut);
        self.finish(Ending { keeps: false, touches: false, listens: false });
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.cut();
        if let Some(stream) = self.stream.take() {
            self.hub.end(&stream);
        }
    }
}

impl Draft {
    fn open(&mut self, hub: &Hub) {
        self.is_open = true;
        if !self.grow(hub, OVERHEAD) {
            return;
        }
        self.steps.push(Step {
            messages: Vec::new(),
            uses: Vec::new(),
            ends_copy: false,
            syncs_twice: false,
            answer: Answer::default(),
            took: Duration::ZERO,
            sent_at: Instant::now(),
        });
    }

    /// Whether a Sync belongs to the request before it: a COPY of the extended protocol swallows the first one.
    fn sync_again(&mut self) -> bool {
        let is_unanswered = self.answered < self.steps.len();
        let Some(step) = self.steps.last_mut().filter(|step| step.ends_copy && is_unanswered) else {
            return false;
        };
        step.syncs_twice = step.messages.first() != Some(&QUERY);
        step.syncs_twice
    }

    fn append(&mut self, hub: &Hub, bytes: &[u8]) {
        if !self.grow(hub, bytes.len()) {
            return;
        }
        match self.steps.last_mut() {
            Some(step) => step.messages.extend_from_slice(bytes),
            // Data of a COPY that began before.
            None => self.lose(hub, Loss::Unsupported),
        }
    }

    /// Takes room for so many bytes more, or gives up.
    fn grow(&mut self, hub: &Hub, bytes: usize) -> bool {
        if self.loss.is_some() {
            return false;
        }
        let loss = if self.bytes + bytes > self.beginning.bytes_max {
            Loss::TooLarge
        } else if hub.reserve(bytes) {
            self.bytes += bytes;
            return true;
        } else {
            Loss::Budget
        };
        self.lose(hub, loss);
        false
    }

    /// Gives it up as a whole; the first cause counts.
    fn lose(&mut self, hub: &Hub, loss: Loss) {
        self.loss.get_or_insert(loss);
        self.steps = Vec::new();
        hub.release(std::mem::take(&mut self.bytes));
    }
}

/// The statement's name in a message that names one.
fn names(message: &[u8]) -> Option<&[u8]> {
    match *message.first()? {
        PARSE => parse(message).map(|parsed| parsed.name),
        BIND => bind_names(message).map(|(_, statement)| statement),
        DESCRIBE => match target(message)? {
            Target::Statement(name) => Some(name),
            Target::Portal(_) => None,
        },
        _ => None,
    }
}

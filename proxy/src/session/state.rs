//! The state of a client's session that outlives its transactions: what it has set, and what ties it to its connection.
//!
//! The texts of statements say what may have changed; when the transaction is over, the server is asked what is there.
//! So a rollback, a savepoint, a function or a computed value need no model of ours. Settings are then given to whatever
//! connection serves the client next; anything else keeps the session where it is, as long as it lasts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::time::Instant;

use crate::audit::Audit;
use crate::catalog::CatalogCell;
use crate::classify::bodies::{Bodies, Weighed};
use crate::classify::databases::databases;
use crate::classify::kinds::Kinds;
use crate::classify::tags::TagEffect;
use crate::classify::touches::Touches;
use crate::server::question::Question;
use crate::server::settings::{
    APPLICATION_NAME, REPLICATION, SESSION_AUTHORIZATION, Settings, SettingsRegistry,
};
use crate::session::tie::Tie;
use crate::transaction::PinReason;

/// Settings with a dot in their names that are asked about; a session with more is tied to its connection.
const DOTTED_MAX: usize = 200;

/// What the sessions of one database share to keep track of their state.
#[derive(Debug)]
pub struct Tracking {
    /// All settings in use.
    pub registry: Arc<SettingsRegistry>,
    /// What was seen that relies on one connection.
    pub audit: Arc<Audit>,
    /// The database's catalog, which definitions make outdated.
    pub catalog: Arc<CatalogCell>,
    /// What the database's functions do.
    bodies: Bodies,
}

/// The databases of the process.
#[derive(Debug, Default)]
pub struct Databases {
    known: Mutex<HashMap<String, Weak<Tracking>>>,
}

impl Databases {
    /// What the sessions of a database share.
    pub fn tracking(
        &self,
        database: &str,
        registry: &Arc<SettingsRegistry>,
        audit: &Arc<Audit>,
        catalog: &Arc<CatalogCell>,
    ) -> Arc<Tracking> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tracking) = known.get(database).and_then(Weak::upgrade) {
            return tracking;
        }
        known.retain(|_, tracking| tracking.strong_count() > 0);
        let tracking = Arc::new(Tracking {
            registry: Arc::clone(registry),
            audit: Arc::clone(audit),
            catalog: Arc::clone(catalog),
            bodies: Bodies::default(),
        });
        known.insert(database.to_owned(), Arc::downgrade(&tracking));
        tracking
    }
}

/// The state of one session.
#[derive(Debug)]
pub struct State {
    /// What the sessions of its database share.
    pub tracking: Arc<Tracking>,
    /// The settings that it came with, and goes back to by RESET.
    pub startup: Arc<Settings>,
    /// Its settings now.
    pub settings: Arc<Settings>,
    /// Whether the connection goes back after each transaction, so that the state has to be known. The mode of the
    /// pool at the login decides for the whole session.
    pub is_tracked: bool,
    /// What may have changed since the server was asked.
    changed: Kinds,
    /// What the texts since then have said of themselves, so that tags bring nothing new.
    mentioned: Kinds,
    /// What ties it to its connection.
    pins: Kinds,
    /// The tie of its temporary objects, if it has any.
    temporary: Tie,
    /// The server did not answer; it is asked again after the next statement.
    is_unanswered: bool,
    /// The names of settings with a dot that it may have set.
    dotted: Vec<Box<str>>,
    /// Functions that it has called and nothing is known of.
    unknown: Vec<Box<str>>,
    /// The databases that a statement needs to be without connections.
    databases: Option<Vec<String>>,
    /// The transaction has defined something that the catalog tells of, or may have.
    defines: Defines,
}

/// What a transaction may have defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Defines {
    Nothing,
    /// It is not known what it ran.
    Perhaps,
    /// Something that may change where statements run.
    Surely,
}

impl State {
    /// The state of a session that begins.
    #[must_use]
    pub fn new(tracking: Arc<Tracking>, startup: Arc<Settings>, is_tracked: bool) -> Self {
        let dotted = startup.values().keys().filter(|name| name.contains('.')).map(|name| (**name).into());
        Self {
            dotted: dotted.collect(),
            settings: Arc::clone(&startup),
            startup,
            tracking,
            is_tracked,
            changed: Kinds::NONE,
            mentioned: Kinds::NONE,
            pins: Kinds::NONE,
            temporary: Tie::Fast,
            is_unanswered: false,
            unknown: Vec::new(),
            databases: None,
            defines: Defines::Nothing,
        }
    }

    /// Spells the settings that it came with as the server does, which `values` tells.
    pub fn normalize(&mut self, values: &BTreeMap<String, String>) {
        if values.is_empty() {
            return;
        }
        let mut all = self.startup.values().clone();
        all.extend(values.iter().map(|(name, value)| (name.clone(), value.clone())));
        self.startup = self.tracking.registry.intern(all);
        self.settings = Arc::clone(&self.startup);
    }

    /// Takes note of a statement that is being sent to the server.
    pub fn note(&mut self, touches: &Touches, sql: &[u8]) {
        if touches.is_nothing() {
            return;
        }
        self.is_unanswered = false;
        let Weighed { begins, ends, settings, unknown } = self.tracking.bodies.weigh(touches, Instant::now());
        let application_name = self.settings.value(APPLICATION_NAME).unwrap_or_default();
        self.tracking.audit.count(begins, application_name, sql);
        if begins.has(Kinds::FUNCTIONS) {
            self.tracking.bodies.forget();
        }
        if begins.has(Kinds::CATALOG) {
            self.defines = Defines::Surely;
        } else if begins.has(Kinds::ASKABLE) || begins.has(Kinds::CREATE) || ends.has(Kinds::TEMP) {
            self.defines = self.defines.max(Defines::Perhaps);
        }
        if begins.has(Kinds::DATABASE) {
            self.databases = Some(databases(sql));
        }
        if !self.is_tracked {
            self.begin(begins);
            return;
        }
        for name in settings {
            if !self.dotted.contains(&name) {
                self.dotted.push(name);
            }
        }
        if self.dotted.len() > DOTTED_MAX {
            self.dotted.clear();
            self.pins = self.pins.and(Kinds::OPAQUE);
        }
        if !unknown.is_empty() {
            self.changed = self.changed.and(Kinds::ASKABLE);
            self.unknown.extend(unknown);
        }
        // ALTER may give a temporary object another name.
        if begins.has(Kinds::CREATE) && (self.creates_temporary() || self.pins.has(Kinds::TEMP)) {
            self.changed = self.changed.and(Kinds::TEMP);
        }
        self.mentioned = self.mentioned.and(begins);
        self.begin(begins);
        self.end(ends);
    }

    /// What of a statement would keep the session on its connection, for a person; as far as its text shows.
    #[must_use]
    pub fn would_pin(&self, touches: &Touches) -> Option<&'static str> {
        const WORDS: [(Kinds, &str); 7] = [
            (Kinds::TEMP, "temporary tables"),
            (Kinds::CURSOR, "cursors WITH HOLD"),
            (Kinds::LISTEN, "LISTEN"),
            (Kinds::PREPARE, "SQL-level PREPARE"),
            (Kinds::LOCK, "session-level advisory locks"),
            (Kinds::LOAD, "LOAD"),
            (Kinds::OPAQUE, "state of this kind"),
        ];
        let begins = self.tracking.bodies.weigh(touches, Instant::now()).begins;
        // A DO or EXECUTE may do anything, and most do nothing of it.
        let shown = if begins.has(Kinds::ASKABLE) { begins.without(Kinds::ASKABLE) } else { begins };
        let shown = if shown.has(Kinds::BRIEF) { shown.without(Kinds::TEMP) } else { shown };
        WORDS.iter().find(|(kind, _)| shown.has(*kind)).map(|(_, word)| *word)
    }

    /// The transaction has ended, and its client has not heard of it yet: whoever routes by the catalog must not do so by
    /// what was there before.
    pub fn end_definitions(&mut self) {
        match std::mem::replace(&mut self.defines, Defines::Nothing) {
            Defines::Nothing => {}
            Defines::Perhaps => self.tracking.catalog.suspect(),
            Defines::Surely => self.tracking.catalog.invalidate(),
        }
    }

    /// The databases that a statement needs to be without connections, once it has been sent.
    pub const fn take_databases(&mut self) -> Option<Vec<String>> {
        self.databases.take()
    }

    /// Takes note of a statement that is too long to be read.
    pub fn note_unread(&mut self) {
        self.is_unanswered = false;
        self.begin(Kinds::ASKABLE);
    }

    /// Takes note of what a command's tag says.
    pub fn note_tag(&mut self, effect: TagEffect) {
        match effect {
            TagEffect::Begins(kinds) => {
                let kinds =
                    if self.mentioned.has(Kinds::LOCAL) { kinds.without(Kinds::SETTING) } else { kinds };
                let unread = kinds.without(self.mentioned);
                if unread.has(Kinds::SETTING) && self.is_tracked {
                    // The name may have a dot in it.
                    self.pins = self.pins.and(Kinds::OPAQUE);
                }
                self.begin(unread);
            }
            TagEffect::Ends(kinds) => self.end(kinds),
            TagEffect::DiscardsAll => {
                // What later requests may change has been noted already, and is asked about.
                self.settings = Arc::clone(&self.startup);
                self.pins = self.pins.among(Kinds::LOAD);
            }
            TagEffect::None | TagEffect::DeallocatesAll => {}
        }
    }

    /// What cannot be undone spoils the connection for the next client, in either mode; the rest is asked about where
    /// the session may move.
    fn begin(&mut self, kinds: Kinds) {
        if self.is_tracked {
            self.changed = self.changed.and(kinds.among(Kinds::ASKABLE));
        }
        self.pins = self.pins.and(kinds.among(Kinds::LOAD.and(Kinds::OPAQUE)));
    }

    fn end(&mut self, kinds: Kinds) {
        let ends_prepared = kinds.has(Kinds::PREPARE) && self.pins.has(Kinds::PREPARE);
        // What a prepared statement did is not known before it is gone.
        let asked = if ends_prepared { kinds } else { kinds.among(self.pins) };
        self.changed = self.changed.and(asked.among(Kinds::ASKABLE));
    }

    fn creates_temporary(&self) -> bool {
        self.settings.value("search_path").is_some_and(|path| path.contains("pg_temp"))
    }

    /// Whether the transaction may have changed anything of the session.
    #[must_use]
    pub const fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The transaction is over. Tells whether the server has to be asked what it changed.
    pub const fn end_transaction(&mut self) -> bool {
        self.mentioned = Kinds::NONE;
        !self.changed.is_empty() && !self.is_unanswered
    }

    /// What the server, of this major version, has to be asked now that the transaction is over, with the text of the
    /// question.
    pub fn question(&mut self, major_version: u32) -> Option<(Question, String)> {
        if !self.end_transaction() {
            return None;
        }
        if self.pins.among(Kinds::LOAD.and(Kinds::OPAQUE)) != Kinds::NONE {
            // The session stays anyway.
            self.changed = Kinds::NONE;
            self.unknown.clear();
            return None;
        }
        let mut functions = std::mem::take(&mut self.unknown);
        functions.sort_unstable();
        functions.dedup();
        let question = Question::new(std::mem::take(&mut self.changed), functions);
        let sql = question.sql(self.dotted.iter().map(|name| &**name), major_version);
        Some((question, sql))
    }

    /// Takes the answer of a connection whose login is `user`. Gives the settings that the connection has now.
    pub fn answered(&mut self, question: Question, user: &str) -> Option<Arc<Settings>> {
        self.learn(&question);
        if !question.is_readable {
            self.pins = self.pins.and(Kinds::OPAQUE);
            return None;
        }
        self.pins = self.pins.without(question.kinds).and(question.present.among(Kinds::PINNING));
        if question.kinds.has(Kinds::TEMP_NAMES) {
            self.temporary = Tie::of_temporary(question.temporary.as_deref());
        } else if question.present.has(Kinds::TEMP) {
            // Most sessions have none, and a long question would cost them time that their own time-out counts.
            self.temporary = Tie::Fast;
            self.changed = self.changed.and(Kinds::TEMP_NAMES);
        }
        if !question.kinds.has(Kinds::SETTING) {
            return None;
        }
        let mut values = question.settings;
        if values.get(SESSION_AUTHORIZATION).is_some_and(|name| name == user) {
            values.remove(SESSION_AUTHORIZATION);
        }
        let registry = &self.tracking.registry;
        let given = registry.intern(values.clone());
        // What is gone was reset, which goes back to what the client came with.
        for (name, value) in self.startup.values() {
            values.entry(name.clone()).or_insert_with(|| value.clone());
        }
        self.settings = registry.intern(values);
        Some(given)
    }

    /// Learns what the functions do that were called for the first time, and what they did then.
    fn learn(&mut self, question: &Question) {
        if question.functions.is_empty() {
            return;
        }
        let now = Instant::now();
        self.tracking.bodies.learn(&question.functions, &question.bodies, now);
        let called = Touches { calls: question.functions.clone(), ..Touches::default() };
        let Weighed { begins, settings, unknown, .. } = self.tracking.bodies.weigh(&called, now);
        self.pins = self.pins.and(begins.among(Kinds::LOAD.and(Kinds::OPAQUE)));
        for name in settings {
            if !self.dotted.contains(&name) {
                self.dotted.push(name);
                self.changed = self.changed.and(Kinds::SETTING);
            }
        }
        if !unknown.is_empty() {
            self.changed = self.changed.and(Kinds::ASKABLE);
            self.unknown.extend(unknown);
        }
    }

    /// The server did not answer: the session stays until it does.
    pub fn unanswered(&mut self, question: Question) {
        self.changed = self.changed.and(question.kinds);
        self.unknown.extend(question.functions);
        self.is_unanswered = true;
    }

    /// Whether nothing of the session is on its connection, as far as is known without asking.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.is_tracked && self.changed.is_empty() && self.reason().is_none()
    }

    /// Why it has to stay on its connection; `None` when it need not.
    #[must_use]
    pub fn reason(&self) -> Option<PinReason> {
        const REASONS: [(Kinds, PinReason); 7] = [
            (Kinds::LOAD, PinReason::Load),
            (Kinds::TEMP, PinReason::TempTable),
            (Kinds::LISTEN, PinReason::Listen),
            (Kinds::LOCK, PinReason::AdvisoryLock),
            (Kinds::PREPARE, PinReason::Prepare),
            (Kinds::CURSOR, PinReason::Cursor),
            (Kinds::OPAQUE, PinReason::Opaque),
        ];
        if self.pins.is_empty() && !self.is_unanswered {
            return None;
        }
        let found = REASONS.iter().find(|(kind, _)| self.pins.has(*kind)).map(|(_, reason)| *reason);
        found.or_else(|| self.is_unanswered.then_some(PinReason::Opaque))
    }

    /// What of its reads may run elsewhere, as long as it has to stay.
    #[must_use]
    pub fn tie(&self) -> Tie {
        let fast = Kinds::LOCK.and(Kinds::LOAD).and(Kinds::OPAQUE);
        if !self.is_tracked || self.is_unanswered || !self.pins.among(fast).is_empty() {
            Tie::Fast
        } else if self.pins.has(Kinds::TEMP) {
            self.temporary.clone()
        } else {
            Tie::Loose
        }
    }

    /// Whether the connection cannot be cleaned for another client by `DISCARD ALL`.
    #[must_use]
    pub fn is_spoilt(&self) -> bool {
        let is_for_replication = self.startup.value(REPLICATION).is_some();
        self.pins.has(Kinds::LOAD) || self.pins.has(Kinds::OPAQUE) || is_for_replication
    }
}

#[cfg(test)]
mod tests;

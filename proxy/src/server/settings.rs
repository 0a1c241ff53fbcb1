//! The settings that a client brought along, and how a server connection is given them.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Settings of a session, by lower-case name: those that it came with and those that it has set, its role too. Two sessions with equal settings share one value.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    /// Unique among the settings that differ in more than the application's name, so that a prepared statement is
    /// shared among clients that differ only in that.
    pub plan_id: u64,
    values: BTreeMap<String, String>,
}

/// Why settings that a client asks for cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsFault {
    /// A switch in `options` that is not a setting.
    #[error("startup option {0:?} is not supported: use -c name=value")]
    Switch(String),
    /// Something that a pooled connection cannot be.
    #[error("replication connections are served in session mode only")]
    Replication,
}

/// All settings in use.
#[derive(Debug, Default)]
pub struct SettingsRegistry {
    next_plan_id: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    settings: HashMap<Vec<(String, String)>, Weak<Settings>>,
    plan_ids: HashMap<Vec<(String, String)>, Weak<Settings>>,
    prune_at: usize,
}

/// The setting that says what a client is, and is told at the login.
pub const APPLICATION_NAME: &str = "application_name";

/// The startup parameter that asks for a connection for replication.
pub const REPLICATION: &str = "replication";

/// The setting that SET ROLE changes.
pub const ROLE: &str = "role";

/// The setting that SET SESSION AUTHORIZATION changes, which resets the role.
pub const SESSION_AUTHORIZATION: &str = "session_authorization";

impl Settings {
    /// The value of a setting.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// All of them but the application's name, which is valid whatever it is.
    #[must_use]
    pub fn without_application_name(&self) -> Vec<(String, String)> {
        self.values
            .iter()
            .filter(|(name, _)| *name != APPLICATION_NAME)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// All of them, by lower-case name.
    #[must_use]
    pub const fn values(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    /// Whether a time-out of statements is set here that `to` does not have.
    #[must_use]
    pub fn has_other_timeout(&self, to: &Self) -> bool {
        let timeout = self.value("statement_timeout");
        timeout.is_some() && timeout != to.value("statement_timeout")
    }

    /// The statements that turn a connection that has the settings `self` into one that has `to`; empty when it is
    /// one already. `RESET` goes back to what the connection was opened with. Nothing is set as another role than the
    /// one that logged in, which may set what others may not.
    #[must_use]
    pub fn change_to(&self, to: &Self) -> String {
        if self.values == to.values {
            return String::new();
        }
        let mut sql = String::new();
        let is_identity = |name: &str| name == ROLE || name == SESSION_AUTHORIZATION;
        let has_identity = |settings: &Self| settings.values.keys().any(|name| is_identity(name));
        if has_identity(self) {
            sql.push_str("RESET SESSION AUTHORIZATION;RESET ROLE;");
        }
        for name in self.values.keys().filter(|name| !is_identity(name) && !to.values.contains_key(*name)) {
            let _ = write!(sql, "RESET {};", quoted_name(name));
        }
        let changed = to
            .values
            .iter()
            .filter(|(name, value)| !is_identity(name) && self.values.get(*name) != Some(value));
        // The authorization first, since it resets the role.
        let identity =
            [SESSION_AUTHORIZATION, ROLE].into_iter().filter_map(|name| to.values.get_key_value(name));
        // set_config reads a list as the startup packet does; SET would take it for one name.
        let calls: Vec<_> = changed.chain(identity).map(set_config).collect();
        if !calls.is_empty() {
            let _ = write!(sql, "SELECT {};", calls.join(","));
        }
        sql
    }
}

/// The same statements where something of the client's follows in the same write: an error in them ends the connection
/// (`exit_on_error`), since what follows must not run under the settings of another client.
#[must_use]
pub fn or_exit(change: &str) -> String {
    let exit = |value: &str| format!("SELECT pg_catalog.set_config('exit_on_error','{value}',false)");
    format!("{};{change}{}", exit("on"), exit("off"))
}

/// Lifts the time-out of statements.
pub const LIFT_TIMEOUT: &str = "SET statement_timeout=0";

impl SettingsRegistry {
    /// The settings that a startup packet asks for, `options` taken apart. Where a connection serves one client only
    /// (`is_exclusive`), it may be one for replication.
    ///
    /// # Errors
    /// When it asks for something that is not a setting.
    pub fn from_startup(
        &self,
        parameters: &[(String, String)],
        is_exclusive: bool,
    ) -> Result<Arc<Settings>, SettingsFault> {
        let mut values = BTreeMap::new();
        // As in PostgreSQL, the parameters are applied after the options and so win.
        for (_, options) in parameters.iter().filter(|(name, _)| name == "options") {
            read_options(options, &mut values)?;
        }
        for (name, value) in parameters {
            match name.to_ascii_lowercase().as_str() {
                "options" => {}
                REPLICATION
                    if matches!(value.to_ascii_lowercase().as_str(), "false" | "off" | "no" | "0") => {}
                REPLICATION if !is_exclusive => return Err(SettingsFault::Replication),
                lower => {
                    values.insert(lower.to_owned(), value.clone());
                }
            }
        }
        Ok(self.intern(values))
    }

    /// The same settings without the application's name.
    #[must_use]
    pub fn without_application_name(&self, settings: &Settings) -> Arc<Settings> {
        self.intern(settings.without_application_name().into_iter().collect())
    }

    /// No settings: what a server connection is opened with.
    #[must_use]
    pub fn none(&self) -> Arc<Settings> {
        self.intern(BTreeMap::new())
    }

    /// The settings with these values, by lower-case name; the same for everyone.
    #[must_use]
    pub fn intern(&self, values: BTreeMap<String, String>) -> Arc<Settings> {
        let key: Vec<_> = values.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let plan_key: Vec<_> = key.iter().filter(|(name, _)| name != APPLICATION_NAME).cloned().collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(settings) = known.settings.get(&key).and_then(Weak::upgrade) {
            return settings;
        }
        if known.settings.len() >= known.prune_at {
            known.settings.retain(|_, settings| settings.strong_count() > 0);
            known.plan_ids.retain(|_, settings| settings.strong_count() > 0);
            known.prune_at = known.settings.len() * 2 + 64;
        }
        let plan_id = known
            .plan_ids
            .get(&plan_key)
            .and_then(Weak::upgrade)
            .map_or_else(|| self.next_plan_id.fetch_add(1, Ordering::Relaxed), |same| same.plan_id);
        let settings = Arc::new(Settings { plan_id, values });
        known.settings.insert(key, Arc::downgrade(&settings));
        known.plan_ids.insert(plan_key, Arc::downgrade(&settings));
        settings
    }
}

/// Takes the `options` of a startup packet apart, as PostgreSQL's `pg_split_opts` and `process_postgres_switches` do:
/// white space separates, a backslash takes the next character as it is.
fn read_options(options: &str, values: &mut BTreeMap<String, String>) -> Result<(), SettingsFault> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = options.chars();
    while let Some(c) = characters.next() {
        if c.is_ascii_whitespace() {
            words.extend(word.take());
        } else {
            let taken = if c == '\\' { characters.next() } else { Some(c) };
            word.get_or_insert_default().extend(taken);
        }
    }
    words.extend(word);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let assignment = match word.strip_prefix("-c").or_else(|| word.strip_prefix("--")) {
            Some("") => words.next().unwrap_or_default(),
            Some(rest) => rest.to_owned(),
            None => return Err(SettingsFault::Switch(word)),
        };
        let Some((name, value)) = assignment.split_once('=') else {
            return Err(SettingsFault::Switch(assignment));
        };
        values.insert(name.replace('-', "_").to_ascii_lowercase(), value.to_owned());
    }
    Ok(())
}

fn set_config((name, value): (&String, &String)) -> String {
    format!("pg_catalog.set_config({},{},false)", quoted_text(name), quoted_text(value))
}

/// An identifier in quotes.
fn quoted_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text constant in quotes that means the same whatever `standard_conforming_strings` is.
pub fn quoted_text(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(registry: &SettingsRegistry, pairs: &[(&str, &str)]) -> Arc<Settings> {
        let pairs: Vec<_> = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        registry.from_startup(&pairs, false).unwrap()
    }

    #[test]
    fn equal_settings_are_one_value() {
        let registry = SettingsRegistry::default();
        let a = settings(&registry, &[("DateStyle", "ISO"), ("TimeZone", "UTC")]);
        let b = settings(&registry, &[("timezone", "UTC"), ("datestyle", "ISO")]);
        assert!(Arc::ptr_eq(&a, &b));
    }

    #[test]
    fn the_application_name_does_not_part_plans() {
        let registry = SettingsRegistry::default();
        let a = settings(&registry, &[("application_name", "a"), ("TimeZone", "UTC")]);
        let b = settings(&registry, &[("application_name", "b"), ("TimeZone", "UTC")]);
        assert!(!Arc::ptr_eq(&a, &b));
        assert_eq!(a.plan_id, b.plan_id);
        assert_ne!(settings(&registry, &[("TimeZone", "CET")]).plan_id, a.plan_id);
    }

    #[test]
    fn options_are_taken_apart_and_parameters_win() {
        let registry = SettingsRegistry::default();
        let both = settings(
            &registry,
            &[
                ("TimeZone", "UTC"),
                ("options", r"-c geqo=off -cstatement_timeout=5s --search-path=a\ b,c -c timezone=CET"),
            ],
        );
        assert_eq!(both.value("geqo"), Some("off"));
        assert_eq!(both.value("statement_timeout"), Some("5s"));
        assert_eq!(both.value("search_path"), Some("a b,c"));
        assert_eq!(both.value("timezone"), Some("UTC"));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        let registry = SettingsRegistry::default();
        let refused = |name: &str, value: &str| {
            registry.from_startup(&[(name.to_owned(), value.to_owned())], false).unwrap_err()
        };
        assert_eq!(refused("options", "-d 5"), SettingsFault::Switch("-d".to_owned()));
        assert_eq!(refused("options", "-c geqo"), SettingsFault::Switch("geqo".to_owned()));
        assert_eq!(refused("replication", "database"), SettingsFault::Replication);
    }

    #[test]
    fn a_change_sets_what_differs_and_resets_what_is_gone() {
        let registry = SettingsRegistry::default();
        let none = registry.none();
        let a = settings(&registry, &[("timezone", "UTC"), ("geqo", "off")]);
        let b = settings(&registry, &[("timezone", r"it's\"), ("a.b", "x")]);
        assert_eq!(a.change_to(&a), "");
        assert_eq!(a.change_to(&none), "RESET \"geqo\";RESET \"timezone\";");
        assert_eq!(
            a.change_to(&b),
            concat!(
                "RESET \"geqo\";SELECT pg_catalog.set_config(E'a.b',E'x',false),",
                r"pg_catalog.set_config(E'timezone',E'it''s\\',false);"
            )
        );
    }

    #[test]
    fn settings_are_changed_as_the_role_that_logged_in() {
        let registry = SettingsRegistry::default();
        let none = registry.none();
        let bob = settings(&registry, &[("role", "bob"), ("geqo", "off")]);
        let eve = settings(&registry, &[("role", "eve"), ("session_authorization", "ann"), ("geqo", "off")]);
        let back = "RESET SESSION AUTHORIZATION;RESET ROLE;";
        assert_eq!(bob.change_to(&none), format!("{back}RESET \"geqo\";"));
        assert_eq!(
            none.change_to(&bob),
            "SELECT pg_catalog.set_config(E'geqo',E'off',false),pg_catalog.set_config(E'role',E'bob',false);"
        );
        assert_eq!(
            bob.change_to(&eve),
            format!(
                "{back}SELECT pg_catalog.set_config(E'session_authorization',E'ann',false),\
                 pg_catalog.set_config(E'role',E'eve',false);"
            )
        );
    }
}

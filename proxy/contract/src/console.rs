//! The console: commands over psql, for people and for the tools that know PgBouncer's.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::duration::DurationText;

/// Users that may be named in one list.
const USERS_MAX: usize = 128;

/// Who may use the console, and where it is. They log in as every client does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ConsoleConfig {
    /// The database that clients name to reach it. A real one of that name cannot be reached through the proxy.
    pub database: String,
    /// Who may use all of its commands. At most 128.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub admin_users: Vec<String>,
    /// Who may use SHOW. At most 128.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stats_users: Vec<String>,
    /// The longest that a request waits while its database is paused by the console.
    pub pause_timeout: DurationText,
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self {
            database: "pgbouncer".to_owned(),
            admin_users: Vec::new(),
            stats_users: Vec::new(),
            pause_timeout: DurationText::from_secs(120),
        }
    }
}

/// What a user may do at the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleRight {
    /// Everything.
    Admin,
    /// SHOW.
    Stats,
}

impl ConsoleConfig {
    /// What a user may do; `None` is nothing.
    #[must_use]
    pub fn right_of(&self, user: &str) -> Option<ConsoleRight> {
        let has = |users: &[String]| users.iter().any(|name| name == user);
        if has(&self.admin_users) {
            Some(ConsoleRight::Admin)
        } else {
            has(&self.stats_users).then_some(ConsoleRight::Stats)
        }
    }

    pub(crate) fn faults(&self, faults: &mut Vec<String>) {
        if !is_name(&self.database) {
            faults.push("console.database: must have 1 to 63 bytes and no NUL".to_owned());
        }
        for (list, users) in [("adminUsers", &self.admin_users), ("statsUsers", &self.stats_users)] {
            if users.len() > USERS_MAX {
                faults
                    .push(format!("console.{list}: {} given, at most {USERS_MAX} are allowed", users.len()));
            }
            let mut names = BTreeSet::new();
            for user in users {
                if !is_name(user) {
                    faults.push(format!("console.{list}: a user must have 1 to 63 bytes and no NUL"));
                }
                if !names.insert(user) {
                    faults.push(format!("console.{list}: {user:?} is there twice"));
                }
            }
        }
        if self.pause_timeout.get().is_zero() {
            faults.push("console.pauseTimeout: must not be zero".to_owned());
        }
    }
}

/// Whether PostgreSQL could have a role or database of that name.
fn is_name(name: &str) -> bool {
    (1..=63).contains(&name.len()) && !name.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_may_do_anything_unless_they_are_named() {
        let console = ConsoleConfig::default();
        assert_eq!(console.right_of("app"), None);
        let console = ConsoleConfig {
            admin_users: vec!["dba".to_owned()],
            stats_users: vec!["dba".to_owned(), "exporter".to_owned()],
            ..console
        };
        assert_eq!(console.right_of("dba"), Some(ConsoleRight::Admin));
        assert_eq!(console.right_of("exporter"), Some(ConsoleRight::Stats));
        assert_eq!(console.right_of("app"), None);
    }

    #[test]
    fn what_no_role_or_database_is_called_is_a_fault() {
        let mut faults = Vec::new();
        let names = vec![String::new(), "a".to_owned(), "a".to_owned()];
        let console = ConsoleConfig {
            database: "x".repeat(64),
            admin_users: names,
            pause_timeout: DurationText::from_secs(0),
            ..ConsoleConfig::default()
        };
        console.faults(&mut faults);
        assert_eq!(faults.len(), 4, "{faults:?}");
    }
}

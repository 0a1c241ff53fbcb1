//! What the functions of one database do to the session that calls them, learnt from their bodies.
//!
//! A server is asked about a name when a statement first calls it, and the answer holds for a while, or until somebody
//! defines a function through this proxy. A name stands for all functions that have it, in whatever schema. A function
//! does what the functions do that its body calls.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::classify::kinds::Kinds;
use crate::classify::touches::{Touches, touches_of_body};

/// Names that are remembered for one database.
const NAMES_MAX: usize = 4096;

/// How long an answer holds: functions are also changed where this proxy does not see it.
const FRESH: Duration = Duration::from_secs(60);

/// Calls in calls that are followed.
const DEPTH_MAX: usize = 16;

/// What is known of one database's functions.
#[derive(Debug, Default)]
pub struct Bodies {
    known: Mutex<HashMap<Box<str>, Known>>,
}

/// All functions of one name.
#[derive(Debug, Clone)]
struct Known {
    touches: Touches,
    learnt_at: Instant,
}

/// What a statement may do, its functions counted in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Weighed {
    /// What may come to be.
    pub begins: Kinds,
    /// What may come to an end.
    pub ends: Kinds,
    /// Settings with a dot in their names, in lower case.
    pub settings: Vec<Box<str>>,
    /// Functions that nothing is known of yet; they may do anything that can be asked about.
    pub unknown: Vec<Box<str>>,
}

impl Bodies {
    /// Counts the functions in that a statement calls.
    #[must_use]
    pub fn weigh(&self, touches: &Touches, now: Instant) -> Weighed {
        let mut weighed = Weighed {
            begins: touches.begins,
            ends: touches.ends,
            settings: touches.settings.clone(),
            unknown: Vec::new(),
        };
        if !touches.calls.is_empty() {
            let known = self.lock();
            let mut visited = Vec::new();
            for name in &touches.calls {
                add(&known, name, now, &mut weighed, &mut visited);
            }
        }
        weighed
    }

    /// Takes a server's answer: of each name that was asked about the bodies that there are, none for a function that
    /// is not written in SQL or PL/pgSQL and is taken for harmless.
    pub fn learn(&self, asked: &[Box<str>], bodies: &[(String, String)], now: Instant) {
        let mut known = self.lock();
        if known.len() + asked.len() > NAMES_MAX {
            known.clear();
        }
        for name in asked {
            let mut all = Touches::default();
            for (_, body) in bodies.iter().filter(|(of, _)| *of == **name) {
                let one = touches_of_body(body.as_bytes());
                all.begins = all.begins.and(one.begins);
                all.ends = all.ends.and(one.ends);
                all.settings.extend(one.settings);
                all.calls.extend(one.calls);
            }
            all.calls.retain(|call| call != name);
            known.insert(name.clone(), Known { touches: all, learnt_at: now });
        }
    }

    /// Forgets everything: somebody has defined functions.
    pub fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds what the functions of a name do, and those that they call.
fn add(
    known: &HashMap<Box<str>, Known>,
    name: &str,
    now: Instant,
    weighed: &mut Weighed,
    visited: &mut Vec<Box<str>>,
) {
    if visited.iter().any(|before| **before == *name) || visited.len() > DEPTH_MAX * DEPTH_MAX {
        return;
    }
    let found = known.get(name).filter(|one| now.saturating_duration_since(one.learnt_at) < FRESH);
    let Some(found) = found else {
        weighed.unknown.push(name.into());
        return;
    };
    if found.touches.is_nothing() {
        return;
    }
    visited.push(name.into());
    weighed.begins = weighed.begins.and(found.touches.begins);
    weighed.ends = weighed.ends.and(found.touches.ends);
    for setting in &found.touches.settings {
        if !weighed.settings.contains(setting) {
            weighed.settings.push(setting.clone());
        }
    }
    for call in &found.touches.calls {
        add(known, call, now, weighed, visited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::touches::touches;

    fn names(names: &[&str]) -> Vec<Box<str>> {
        names.iter().map(|name| (*name).into()).collect()
    }

    fn bodies(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, body)| ((*name).to_owned(), (*body).to_owned())).collect()
    }

    #[test]
    fn a_function_is_asked_about_once_and_does_what_its_callees_do() {
        let known = Bodies::default();
        let now = Instant::now();
        let statement = touches(b"SELECT f(1), lower('A')");
        assert_eq!(known.weigh(&statement, now).unknown, names(&["f", "lower"]));
        known.learn(&names(&["f", "lower"]), &bodies(&[("f", "BEGIN PERFORM g(); END")]), now);
        assert_eq!(known.weigh(&statement, now).unknown, names(&["g"]));
        known.learn(&names(&["g"]), &bodies(&[("g", "BEGIN SET my.x = 1; PERFORM f(2); END")]), now);
        let weighed = known.weigh(&statement, now);
        assert_eq!((weighed.begins, weighed.settings), (Kinds::SETTING, names(&["my.x"])));
        assert!(weighed.unknown.is_empty());
        assert!(known.weigh(&touches(b"SELECT lower('B')"), now).begins.is_empty());
    }

    #[test]
    fn all_functions_of_a_name_count() {
        let known = Bodies::default();
        let now = Instant::now();
        known.learn(&names(&["f"]), &bodies(&[("f", "SELECT 1"), ("f", "SELECT pg_advisory_lock(1)")]), now);
        assert_eq!(known.weigh(&touches(b"SELECT f()"), now).begins, Kinds::LOCK);
    }

    #[test]
    fn an_answer_holds_for_a_while() {
        let known = Bodies::default();
        let now = Instant::now();
        known.learn(&names(&["f"]), &[], now);
        let statement = touches(b"SELECT f()");
        assert!(known.weigh(&statement, now).unknown.is_empty());
        assert!(!known.weigh(&statement, now + FRESH).unknown.is_empty());
        known.forget();
        assert!(!known.weigh(&statement, now).unknown.is_empty());
    }
}

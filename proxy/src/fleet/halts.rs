//! What the console has stopped: databases that are paused, and those that take no new clients.

use std::collections::BTreeSet;

/// Databases that may be paused, and as many that may be disabled.
const NAMES_MAX: usize = 1_000;

/// What is stopped, in this process and until it ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Halts {
    /// All databases are paused.
    pub is_all_paused: bool,
    /// These are, whether or not all are.
    pub paused: BTreeSet<String>,
    /// New clients are refused here.
    pub disabled: BTreeSet<String>,
}

/// No more databases can be stopped one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{NAMES_MAX} databases have been stopped one by one")]
pub struct TooManyHalts;

impl Halts {
    /// Whether a client's requests wait.
    #[must_use]
    pub fn is_paused(&self, database: &str) -> bool {
        self.is_all_paused || self.paused.contains(database)
    }

    /// Whether a new client is refused.
    #[must_use]
    pub fn is_disabled(&self, database: &str) -> bool {
        self.disabled.contains(database)
    }

    /// Pauses one database, or all. Tells whether that is new.
    ///
    /// # Errors
    /// When there are too many.
    pub fn pause(&mut self, database: Option<&str>) -> Result<bool, TooManyHalts> {
        match database {
            None => Ok(!std::mem::replace(&mut self.is_all_paused, true)),
            Some(database) => add(&mut self.paused, database),
        }
    }

    /// Lets one database go on, or all. Tells whether any was paused by itself.
    pub fn resume(&mut self, database: Option<&str>) -> bool {
        match database {
            None => {
                let were_any = !std::mem::take(&mut self.paused).is_empty();
                std::mem::take(&mut self.is_all_paused) || were_any
            }
            Some(database) => self.paused.remove(database),
        }
    }

    /// Refuses new clients of a database.
    ///
    /// # Errors
    /// When there are too many.
    pub fn disable(&mut self, database: &str) -> Result<bool, TooManyHalts> {
        add(&mut self.disabled, database)
    }

    /// Takes new clients again.
    pub fn enable(&mut self, database: &str) -> bool {
        self.disabled.remove(database)
    }
}

fn add(names: &mut BTreeSet<String>, name: &str) -> Result<bool, TooManyHalts> {
    if names.len() >= NAMES_MAX && !names.contains(name) {
        return Err(TooManyHalts);
    }
    Ok(names.insert(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resuming_all_resumes_each() {
        let mut halts = Halts::default();
        assert_eq!(halts.pause(Some("a")), Ok(true));
        assert!(halts.is_paused("a") && !halts.is_paused("b"));
        assert_eq!(halts.pause(None), Ok(true));
        assert_eq!(halts.pause(None), Ok(false));
        assert!(halts.is_paused("b"));
        assert!(!halts.resume(Some("b")), "it is paused with all others, and not by itself");
        assert!(halts.resume(None));
        assert_eq!(halts, Halts::default());
        assert!(!halts.resume(None));
    }

    #[test]
    fn there_is_a_limit_of_names() {
        let mut halts = Halts::default();
        for n in 0..NAMES_MAX {
            assert_eq!(halts.disable(&n.to_string()), Ok(true));
        }
        assert_eq!(halts.disable("0"), Ok(false));
        assert_eq!(halts.disable("one more"), Err(TooManyHalts));
        assert!(halts.enable("0") && !halts.is_disabled("0") && halts.is_disabled("1"));
    }
}

//! How many connections each user has to one server, and whether it may have more.

use std::collections::HashMap;

/// The connections of each user, those that are being opened among them.
#[derive(Debug)]
pub struct Shares {
    open: HashMap<String, u32>,
    /// The most of one user; no limit where there is none.
    pub max: Option<u32>,
}

impl Shares {
    /// Of a server that has none yet.
    #[must_use]
    pub fn new(max: Option<u32>) -> Self {
        Self { open: HashMap::new(), max }
    }

    /// Whether a user may have one more.
    #[must_use]
    pub fn may_open(&self, user: &str) -> bool {
        self.max.is_none_or(|max| self.open.get(user).is_none_or(|open| *open < max))
    }

    /// Whether a user has no more than it may have.
    #[must_use]
    pub fn is_within(&self, user: &str) -> bool {
        self.max.is_none_or(|max| self.open.get(user).is_none_or(|open| *open <= max))
    }

    /// The users that have more than they may have.
    #[must_use]
    pub fn over(&self) -> Vec<String> {
        self.open.keys().filter(|user| !self.is_within(user)).cloned().collect()
    }

    /// A user has one more.
    pub fn add(&mut self, user: &str) {
        match self.open.get_mut(user) {
            Some(open) => *open += 1,
            None => {
                self.open.insert(user.to_owned(), 1);
            }
        }
    }

    /// A user has one less.
    pub fn take(&mut self, user: &str) {
        if let Some(open) = self.open.get_mut(user) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_share_of_its_own() {
        let mut shares = Shares::new(Some(2));
        shares.add("app");
        shares.add("app");
        assert!(!shares.may_open("app") && shares.is_within("app") && shares.may_open("web"));
        shares.max = Some(1);
        assert_eq!(shares.over(), ["app"]);
        shares.take("app");
        assert!(shares.is_within("app") && !shares.may_open("app"));
        shares.take("app");
        assert!(shares.may_open("app") && shares.open.is_empty());
        shares.max = None;
        assert!(shares.may_open("app"));
    }
}

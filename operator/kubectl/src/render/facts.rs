//! Lines of a name and what there is to say of it.

/// Where what is said begins.
const COLUMN: usize = 14;

/// Names and what there is to say of them.
#[derive(Debug, Default)]
pub struct Facts(String);

impl Facts {
    /// One more.
    pub fn add(&mut self, name: &str, what: impl AsRef<str>) {
        self.0.push_str(&format!("{name:COLUMN$}{}\n", what.as_ref()));
    }

    /// One more line about the last one.
    pub fn more(&mut self, what: impl AsRef<str>) {
        self.add("", what);
    }

    /// All of them.
    #[must_use]
    pub fn text(self) -> String {
        self.0
    }
}

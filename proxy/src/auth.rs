//! Who clients are, and how the proxy logs in to servers for them.

pub mod answer;
pub mod guesses;
pub mod md5;
pub mod scram;
pub mod users;
pub mod verify;

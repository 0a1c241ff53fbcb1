//! Bytes to messages and back, with no policy.

pub mod backend;
pub mod codec;
pub mod frame;
pub mod frontend;
pub mod sqlstate;
pub mod startup;

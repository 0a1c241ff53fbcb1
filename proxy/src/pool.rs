//! Connections to servers, shared by all clients within a limit.

pub mod lease;
pub mod server_pool;
pub mod waiters;

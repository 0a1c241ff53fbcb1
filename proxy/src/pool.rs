//! Connections to servers, shared by all clients within a limit.

pub mod lease;
pub mod limits;
pub mod server_pool;
pub mod shares;
pub mod shelf;
pub mod stock;
pub mod waiters;

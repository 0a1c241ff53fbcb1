//! The PostgreSQL routing proxy, in the order in which a query passes through it.

pub mod auth;
pub mod error;
pub mod transaction;
pub mod wire;

//! The console: what clients of a database that is none can see and do here, as at PgBouncer's.
//!
//! A session hands its client over when that has logged in. What is asked is read by `command`, shown by `tables` and done
//! by `actions`; `conversation` speaks with the client.

pub mod actions;
pub mod answer;
pub mod command;
pub mod conversation;
pub mod history;
pub mod rows;
pub mod sources;
pub mod tables;
pub mod words;

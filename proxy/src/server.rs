//! One connection to one server: opening it, what it carries, what is known of its state.

pub mod cancel_target;
pub mod connect;
pub mod connection;
pub mod dial;
pub mod endpoint;
pub mod leash;
pub mod own;
pub mod prepared;
pub mod query;
pub mod question;
pub mod replies;
pub mod settings;

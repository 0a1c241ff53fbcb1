//! The Kubernetes API of PgRoutingPool: its types, and the definition made from them.
#![warn(missing_docs)]

pub mod definition;
pub mod duration;
pub mod reference;
pub mod spec;
pub mod stage;
pub mod status;
pub mod time;

//! What crosses between the operator and the proxy, as plain data.
//!
//! The operator writes a [`config::ProxyConfig`] and reads a [`report::ProxyReport`]; the proxy does the opposite.
//! Nothing here does I/O or knows Kubernetes.
#![warn(missing_docs)]

pub mod config;
pub mod console;
pub mod duration;
pub mod histogram;
pub mod measures;
pub mod mirror;
pub mod peers;
pub mod pooling;
pub mod report;
pub mod split;
pub mod stage;
pub mod tls;

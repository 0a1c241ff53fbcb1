//! The operator of PgRoutingPool: custom resource in, objects and pushed config out, status back.

pub mod apply;
pub mod certificates;
pub mod controller;
pub mod desired;
pub mod dns;
pub mod events;
#[cfg(test)]
mod fixtures;
pub mod fleet;
pub mod health;
pub mod images;
pub mod installed;
pub mod lease;
pub mod memory;
pub mod metrics;
pub mod named;
pub mod names;
pub mod observe;
pub mod position;
pub mod prometheus_query;
pub mod proxies;
pub mod resolve;
pub mod rollout;
pub mod settings;
pub mod status;
pub mod time;
pub mod validate;
pub mod watches;

//! The PostgreSQL routing proxy, in the order in which a query passes through it.

pub mod admin;
pub mod admin_tls;
pub mod console;
pub mod listener;
pub mod session;

pub mod classify;
pub mod route;
pub mod topology;

pub mod election;
pub mod fleet;
pub mod mirror;
pub mod pool;
pub mod server;

pub mod audit;
pub mod auth;
pub mod cancel;
pub mod catalog;
pub mod catalogs;
pub mod monitor;
pub mod pace;
pub mod peers;
pub mod positions;
pub mod roles;
pub mod roster;
pub mod sites;
pub mod standing;
pub mod tally;
pub mod timekeeper;

pub mod config;
pub mod control;

pub mod error;
pub mod lot;
pub mod metrics;
pub mod socket;
pub mod tls;
pub mod transaction;
pub mod wire;

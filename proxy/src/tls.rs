//! TLS on both sides, without sockets: files, settings, certificates, records.

pub mod binding;
pub mod channel;
pub mod clients;
pub mod files;
pub mod servers;
pub mod store;
pub mod tally;
pub mod verifier;

#[cfg(test)]
pub mod sample;

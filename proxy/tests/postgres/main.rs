//! The proxy on real PostgreSQL 15 servers, process against process.
//!
//! One primary, and a standby where a test asks for it, serve the whole run; each test has a database and a proxy of
//! its own. Waits are for events and end by a limit that proves nothing. Numbers in names, as in `case_095_`, are those
//! of the collection of public bug reports that the tests were taken from.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]
#![expect(unreachable_pub, reason = "modules of a test are private to it")]
#![expect(clippy::disallowed_methods, reason = "clients here are threads, and they may block")]

mod support;

mod auth;
mod cancel;
mod config;
mod consistency;
mod console;
mod console_as_pgbouncer;
mod console_commands;
mod console_tables;
mod copy_as_postgres;
mod django;
mod drain;
mod driver;
mod errors_as_postgres;
mod extended_as_postgres;
mod failover;
mod large;
mod leaks;
mod ledger;
mod limits;
mod loss;
mod malformed;
mod measures;
mod mirror;
mod mirror_faults;
mod mirror_purposes;
mod monitor;
mod peers;
mod pinning;
mod pooling;
mod prepared;
mod protocol;
mod random_as_postgres;
mod random_cancels;
mod random_split;
mod random_tied;
mod session_mode;
mod settings;
mod simple_as_postgres;
mod split;
mod split_faults;
mod split_tied;
mod tls_clients;
mod tls_files;
mod tls_servers;
mod tls_traffic;

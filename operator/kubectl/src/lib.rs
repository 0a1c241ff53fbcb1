//! The parts of `kubectl pgrp`: what a pool's rollout should do next, and pictures of where it is.
//!
//! `decide` and `render` are pure; `cluster` and `proxies` do the I/O. Nothing here knows the operator's code: what it
//! shares with it are the API types and the proxies' reports.

pub mod cluster;
pub mod decide;
pub mod explain;
pub mod names;
pub mod pods;
pub mod proxies;
pub mod render;
pub mod settings;
pub mod table;
pub mod text;

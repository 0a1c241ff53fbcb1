//! The parts of `kubectl pgrp`: what a pool's rollout should do next, and pictures of where it is.
//!
//! `decide`, `explain` and `render` are pure. Nothing here knows the operator's code: what it shares with it are the API
//! types and the proxies' reports.

pub mod decide;
pub mod explain;
pub mod pods;
pub mod render;
pub mod table;
pub mod text;

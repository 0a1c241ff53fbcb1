//! The parts of `kubectl pgrp`: what a pool's rollout should do next, and pictures of where it is.
//!
//! `decide` is pure. Nothing here knows the operator's code: what it shares with it are the API types and the proxies'
//! reports.

pub mod decide;

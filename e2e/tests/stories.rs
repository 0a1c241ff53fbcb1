//! The stories, one file each, in one program: run.sh tells them one by one.
#![expect(clippy::print_stdout, reason = "a story shows what a user sees, and its figures")]

#[path = "stories/bad_edit.rs"]
mod bad_edit;
#[path = "stories/cancel.rs"]
mod cancel;
#[path = "stories/chart_values.rs"]
mod chart_values;
#[path = "stories/cnpg.rs"]
mod cnpg;
#[path = "stories/delete.rs"]
mod delete;
#[path = "stories/drift.rs"]
mod drift;
#[path = "stories/failover.rs"]
mod failover;
#[path = "stories/fleet.rs"]
mod fleet;
#[path = "stories/idle.rs"]
mod idle;
#[path = "stories/install.rs"]
mod install;
#[path = "stories/leader.rs"]
mod leader;
#[path = "stories/mirror.rs"]
mod mirror;
#[path = "stories/monitoring.rs"]
mod monitoring;
#[path = "stories/operator_gone.rs"]
mod operator_gone;
#[path = "stories/password.rs"]
mod password;
#[path = "stories/plugin.rs"]
mod plugin;
#[path = "stories/releases.rs"]
mod releases;
#[path = "stories/rights.rs"]
mod rights;
#[path = "stories/rollout.rs"]
mod rollout;
#[path = "stories/rollout_external.rs"]
mod rollout_external;
#[path = "stories/rollout_faults.rs"]
mod rollout_faults;
#[path = "stories/rollout_waves.rs"]
mod rollout_waves;
#[path = "stories/scale.rs"]
mod scale;
#[path = "stories/secrets.rs"]
mod secrets;
#[path = "stories/servers.rs"]
mod servers;
#[path = "stories/services.rs"]
mod services;
#[path = "stories/split.rs"]
mod split;
#[path = "stories/tls.rs"]
mod tls;
#[path = "stories/tutorial.rs"]
mod tutorial;
#[path = "stories/upgrade.rs"]
mod upgrade;

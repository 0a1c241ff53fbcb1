//! What the stories share: the cluster, its PostgreSQL servers, pools, waits and a load that counts failures.
//!
//! The stories test what ships, so nothing of the operator or the proxy is imported: only the API's types and the
//! config contract.

pub mod chart;
pub mod cluster;
pub mod faults;
pub mod ledger;
pub mod load;
pub mod monitoring;
pub mod page;
pub mod pgbench;
pub mod pool;
pub mod postgres;
pub mod reads;
pub mod rows;
pub mod story;
pub mod tls;
pub mod wait;

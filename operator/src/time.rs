//! Times as Kubernetes stores them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A time as Kubernetes stores it, so that what is written compares equal to what is read back.
#[must_use]
pub fn whole_seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

//! The PodDisruptionBudget of a pool.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::desired::labels::metadata;
use crate::names::PoolNames;
use crate::validate::ValidatedPool;

/// A budget by `maxUnavailable`, which works at every number of pods and never blocks the drain of a single one.
#[must_use]
pub fn disruption_budget(pool: &ValidatedPool) -> Option<PodDisruptionBudget> {
    let max_unavailable = pool.proxy.max_unavailable?;
    let names = PoolNames(&pool.name);
    Some(PodDisruptionBudget {
        metadata: metadata(pool, names.proxy()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(max_unavailable)),
            selector: Some(LabelSelector {
                match_labels: Some(names.selector()),
                ..LabelSelector::default()
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    })
}

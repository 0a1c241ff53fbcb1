//! All objects that a pool should have, built from a validated pool.
//!
//! Takes [`ValidatedPool`] and what was stored before; has no client. The time is passed in.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use pgrouting_contract::config::InvalidConfig;

use crate::certificates::CertificateError;
use crate::desired::config_map::{Document, KnownGenerations};
use crate::resolve::ResolvedRefs;
use crate::validate::ValidatedPool;

pub mod config_map;
pub mod deployment;
pub mod disruption_budget;
pub mod labels;
pub mod network_policy;
pub mod secret;
pub mod service;

/// All objects of a pool, none of them applied yet.
#[derive(Debug, Clone)]
pub struct DesiredObjects {
    /// The document in the ConfigMap.
    pub document: Document,
    /// The document for a cold start.
    pub config_map: ConfigMap,
    /// The admin API's certificates.
    pub admin: Secret,
    /// The users' names and passwords.
    pub users: Secret,
    /// The pods' ServiceAccount.
    pub service_account: Option<ServiceAccount>,
    /// One to three Services for clients, and the one for peers.
    pub services: Vec<Service>,
    /// The budget for evictions.
    pub disruption_budget: Option<PodDisruptionBudget>,
    /// Who may connect. Filled in by the pass, which knows where the operator is.
    pub network_policy: Option<NetworkPolicy>,
    /// The pods.
    pub deployment: Deployment,
}

/// Why objects cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum DesiredError {
    /// A proxy would refuse the document.
    #[error("{0}")]
    Document(#[from] InvalidConfig),
    /// No certificate can be made.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// Builds all objects of a pool.
///
/// # Errors
/// When a proxy would refuse the document, or a certificate cannot be made.
pub fn desired(
    pool: &ValidatedPool,
    refs: &ResolvedRefs,
    generation_in_status: u64,
    now: Timestamp,
) -> Result<DesiredObjects, DesiredError> {
    let known = KnownGenerations { in_status: generation_in_status, foreign: refs.generation_floor };
    let document = config_map::document(pool, refs.previous.as_ref(), known)?;
    Ok(DesiredObjects {
        config_map: config_map::config_map(pool, &document),
        document,
        admin: secret::admin_secret(pool, refs.admin.as_ref(), now)?,
        users: secret::users_secret(pool),
        service_account: service::service_account(pool),
        services: service::services(pool),
        disruption_budget: disruption_budget::disruption_budget(pool),
        network_policy: None,
        deployment: deployment::deployment(pool),
    })
}

#[cfg(test)]
mod tests;

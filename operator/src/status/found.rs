//! What one pass over a pool found, as the status is computed from it.

use std::time::Duration;

use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::RolloutStatus;

use crate::apply::ApplyFault;
use crate::desired::config_map::Document;
use crate::images::ImagePlan;
use crate::observe::Observation;
use crate::resolve::CredentialsFault;
use crate::rollout::progress::Progress;
use crate::validate::tls::CertificateEnd;

/// What one pass over a pool found.
#[derive(Debug)]
pub struct Found<'a> {
    /// The generation of the spec.
    pub generation: Option<i64>,
    /// The stage that the spec asks for.
    pub target: Stage,
    /// The rollout as it has been decided.
    pub rollout: Option<&'a RolloutStatus>,
    /// What there is to say of it; absent where the spec makes no sense.
    pub progress: Option<&'a Progress>,
    /// How long the rollout may wait for figures.
    pub progress_deadline: Duration,
    /// Whether the spec makes sense.
    pub verdict: SpecVerdict,
    /// The document in use: of this spec, or of the last good one.
    pub document: Option<&'a Document>,
    /// What is wrong with the Services that the servers come from.
    pub backend_faults: &'a [String],
    /// What is wrong with the Secrets and ConfigMaps that the spec names.
    pub credential_faults: &'a [CredentialsFault],
    /// When the certificates end that the spec names.
    pub certificate_ends: &'a [CertificateEnd],
    /// What was not applied.
    pub apply_faults: &'a [ApplyFault],
    /// What the installed definition lacks of what this operator acts on.
    pub missing_parts: &'a [String],
    /// What is known of pods and servers.
    pub observation: &'a Observation,
    /// The image that is asked for, and how it is to the operator's default.
    pub images: &'a ImagePlan,
    /// The image that the pods are really asked to run, where there is a Deployment.
    pub image: Option<&'a str>,
    /// Whether every pod is of the newest template and ready.
    pub is_rolled_out: bool,
    /// The most connections to each server over the whole fleet, and the pods that share them.
    pub budget: Option<Budget>,
    /// How many pods are asked for.
    pub replicas_wanted: i32,
    /// The selector of the pods.
    pub selector: String,
}

impl Found<'_> {
    /// Whether the operator is to leave everything as it is.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.verdict == SpecVerdict::Suspended
    }
}

/// The connections to each server that a pool may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// All of them together.
    pub connections: u32,
    /// Pods that there are or should be.
    pub pods: u32,
}

/// Whether a spec makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecVerdict {
    /// It does.
    Accepted,
    /// It does not.
    Invalid(Vec<String>),
    /// A PostgreSQL setting in it does not.
    InvalidParameter(Vec<String>),
    /// It does, and no server is known yet.
    NoServers(Vec<String>),
    /// Nobody has looked: the operator is to leave everything as it is.
    Suspended,
    /// It does, and a Secret is missing without which nobody could log in.
    NoLogins(Vec<CredentialsFault>),
}

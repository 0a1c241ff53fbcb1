//! What one pass over a pool found, as the status is computed from it.

use std::time::Duration;

use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::RolloutStatus;

use crate::apply::ApplyFault;
use crate::desired::config_map::Document;
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
    /// The image that is asked for.
    pub image: &'a str,
    /// How many pods are asked for.
    pub replicas_wanted: i32,
    /// The selector of the pods.
    pub selector: String,
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
}

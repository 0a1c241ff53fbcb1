//! What each condition should say of a pool: pure functions of what one pass found.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pgrouting_contract::config::Traffic;
use pgrouting_contract::report::CredentialState;
use pgrouting_crds::status::ConditionStatus::{False, True, Unknown};
use pgrouting_crds::status::{MirrorStatus, PoolCondition, ServerRole, ServerState};

use crate::apply::ApplyFault;
use crate::observe::{Observation, PodSync, ServerView};
use crate::resolve::CredentialsFault;
use crate::status::condition::{ConditionType, Finding, Reason};
use crate::status::fleet::{connection_budget, image_current, reconciliation_active, traffic_open};
use crate::status::found::{Found, SpecVerdict};
use crate::status::mirror::mirror_healthy;
use crate::status::rollout::{progressing, split_active, stalled_rollout};

/// A certificate that ends within this time is told of.
const EXPIRING: Duration = Duration::from_secs(14 * 24 * 3600);

/// All conditions of a pool, in the order in which they are shown. `mirror` is what comes of the copied traffic, `before` the
/// condition Progressing as it was.
#[must_use]
pub fn findings(
    found: &Found<'_>,
    mirror: Option<&MirrorStatus>,
    before: Option<&PoolCondition>,
    now: Timestamp,
) -> Vec<Finding> {
    let backends = backends_healthy(found);
    let ready = ready(found, &backends);
    let image = image_current(found, &ready);
    vec![
        ready,
        config_accepted(found),
        config_applied(found),
        backends,
        credentials_valid(found, now),
        progressing(found, before),
        split_active(found),
        mirror_healthy(found, mirror),
        traffic_open(found),
        image,
        connection_budget(found),
        reconciliation_active(found),
        stalled(found, before, now),
    ]
}

fn ready(found: &Found<'_>, backends: &Finding) -> Finding {
    let finding =
        |status, reason, message: String| Finding::new(ConditionType::Ready, status, reason, message);
    let serving = serving_text(found.observation);
    if let Some((reason, message)) = blocker(found) {
        return finding(False, reason, format!("{message}. {serving}"));
    }
    if let SpecVerdict::NoServers(reasons) = &found.verdict {
        return finding(False, Reason::NoPrimary, format!("{}. {serving}", reasons.join("; ")));
    }
    let observation = found.observation;
    if observation.ready_replicas == 0 && found.replicas_wanted == 0 && !found.is_suspended() {
        let message = "spec.proxy.replicas is 0: raise it to serve clients".to_owned();
        return finding(False, Reason::ScaledToZero, message);
    }
    if observation.ready_replicas == 0 {
        // Without a login the proxies find no primary: the Secret is what a person can do something about.
        if let Some(first) = found.credential_faults.first() {
            return finding(False, credential_reason(first), format!("no proxy is ready: {first}"));
        }
        let message = if matches!(backends.reason, Reason::NoPrimary) {
            format!("no proxy is ready: {}", backends.message)
        } else {
            let why = observation
                .waiting
                .as_deref()
                .unwrap_or("look at the pods of the Deployment and their events");
            format!("0 of {} proxies are ready: {why}", found.replicas_wanted)
        };
        return finding(False, Reason::NoReadyProxies, message);
    }
    let behind = observation.pods.iter().filter(|pod| pod.is_ready && pod.sync != PodSync::Applied);
    let behind: Vec<_> = behind.map(|pod| pod.name.as_str()).collect();
    if !behind.is_empty() {
        let message = format!("{} serve another config: see condition ConfigApplied", listed(&behind));
        return finding(False, Reason::ConfigNotApplied, message);
    }
    if matches!(backends.reason, Reason::NoPrimary) {
        return finding(False, Reason::NoPrimary, backends.message.clone());
    }
    if found.is_suspended() {
        let message = format!("{serving}; {SUSPENDED_TEXT}");
        return finding(Unknown, Reason::Suspended, message);
    }
    if is_paused(found) {
        let message = format!("{serving}, and hold back what they send: see condition TrafficOpen");
        return finding(True, Reason::TrafficPaused, message);
    }
    finding(True, Reason::Serving, serving)
}

const SUSPENDED_TEXT: &str = "spec.reconciliation is Suspended, so that nothing else in the spec is acted on: set it to Active to go on";

fn is_paused(found: &Found<'_>) -> bool {
    found.document.is_some_and(|document| document.config.pooling.traffic == Traffic::Paused)
}

/// What keeps this spec from coming into effect until a person acts.
fn blocker(found: &Found<'_>) -> Option<(Reason, String)> {
    if let SpecVerdict::Invalid(reasons) | SpecVerdict::InvalidParameter(reasons) = &found.verdict {
        let message = format!("{}; the last good config stays in use", reasons.join("; "));
        return Some((Reason::InvalidSpec, message));
    }
    let of = |want: fn(&ApplyFault) -> bool| -> Option<String> {
        let faults: Vec<_> =
            found.apply_faults.iter().filter(|fault| want(fault)).map(ToString::to_string).collect();
        (!faults.is_empty()).then(|| faults.join("; "))
    };
    if let Some(message) = of(|fault| matches!(fault, ApplyFault::NameConflict { .. })) {
        return Some((Reason::NameConflict, message));
    }
    if let Some(message) = of(|fault| matches!(fault, ApplyFault::Refused { .. })) {
        return Some((Reason::InvalidSpec, message));
    }
    of(|fault| matches!(fault, ApplyFault::Forbidden { .. })).map(|message| (Reason::Forbidden, message))
}

fn serving_text(observation: &Observation) -> String {
    match observation.ready_replicas {
        0 => "No proxy serves clients".to_owned(),
        1 => "1 proxy serves clients".to_owned(),
        count => format!("{count} proxies serve clients"),
    }
}

fn config_accepted(found: &Found<'_>) -> Finding {
    let finding = |status, reason, message: String| {
        Finding::new(ConditionType::ConfigAccepted, status, reason, message)
    };
    match &found.verdict {
        SpecVerdict::Invalid(reasons) => return finding(False, Reason::InvalidSpec, reasons.join("; ")),
        SpecVerdict::InvalidParameter(reasons) => {
            return finding(False, Reason::UnknownParameter, reasons.join("; "));
        }
        SpecVerdict::NoServers(reasons) => {
            return finding(Unknown, Reason::Reconciling, format!("no document yet: {}", reasons.join("; ")));
        }
        SpecVerdict::NoLogins(_) => {
            let message = "no document yet: see condition CredentialsValid".to_owned();
            return finding(Unknown, Reason::Reconciling, message);
        }
        SpecVerdict::Suspended => return finding(Unknown, Reason::Suspended, SUSPENDED_TEXT.to_owned()),
        SpecVerdict::Accepted => {}
    }
    let refused = found.observation.pods.iter().find_map(|pod| match &pod.sync {
        PodSync::Refused { reasons, .. } => Some((pod.name.as_str(), reasons.join("; "))),
        PodSync::Applied | PodSync::Starting | PodSync::Behind { .. } | PodSync::Unreachable { .. } => None,
    });
    if let Some((pod, reasons)) = refused {
        let message = format!("{pod} refuses it and goes on with the one before: {reasons}");
        return finding(False, Reason::RejectedByProxy, message);
    }
    match found.observation.applied_of_total() {
        (0, _) => finding(Unknown, Reason::NoPods, "no proxy has answered yet".to_owned()),
        _ => finding(True, Reason::Accepted, "the proxies take the document".to_owned()),
    }
}

fn config_applied(found: &Found<'_>) -> Finding {
    let finding =
        |status, reason, message: String| Finding::new(ConditionType::ConfigApplied, status, reason, message);
    let observation = found.observation;
    if found.is_suspended() {
        return finding(Unknown, Reason::Suspended, SUSPENDED_TEXT.to_owned());
    }
    let (applied, total) = observation.applied_of_total();
    if total == 0 {
        return finding(Unknown, Reason::NoPods, "no proxy is up".to_owned());
    }
    if applied == total {
        return finding(True, Reason::Applied, format!("{applied} of {total} proxies run the document"));
    }
    let mut behind = Vec::new();
    let mut unreachable = Vec::new();
    for pod in &observation.pods {
        match &pod.sync {
            PodSync::Applied | PodSync::Starting => {}
            PodSync::Behind { reason, .. } => behind.push(format!("{} ({reason})", pod.name)),
            PodSync::Refused { .. } => behind.push(format!("{} (it refuses the document)", pod.name)),
            PodSync::Unreachable { reason } => unreachable.push(format!("{} ({reason})", pod.name)),
        }
    }
    let reason = if behind.is_empty() { Reason::PushFailed } else { Reason::PodsOutOfSync };
    behind.append(&mut unreachable);
    let behind: Vec<_> = behind.iter().map(String::as_str).collect();
    let message = format!("{applied} of {total} proxies run the document; not {}", listed(&behind));
    finding(False, reason, message)
}

fn backends_healthy(found: &Found<'_>) -> Finding {
    let finding = |status, reason, message: String| {
        let message = if found.backend_faults.is_empty() {
            message
        } else {
            format!("{message}. {}", found.backend_faults.join("; "))
        };
        Finding::new(ConditionType::BackendsHealthy, status, reason, message)
    };
    if let SpecVerdict::NoServers(reasons) = &found.verdict {
        return Finding::new(ConditionType::BackendsHealthy, False, Reason::NoPrimary, reasons.join("; "));
    }
    let servers = &found.observation.servers;
    if found.observation.reports == 0 || servers.iter().all(|server| !server.is_probed) {
        return finding(Unknown, Reason::ProbeUnavailable, "no proxy has asked the servers yet".to_owned());
    }
    let is_up = |server: &&ServerView| server.state == ServerState::Up;
    let down: Vec<_> = servers
        .iter()
        .filter(|server| !is_up(server))
        .map(|server| format!("{} ({})", server.name, server.message))
        .collect();
    let down_text = if down.is_empty() {
        String::new()
    } else {
        format!("; not in use: {}", listed(&down.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    let fenced: Vec<_> = servers.iter().filter(|server| server.state == ServerState::Fenced).collect();
    if let [first, ..] = fenced.as_slice() {
        let taken = servers.iter().filter(is_up).find(|server| server.role == ServerRole::Primary);
        let taken = taken.map_or("another one", |server| server.name.as_str());
        let message = format!(
            "{} says that it is the primary too, and gets nothing: {taken} is taken for it; stop {}, or make it a \
             standby",
            first.name, first.name
        );
        return finding(False, Reason::TwoPrimaries, message);
    }
    let primaries: Vec<_> = servers
        .iter()
        .filter(is_up)
        .filter(|server| server.role == ServerRole::Primary)
        .map(|server| server.name.as_str())
        .collect();
    let replicas_up =
        servers.iter().filter(is_up).filter(|server| server.role == ServerRole::Replica).count();
    match primaries.as_slice() {
        [] => finding(
            False,
            Reason::NoPrimary,
            format!("none of {} servers is a primary that answers{down_text}", servers.len()),
        ),
        [primary] if servers.len() > 1 && replicas_up == 0 => {
            let are_behind = servers
                .iter()
                .all(|server| server.role != ServerRole::Replica || server.state == ServerState::Lagging);
            let reason = if are_behind { Reason::LagHigh } else { Reason::NoHealthyReplica };
            finding(False, reason, format!("{primary} is the primary, no replica takes reads{down_text}"))
        }
        [primary] => finding(
            True,
            Reason::AsExpected,
            format!(
                "{primary} is the primary, {} of {} replicas take reads{down_text}",
                replicas_up,
                servers.len() - 1
            ),
        ),
        several => finding(
            False,
            Reason::TwoPrimaries,
            format!("{} all say that they are the primary: stop all but one", several.join(" and ")),
        ),
    }
}

fn credentials_valid(found: &Found<'_>, now: Timestamp) -> Finding {
    let finding = |status, reason, message: String| {
        Finding::new(ConditionType::CredentialsValid, status, reason, message)
    };
    if let Some(first) = found.credential_faults.first() {
        let reason = credential_reason(first);
        let faults: Vec<_> = found.credential_faults.iter().map(ToString::to_string).collect();
        return finding(
            False,
            reason,
            format!("{}; until then what was good before stays in use", faults.join("; ")),
        );
    }
    let ending = |within: Duration| -> Vec<String> {
        let ends = found.certificate_ends.iter();
        let soon = ends
            .filter(|end| end.at.duration_since(now) <= SignedDuration::try_from(within).unwrap_or_default());
        soon.map(|end| format!("{} ends at {}", end.object, end.at)).collect()
    };
    let expired = ending(Duration::ZERO);
    if !expired.is_empty() {
        let message = format!("the certificate of {}: put a new one into it", expired.join(", that of "));
        return finding(False, Reason::CertificateExpired, message);
    }
    let bad = |want: CredentialState| -> Vec<String> {
        let bad = found.observation.bad_credentials.iter().filter(|credential| credential.state == want);
        bad.map(|credential| format!("{} ({})", credential.user, credential.message)).collect()
    };
    let rejected = bad(CredentialState::Rejected);
    if !rejected.is_empty() {
        let rejected: Vec<_> = rejected.iter().map(String::as_str).collect();
        let message = format!(
            "the servers refuse {}: correct the Secret, or the role on the servers",
            listed(&rejected)
        );
        return finding(False, Reason::LoginRejected, message);
    }
    if found.observation.reports == 0 || !bad(CredentialState::Missing).is_empty() {
        let message = "the proxies have not read the Secrets yet".to_owned();
        return finding(Unknown, Reason::Reconciling, message);
    }
    let expiring = ending(EXPIRING);
    if !expiring.is_empty() {
        let message = format!("the certificate of {}: renew it before", expiring.join(", that of "));
        return finding(True, Reason::CertificateExpiring, message);
    }
    finding(True, Reason::Valid, "no login has been refused".to_owned())
}

fn credential_reason(fault: &CredentialsFault) -> Reason {
    match fault {
        CredentialsFault::SecretNotFound(_) => Reason::SecretNotFound,
        CredentialsFault::KeyMissing { .. } | CredentialsFault::FileMissing { .. } => Reason::KeyMissing,
        CredentialsFault::ConfigMapNotFound(_) => Reason::ConfigMapNotFound,
        CredentialsFault::BadCertificate { .. } => Reason::CertificateInvalid,
        CredentialsFault::Forbidden(_) => Reason::Forbidden,
    }
}

fn stalled(found: &Found<'_>, before: Option<&PoolCondition>, now: Timestamp) -> Finding {
    match blocker(found) {
        Some((reason, message)) => Finding::new(ConditionType::Stalled, True, reason, message),
        None if !found.missing_parts.is_empty() => {
            let missing: Vec<_> = found.missing_parts.iter().map(String::as_str).collect();
            let message = format!(
                "the installed CustomResourceDefinition lacks {}: update it (helm upgrade, or kubectl apply \
                 --server-side -f pgroutingpools.yaml), until then these have no effect",
                listed(&missing)
            );
            Finding::new(ConditionType::Stalled, True, Reason::CrdOutdated, message)
        }
        None => stalled_rollout(found, before, now).unwrap_or_else(|| {
            let message = "nothing waits for a person";
            Finding::new(ConditionType::Stalled, False, Reason::AsExpected, message)
        }),
    }
}

/// At most five of them, by name.
fn listed(items: &[&str]) -> String {
    const SHOWN: usize = 5;
    match items.get(..SHOWN) {
        Some(first) if items.len() > SHOWN => {
            format!("{} and {} more", first.join(", "), items.len() - SHOWN)
        }
        Some(_) | None => items.join(", "),
    }
}

//! What the conditions say of the fleet as a whole: its traffic, its image, its connections, and who acts on it.

use pgrouting_contract::config::Traffic;
use pgrouting_crds::status::ConditionStatus::{False, True, Unknown};

use crate::images::{Standing, Wait};
use crate::observe::{PodState, PodSync};
use crate::status::condition::{ConditionType, Finding, Reason};
use crate::status::found::{Budget, Found};

/// Pools that a message names.
const POOLS_SHOWN: usize = 5;

/// TrafficOpen: who is held back, and whether the servers are free of this pool's clients.
#[must_use]
pub fn traffic_open(found: &Found<'_>) -> Finding {
    let finding =
        |status, reason, message: String| Finding::new(ConditionType::TrafficOpen, status, reason, message);
    let Some(document) = found.document else {
        return finding(Unknown, Reason::Reconciling, "no document yet".to_owned());
    };
    let pods = &found.observation.pods;
    let count = |want: fn(&PodState) -> bool| pods.iter().filter(|pod| want(pod)).count();
    let applied = count(|pod| pod.sync == PodSync::Applied);
    match document.config.pooling.traffic {
        Traffic::Open if applied < pods.len() => finding(
            True,
            Reason::AsExpected,
            format!("{applied} of {} proxies have been told to serve clients", pods.len()),
        ),
        Traffic::Open => finding(True, Reason::AsExpected, "clients are served".to_owned()),
        Traffic::Paused => {
            let drained = count(|pod| pod.sync == PodSync::Applied && pod.is_drained == Some(true));
            let message = format!(
                "{applied} of {} proxies are paused, and {drained} of them have no transaction under way: clients \
                 wait until spec.pooling.traffic is Open again",
                pods.len()
            );
            finding(False, Reason::TrafficPaused, message)
        }
    }
}

/// ImageCurrent: what the pods run, and who waits for whom. `ready` is the condition Ready.
#[must_use]
pub fn image_current(found: &Found<'_>, ready: &Finding) -> Finding {
    let finding =
        |status, reason, message: String| Finding::new(ConditionType::ImageCurrent, status, reason, message);
    let plan = found.images;
    let running = found.image.unwrap_or(&plan.image);
    match &plan.standing {
        Standing::Named if running == plan.image => {
            finding(True, Reason::ImageAsWanted, format!("spec.proxy.image is in use: {running}"))
        }
        Standing::Current if running == plan.image => {
            finding(True, Reason::ImageAsWanted, format!("the operator's default is in use: {running}"))
        }
        Standing::Kept { newer } => finding(
            False,
            Reason::ImageKept,
            format!(
                "the pods stay on {running}, since spec.proxy.imageUpdates is Manual: for the operator's default, \
                 {newer}, set spec.proxy.image to it, or imageUpdates to Automatic"
            ),
        ),
        Standing::Waiting { newer, cause } => {
            let cause = match cause {
                Wait::Start => "until the operator has seen all pools".to_owned(),
                Wait::OwnFault => "until conditions Stalled and ReconciliationActive let it go on".to_owned(),
                Wait::Updating { pool, .. } => format!("for {pool}, which is being updated"),
                Wait::Before(pool) => format!("for {pool}, which comes first"),
            };
            finding(
                False,
                Reason::ImageWaiting,
                format!("the pods run {running} and take {newer} later: it waits {cause}"),
            )
        }
        Standing::Updating { others } if running == plan.image => {
            // Where there should be no pod, none can become ready.
            let is_done = found.is_rolled_out && (ready.status == True || found.replicas_wanted == 0);
            if is_done {
                return finding(
                    True,
                    Reason::ImageAsWanted,
                    format!("the operator's default is in use: {running}"),
                );
            }
            let state = if found.is_rolled_out {
                format!("every pod runs {running}, but the pool is not Ready: {}", ready.message)
            } else {
                format!("pods are being replaced by those of {running} ({})", ready.message)
            };
            let holds = match others.len() {
                0 => String::new(),
                count => format!("; {} {} for it", listed(others), if count == 1 { "waits" } else { "wait" }),
            };
            finding(False, Reason::ImageUpdating, format!("{state}{holds}"))
        }
        Standing::Named | Standing::Current | Standing::Updating { .. } => finding(
            False,
            Reason::ImageWaiting,
            format!("the pods run {running} and not yet {}: see conditions Ready and Stalled", plan.image),
        ),
    }
}

/// ConnectionBudget: a pod without a connection could not serve, so each has one, whatever the limit is.
#[must_use]
pub fn connection_budget(found: &Found<'_>) -> Finding {
    let finding = |status, reason, message: String| {
        Finding::new(ConditionType::ConnectionBudget, status, reason, message)
    };
    match found.budget {
        None => finding(Unknown, Reason::Reconciling, "no document yet".to_owned()),
        Some(Budget { connections, pods }) if connections < pods => finding(
            False,
            Reason::BudgetBelowPods,
            format!(
                "spec.pooling.maxServerConnections is {connections}, and {pods} proxies have one to each server at \
                 least, which makes {pods}: raise it to {pods} or more, or lower spec.proxy.replicas"
            ),
        ),
        Some(Budget { connections, pods }) => finding(
            True,
            Reason::AsExpected,
            format!(
                "{connections} connections to each server are divided by {pods} proxies: {} each",
                connections / pods.max(1)
            ),
        ),
    }
}

/// ReconciliationActive.
#[must_use]
pub fn reconciliation_active(found: &Found<'_>) -> Finding {
    let (status, reason, message) = if found.is_suspended() {
        let message = "spec.reconciliation is Suspended: objects and proxies stay as they are, whatever the spec says; set \
                       it to Active to go on";
        (False, Reason::Suspended, message)
    } else {
        (True, Reason::AsExpected, "the operator acts on the spec")
    };
    Finding::new(ConditionType::ReconciliationActive, status, reason, message)
}

fn listed(pools: &[String]) -> String {
    match pools.get(..POOLS_SHOWN) {
        Some(first) if pools.len() > POOLS_SHOWN => {
            format!("{} and {} more", first.join(", "), pools.len() - POOLS_SHOWN)
        }
        Some(_) | None => pools.join(", "),
    }
}

#[cfg(test)]
mod tests;

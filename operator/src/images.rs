//! Which image a pool's proxies run, and whose turn it is when the operator's default image has changed.
//!
//! Pools take the new image one after the other, in the order of namespace and name: the next begins when the one before
//! is replaced as a whole and Ready. What is under way is known by the conditions of the pools alone, so that another
//! operator goes on where this one has stopped.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Resource as _, ResourceExt as _};
use pgrouting_crds::spec::proxy::ImageUpdates;
use pgrouting_crds::spec::{PgRoutingPool, Reconciliation};
use pgrouting_crds::status::ConditionStatus;

/// The condition that tells of the image.
pub const IMAGE_CURRENT: &str = "ImageCurrent";
/// Its reason while a pool is being updated, and the others wait.
pub const IMAGE_UPDATING: &str = "ImageUpdating";
/// Reasons of Stalled with which a pool cannot take a new image: the others do not wait for it.
const BLOCKERS: [&str; 3] = ["InvalidSpec", "NameConflict", "Forbidden"];

/// A pool, as far as the others' images depend on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The image that its pods were last asked to run.
    pub image: Option<String>,
    /// Whether it runs the operator's default, and takes another one by itself.
    pub is_automatic: bool,
    /// Whether it is being updated.
    pub is_updating: bool,
    /// Whether something of its own keeps it from an update.
    pub is_blocked: bool,
}

/// What a pool's pods run, and how that is to the operator's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePlan {
    /// The image.
    pub image: String,
    /// How it is to the default.
    pub standing: Standing,
}

/// How a pool's image is to the operator's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The spec names it.
    Named,
    /// It is the default.
    Current,
    /// It is not, and the spec says that it stays.
    Kept {
        /// The default.
        newer: String,
    },
    /// It is not yet.
    Waiting {
        /// The default.
        newer: String,
        /// What it waits for.
        cause: Wait,
    },
    /// It has just become so, and pods may be on the way; these wait for it.
    Updating {
        /// `namespace/name` of each.
        others: Vec<String>,
    },
}

/// What a pool waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// Not all pools have been seen yet.
    Start,
    /// Its own fault, which Stalled tells.
    OwnFault,
    /// Another pool is being updated.
    Updating {
        /// Its `namespace/name`.
        pool: String,
        /// Whether this pool is the next.
        is_next: bool,
    },
    /// This pool comes first.
    Before(String),
}

impl ImagePlan {
    /// How soon to look again: whoever is updated or is the next does not wait for the usual look.
    #[must_use]
    pub const fn next_look(&self) -> Duration {
        match self.standing {
            Standing::Updating { .. }
            | Standing::Waiting { cause: Wait::Updating { is_next: true, .. } | Wait::Start, .. } => {
                Duration::from_secs(2)
            }
            Standing::Named | Standing::Current | Standing::Kept { .. } | Standing::Waiting { .. } => {
                Duration::MAX
            }
        }
    }
}

impl Member {
    /// What there is to know of a pool.
    #[must_use]
    pub fn of(pool: &PgRoutingPool) -> Self {
        let conditions = pool.status.iter().flat_map(|status| &status.conditions);
        let has = |kind: &str, status: ConditionStatus, reasons: &[&str]| {
            conditions.clone().any(|condition| {
                condition.kind == kind
                    && condition.status == status
                    && reasons.contains(&condition.reason.as_str())
            })
        };
        let proxy = &pool.spec.proxy;
        let is_named = proxy.image.is_some();
        let proxies = pool.status.as_ref().and_then(|status| status.proxies.as_ref());
        Self {
            namespace: pool.namespace().unwrap_or_default(),
            name: pool.name_any(),
            image: proxies.map(|proxies| proxies.image.clone()),
            is_automatic: !is_named && proxy.image_updates == ImageUpdates::Automatic,
            is_updating: !is_named && has(IMAGE_CURRENT, ConditionStatus::False, &[IMAGE_UPDATING]),
            is_blocked: has("Stalled", ConditionStatus::True, &BLOCKERS)
                || pool.spec.reconciliation == Reconciliation::Suspended
                || pool.meta().deletion_timestamp.is_some(),
        }
    }

    fn is(&self, other: &Self) -> bool {
        (&self.namespace, &self.name) == (&other.namespace, &other.name)
    }

    fn text(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The image of `pool`. `running` is that of its Deployment, if there is one; `all` gives all pools, once they are known,
/// and is asked only where it matters.
#[must_use]
pub fn plan(
    pool: &PgRoutingPool,
    running: Option<&str>,
    all: impl FnOnce() -> Option<Vec<Member>>,
    default_image: &str,
) -> ImagePlan {
    if let Some(image) = &pool.spec.proxy.image {
        return ImagePlan { image: image.clone(), standing: Standing::Named };
    }
    let me = Member::of(pool);
    let Some(known) = me.image.as_deref().or(running) else {
        return ImagePlan { image: default_image.to_owned(), standing: Standing::Current };
    };
    let stay = |standing| ImagePlan { image: known.to_owned(), standing };
    let waiting = |cause| stay(Standing::Waiting { newer: default_image.to_owned(), cause });
    let is_outdated = |member: &Member| {
        let image = if member.is(&me) { Some(known) } else { member.image.as_deref() };
        member.is_automatic && !member.is_blocked && image.is_some_and(|image| image != default_image)
    };
    let others = |all: &[Member]| {
        let waiting = all.iter().filter(|member| !member.is(&me) && is_outdated(member));
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort();
        waiting.into_iter().map(Member::text).collect()
    };
    if known == default_image {
        return stay(if me.is_updating && me.is_automatic {
            Standing::Updating { others: others(&all().unwrap_or_default()) }
        } else {
            Standing::Current
        });
    }
    if !me.is_automatic {
        return stay(Standing::Kept { newer: default_image.to_owned() });
    }
    let Some(all) = all() else { return waiting(Wait::Start) };
    if me.is_blocked {
        return waiting(Wait::OwnFault);
    }
    let first = all.iter().filter(|member| is_outdated(member)).min().filter(|first| !first.is(&me));
    if let Some(updating) = all.iter().filter(|member| member.is_updating && !member.is(&me)).min() {
        return waiting(Wait::Updating { pool: updating.text(), is_next: first.is_none() });
    }
    match first {
        Some(first) => waiting(Wait::Before(first.text())),
        None => ImagePlan {
            image: default_image.to_owned(),
            standing: Standing::Updating { others: others(&all) },
        },
    }
}

/// The image of the container `proxy` of a Deployment.
#[must_use]
pub fn image_of(deployment: &Deployment) -> Option<&str> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let container = pod.containers.iter().find(|container| container.name == "proxy")?;
    container.image.as_deref()
}

/// Whether every pod is of the newest template and ready, and none of another one is left.
#[must_use]
pub fn is_rolled_out(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let Some(status) = &deployment.status else { return false };
    status.observed_generation == deployment.metadata.generation
        && [status.replicas, status.updated_replicas, status.ready_replicas]
            .iter()
            .all(|count| count.unwrap_or(0) == wanted)
}

#[cfg(test)]
mod tests;

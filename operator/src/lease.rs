//! Leader election by Lease: one process writes, the others keep their caches warm.
//!
//! Own code because the crate for it leaves a released Lease alone until it would have run out, so that an upgrade
//! waits half a minute, and counts transitions in a second write. Here the count changes in the write that takes the
//! Lease; it is the epoch by which proxies tell an old leader from a new one.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long the Lease holds without being renewed.
const LEASE_DURATION: Duration = Duration::from_secs(20);
/// How often the leader renews it.
const RENEW_PERIOD: Duration = Duration::from_secs(5);
/// A leader that has not renewed it for this long stops, well before another may take it.
const RENEW_DEADLINE: Duration = Duration::from_secs(15);
/// How often the others look.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// The longest wait for the API server.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of the leader, which only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// The Lease and who asks for it.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    /// The Lease's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Who asks: another name for each process.
    pub identity: String,
}

/// The leader could not renew its Lease: it must stop at once, for another may be leading.
#[derive(Debug, thiserror::Error)]
#[error("the Lease {0} is lost")]
pub struct LeaseLost(String);

/// What was last seen of the Lease, and since when on our own clock, so that no two clocks are compared.
#[derive(Debug)]
struct Observed {
    holder: Option<String>,
    renewed: Option<MicroTime>,
    since: Instant,
}

/// What to do with the Lease.
#[derive(Debug, PartialEq)]
enum Step {
    /// Write this one, new or over the one that was read.
    Take(Box<Lease>),
    /// Someone else holds it.
    Wait,
}

/// Holds the Lease whenever it can and tells `epoch` so, until `stop`; then gives it back.
///
/// # Errors
/// When it held the Lease and could not renew it.
pub async fn hold(
    client: Client,
    settings: LeaseSettings,
    epoch: watch::Sender<Option<Epoch>>,
    stop: CancellationToken,
) -> Result<(), LeaseLost> {
    let api: Api<Lease> = Api::namespaced(client, &settings.namespace);
    let mut observed = Observed { holder: None, renewed: None, since: Instant::now() };
    let mut renewed_at = Instant::now();
    loop {
        let held = try_take(&api, &settings, &mut observed).await;
        match held {
            Ok(Some(now)) => {
                renewed_at = Instant::now();
                epoch.send_if_modified(|known| {
                    let is_new = *known != Some(now);
                    *known = Some(now);
                    is_new
                });
            }
            Ok(None) if epoch.borrow().is_some() => return Err(LeaseLost(settings.name)),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, lease = settings.name, "cannot renew or look at the Lease");
                if epoch.borrow().is_some() && renewed_at.elapsed() >= RENEW_DEADLINE {
                    return Err(LeaseLost(settings.name));
                }
            }
        }
        let is_fresh = epoch.borrow().is_some() && renewed_at.elapsed() < RENEW_PERIOD;
        let pause = if is_fresh { RENEW_PERIOD } else { RETRY_PERIOD };
        // Both arms are cancel-safe.
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
    if epoch.borrow().is_some() {
        epoch.send_replace(None);
        release(&api, &settings).await;
    }
    Ok(())
}

/// Why one look at the Lease failed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("no answer in time")]
    Timeout(#[from] tokio::time::error::Elapsed),
}

async fn try_take(
    api: &Api<Lease>,
    settings: &LeaseSettings,
    observed: &mut Observed,
) -> Result<Option<Epoch>, LeaseError> {
    let stored = tokio::time::timeout(CALL_TIMEOUT, api.get_opt(&settings.name)).await??;
    observe(observed, stored.as_ref());
    let lease = match next_step(stored.as_ref(), settings, observed.since.elapsed(), Timestamp::now()) {
        Step::Take(lease) => lease,
        Step::Wait => return Ok(None),
    };
    let params = PostParams::default();
    // The resource version in it makes a write fail that comes after another's.
    let written = if stored.is_some() {
        tokio::time::timeout(CALL_TIMEOUT, api.replace(&settings.name, &params, &lease)).await?
    } else {
        tokio::time::timeout(CALL_TIMEOUT, api.create(&params, &lease)).await?
    };
    match written {
        Ok(lease) => {
            observe(observed, Some(&lease));
            Ok(Some(epoch_of(&lease)))
        }
        Err(kube::Error::Api(answer)) if answer.code == 409 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn observe(observed: &mut Observed, lease: Option<&Lease>) {
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec.and_then(|spec| spec.holder_identity.clone());
    let renewed = spec.and_then(|spec| spec.renew_time.clone());
    if holder != observed.holder || renewed != observed.renewed {
        *observed = Observed { holder, renewed, since: Instant::now() };
    }
}

/// Whether to take or renew the Lease. `unchanged` is how long it has looked as it does.
fn next_step(stored: Option<&Lease>, settings: &LeaseSettings, unchanged: Duration, now: Timestamp) -> Step {
    let spec = stored.and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty());
    let duration = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let has_run_out = unchanged >= duration.map_or(LEASE_DURATION, Duration::from_secs);
    let is_ours = holder == Some(settings.identity.as_str());
    if holder.is_some() && !is_ours && !has_run_out {
        return Step::Wait;
    }
    let transitions = spec.lease_transitions.unwrap_or_else(|| first_epoch(now));
    let mut metadata = stored.map(|lease| lease.metadata.clone()).unwrap_or_else(|| ObjectMeta {
        name: Some(settings.name.clone()),
        namespace: Some(settings.namespace.clone()),
        ..ObjectMeta::default()
    });
    metadata.managed_fields = None;
    Step::Take(Box::new(Lease {
        metadata,
        spec: Some(LeaseSpec {
            acquire_time: if is_ours { spec.acquire_time } else { Some(MicroTime(now)) },
            holder_identity: Some(settings.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            lease_transitions: Some(if is_ours { transitions } else { transitions.saturating_add(1) }),
            renew_time: Some(MicroTime(now)),
            ..spec
        }),
    }))
}

/// Minutes since 1970. A Lease that was deleted and made again so goes on above where it was.
fn first_epoch(now: Timestamp) -> i32 {
    i32::try_from(now.as_second() / 60).unwrap_or(i32::MAX / 2)
}

fn epoch_of(lease: &Lease) -> Epoch {
    let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0);
    Epoch(u64::try_from(transitions).unwrap_or(0))
}

/// Gives the Lease back, so that the next one need not wait. If it fails, the next one waits.
async fn release(api: &Api<Lease>, settings: &LeaseSettings) {
    let released = tokio::time::timeout(CALL_TIMEOUT, async {
        let Some(mut lease) = api.get_opt(&settings.name).await? else { return Ok(()) };
        let Some(spec) = &mut lease.spec else { return Ok(()) };
        if spec.holder_identity.as_deref() == Some(settings.identity.as_str()) {
            spec.holder_identity = None;
            lease.metadata.managed_fields = None;
            api.replace(&settings.name, &PostParams::default(), &lease).await?;
        }
        Ok::<_, kube::Error>(())
    });
    match released.await {
        Ok(Ok(())) => tracing::info!(lease = settings.name, "gave the Lease back"),
        Ok(Err(error)) => tracing::warn!(%error, "cannot give the Lease back"),
        Err(_) => tracing::warn!("cannot give the Lease back in time"),
    }
}

#[cfg(test)]
mod tests;

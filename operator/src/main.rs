//! Arguments, runtime and wiring of the operator.

use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Client, Config};
use pgrouting_operator::controller;
use pgrouting_operator::controller::pass::Operator;
use pgrouting_operator::dns::Dns;
use pgrouting_operator::fleet::Fleet;
use pgrouting_operator::lease::{self, LeaseSettings};
use pgrouting_operator::metrics::Metrics;
use pgrouting_operator::settings::{LogFormat, Settings};
use pgrouting_operator::watches::WatchHealth;
use pgrouting_operator::{health, installed, names};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long passes under way may go on after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    start_log(&settings)?;
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("another TLS provider is installed already");
    }
    run(settings).await
}

fn start_log(settings: &Settings) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&settings.log_level).context("--log-level")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match settings.log_format {
        LogFormat::Json => log.json().init(),
        LogFormat::Text => log.init(),
    }
    Ok(())
}

async fn run(settings: Settings) -> anyhow::Result<()> {
    let mut config = Config::infer().await.context("cannot find the API server")?;
    let agent = concat!("pgrouting-operator/", env!("CARGO_PKG_VERSION"));
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
    let client = Client::try_from(config.clone()).context("cannot make a client")?;
    // A call that is tried again for minutes would lose the Lease.
    let mut lease_config = config;
    lease_config.default_retry = false;
    let lease_client = Client::try_from(lease_config).context("cannot make a client for the Lease")?;
    let metrics = Metrics::new().context("metrics")?;
    let watch_health = WatchHealth::new(metrics.clone());
    let listener = TcpListener::bind(settings.metrics_listen)
        .await
        .with_context(|| format!("cannot listen on {}", settings.metrics_listen))?;
    let identity = settings.identity();
    tracing::info!(identity, version = env!("CARGO_PKG_VERSION"), "operator starts");

    let tasks = TaskTracker::new();
    let stop = CancellationToken::new();
    let stop_lease = CancellationToken::new();
    tasks.spawn(health::serve(listener, metrics.clone(), watch_health.clone(), stop_lease.clone()));
    let (epoch_sender, epoch) = watch::channel(None);
    let lease_settings = LeaseSettings {
        name: settings.lease_name.clone(),
        namespace: settings.lease_namespace.clone(),
        identity: identity.clone(),
    };
    let mut lease = tasks.spawn(lease::hold(lease_client, lease_settings, epoch_sender, stop_lease.clone()));
    let reporter = Reporter { controller: names::FIELD_MANAGER.to_owned(), instance: Some(identity) };
    let (missing_sender, missing_parts) = watch::channel(Vec::new());
    tasks.spawn(installed::compare(client.clone(), missing_sender, stop.clone()));
    let dns = Dns::default();
    tasks.spawn(dns.clone().run(stop.clone()));
    let operator = Operator {
        missing_parts,
        fleet: Fleet::default(),
        dns: dns.clone(),
        recorder: Recorder::new(client.clone(), reporter),
        client,
        proxy_image: settings.proxy_image.clone(),
        namespace: settings.lease_namespace.clone(),
        started: tokio::time::Instant::now(),
        prometheus: settings.prometheus_url.clone(),
        metrics: metrics.clone(),
        epoch: epoch.clone(),
        health: watch_health,
    };
    let controllers = TaskTracker::new();
    for scope in settings.scopes() {
        controllers.spawn(controller::run(operator.clone(), scope, stop.clone()));
    }
    controllers.close();
    tasks.spawn(show_leadership(epoch, metrics, stop.clone()));
    tasks.close();

    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    // Every arm is cancel-safe; the task of the Lease goes on by itself.
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        result = tokio::signal::ctrl_c() => result.context("SIGINT")?,
        () = controllers.wait() => anyhow::bail!("the controllers ended by themselves"),
        lost = &mut lease => {
            // Another may be leading already: no graceful end, which would write.
            lost.context("the task of the Lease failed")??;
            anyhow::bail!("the task of the Lease ended by itself");
        }
    }
    stop.cancel();
    if tokio::time::timeout(STOP_TIMEOUT, controllers.wait()).await.is_err() {
        tracing::warn!("some passes did not end in time");
    }
    // The next leader may begin once nothing is written here any more.
    stop_lease.cancel();
    if tokio::time::timeout(STOP_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::warn!("some tasks did not end in time");
    }
    tracing::info!("operator ends");
    Ok(())
}

async fn show_leadership(
    mut epoch: watch::Receiver<Option<lease::Epoch>>,
    metrics: Metrics,
    stop: CancellationToken,
) {
    loop {
        let now = *epoch.borrow_and_update();
        metrics.leader.set(i64::from(now.is_some()));
        match now {
            Some(lease::Epoch(epoch)) => tracing::info!(epoch, "leads"),
            None => tracing::info!("does not lead"),
        }
        // Both arms are cancel-safe.
        tokio::select! {
            () = stop.cancelled() => return,
            changed = epoch.changed() => if changed.is_err() { return },
        }
    }
}

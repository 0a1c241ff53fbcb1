//! Arguments, runtime and output of `kubectl pgrp`.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Parser as _;
use hyper::body::Bytes;
use jiff::Timestamp;
use kube::ResourceExt as _;
use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_kubectl::cluster::{Cluster, ClusterError};
use pgrouting_kubectl::decide::{Promotion, promote, rollback};
use pgrouting_kubectl::explain;
use pgrouting_kubectl::pods::{PodAnswer, PodState, Reports};
use pgrouting_kubectl::proxies::{ProxyAccess, ProxyError, Question};
use pgrouting_kubectl::render::{self, Namespaces};
use pgrouting_kubectl::settings::{Command, Output, Settings};
use pgrouting_kubectl::table::Paint;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Settings::parse()).await {
        Ok(text) => match std::io::stdout().lock().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            // Whoever reads has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(error) => fail(&error.into()),
        },
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    // Nobody is left to tell where this fails.
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::FAILURE
}

async fn run(settings: Settings) -> anyhow::Result<String> {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        bail!("another TLS provider is installed already");
    }
    let cluster = Cluster::find(&settings.target).await?;
    match settings.command {
        Command::Status { pool: Some(pool), output, all_namespaces: _ } => {
            status(&cluster, &pool, output).await
        }
        Command::Status { pool: None, output, all_namespaces } => {
            statuses(&cluster, output, if all_namespaces { Namespaces::All } else { Namespaces::One }).await
        }
        Command::Promote { pool, to, retry } => {
            let promotion = match (to, retry) {
                (Some(stage), _) => Promotion::To(stage),
                (None, true) => Promotion::Retry,
                (None, false) => Promotion::Next,
            };
            Ok(line(cluster.change(&pool, |pool| promote(pool, promotion)).await?))
        }
        Command::Rollback { pool, to } => Ok(line(cluster.change(&pool, |pool| rollback(pool, to)).await?)),
        Command::ExplainRoute { pool, database, statement } => {
            explain_route(&cluster, &pool, &database, statement).await
        }
        Command::MirrorReport { pool } => mirror_report(&cluster, &pool).await,
    }
}

fn line(mut text: String) -> String {
    text.push('\n');
    text
}

/// Colours only where a person looks, and where that person has not said no (no-color.org).
fn paint() -> Paint {
    let is_wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if is_wanted && std::io::stdout().is_terminal() { Paint::Colours } else { Paint::Plain }
}

async fn status(cluster: &Cluster, name: &str, output: Output) -> anyhow::Result<String> {
    let pool = cluster.pool(name).await?;
    match output {
        Output::Json => Ok(line(serde_json::to_string_pretty(&pool.status)?)),
        Output::Text => {
            let reports = reports(cluster, name).await;
            Ok(render::picture(&pool, &reports, Timestamp::now(), paint()))
        }
    }
}

async fn statuses(cluster: &Cluster, output: Output, namespaces: Namespaces) -> anyhow::Result<String> {
    let pools = match namespaces {
        Namespaces::One => cluster.pools().await?,
        Namespaces::All => cluster.pools_everywhere().await?,
    };
    match output {
        Output::Json => {
            let of = |pool: &PgRoutingPool| {
                serde_json::json!({
                    "namespace": pool.namespace(), "name": pool.name_any(), "status": pool.status,
                })
            };
            Ok(line(serde_json::to_string_pretty(&pools.iter().map(of).collect::<Vec<_>>())?))
        }
        Output::Text if pools.is_empty() => Ok(match namespaces {
            Namespaces::One => format!("No pools in namespace {}.\n", cluster.namespace),
            Namespaces::All => "No pools.\n".to_owned(),
        }),
        Output::Text => Ok(render::pools(&pools, namespaces, paint())),
    }
}

/// What the proxies report, or why they could not be asked, which is no fault of a status.
async fn reports(cluster: &Cluster, pool: &str) -> Reports {
    let access = ProxyAccess::of(cluster, pool).await.map_err(|error| error.to_string())?;
    let pods = access.pods().await.map_err(|error| error.to_string())?;
    let answers = access.ask_all(pods, &Question::Get("/report")).await;
    let read = |body: Bytes| {
        serde_json::from_slice(&body).map_err(|error| format!("its report does not read: {error}"))
    };
    Ok(answers.into_iter().map(|one| one.read(read)).collect())
}

async fn explain_route(
    cluster: &Cluster,
    name: &str,
    database: &str,
    statement: String,
) -> anyhow::Result<String> {
    let statement = if statement == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read the statement")?;
        text
    } else {
        statement
    };
    let statement = statement.trim_end();
    if statement.is_empty() {
        bail!("there is no statement");
    }
    let pool = cluster.pool(name).await?;
    let access = ProxyAccess::of(cluster, name).await?;
    let question = serde_json::to_vec(&explain::Question { database, statement })?;
    let question = Question::Post(explain::PATH, question.into());
    let mut last = None;
    for pod in access.pods().await?.into_iter().filter(|pod| pod.state == PodState::Ready) {
        match access.ask(&pod.name, &question).await {
            Ok(body) => {
                let answer = serde_json::from_slice(&body)
                    .with_context(|| format!("the answer of proxy {} does not read", pod.name))?;
                return Ok(explain::render(&answer, statement, &pool));
            }
            // Another proxy would say the same.
            Err(
                error @ (ProxyError::Status { .. } | ProxyError::Cluster(ClusterError::Forbidden { .. })),
            ) => {
                return Err(error).with_context(|| format!("cannot ask proxy {}", pod.name));
            }
            Err(error) => last = Some((pod.name, error)),
        }
    }
    match last {
        Some((pod, error)) => Err(error).with_context(|| format!("cannot ask proxy {pod}")),
        None => bail!("pool {name} has no ready proxy to ask"),
    }
}

async fn mirror_report(cluster: &Cluster, name: &str) -> anyhow::Result<String> {
    let pool = cluster.pool(name).await?;
    let answers = match ready_reports(cluster, name).await {
        Ok(answers) => Ok(answers),
        Err(error) => Err(error.to_string()),
    };
    Ok(render::mirror::reports(&pool, &answers))
}

async fn ready_reports(cluster: &Cluster, name: &str) -> Result<Vec<PodAnswer<String>>, ProxyError> {
    let access = ProxyAccess::of(cluster, name).await?;
    let ready = access.pods().await?.into_iter().filter(|pod| pod.state == PodState::Ready).collect();
    let answers = access.ask_all(ready, &Question::Get("/mirror-report")).await;
    let read = |body: Bytes| Ok(String::from_utf8_lossy(&body).into_owned());
    Ok(answers.into_iter().map(|one| one.read(read)).collect())
}

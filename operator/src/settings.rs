//! The operator's command line; each flag has an environment variable.

use std::net::SocketAddr;

use clap::{Parser, ValueEnum};

use crate::prometheus_query::PrometheusUrl;

/// Reconciles PgRoutingPool objects.
#[derive(Debug, Clone, Parser)]
#[command(name = "pgrouting-operator", version)]
pub struct Settings {
    /// The namespaces to watch, separated by commas; all when empty.
    #[arg(long, env = "PGROUTING_WATCH_NAMESPACES", value_delimiter = ',', default_value = "")]
    pub watch_namespaces: Vec<String>,

    /// The image of the proxies of pools that name none.
    #[arg(long, env = "PGROUTING_PROXY_IMAGE")]
    pub proxy_image: String,

    /// The Lease that the leader holds.
    #[arg(long, env = "PGROUTING_LEASE_NAME", default_value = "pgrouting-operator")]
    pub lease_name: String,

    /// The Lease's namespace: the operator's own.
    #[arg(long, env = "PGROUTING_LEASE_NAMESPACE")]
    pub lease_namespace: String,

    /// The name of this process in the Lease and in events: the pod's name.
    #[arg(long, env = "PGROUTING_IDENTITY")]
    pub identity: Option<String>,

    /// Where /metrics, /healthz and /readyz are served in plain HTTP.
    #[arg(long, env = "PGROUTING_METRICS_LISTEN", default_value = "0.0.0.0:8080")]
    pub metrics_listen: SocketAddr,

    /// The Prometheus that external gates of rollouts ask, as `http://host:port`.
    #[arg(long, env = "PGROUTING_PROMETHEUS_URL")]
    pub prometheus_url: Option<PrometheusUrl>,

    /// The form of log lines.
    #[arg(long, env = "PGROUTING_LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    pub log_format: LogFormat,

    /// Which log lines are written, as `info` or `info,pgrouting_operator=debug`.
    #[arg(long, env = "PGROUTING_LOG", default_value = "info")]
    pub log_level: String,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// What one set of watches looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchScope {
    /// Every namespace.
    Cluster,
    /// One.
    Namespace(String),
}

impl Settings {
    /// One scope for each set of watches.
    #[must_use]
    pub fn scopes(&self) -> Vec<WatchScope> {
        let mut namespaces: Vec<_> =
            self.watch_namespaces.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        if namespaces.is_empty() {
            vec![WatchScope::Cluster]
        } else {
            namespaces.into_iter().map(|name| WatchScope::Namespace(name.to_owned())).collect()
        }
    }

    /// The name of this process.
    #[must_use]
    pub fn identity(&self) -> String {
        self.identity
            .clone()
            .filter(|name| !name.is_empty())
            .or_else(|| std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty()))
            .unwrap_or_else(|| format!("pgrouting-operator-{}", std::process::id()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(namespaces: &str) -> Settings {
        Settings::parse_from([
            "pgrouting-operator",
            "--proxy-image=proxy:1",
            "--lease-namespace=pgrouting",
            &format!("--watch-namespaces={namespaces}"),
        ])
    }

    #[test]
    fn no_namespace_means_the_whole_cluster() {
        assert_eq!(settings("").scopes(), [WatchScope::Cluster]);
    }

    #[test]
    fn each_namespace_is_watched_once() {
        let scopes = settings("shop, billing,shop,").scopes();
        assert_eq!(scopes, [WatchScope::Namespace("billing".into()), WatchScope::Namespace("shop".into())]);
    }
}

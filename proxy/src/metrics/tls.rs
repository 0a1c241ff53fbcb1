//! Encryption: who comes over TLS, how handshakes end, and when certificates expire.

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

/// What a scrape shows of it.
#[derive(Debug, Default)]
pub struct TlsSnapshot {
    /// Clients that came over TLS, and those that did not.
    pub clients: [u64; 2],
    /// One entry a side.
    pub sides: Vec<SideSnapshot>,
}

/// What a scrape shows of one side.
#[derive(Debug)]
pub struct SideSnapshot {
    /// Its name.
    pub name: &'static str,
    /// Handshakes that were completed.
    pub completed: u64,
    /// Handshakes that were not.
    pub failed: u64,
    /// Times that files were found broken.
    pub broken: u64,
    /// Seconds until the certificate that is shown expires; below zero once it has.
    pub expires_seconds: Option<i64>,
}

/// Registers all of it.
///
/// # Errors
/// When two metrics have one name.
pub fn register(registry: &Registry, snapshot: &TlsSnapshot) -> Result<(), prometheus::Error> {
    let clients = IntGaugeVec::new(
        Opts::new("pgrouting_proxy_tls_clients", "Clients now, by whether they came over TLS."),
        &["tls"],
    )?;
    registry.register(Box::new(clients.clone()))?;
    for (label, number) in ["on", "off"].into_iter().zip(snapshot.clients) {
        clients.with_label_values(&[label]).set(i64::try_from(number).unwrap_or(i64::MAX));
    }
    let handshakes = IntCounterVec::new(
        Opts::new("pgrouting_proxy_tls_handshakes_total", "TLS handshakes, by side and outcome."),
        &["side", "outcome"],
    )?;
    registry.register(Box::new(handshakes.clone()))?;
    let broken = IntCounterVec::new(
        Opts::new(
            "pgrouting_proxy_tls_files_broken_total",
            "Times that files of TLS had changed and could not be used.",
        ),
        &["side"],
    )?;
    registry.register(Box::new(broken.clone()))?;
    let expires = IntGaugeVec::new(
        Opts::new(
            "pgrouting_proxy_tls_certificate_expires_seconds",
            "Seconds until the certificate that is shown on a side expires.",
        ),
        &["side"],
    )?;
    registry.register(Box::new(expires.clone()))?;
    for side in &snapshot.sides {
        handshakes.with_label_values(&[side.name, "completed"]).inc_by(side.completed);
        handshakes.with_label_values(&[side.name, "failed"]).inc_by(side.failed);
        broken.with_label_values(&[side.name]).inc_by(side.broken);
        if let Some(seconds) = side.expires_seconds {
            expires.with_label_values(&[side.name]).set(seconds);
        }
    }
    Ok(())
}

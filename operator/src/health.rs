//! `/metrics`, `/healthz` and `/readyz` in plain HTTP.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::watches::WatchHealth;

#[derive(Clone)]
struct HealthState {
    metrics: Metrics,
    watches: WatchHealth,
}

/// Serves until `stop`.
///
/// # Errors
/// When the socket fails.
pub async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    watches: WatchHealth,
    stop: CancellationToken,
) -> std::io::Result<()> {
    axum::serve(listener, router(metrics, watches)).with_graceful_shutdown(stop.cancelled_owned()).await
}

fn router(metrics: Metrics, watches: WatchHealth) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(HealthState { metrics, watches })
}

async fn metrics_text(State(state): State<HealthState>) -> (StatusCode, String) {
    state.watches.record_ages();
    match state.metrics.text() {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Whether the watches are driven. Says nothing of the API server: a restart would not bring it back.
async fn healthz(State(state): State<HealthState>) -> (StatusCode, String) {
    let stuck = state.watches.stuck();
    if stuck.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("stuck watches: {}\n", stuck.join(", ")))
    }
}

/// Whether the caches are filled, leader or not.
async fn readyz(State(state): State<HealthState>) -> (StatusCode, &'static str) {
    if state.watches.is_synced() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet\n")
    }
}

//! Serves the admin API on its sockets, in plain HTTP or over mutual TLS.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use pgrouting_contract::config::AdminTls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::admin_tls::{Identity, is_of_proxy};

/// Connections that are served at a time.
const CONNECTIONS_MAX: usize = 64;

/// The longest that a handshake or the headers of a request may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves plain HTTP for ever.
pub async fn plain(listener: TcpListener, routes: Router) {
    each(listener, move |stream| {
        let routes = routes.clone();
        async move { http(stream, routes).await }
    })
    .await;
}

/// Serves HTTP over TLS for ever, to callers with a certificate of the CA; those who show a proxy's get the routes of
/// peers. The files are read again when they change.
pub async fn mutual_tls(listener: TcpListener, routes: Router, peer_routes: Router, files: AdminTls) {
    let identity = Arc::new(tokio::sync::Mutex::new(Identity::new(files)));
    each(listener, move |stream| {
        let (routes, peer_routes, identity) = (routes.clone(), peer_routes.clone(), Arc::clone(&identity));
        async move {
            let acceptor = match identity.lock().await.tls() {
                Ok(tls) => tls.acceptor,
                Err(error) => {
                    warn!(%error, "the admin certificate cannot be used");
                    return;
                }
            };
            match timeout(PATIENCE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                    let is_peer = shown.is_none_or(is_of_proxy);
                    http(stream, if is_peer { peer_routes } else { routes }).await;
                }
                Ok(Err(error)) => debug!(%error, "an admin caller was turned away"),
                Err(_) => debug!("an admin caller was too slow"),
            }
        }
    })
    .await;
}

async fn each<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> F,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let served = serve(stream);
                tokio::spawn(async move {
                    served.await;
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "an admin caller could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn http(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, routes: Router) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
        .await;
    if let Err(error) = served {
        debug!(%error, "an admin connection broke");
    }
}

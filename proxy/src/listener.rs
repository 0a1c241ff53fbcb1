//! Accepts clients and hands each to a serving thread.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::route::Access;
use crate::session;
use crate::session::context::{Context, Worker};

/// Connections that the system keeps for us until they are accepted.
const BACKLOG: u32 = 4096;

/// Accepted sockets on their way to one thread.
pub const HANDOVER_MAX: usize = 1024;

/// An accepted socket.
#[derive(Debug)]
pub struct Accepted {
    /// The socket, registered with no runtime.
    pub stream: std::net::TcpStream,
    /// What its port allows.
    pub access: Access,
}

/// Opens a listening socket.
///
/// # Errors
/// When the address is taken or not ours.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts until the token is cancelled; each thread gets its turn.
pub async fn accept(
    listener: TcpListener,
    access: Access,
    threads: Vec<mpsc::Sender<Accepted>>,
    stop: CancellationToken,
) {
    let mut turn = 0_usize;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let stream = match accepted.and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            stream.into_std()
        }) {
            Ok(stream) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: those who leave make room.
                warn!(%error, "a client could not be accepted");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        turn = (turn + 1) % threads.len().max(1);
        if let Some(thread) = threads.get(turn)
            && thread.send(Accepted { stream, access }).await.is_err()
        {
            return;
        }
    }
}

/// Serves the clients that are handed to one thread, until no more come and all have left.
pub async fn serve(mut accepted: mpsc::Receiver<Accepted>, context: Arc<Context>, worker: Arc<Worker>) {
    let sessions = tokio_util::task::TaskTracker::new();
    while let Some(Accepted { stream, access }) = accepted.recv().await {
        match TcpStream::from_std(stream) {
            Ok(stream) => {
                sessions.spawn(session::serve(stream, Arc::clone(&context), Arc::clone(&worker), access));
            }
            Err(error) => warn!(%error, "a client could not be served"),
        }
    }
    sessions.close();
    sessions.wait().await;
}

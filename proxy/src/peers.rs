//! Asks the other proxies of the pool to cancel what no session here has the key of.
//!
//! A cancel request comes on a connection of its own, which a Service leads to any pod. It is handed on over the admin
//! API, to all peers at once, until one says that the session is there. A peer never hands on what it was handed.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use pgrouting_contract::config::{AdminTls, ProcessConfig, ProxyConfig};
use pgrouting_contract::peers::{CANCEL_PATH, PROXY_SERVER_NAME, PeersConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tracing::debug;

use crate::admin_tls::{Identity, peer_name};
use crate::wire::startup::{CancelKey, put_cancel};

/// The longest that a request may take to find its session, over all peers. One that a peer has by then goes on there.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests that are handed on at a time; more are dropped.
const FORWARDS_MAX: usize = 16;

/// Peers that are asked about one request. No pool has more proxies.
const PEERS_MAX: usize = 256;

/// Peers that are asked at once.
const PEERS_AT_ONCE: usize = 32;

/// How long the addresses of a name are good for.
const RESOLVED_FOR: Duration = Duration::from_secs(1);

/// The way to the other proxies.
#[derive(Debug)]
pub struct Peers {
    places: Semaphore,
    /// Held while a name is resolved, so that a silent name server is asked once at a time.
    resolved: Mutex<Option<Resolved>>,
    identity: Mutex<Option<Identity>>,
}

#[derive(Debug)]
struct Resolved {
    host: String,
    port: u16,
    at: Instant,
    addresses: Vec<SocketAddr>,
}

/// What became of a request that was handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarded {
    /// A peer has the session, and has cancelled what it ran.
    Taken,
    /// No peer that answered in time has it.
    Unknown,
    /// There are too many already.
    Limited,
}

/// What is told to each peer.
struct Message {
    packet: Vec<u8>,
    token: Option<String>,
    connector: Option<TlsConnector>,
}

impl Default for Peers {
    fn default() -> Self {
        Self { places: Semaphore::new(FORWARDS_MAX), resolved: Mutex::default(), identity: Mutex::default() }
    }
}

impl Peers {
    /// Hands a request on, unless there are no peers. `own` is the address at which it came in; it is not asked. Tells
    /// how many peers were asked, too. Cancel-safe: a peer that has the request goes on.
    pub async fn forward(&self, config: &ProxyConfig, own: IpAddr, key: &CancelKey) -> (Forwarded, u64) {
        let Some(peers) = &config.peers else { return (Forwarded::Unknown, 0) };
        let Ok(_place) = self.places.try_acquire() else { return (Forwarded::Limited, 0) };
        let mut asked = 0;
        let outcome =
            match timeout(FORWARD_TIMEOUT, self.ask(peers, &config.process, own, key, &mut asked)).await {
                Ok(Ok(true)) => Forwarded::Taken,
                Ok(Ok(false)) => Forwarded::Unknown,
                Ok(Err(error)) => {
                    debug!(%error, "a cancel request cannot be handed on");
                    Forwarded::Unknown
                }
                Err(_) => {
                    debug!("a cancel request was not handed on in time");
                    Forwarded::Unknown
                }
            };
        (outcome, asked)
    }

    async fn ask(
        &self,
        peers: &PeersConfig,
        process: &ProcessConfig,
        own: IpAddr,
        key: &CancelKey,
        asked: &mut u64,
    ) -> io::Result<bool> {
        let message = Arc::new(self.message(process, key).await?);
        let own = process.admin_listen.parse().map(|listen: SocketAddr| (own, listen.port()));
        let mut addresses = self.addresses(peers).await?.into_iter().filter(|address| {
            own.as_ref().map_or(true, |own| *own != (address.ip().to_canonical(), address.port()))
        });
        let mut answers = JoinSet::new();
        loop {
            while answers.len() < PEERS_AT_ONCE
                && let Some(address) = addresses.next()
            {
                *asked += 1;
                let message = Arc::clone(&message);
                answers.spawn(async move { (address, ask_one(address, &message).await) });
            }
            match answers.join_next().await {
                Some(Ok((_, Ok(true)))) => return Ok(true),
                Some(Ok((_, Ok(false)))) | Some(Err(_)) => {}
                Some(Ok((peer, Err(error)))) => debug!(%peer, %error, "a peer cannot be asked"),
                None => return Ok(false),
            }
        }
    }

    async fn message(&self, process: &ProcessConfig, key: &CancelKey) -> io::Result<Message> {
        let mut packet = Vec::new();
        put_cancel(&mut packet, key);
        let token = match &process.admin_token_file {
            Some(path) => Some(tokio::fs::read_to_string(path).await?.trim().to_owned()),
            None => None,
        };
        let connector = match &process.admin_tls {
            Some(files) => Some(self.connector(files).await?),
            None => None,
        };
        Ok(Message { packet, token, connector })
    }

    async fn connector(&self, files: &AdminTls) -> io::Result<TlsConnector> {
        let mut identity = self.identity.lock().await;
        if identity.as_ref().is_some_and(|identity| !identity.is_of(files)) {
            *identity = None;
        }
        let identity = identity.get_or_insert_with(|| Identity::new(files.clone()));
        Ok(identity.tls()?.connector)
    }

    async fn addresses(&self, peers: &PeersConfig) -> io::Result<Vec<SocketAddr>> {
        let Some(host) = &peers.host else { return Ok(peers.addresses.clone()) };
        let mut resolved = self.resolved.lock().await;
        if let Some(known) = &*resolved
            && (known.host.as_str(), known.port) == (host.as_str(), peers.port)
            && known.at.elapsed() < RESOLVED_FOR
        {
            return Ok(known.addresses.clone());
        }
        let found: BTreeSet<_> = tokio::net::lookup_host((host.as_str(), peers.port)).await?.collect();
        let addresses: Vec<_> = found.into_iter().take(PEERS_MAX).collect();
        *resolved = Some(Resolved {
            host: host.clone(),
            port: peers.port,
            at: Instant::now(),
            addresses: addresses.clone(),
        });
        Ok(addresses)
    }
}

/// Whether that peer has the session.
async fn ask_one(address: SocketAddr, message: &Message) -> io::Result<bool> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    match &message.connector {
        Some(connector) => post(connector.connect(peer_name(), stream).await?, message).await,
        None => post(stream, message).await,
    }
}

async fn post(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    message: &Message,
) -> io::Result<bool> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(CANCEL_PATH)
        .header(header::HOST, PROXY_SERVER_NAME)
        .header(header::CONNECTION, "close");
    if let Some(token) = &message.token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Body::from(message.packet.clone())).map_err(io::Error::other)?;
    let mut answer = std::pin::pin!(sender.send_request(request));
    let answer = tokio::select! {
        answer = &mut answer => answer,
        // The peer may close after its answer, which is then still to be taken.
        _ = connection => answer.await,
    };
    match answer.map_err(io::Error::other)?.status() {
        StatusCode::NO_CONTENT => Ok(true),
        StatusCode::NOT_FOUND => Ok(false),
        other => Err(io::Error::other(format!("it answers {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn config(peers: &[SocketAddr]) -> ProxyConfig {
        let document = format!(
            "{{version: 1, generation: 1, pool: p, servers: [{{name: a, host: h}}], \
             auth: {{type: UserList, users: [{{name: u, password: p}}]}}, \
             peers: {{addresses: {peers:?}, secretFile: /none}}}}"
        );
        ProxyConfig::parse(document.as_bytes()).unwrap()
    }

    fn key() -> CancelKey {
        CancelKey { process_id: 7, secret: vec![1, 2, 3, 4] }
    }

    #[tokio::test]
    async fn no_peer_is_asked_while_too_many_are() {
        let config = config(&[SocketAddr::new(HERE, 1)]);
        let peers = Peers::default();
        let others = peers.places.try_acquire_many(u32::try_from(FORWARDS_MAX).unwrap()).unwrap();
        assert_eq!(peers.forward(&config, HERE, &key()).await, (Forwarded::Limited, 0));
        drop(others);
        assert_eq!(peers.forward(&config, HERE, &key()).await, (Forwarded::Unknown, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_waited_for_no_longer_than_the_limit() {
        let silent = TcpListener::bind((HERE, 0)).await.unwrap();
        let config = config(&[silent.local_addr().unwrap()]);
        let peers = Peers::default();
        let began = Instant::now();
        assert_eq!(peers.forward(&config, HERE, &key()).await, (Forwarded::Unknown, 1));
        assert_eq!(began.elapsed().as_secs(), FORWARD_TIMEOUT.as_secs(), "on a clock that stands still");
        assert_eq!(peers.places.available_permits(), FORWARDS_MAX);
    }

    #[tokio::test]
    async fn the_proxy_does_not_ask_itself() {
        let own: SocketAddr = "127.0.0.1:9128".parse().unwrap();
        let config = config(&[own, SocketAddr::new(HERE, 1)]);
        assert_eq!(config.process.admin_listen, own.to_string());
        assert_eq!(Peers::default().forward(&config, HERE, &key()).await, (Forwarded::Unknown, 1));
    }
}

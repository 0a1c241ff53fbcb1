//! Opens and logs in a connection to a server.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::report::CredentialState;
use tokio::time::{Instant, timeout};

use crate::auth::answer::{AnswerFault, AnswerStep, ServerLogin};
use crate::auth::scram::{Binding, Keys};
use crate::auth::users::User;
use crate::server::cancel_target::CancelTarget;
use crate::server::connection::{Identity, Parameters, ServerConnection, WorkerId};
use crate::server::dial::{DialFault, TlsFault, dial, dial_clear};
use crate::server::endpoint::Endpoint;
use crate::server::leash::Held;
use crate::server::prepared::PreparedSet;
use crate::server::replies::Replies;
use crate::socket::stream::Stream;
use crate::socket::{Inbox, Outbox};
use crate::tls::binding::server_end_point;
use crate::transaction::TransactionStatus;
use crate::wire::backend::{self, authentication, error_field};
use crate::wire::frame::header;
use crate::wire::sqlstate;
use crate::wire::startup::{CancelKey, put_startup};

/// The longest message that a server may send before it is ready, in bytes.
const HANDSHAKE_MESSAGE_MAX: usize = 64 * 1024;

/// Bytes that one read of the handshake may bring.
const READ_BYTES: usize = 2048;

/// Secrets of one user that are tried before giving up; each try is a connection.
const ATTEMPTS_MAX: usize = 4;

/// What a new connection is to be.
#[derive(Debug, Clone, Copy)]
pub struct Want<'a> {
    /// Where it leads.
    pub endpoint: &'a Endpoint,
    /// Who it is for.
    pub identity: &'a Arc<Identity>,
    /// How to log in.
    pub user: &'a Arc<User>,
    /// Settings that it starts with.
    pub parameters: &'a [(String, String)],
    /// The thread that opens it.
    pub home: WorkerId,
    /// The longest that all of it may take.
    pub timeout: Duration,
    /// Whether what comes of the login is kept with the user: it is not the mirror that says whether a password is good.
    pub is_told: bool,
}

impl Want<'_> {
    fn note(&self, state: CredentialState, message: String) {
        if self.is_told {
            self.user.note(state, message);
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The server cannot be reached, or closed the connection.
    #[error("{0}")]
    Unreachable(#[from] io::Error),
    /// It cannot be spoken to over TLS as it must be.
    #[error("{0}")]
    Tls(TlsFault),
    /// It took too long.
    #[error("no answer in {0:?}")]
    Timeout(Duration),
    /// The server refused with an ErrorResponse, which is whole.
    #[error("{}", error_text(.0))]
    Refused(Vec<u8>),
    /// We cannot log in.
    #[error("cannot log in: {0}")]
    Login(#[from] AnswerFault),
    /// What answers does not speak PostgreSQL's protocol.
    #[error("not a PostgreSQL server: {0}")]
    Protocol(&'static str),
}

impl ConnectError {
    /// Whether it may work a moment later, somewhere or here: the server is gone, starting up or shutting down.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            // Certificates are replaced and settings put right, and the server is as good as gone until then.
            Self::Unreachable(_) | Self::Tls(_) | Self::Timeout(_) => true,
            Self::Refused(message) => {
                matches!(error_field(message, b'C'), Some(b"57P01" | b"57P02" | b"57P03"))
            }
            Self::Login(_) | Self::Protocol(_) => false,
        }
    }
}

impl From<DialFault> for ConnectError {
    fn from(fault: DialFault) -> Self {
        match fault {
            DialFault::Unreachable(error) => Self::Unreachable(error),
            DialFault::Tls(fault) => Self::Tls(fault),
        }
    }
}

fn error_text(message: &[u8]) -> String {
    let field = |kind| String::from_utf8_lossy(error_field(message, kind).unwrap_or_default()).into_owned();
    format!("{} ({})", field(b'M'), field(b'C'))
}

/// Opens a connection, trying each secret of the user in turn. Not cancel-safe: a connection under way is closed.
///
/// # Errors
/// When there is no connection in the end; the reason is the last one.
pub async fn connect(want: Want<'_>) -> Result<Box<ServerConnection>, ConnectError> {
    let attempts = async {
        let mut attempt = 0;
        let mut is_clear = false;
        loop {
            let handshake = Handshake::open(want.endpoint, is_clear).await?;
            let may_be_clear = handshake.may_be_clear(want.endpoint);
            let (binding, is_private) = (handshake.binding(), handshake.is_private(want.endpoint));
            let mut login = ServerLogin::start(Arc::clone(want.user), attempt, binding, is_private);
            let outcome = handshake.run(want, &mut login).await;
            if may_be_clear && outcome.as_ref().is_err_and(is_unwelcome) {
                // As libpq's `prefer`: a server may let in only who comes in clear text.
                is_clear = true;
                continue;
            }
            match &outcome {
                Ok(_) => {
                    login.accepted();
                    want.note(CredentialState::Valid, String::new());
                }
                Err(ConnectError::Refused(message)) if is_login_refusal(message) => {
                    attempt += 1;
                    if login.has_another_secret() && attempt < ATTEMPTS_MAX {
                        continue;
                    }
                    want.note(
                        CredentialState::Rejected,
                        format!("server {}: {}", want.endpoint, error_text(message)),
                    );
                }
                Err(ConnectError::Login(fault)) => {
                    want.note(CredentialState::Rejected, format!("server {}: {fault}", want.endpoint));
                }
                Err(
                    ConnectError::Refused(_)
                    | ConnectError::Unreachable(_)
                    | ConnectError::Tls(_)
                    | ConnectError::Timeout(_)
                    | ConnectError::Protocol(_),
                ) => {}
            }
            return outcome;
        }
    };
    timeout(want.timeout, attempts).await.unwrap_or(Err(ConnectError::Timeout(want.timeout)))
}

fn is_login_refusal(message: &[u8]) -> bool {
    let code = error_field(message, b'C');
    code == Some(sqlstate::INVALID_PASSWORD.as_bytes())
        || code == Some(sqlstate::INVALID_AUTHORIZATION.as_bytes())
}

/// Whether a server has turned a login away for something other than its password.
fn is_unwelcome(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Refused(message)
        if error_field(message, b'C') == Some(sqlstate::INVALID_AUTHORIZATION.as_bytes()))
}

/// A socket before the server is ready.
struct Handshake {
    stream: Stream,
    inbox: Inbox,
    /// The settings of TLS that it was opened under.
    revision: u64,
}

impl Handshake {
    async fn open(endpoint: &Endpoint, is_clear: bool) -> Result<Self, ConnectError> {
        let revision = endpoint.tls.revision();
        let address = (endpoint.host.as_str(), endpoint.port);
        let stream = if is_clear { dial_clear(address).await } else { dial(address, endpoint).await }?;
        Ok(Self { stream, inbox: Inbox::default(), revision })
    }

    /// Whether it is encrypted and need not be.
    fn may_be_clear(&self, endpoint: &Endpoint) -> bool {
        self.stream.is_secure() && endpoint.tls.current().is_some_and(|tls| tls.is_optional)
    }

    /// Whether nobody but the server can read what is sent.
    fn is_private(&self, endpoint: &Endpoint) -> bool {
        self.stream.is_secure() && endpoint.tls.current().is_some_and(|tls| tls.is_verified)
    }

    /// What the login can be bound to.
    fn binding(&self) -> Binding {
        match self.stream.channel().map(|channel| channel.peer_certificate()) {
            None => Binding::None,
            Some(certificate) => certificate
                .and_then(|certificate| server_end_point(certificate))
                .map_or(Binding::None, Binding::EndPoint),
        }
    }

    async fn send(&mut self, outbox: &mut Outbox) -> io::Result<()> {
        poll_fn(|cx| outbox.poll_send(&mut self.stream, cx)).await
    }

    async fn run(
        mut self,
        want: Want<'_>,
        login: &mut ServerLogin,
    ) -> Result<Box<ServerConnection>, ConnectError> {
        let mut out = Outbox::default();
        let mut parameters = vec![("user", &*want.identity.user), ("database", &*want.identity.database)];
        let wished = want.identity.settings.values();
        parameters.extend(
            want.parameters
                .iter()
                .filter(|(name, _)| !wished.contains_key(&name.to_ascii_lowercase()))
                .map(|(name, value)| (name.as_str(), value.as_str())),
        );
        parameters.extend(wished.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        put_startup(out.bytes(), &parameters);
        self.send(&mut out).await?;
        self.log_in(login).await?;
        let mut parameters = Parameters::default();
        let mut key = CancelKey { process_id: 0, secret: Vec::new() };
        loop {
            let message = self.message().await?;
            match message.first() {
                Some(&backend::PARAMETER_STATUS) => {
                    if let Some((name, value)) = backend::parameter_status(&message) {
                        parameters.set(name, value);
                    }
                }
                Some(&backend::BACKEND_KEY_DATA) => {
                    key = backend::backend_key(&message)
                        .ok_or(ConnectError::Protocol("malformed BackendKeyData"))?;
                }
                Some(&backend::NOTICE_RESPONSE) => {}
                Some(&backend::READY_FOR_QUERY) => break,
                Some(&backend::ERROR_RESPONSE) => return Err(ConnectError::Refused(message)),
                _ => return Err(ConnectError::Protocol("unexpected message after the login")),
            }
        }
        let now = Instant::now();
        Ok(Box::new(ServerConnection {
            cancel: Arc::new(CancelTarget {
                peer: self.stream.tcp().peer_addr()?,
                key,
                endpoint: want.endpoint.clone(),
                revision: self.revision,
            }),
            stream: self.stream,
            identity: Arc::clone(want.identity),
            home: want.home,
            opened_at: now,
            opened_in: 0,
            lot: 0,
            idle_since: 0,
            was_idle_long: false,
            transaction: TransactionStatus::Idle,
            settings: Arc::clone(&want.identity.settings),
            parameters,
            prepared: PreparedSet::default(),
            unnamed: None,
            parses: 0,
            replies: Replies::default(),
            is_skipping: false,
            is_unsynced: false,
            is_copying_in: false,
            is_retried: false,
            inbox: self.inbox,
            cleared: 0,
            passing: 0,
            outbox: Outbox::default(),
            held: Held::default(),
        }))
    }

    async fn log_in(&mut self, login: &mut ServerLogin) -> Result<(), ConnectError> {
        let mut out = Outbox::default();
        loop {
            let message = self.message().await?;
            match message.first() {
                Some(&backend::AUTHENTICATION) => {}
                Some(&backend::ERROR_RESPONSE) => return Err(ConnectError::Refused(message)),
                Some(&backend::NOTICE_RESPONSE) => continue,
                _ => return Err(ConnectError::Protocol("unexpected message during the login")),
            }
            let request =
                authentication(&message).ok_or(ConnectError::Protocol("malformed authentication request"))?;
            let nonce: [u8; 18] = rand::random();
            match login.take(&request, &nonce, out.bytes())? {
                AnswerStep::Done => return Ok(()),
                AnswerStep::Continue => {}
                AnswerStep::Derive(password, salting) => {
                    let keys = tokio::task::spawn_blocking(move || Keys::derive(&password, &salting))
                        .await
                        .map_err(io::Error::other)?;
                    login.answer(keys, out.bytes());
                }
            }
            self.send(&mut out).await?;
        }
    }

    /// The next whole message. Cancel-safe: what was read stays in the inbox.
    async fn message(&mut self) -> Result<Vec<u8>, ConnectError> {
        loop {
            let header = header(&self.inbox, HANDSHAKE_MESSAGE_MAX)
                .map_err(|_| ConnectError::Protocol("impossible message length"))?;
            if let Some(message) = header.and_then(|header| self.inbox.get(..header.total)) {
                let message = message.to_vec();
                self.inbox.advance(message.len());
                return Ok(message);
            }
            if poll_fn(|cx| self.inbox.poll_read(&mut self.stream, cx, READ_BYTES)).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}

impl ServerConnection {
    /// Runs a statement of ours on a connection that is idle and gives its rows as text. Not cancel-safe: a
    /// connection that was left in the middle must be closed.
    ///
    /// # Errors
    /// When the connection breaks, or the server answers an error, which is whole.
    pub async fn run(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, ConnectError> {
        self.run_beside(sql, &mut Vec::new()).await
    }

    /// The same beside a client: what the server sends meanwhile that is the client's is appended to `aside`.
    ///
    /// # Errors
    /// As above.
    pub async fn run_beside(
        &mut self,
        sql: &str,
        aside: &mut Vec<u8>,
    ) -> Result<Vec<Vec<Option<String>>>, ConnectError> {
        crate::wire::frontend::put_query(self.outbox.bytes(), sql);
        self.unnamed = None;
        poll_fn(|cx| self.outbox.poll_send(&mut self.stream, cx)).await?;
        let mut rows = Vec::new();
        let mut error = None;
        loop {
            let Some(message) = self.message_at(0) else {
                if poll_fn(|cx| self.poll_read(cx)).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                continue;
            };
            let total = message.len();
            match message.first() {
                Some(&backend::DATA_ROW) => rows.push(crate::server::query::text_row(message)),
                Some(&backend::ERROR_RESPONSE) => error = Some(message.to_vec()),
                Some(&backend::PARAMETER_STATUS) => {
                    if let Some((name, value)) = backend::parameter_status(message) {
                        let (name, value) = (name.to_vec(), value.to_vec());
                        self.parameters.set(&name, &value);
                    }
                }
                Some(&backend::READY_FOR_QUERY) => {
                    self.inbox.advance(total);
                    return error.map_or(Ok(rows), |error| Err(ConnectError::Refused(error)));
                }
                Some(&(backend::NOTIFICATION_RESPONSE | backend::NOTICE_RESPONSE)) => {
                    aside.extend_from_slice(message);
                }
                _ => {}
            }
            self.inbox.advance(total);
        }
    }
}

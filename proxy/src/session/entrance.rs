//! A client's first packets and its login: encryption, cancel requests, who it is.

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::tls::ClientCertificate;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tracing::debug;

use crate::auth::guesses::{Guesses, TooMany};
use crate::auth::scram::{Binding, ScramFault, mock_salting};
use crate::auth::verify::{ClientLogin, LoginFault, LoginStep};
use crate::error::{ClientError, ErrorKind};
use crate::roster::Admitted;
use crate::session::cancel::cancel;
use crate::session::context::{Context, Worker};
use crate::session::end;
use crate::session::users::find_user;
use crate::session::visit;
use crate::socket::stream::Stream;
use crate::socket::{Inbox, Outbox};
use crate::tls::channel::Channel;
use crate::tls::clients::{ClientTls, PROTOCOL, has_common_name};
use crate::wire::backend::put_negotiate;
use crate::wire::frame::header;
use crate::wire::sqlstate;
use crate::wire::startup::{FirstPacket, Startup, StartupFault, packet_len, read};

/// The longest message of a login, in bytes.
const LOGIN_MESSAGE_MAX: usize = 16 * 1024;

/// Requests for encryption before the startup packet: one for each kind.
const ENCRYPTION_REQUESTS_MAX: usize = 2;

/// Bytes that one read may bring.
const READ_BYTES: usize = 1024;

/// What a TLS handshake begins with (RFC 8446, section 5.1), and no packet of PostgreSQL's.
const HANDSHAKE_RECORD: u8 = 0x16;

/// A socket whose client is not logged in yet.
#[derive(Debug)]
pub struct Entrance {
    /// The socket.
    pub stream: Stream,
    /// What the client has sent and nobody has taken yet.
    pub inbox: Inbox,
    /// What it is to get.
    pub outbox: Outbox,
    /// What its handshake was made by.
    tls: Option<Arc<ClientTls>>,
}

/// Why a client does not get in; `None` where it is not told, because it has gone or speaks another protocol.
pub type Turned = Option<ClientError>;

impl Entrance {
    /// Of a socket that nothing has come through yet.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        Self { stream: Stream::plain(stream), inbox: Inbox::default(), outbox: Outbox::default(), tls: None }
    }

    /// Brings the client through its login. What remains to be sent is in `outbox`. Not cancel-safe: the socket is of no
    /// use afterwards.
    ///
    /// # Errors
    /// When it does not get in.
    pub async fn enter(
        &mut self,
        context: &Arc<Context>,
        worker: &Worker,
        config: &ProxyConfig,
    ) -> Result<(Startup, Admitted), Turned> {
        let startup = self.startup(context, worker).await?;
        let counted = context.roster.admit(visit::clients_max(config, &startup)).ok_or_else(|| {
            ClientError::fatal(
                ErrorKind::Limit,
                sqlstate::TOO_MANY_CONNECTIONS,
                "sorry, too many clients already",
            )
            .with_hint("Raise pooling.maxClientConnections, or add proxies.")
        })?;
        if startup.needs_negotiation() {
            put_negotiate(self.outbox.bytes(), startup.protocol(), &startup.protocol_options);
        }
        self.look_at_encryption(context, &startup.user)?;
        let address = self.stream.tcp().peer_addr().map_err(|_| None)?.ip();
        await_turn(context, worker, address, &startup.user).await?;
        let user = find_user(context, config, &startup.user).await?;
        let binding = self.tls.as_ref().and_then(|tls| tls.binding.clone());
        let mut login = ClientLogin::start(
            user,
            mock_salting(&context.secret, &startup.user),
            rand::random(),
            binding.map_or(Binding::None, Binding::EndPoint),
            self.outbox.bytes(),
        );
        loop {
            self.send().await?;
            let message = self.message().await?;
            let nonce: [u8; 18] = rand::random();
            match login.take(&message, &nonce, self.outbox.bytes()) {
                LoginStep::Continue => {}
                LoginStep::Done => {
                    guesses(context).succeeded(address, &startup.user, Instant::now());
                    visit::refuse_disabled(context, &startup)?;
                    return Ok((startup, counted));
                }
                LoginStep::Failed(fault) => {
                    if fault == LoginFault::Password {
                        guesses(context).failed(address, &startup.user, Instant::now());
                    }
                    return Err(Some(login_error(&startup.user, fault)));
                }
            }
        }
    }

    /// Reads first packets until one is a startup message.
    async fn startup(&mut self, context: &Context, worker: &Worker) -> Result<Startup, Turned> {
        let mut encryption_requests = 0;
        loop {
            let packet = loop {
                if self.inbox.first() == Some(&HANDSHAKE_RECORD)
                    && encryption_requests == 0
                    && let Some(tls) = context.tls.client.current()
                {
                    let received = self.inbox.to_vec();
                    self.secure(context, tls, received).await?;
                    if self.stream.channel().and_then(Channel::protocol) != Some(PROTOCOL) {
                        // It may be meant for another server, which a redirected client must not be mistaken about.
                        debug!("direct TLS without the name of the protocol");
                        return Err(None);
                    }
                    encryption_requests = ENCRYPTION_REQUESTS_MAX;
                }
                match packet_len(&self.inbox).map_err(|_| None)? {
                    Some(length) if self.inbox.len() >= length => {
                        let packet = self.inbox.get(..length).unwrap_or_default().to_vec();
                        self.inbox.advance(length);
                        break packet;
                    }
                    _ => self.read().await?,
                }
            };
            match read(&packet).map_err(|fault| startup_error(&fault))? {
                request @ (FirstPacket::Ssl | FirstPacket::GssEnc) => {
                    encryption_requests += 1;
                    if encryption_requests > ENCRYPTION_REQUESTS_MAX || self.stream.is_secure() {
                        return Err(None);
                    }
                    match context.tls.client.current() {
                        Some(tls) if request == FirstPacket::Ssl => self.accept_tls(context, tls).await?,
                        _ => {
                            self.outbox.bytes().push(b'N');
                            self.send().await?;
                        }
                    }
                }
                FirstPacket::Cancel(key) => {
                    let own = self.stream.tcp().local_addr().map_err(|_| None)?.ip().to_canonical();
                    cancel(&key, own, context, worker).await;
                    return Err(None);
                }
                FirstPacket::Startup(startup) => return Ok(startup),
            }
        }
    }

    /// Answers an SSLRequest with yes. Bytes that came behind it in clear text must not be taken for what comes over TLS
    /// (CVE-2021-23214): the client is told so once it can be.
    async fn accept_tls(&mut self, context: &Context, tls: Arc<ClientTls>) -> Result<(), Turned> {
        let is_injected = !self.inbox.is_empty();
        self.outbox.bytes().push(b'S');
        self.send().await?;
        self.secure(context, tls, Vec::new()).await?;
        if is_injected {
            return Err(Some(
                ClientError::fatal(
                    ErrorKind::Client,
                    sqlstate::PROTOCOL_VIOLATION,
                    "received unencrypted data after SSL request",
                )
                .with_hint(
                    "This could be either a client-software bug or evidence of an attempted man-in-the-middle attack.",
                ),
            ));
        }
        Ok(())
    }

    /// Goes through the handshake, of which `received` has come already. What was in the inbox is dropped.
    async fn secure(
        &mut self,
        context: &Context,
        tls: Arc<ClientTls>,
        received: Vec<u8>,
    ) -> Result<(), Turned> {
        let attempt = context.tls.client.tally.begin();
        let channel = Channel::accept(Arc::clone(&tls.config)).map_err(|_| None)?;
        self.inbox = Inbox::default();
        match self.stream.secure(channel, received).await {
            Ok(plain) => self.inbox = Inbox::with(plain),
            Err(error) => {
                debug!(%error, "a TLS handshake failed");
                return Err(None);
            }
        }
        attempt.complete();
        self.tls = Some(tls);
        Ok(())
    }

    /// Whether the client comes as it has to: over TLS, with a certificate.
    fn look_at_encryption(&self, context: &Context, user: &str) -> Result<(), ClientError> {
        let refuse =
            |text: String| ClientError::fatal(ErrorKind::Client, sqlstate::INVALID_AUTHORIZATION, text);
        let Some(tls) = &self.tls else {
            let is_required = context.tls.client.current().is_some_and(|tls| tls.is_required);
            return if is_required {
                Err(refuse(format!("user \"{user}\" must not connect without encryption"))
                    .with_hint("Connect over TLS, as with sslmode=require or stronger."))
            } else {
                Ok(())
            };
        };
        let shown = self.stream.channel().and_then(Channel::peer_certificate);
        match (tls.asks, shown) {
            (None | Some(ClientCertificate::Request), _) | (Some(ClientCertificate::VerifyCa), Some(_)) => {
                Ok(())
            }
            (Some(ClientCertificate::VerifyCa | ClientCertificate::VerifyFull), None) => {
                Err(refuse("connection requires a valid client certificate".to_owned())
                    .with_hint("Set sslcert and sslkey to a certificate of the CA that the pool asks for."))
            }
            (Some(ClientCertificate::VerifyFull), Some(shown)) if has_common_name(shown, user) => Ok(()),
            (Some(ClientCertificate::VerifyFull), Some(_)) => {
                Err(refuse(format!("certificate authentication failed for user \"{user}\""))
                    .with_hint("The common name of the certificate must be the user's name."))
            }
        }
    }

    /// The next whole message of the login.
    async fn message(&mut self) -> Result<Vec<u8>, Turned> {
        loop {
            let header = header(&self.inbox, LOGIN_MESSAGE_MAX).map_err(|fault| {
                ClientError::fatal(ErrorKind::Client, sqlstate::PROTOCOL_VIOLATION, fault.to_string())
            })?;
            if let Some(message) = header.and_then(|header| self.inbox.get(..header.total)) {
                let message = message.to_vec();
                self.inbox.advance(message.len());
                return Ok(message);
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<(), Turned> {
        match poll_fn(|cx| self.inbox.poll_read(&mut self.stream, cx, READ_BYTES)).await {
            Ok(0) | Err(_) => Err(None),
            Ok(_) => Ok(()),
        }
    }

    async fn send(&mut self) -> Result<(), Turned> {
        poll_fn(|cx| self.outbox.poll_send(&mut self.stream, cx)).await.map_err(|_| None)
    }

    /// Tells the client why it does not get in.
    pub async fn turn_away(mut self, error: ClientError, worker: &Worker) {
        worker.metrics.logins_failed.add_one();
        worker.metrics.count_error(error.kind);
        debug!(%error, "a login failed");
        error.into_fatal().put(self.outbox.bytes());
        end::send_last(&mut self.stream, &mut self.outbox).await;
    }
}

fn guesses(context: &Context) -> MutexGuard<'_, Guesses> {
    context.guesses.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits before the password is looked at, where there were many wrong ones.
async fn await_turn(
    context: &Context,
    worker: &Worker,
    address: IpAddr,
    user: &str,
) -> Result<(), ClientError> {
    let turn = guesses(context).turn(address, user, Instant::now());
    if turn == Ok(Duration::ZERO) {
        return Ok(());
    }
    worker.metrics.logins_delayed.add_one();
    match turn {
        Ok(wait) => {
            // Boxed, so that the rare wait does not make every login larger.
            Box::pin(sleep(wait)).await;
            Ok(())
        }
        Err(TooMany) => Err(ClientError::fatal(
            ErrorKind::Limit,
            sqlstate::TOO_MANY_CONNECTIONS,
            format!("too many failed logins of user \"{user}\" from this address"),
        )
        .with_hint("Wait a minute. The proxy's log at level debug says who fails to log in.")),
    }
}

fn startup_error(fault: &StartupFault) -> Turned {
    let sqlstate = match fault {
        StartupFault::Length => return None,
        StartupFault::Version { .. } => sqlstate::FEATURE_NOT_SUPPORTED,
        StartupFault::Layout => sqlstate::PROTOCOL_VIOLATION,
        StartupFault::NoUser => sqlstate::INVALID_AUTHORIZATION,
    };
    Some(ClientError::fatal(ErrorKind::Client, sqlstate, fault.to_string()))
}

fn login_error(user: &str, fault: LoginFault) -> ClientError {
    match fault {
        LoginFault::Password => ClientError::fatal(
            ErrorKind::Client,
            sqlstate::INVALID_PASSWORD,
            format!("password authentication failed for user \"{user}\""),
        ),
        LoginFault::Protocol(fault @ (ScramFault::Downgrade | ScramFault::OtherChannel)) => {
            ClientError::fatal(ErrorKind::Client, sqlstate::INVALID_AUTHORIZATION, fault.to_string()).with_hint(
                "This could be either a client-software bug or evidence of an attempted man-in-the-middle attack.",
            )
        }
        LoginFault::Protocol(fault) => {
            ClientError::fatal(ErrorKind::Client, sqlstate::PROTOCOL_VIOLATION, fault.to_string())
        }
        LoginFault::Mechanism => ClientError::fatal(
            ErrorKind::Client,
            sqlstate::PROTOCOL_VIOLATION,
            "client selected an invalid SASL authentication mechanism",
        ),
    }
}

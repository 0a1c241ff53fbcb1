//! From an accepted socket to a session: first packet, login, greeting.

use std::sync::Arc;

use bytes::BytesMut;
use pgrouting_contract::config::{AuthConfig, ProxyConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use crate::auth::scram::mock_salting;
use crate::auth::users::User;
use crate::auth::verify::{ClientLogin, LoginFault, LoginStep};
use crate::cancel::{CancelHandle, CancelOutcome};
use crate::error::{ClientError, ErrorKind};
use crate::route::Access;
use crate::server::connect::ConnectError;
use crate::server::connection::Parameters;
use crate::session::client::Client;
use crate::session::context::{Context, CountedClient, Worker};
use crate::session::end::{self, End};
use crate::session::tenancy::{Refusal, Tenancy};
use crate::wire::backend::{
    error_field, put_backend_key, put_error, put_negotiate, put_parameter_status, put_ready,
};
use crate::wire::frame::header;
use crate::wire::sqlstate;
use crate::wire::startup::{FirstPacket, Startup, StartupFault, packet_len, read};

/// The longest message of a login, in bytes.
const LOGIN_MESSAGE_MAX: usize = 16 * 1024;

/// Requests for encryption before the startup packet: one for each kind.
const ENCRYPTION_REQUESTS_MAX: usize = 2;

/// A client that has proved who it is, before its greeting.
#[derive(Debug)]
pub struct Newcomer {
    /// The client's end.
    pub client: Client,
    /// Its claim on the servers.
    pub tenancy: Tenancy,
    /// The key that it can cancel with.
    pub cancel: CancelHandle,
    /// Its place among the clients.
    pub counted: CountedClient,
}

/// Brings an accepted socket through its login; `None` when nobody is to be served, who has been told why.
pub async fn enter(
    stream: TcpStream,
    context: Arc<Context>,
    worker: Arc<Worker>,
    access: Access,
) -> Option<Newcomer> {
    let view = context.fleet.view();
    let config = &view.active.config;
    let limit = config.pooling.client_login_timeout.get();
    let mut entrance = Entrance { stream, inbox: BytesMut::new(), out: Vec::new() };
    let entered = tokio::select! {
        biased;
        entered = timeout(limit, entrance.enter(&context, &worker, config)) => entered,
        () = worker.kill.cancelled() => return None,
    };
    let told = match entered {
        Ok(Ok((startup, counted))) => match context.settings.from_startup(&startup.parameters) {
            Ok(settings) => {
                let mut client = Client::new(entrance.stream, entrance.inbox, settings);
                *client.outbox.bytes() = entrance.out;
                let identity = context.identities.intern(&startup.user, &startup.database);
                let cancel = context.cancels.register(startup.secret_len());
                let tenancy = Tenancy::new(context, worker, identity, access);
                return Some(Newcomer { client, tenancy, cancel, counted });
            }
            Err(fault) => Some(ClientError::fatal(
                ErrorKind::Client,
                sqlstate::FEATURE_NOT_SUPPORTED,
                fault.to_string(),
            )),
        },
        Ok(Err(turned)) => turned,
        Err(_) => {
            // PostgreSQL too closes without a word.
            worker.metrics.logins_failed.add_one();
            worker.metrics.count_error(ErrorKind::Limit);
            None
        }
    };
    if let Some(error) = told {
        entrance.turn_away(error, &worker).await;
    }
    None
}

/// A socket whose client is not logged in yet.
#[derive(Debug)]
struct Entrance {
    stream: TcpStream,
    inbox: BytesMut,
    out: Vec<u8>,
}

/// Why a client does not get in; `None` where it is not told, because it has gone or speaks another protocol.
type Turned = Option<ClientError>;

impl Entrance {
    /// Brings the client through its login. What remains to be sent is in `out`. Not cancel-safe: the socket is of no
    /// use afterwards.
    async fn enter(
        &mut self,
        context: &Arc<Context>,
        worker: &Worker,
        config: &ProxyConfig,
    ) -> Result<(Startup, CountedClient), Turned> {
        let startup = self.startup(context, worker).await?;
        let counted =
            CountedClient::admit(context, config.pooling.max_client_connections).ok_or_else(|| {
                ClientError::fatal(
                    ErrorKind::Limit,
                    sqlstate::TOO_MANY_CONNECTIONS,
                    "sorry, too many clients already",
                )
                .with_hint("Raise pooling.maxClientConnections, or add proxies.")
            })?;
        if startup.needs_negotiation() {
            put_negotiate(&mut self.out, startup.protocol(), &startup.protocol_options);
        }
        let user = find_user(context, config, &startup.user).await?;
        let mut login = ClientLogin::start(user, mock_salting(&context.secret, &startup.user), &mut self.out);
        loop {
            self.stream.write_all(&self.out).await.map_err(|_| None)?;
            self.out.clear();
            let message = self.message().await?;
            let nonce: [u8; 18] = rand::random();
            match login.take(&message, &nonce, &mut self.out) {
                LoginStep::Continue => {}
                LoginStep::Done => return Ok((startup, counted)),
                LoginStep::Failed(fault) => return Err(Some(login_error(&startup.user, fault))),
            }
        }
    }

    /// Reads first packets until one is a startup message.
    async fn startup(&mut self, context: &Context, worker: &Worker) -> Result<Startup, Turned> {
        let mut encryption_requests = 0;
        loop {
            let packet = loop {
                match packet_len(&self.inbox).map_err(|_| None)? {
                    Some(length) if self.inbox.len() >= length => break self.inbox.split_to(length),
                    _ => self.read().await?,
                }
            };
            match read(&packet).map_err(|fault| startup_error(&fault))? {
                FirstPacket::Ssl | FirstPacket::GssEnc => {
                    encryption_requests += 1;
                    if encryption_requests > ENCRYPTION_REQUESTS_MAX {
                        return Err(None);
                    }
                    self.stream.write_all(b"N").await.map_err(|_| None)?;
                }
                FirstPacket::Cancel(key) => {
                    let outcome = context.cancels.request(&key).await;
                    debug!(?outcome, "a cancel request");
                    if outcome == CancelOutcome::Sent {
                        worker.metrics.cancels.add_one();
                    }
                    return Err(None);
                }
                FirstPacket::Startup(startup) => return Ok(startup),
            }
        }
    }

    /// The next whole message of the login.
    async fn message(&mut self) -> Result<BytesMut, Turned> {
        loop {
            let header = header(&self.inbox, LOGIN_MESSAGE_MAX).map_err(|fault| {
                ClientError::fatal(ErrorKind::Client, sqlstate::PROTOCOL_VIOLATION, fault.to_string())
            })?;
            match header {
                Some(header) if self.inbox.len() >= header.total => {
                    return Ok(self.inbox.split_to(header.total));
                }
                _ => self.read().await?,
            }
        }
    }

    async fn read(&mut self) -> Result<(), Turned> {
        self.inbox.reserve(1024);
        match self.stream.read_buf(&mut self.inbox).await {
            Ok(0) | Err(_) => Err(None),
            Ok(_) => Ok(()),
        }
    }

    /// Tells the client why it does not get in.
    async fn turn_away(mut self, error: ClientError, worker: &Worker) {
        worker.metrics.logins_failed.add_one();
        worker.metrics.count_error(error.kind);
        debug!(%error, "a login failed");
        error.into_fatal().put(&mut self.out);
        let mut client_out = crate::server::connection::Outbox::default();
        client_out.bytes().append(&mut self.out);
        end::send_last(&mut self.stream, &mut client_out).await;
    }
}

async fn find_user(
    context: &Context,
    config: &ProxyConfig,
    name: &str,
) -> Result<Option<Arc<User>>, ClientError> {
    match config.auth {
        AuthConfig::UserList { .. } => Ok(context.credentials.user(name)),
        AuthConfig::Passthrough {} => {
            let view = context.fleet.view();
            let primary = view.topology.primary().and_then(|index| view.pools.get(index));
            let endpoint = primary.map(|pool| &pool.endpoint);
            context.roles.user(name, endpoint, &config.probe.database).await.map_err(|error: ConnectError| {
                tracing::warn!(%error, "stored verifiers cannot be read");
                ClientError::fatal(
                    ErrorKind::Server,
                    sqlstate::CANNOT_CONNECT_NOW,
                    "the primary cannot be asked who may log in",
                )
                .with_hint(
                    "The probe user must be able to log in to the primary and to read pg_catalog.pg_authid.",
                )
            })
        }
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

/// Tells the client what a server reports to a session like this. A server is asked unless one was a moment ago; it
/// may refuse, as for a database that does not exist.
///
/// # Errors
/// When there is no server, or it refuses.
pub async fn greet(client: &mut Client, tenancy: &mut Tenancy, cancel: &CancelHandle) -> Result<(), End> {
    let context = Arc::clone(&tenancy.context);
    let key = (tenancy.identity.id, tenancy.access, client.settings.without_application_name());
    let greeting = match context.greetings.find(&key) {
        Some(greeting) => greeting,
        None => {
            let greeting = Arc::new(Box::pin(ask_for_greeting(client, tenancy)).await?);
            context.greetings.keep(key, Arc::clone(&greeting));
            greeting
        }
    };
    let application_name = client.settings.value("application_name").unwrap_or_default();
    let out = client.outbox.bytes();
    for (name, value) in greeting.iter() {
        let value = if name == b"application_name" { application_name.as_bytes() } else { value };
        put_parameter_status(out, name, value);
    }
    put_backend_key(out, &cancel.key);
    put_ready(out, b'I');
    Ok(())
}

async fn ask_for_greeting(client: &Client, tenancy: &mut Tenancy) -> Result<Parameters, End> {
    let leased = match tenancy.lease_at_once(&client.settings) {
        Ok(lease) => Ok(lease),
        Err(asked) => tenancy.lease_in_time(&client.settings, asked).await,
    };
    let mut lease = match leased {
        Ok(lease) => lease,
        Err(Refusal::Proxy(error)) => return Err(End::Told(error.into_fatal())),
        Err(Refusal::Server(message)) => return Err(End::Refused(message)),
    };
    let change = lease.settings.change_to(&client.settings);
    if !change.is_empty() {
        match lease.run(&change).await {
            Ok(_) => lease.settings = Arc::clone(&client.settings),
            Err(ConnectError::Refused(message)) => {
                // The statements before the one that failed were rolled back with it.
                lease.give_back();
                return Err(End::Refused(as_fatal(&message)));
            }
            Err(error) => {
                tracing::warn!(%error, "the server broke off at a login");
                let error = ClientError::fatal(
                    ErrorKind::Server,
                    sqlstate::CONNECTION_FAILURE,
                    "the server closed the connection unexpectedly",
                );
                return Err(End::Told(error));
            }
        }
    }
    let parameters = lease.parameters.clone();
    lease.give_back();
    Ok(parameters)
}

/// A server's error as PostgreSQL reports it while a session starts: FATAL.
fn as_fatal(message: &[u8]) -> Vec<u8> {
    let text = |kind| String::from_utf8_lossy(error_field(message, kind).unwrap_or_default()).into_owned();
    let fields = [(b'C', text(b'C')), (b'M', text(b'M')), (b'D', text(b'D')), (b'H', text(b'H'))];
    let mut kept: Vec<(u8, &str)> = vec![(b'S', "FATAL"), (b'V', "FATAL")];
    kept.extend(
        fields.iter().filter(|(_, text)| !text.is_empty()).map(|(kind, text)| (*kind, text.as_str())),
    );
    let mut out = Vec::new();
    put_error(&mut out, &kept);
    out
}

//! From an accepted socket to a session: first packet, login, greeting.

use std::sync::Arc;

use bytes::BytesMut;
use pgrouting_contract::config::{AuthConfig, PoolMode, ProxyConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use crate::auth::scram::mock_salting;
use crate::auth::users::User;
use crate::auth::verify::{ClientLogin, LoginFault, LoginStep};
use crate::cancel::CancelHandle;
use crate::error::{ClientError, ErrorKind};
use crate::mirror::recorder::Recorder;
use crate::route::Access;
use crate::server::connect::ConnectError;
use crate::server::settings::REPLICATION;
use crate::session::cancel::cancel;
use crate::session::client::Client;
use crate::session::context::{Context, CountedClient, Worker};
use crate::session::end::{self};
use crate::session::judge::Judge;
use crate::session::routing::Routing;
use crate::session::state::State;
use crate::session::tenancy::Tenancy;
use crate::socket::{Inbox, Outbox};
use crate::wire::backend::put_negotiate;
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
    let is_exclusive = config.pooling.mode == PoolMode::Session;
    let told = match entered {
        Ok(Ok((startup, counted))) => {
            match context.settings.from_startup(&startup.parameters, is_exclusive) {
                Ok(settings) => {
                    let opened_with = if !is_exclusive {
                        context.settings.none()
                    } else if settings.value(REPLICATION).is_some() {
                        // It may not take any SQL later.
                        Arc::clone(&settings)
                    } else {
                        context.settings.without_application_name(&settings)
                    };
                    let identity = context.identities.intern(
                        &startup.user,
                        &startup.database,
                        &opened_with,
                        is_exclusive,
                    );
                    let catalog = context.catalogs.of(&startup.database);
                    let tracking = context.databases.tracking(
                        &startup.database,
                        &context.settings,
                        &context.audit,
                        &catalog,
                    );
                    let state = State::new(tracking, settings, !is_exclusive);
                    let judge = Judge::new(catalog, Arc::clone(&context.verdicts));
                    let mut client = Client::new(
                        entrance.stream,
                        Inbox::with(entrance.inbox.to_vec()),
                        state,
                        Routing::new(judge, &startup.user, Arc::clone(&context.mirror)),
                        Recorder::new(Arc::clone(&context.mirror)),
                    );
                    *client.outbox.bytes() = entrance.out;
                    let cancel = context.cancels.register(startup.secret_len());
                    let tenancy = Tenancy::new(context, worker, identity, access);
                    return Some(Newcomer { client, tenancy, cancel, counted });
                }
                Err(fault) => Some(ClientError::fatal(
                    ErrorKind::Client,
                    sqlstate::FEATURE_NOT_SUPPORTED,
                    fault.to_string(),
                )),
            }
        }
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
                    let own = self.stream.local_addr().map_err(|_| None)?.ip().to_canonical();
                    cancel(&key, own, context, worker).await;
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
        let mut client_out = Outbox::default();
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
            let primary = view.topology.primary.and_then(|index| view.pools.get(index));
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

//! From an accepted socket to a session: first packet, login, and what the session begins with.

use std::sync::Arc;

use pgrouting_contract::config::{PoolMode, ProxyConfig};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::cancel::CancelHandle;
use crate::error::{ClientError, ErrorKind};
use crate::mirror::recorder::Recorder;
use crate::roster::{Admitted, Arrival, SeatLimits, Seated, Taken};
use crate::route::Access;
use crate::server::connection::Identity;
use crate::server::settings::{APPLICATION_NAME, REPLICATION, Settings};
use crate::session::client::Client;
use crate::session::context::{Context, Worker};
use crate::session::entrance::Entrance;
use crate::session::judge::Judge;
use crate::session::routing::Routing;
use crate::session::state::State;
use crate::session::tenancy::Tenancy;
use crate::session::visit;
use crate::socket::stream::Stream;
use crate::wire::sqlstate;
use crate::wire::startup::Startup;

/// Sockets of clients that are about to log in, or are being turned away, beyond those that may stay.
const SPARE_SOCKETS: u32 = 100;

/// A client that has proved who it is, before its greeting.
#[derive(Debug)]
pub struct Newcomer {
    /// The client's end.
    pub client: Client,
    /// Its claim on the servers.
    pub tenancy: Tenancy,
    /// The key that it can cancel with.
    pub cancel: CancelHandle,
    /// Its place on the roster.
    pub seat: Seated,
    /// Its place among the clients.
    pub counted: Admitted,
    /// When it came.
    pub began: Instant,
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
    let began = Instant::now();
    // Whoever opens sockets and says nothing takes hardly more of them than clients have.
    let entering_max = config.pooling.max_client_connections.saturating_add(SPARE_SOCKETS);
    let Some(_entering) = context.roster.let_in(entering_max) else {
        worker.metrics.logins_failed.add_one();
        worker.metrics.count_error(ErrorKind::Limit);
        return None;
    };
    let mut entrance = Entrance::new(stream);
    let entered = tokio::select! {
        biased;
        entered = timeout(limit, entrance.enter(&context, &worker, config)) => entered,
        () = worker.kill.cancelled() => return None,
    };
    let told = match entered {
        Ok(Ok((startup, counted))) if visit::is_for_console(config, &startup) => {
            // Boxed, so that the login is not larger for it.
            Box::pin(visit::serve(entrance, startup, counted, context, worker)).await;
            return None;
        }
        Ok(Ok((startup, counted))) => {
            match Claim::take(&startup, &entrance.stream, config, &context, &worker) {
                Ok(claim) => return Some(claim.begin(entrance, counted, began, context, worker, access)),
                Err(error) => Some(error),
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
    } else {
        entrance.stream.part_with(&[]);
    }
    None
}

/// What a client that has proved who it is gets of the process.
struct Claim {
    settings: Arc<Settings>,
    identity: Arc<Identity>,
    cancel: CancelHandle,
    seat: Seated,
}

impl Claim {
    /// Takes it, where there is room.
    fn take(
        startup: &Startup,
        stream: &Stream,
        config: &ProxyConfig,
        context: &Context,
        worker: &Worker,
    ) -> Result<Self, ClientError> {
        let is_exclusive = config.pooling.mode == PoolMode::Session;
        let settings = context.settings.from_startup(&startup.parameters, is_exclusive).map_err(|fault| {
            ClientError::fatal(ErrorKind::Client, sqlstate::FEATURE_NOT_SUPPORTED, fault.to_string())
        })?;
        let opened_with = if !is_exclusive {
            context.settings.none()
        } else if settings.value(REPLICATION).is_some() {
            // It may not take any SQL later.
            Arc::clone(&settings)
        } else {
            context.settings.without_application_name(&settings)
        };
        let identity =
            context.identities.intern(&startup.user, &startup.database, &opened_with, is_exclusive);
        let cancel = context.cancels.register(startup.secret_len());
        let arrival = Arrival {
            identity: Arc::clone(&identity),
            stream,
            slot: Arc::clone(cancel.slot()),
            kill: &worker.kill,
            application_name: settings.value(APPLICATION_NAME).unwrap_or_default(),
        };
        let limits = SeatLimits {
            per_user: config.pooling.max_client_connections_per_user,
            per_database: config.pooling.max_client_connections_per_database,
        };
        let seat = context.roster.join(arrival, limits).map_err(|taken| no_seat(taken, startup))?;
        Ok(Self { settings, identity, cancel, seat })
    }

    /// Puts together what serves the client.
    fn begin(
        self,
        entrance: Entrance,
        counted: Admitted,
        began: Instant,
        context: Arc<Context>,
        worker: Arc<Worker>,
        access: Access,
    ) -> Newcomer {
        let Self { settings, identity, cancel, seat } = self;
        let Identity { user, database, is_exclusive, .. } = &*identity;
        let catalog = context.catalogs.of(database);
        let tracking = context.databases.tracking(database, &context.settings, &context.audit, &catalog);
        let judge = Judge::new(catalog, Arc::clone(&context.verdicts));
        let mut client = Client::new(
            entrance.stream,
            entrance.inbox,
            State::new(tracking, settings, !is_exclusive),
            Routing::new(judge, user, Arc::clone(&context.mirror)),
            Recorder::new(Arc::clone(&context.mirror)),
            &seat,
        );
        client.outbox = entrance.outbox;
        let tenancy = Tenancy::new(context, worker, identity, access);
        Newcomer { client, tenancy, cancel, seat, counted, began }
    }
}

/// There are too many of its kind, in PostgreSQL's words.
fn no_seat(taken: Taken, startup: &Startup) -> ClientError {
    let (message, hint) = match taken {
        Taken::User => (
            format!("too many connections for role \"{}\"", startup.user),
            "The limit of each proxy is pooling.maxClientConnectionsPerUser.",
        ),
        Taken::Database => (
            format!("too many connections for database \"{}\"", startup.database),
            "The limit of each proxy is pooling.maxClientConnectionsPerDatabase.",
        ),
    };
    ClientError::fatal(ErrorKind::Limit, sqlstate::TOO_MANY_CONNECTIONS, message).with_hint(hint)
}

//! From an accepted socket to a session: first packet, login, and what the session begins with.

use std::sync::Arc;

use pgrouting_contract::config::PoolMode;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cancel::CancelHandle;
use crate::error::{ClientError, ErrorKind};
use crate::mirror::recorder::Recorder;
use crate::roster::{Admitted, Seated};
use crate::route::Access;
use crate::server::settings::{APPLICATION_NAME, REPLICATION};
use crate::session::client::Client;
use crate::session::context::{Context, Worker};
use crate::session::entrance::Entrance;
use crate::session::judge::Judge;
use crate::session::routing::Routing;
use crate::session::state::State;
use crate::session::tenancy::Tenancy;
use crate::session::visit;
use crate::wire::sqlstate;

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
    let mut entrance = Entrance::new(stream);
    let entered = tokio::select! {
        biased;
        entered = timeout(limit, entrance.enter(&context, &worker, config)) => entered,
        () = worker.kill.cancelled() => return None,
    };
    let is_exclusive = config.pooling.mode == PoolMode::Session;
    let told = match entered {
        Ok(Ok((startup, counted))) if visit::is_for_console(config, &startup) => {
            // Boxed, so that the login is not larger for it.
            Box::pin(visit::serve(entrance, startup, counted, context, worker)).await;
            return None;
        }
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
                        entrance.inbox,
                        state,
                        Routing::new(judge, &startup.user, Arc::clone(&context.mirror)),
                        Recorder::new(Arc::clone(&context.mirror)),
                    );
                    client.outbox = entrance.outbox;
                    let cancel = context.cancels.register(startup.secret_len());
                    let seat = context.roster.join(
                        Arc::clone(&identity),
                        &client.stream,
                        Arc::clone(cancel.slot()),
                        &worker.kill,
                        client.state.settings.value(APPLICATION_NAME).unwrap_or_default(),
                    );
                    let tenancy = Tenancy::new(context, worker, identity, access);
                    return Some(Newcomer { client, tenancy, cancel, seat, counted });
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
    } else {
        entrance.stream.part_with(&[]);
    }
    None
}

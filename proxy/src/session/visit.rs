//! Clients that come for the console, and databases that take nobody new.

use std::sync::Arc;

use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::console::ConsoleConfig;

use crate::console::answer::forbidden;
use crate::console::conversation::Conversation;
use crate::error::{ClientError, ErrorKind};
use crate::roster::{Admitted, Arrival, SeatLimits};
use crate::session::context::{Context, Worker};
use crate::session::end;
use crate::session::entrance::Entrance;
use crate::wire::sqlstate;
use crate::wire::startup::Startup;

/// Clients of the console that get in where there are too many others: whoever looks after a full pool must.
const SPARE_CLIENTS: u32 = 16;

/// Whether a client names the console's database.
#[must_use]
pub fn is_for_console(config: &ProxyConfig, startup: &Startup) -> bool {
    match &config.console {
        Some(console) => startup.database == console.database,
        None => startup.database == ConsoleConfig::default().database,
    }
}

/// How many clients there may be before this one.
#[must_use]
pub fn clients_max(config: &ProxyConfig, startup: &Startup) -> u32 {
    let spare = if is_for_console(config, startup) { SPARE_CLIENTS } else { 0 };
    config.pooling.max_client_connections.saturating_add(spare)
}

/// Turns a client away whose database takes nobody new.
///
/// # Errors
/// When it does not.
pub fn refuse_disabled(context: &Context, startup: &Startup) -> Result<(), ClientError> {
    let view = context.fleet.view();
    if !view.halts.is_disabled(&startup.database) || is_for_console(&view.active.config, startup) {
        return Ok(());
    }
    let message = format!("database \"{}\" does not take new clients", startup.database);
    Err(ClientError::fatal(ErrorKind::Policy, sqlstate::CANNOT_CONNECT_NOW, message)
        .with_hint("DISABLE was run at the console; ENABLE takes it back."))
}

/// Serves a client that has logged in at the console, or tells it that it may not be there.
pub async fn serve(
    entrance: Entrance,
    startup: Startup,
    counted: Admitted,
    context: Arc<Context>,
    worker: Arc<Worker>,
) {
    if context.console.config().right_of(&startup.user).is_none() {
        entrance.turn_away(forbidden(&startup.user, "may not use the console"), &worker).await;
        return;
    }
    let none = context.settings.none();
    let identity = context.identities.intern(&startup.user, &startup.database, &none, false);
    let cancel = context.cancels.register(startup.secret_len());
    let parameters = startup.parameters.iter();
    let name = parameters.rev().find(|(name, _)| name.eq_ignore_ascii_case("application_name"));
    let Entrance { stream, inbox, outbox, .. } = entrance;
    let arrival = Arrival {
        identity,
        stream: &stream,
        slot: Arc::clone(cancel.slot()),
        kill: &worker.kill,
        application_name: name.map(|(_, name)| name.as_str()).unwrap_or_default(),
    };
    // Whoever looks after a pool gets in where others have taken all that they may have.
    let Ok(seat) = context.roster.join(arrival, SeatLimits::default()) else { return };
    let counts = context.pools.of(&startup.user, &startup.database, worker.id.0);
    let sources = Arc::clone(&context.console);
    let drain = worker.drain.clone();
    let metrics = Arc::clone(&worker.metrics);
    let is_secure = stream.is_secure();
    if is_secure {
        metrics.clients_secure.add_one();
    }
    drop((startup, context, worker));
    let conversation = Conversation { stream, inbox, outbox, sources, seat, cancel, counts, drain };
    let last = conversation.serve().await;
    if is_secure {
        metrics.clients_secure.take_one();
    }
    if let Some((mut stream, mut outbox)) = last {
        end::send_last(&mut stream, &mut outbox).await;
    }
    drop(counted);
}

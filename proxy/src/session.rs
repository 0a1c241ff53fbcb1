//! One client from its login to its end: waits for a request, leases a connection, exchanges, gives it back.

use std::sync::Arc;

use tokio::net::TcpStream;

use crate::route::Access;
use crate::session::context::{Context, Worker};
use crate::session::life::Session;
use crate::session::startup::Newcomer;

mod aftermath;
pub mod cancel;
pub mod choice;
pub mod client;
pub mod clocked;
pub mod command;
pub mod context;
pub mod copying;
pub mod end;
pub mod entrance;
pub mod exchange;
pub mod explanation;
pub mod forward;
pub mod freshness;
pub mod gate;
pub mod greeting;
pub mod judge;
mod life;
pub mod measured;
pub mod named_commands;
pub mod outdated;
pub mod overdue;
pub mod prepared;
pub mod refusal;
pub mod relay;
pub mod request;
pub mod rescue;
pub mod routing;
pub mod signals;
pub mod startup;
pub mod state;
mod steady;
pub mod supply;
pub mod tenancy;
pub mod tie;
pub mod turns;
pub mod users;
pub mod usual;
pub mod visit;
pub mod waiting;

/// Serves one accepted socket to its end.
pub async fn serve(stream: TcpStream, context: Arc<Context>, worker: Arc<Worker>, access: Access) {
    // Boxed, so that the login's memory is given back when it is over.
    let entered = Box::pin(startup::enter(stream, context, worker, access)).await;
    let Some(newcomer) = entered else { return };
    let Newcomer { client, tenancy, cancel, seat, counted, began } = newcomer;
    Box::pin(Session::new(client, tenancy, cancel, seat).run(began)).await;
    drop(counted);
}

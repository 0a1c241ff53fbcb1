//! Finds the user that a client wants to log in as.

use std::sync::Arc;

use pgrouting_contract::config::{AuthConfig, ProxyConfig};

use crate::auth::users::User;
use crate::error::{ClientError, ErrorKind};
use crate::roles::Asked;
use crate::server::connect::ConnectError;
use crate::session::context::Context;
use crate::wire::sqlstate;

/// The user of that name, where one may log in.
///
/// # Errors
/// When it cannot be found out.
pub async fn find_user(
    context: &Context,
    config: &ProxyConfig,
    name: &str,
) -> Result<Option<Arc<User>>, ClientError> {
    let (asked, hint) = match &config.auth {
        AuthConfig::UserList { .. } => return Ok(context.credentials.user(name)),
        AuthConfig::Passthrough {} => (
            Asked::Stored,
            "The probe user must be able to log in to the primary and to read pg_catalog.pg_authid.",
        ),
        AuthConfig::Query { sql, .. } => (
            Asked::Query(sql),
            "The user of the query must be able to log in to the primary and to run it; the log of the proxy says what is wrong.",
        ),
    };
    let view = context.fleet.view();
    let primary = view.topology.primary.and_then(|index| view.pools.get(index));
    let endpoint = primary.map(|pool| &pool.endpoint);
    let found = context.roles.user(name, endpoint, &config.probe.database, asked).await;
    found.map_err(|error: ConnectError| {
        tracing::warn!(%error, "the primary cannot be asked for a role");
        ClientError::fatal(
            ErrorKind::Server,
            sqlstate::CANNOT_CONNECT_NOW,
            "the primary cannot be asked who may log in",
        )
        .with_hint(hint)
    })
}

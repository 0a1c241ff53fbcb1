//! Finds the user that a client wants to log in as.

use std::sync::Arc;

use pgrouting_contract::config::{AuthConfig, ProxyConfig};

use crate::auth::users::User;
use crate::error::{ClientError, ErrorKind};
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

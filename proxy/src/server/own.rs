//! Connections of the proxy's own, as the monitor's user, beside those that clients share.

use std::sync::Arc;
use std::time::Duration;

use crate::auth::users::{Credentials, User};
use crate::server::connect::{ConnectError, Want, connect};
use crate::server::connection::{Identity, ServerConnection, WorkerId};
use crate::server::endpoint::Endpoint;
use crate::server::settings::Settings;

/// As whom, to what, and under which name such connections are opened.
#[derive(Debug, Clone)]
pub struct Own {
    /// Where the monitor's user is found; a Secret may change it at any time.
    pub credentials: Arc<Credentials>,
    /// The database.
    pub database: String,
    /// No settings.
    pub settings: Arc<Settings>,
    /// What `application_name` says.
    pub name: &'static str,
    /// The longest wait for a connection and its login.
    pub timeout: Duration,
}

impl Own {
    /// Opens one.
    ///
    /// # Errors
    /// When the server cannot be reached, or refuses; or when the monitor's user is not known.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Box<ServerConnection>, ConnectError> {
        let user = self.credentials.probe().ok_or(ConnectError::Protocol("the probe user is not known"))?;
        self.connect_as(&user, endpoint).await
    }

    /// Opens one as another user.
    ///
    /// # Errors
    /// When the server cannot be reached, or refuses.
    pub async fn connect_as(
        &self,
        user: &Arc<User>,
        endpoint: &Endpoint,
    ) -> Result<Box<ServerConnection>, ConnectError> {
        let identity = Arc::new(Identity {
            id: u32::MAX,
            user: user.name.clone(),
            database: self.database.clone(),
            settings: Arc::clone(&self.settings),
            is_exclusive: true,
        });
        let parameters = [("application_name".to_owned(), self.name.to_owned())];
        connect(Want {
            endpoint,
            identity: &identity,
            user,
            parameters: &parameters,
            home: WorkerId(u16::MAX),
            timeout: self.timeout,
            is_told: true,
        })
        .await
    }
}

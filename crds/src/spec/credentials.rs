//! Where a user name and a password are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Secret in the pool's namespace with a user name and a password.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsSecret {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key of the user name.
    #[serde(default = "default_username_key")]
    #[schemars(length(max = 253))]
    pub username_key: String,
    /// The key of the password.
    #[serde(default = "default_password_key")]
    #[schemars(length(max = 253))]
    pub password_key: String,
}

fn default_username_key() -> String {
    "username".to_owned()
}

fn default_password_key() -> String {
    "password".to_owned()
}

//! The names of a pool's objects, and the label and annotation keys on them.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

/// The manager of the fields that the operator applies on a pool's objects.
pub const FIELD_MANAGER: &str = "pgrouting-operator";
/// The manager of the status.
pub const STATUS_FIELD_MANAGER: &str = "pgrouting-operator-status";

/// Which software it is.
pub const LABEL_NAME: &str = "app.kubernetes.io/name";
/// Which pool it belongs to.
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
/// Which part of a pool it is.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// What it is a part of.
pub const LABEL_PART_OF: &str = "app.kubernetes.io/part-of";
/// Who keeps it.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The value of [`LABEL_NAME`].
pub const NAME: &str = "pg-routing-proxy";
/// The value of [`LABEL_COMPONENT`].
pub const COMPONENT: &str = "proxy";
/// The value of [`LABEL_PART_OF`].
pub const PART_OF: &str = "pg-routing";
/// The value of [`LABEL_MANAGED_BY`].
pub const MANAGED_BY: &str = "pg-routing-operator";

/// On a pod: a hash of what its mounted Secrets held when the operator last asked kubelet to look again.
pub const ANNOTATION_MOUNTED_HASH: &str = "pgrouting.dev/mounted-hash";

/// The key of the document in its ConfigMap, and so the name of the file.
pub const CONFIG_KEY: &str = "config.json";
/// The port of the admin API in a pod.
pub const ADMIN_PORT: u16 = 9128;

/// A name for a copy of something that these parts say. It depends on nothing else, so that another copy renames none; the
/// first of it is for people.
#[must_use]
pub fn copy_stem(readable: &str, parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest: String = hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let readable: String = readable.chars().take(200).collect();
    format!("{readable}.{digest}")
}

/// The names of a pool's objects.
#[derive(Debug, Clone, Copy)]
pub struct PoolNames<'a>(pub &'a str);

impl PoolNames<'_> {
    /// The Deployment, the ServiceAccount, the PodDisruptionBudget and the NetworkPolicy.
    #[must_use]
    pub fn proxy(self) -> String {
        format!("{}-proxy", self.0)
    }

    /// The ConfigMap with the document.
    #[must_use]
    pub fn config_map(self) -> String {
        format!("{}-config", self.0)
    }

    /// The Secret with the CA and the certificates of the admin API.
    #[must_use]
    pub fn admin_secret(self) -> String {
        format!("{}-admin", self.0)
    }

    /// The Secret with copies of the user names and passwords.
    #[must_use]
    pub fn users_secret(self) -> String {
        format!("{}-users", self.0)
    }

    /// The Service that clients connect to.
    #[must_use]
    pub fn service(self) -> String {
        self.0.to_owned()
    }

    /// The Service whose every statement runs on the primary.
    #[must_use]
    pub fn primary_service(self) -> String {
        format!("{}-primary", self.0)
    }

    /// The Service whose every statement runs on a replica.
    #[must_use]
    pub fn read_only_service(self) -> String {
        format!("{}-readonly", self.0)
    }

    /// The headless Service by which proxies find each other.
    #[must_use]
    pub fn peers_service(self) -> String {
        format!("{}-peers", self.0)
    }

    /// The labels that select the pods. Immutable for ever.
    #[must_use]
    pub fn selector(self) -> BTreeMap<String, String> {
        [(LABEL_NAME, NAME), (LABEL_INSTANCE, self.0), (LABEL_COMPONENT, COMPONENT)]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    /// The selector as text.
    #[must_use]
    pub fn selector_text(self) -> String {
        self.selector().iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    }
}

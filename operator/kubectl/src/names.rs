//! The names that the operator gives to what belongs to a pool.

/// The manager of the fields that this program changes.
pub const FIELD_MANAGER: &str = "kubectl-pgrp";
/// The port of the admin API in a proxy's pod.
pub const ADMIN_PORT: u16 = 9128;
/// The key of the admin CA's certificate in the admin Secret.
pub const CA_CERTIFICATE: &str = "ca.crt";
/// The key of the certificate that opens the admin API.
pub const CLIENT_CERTIFICATE: &str = "client.crt";
/// The key of its private key.
pub const CLIENT_KEY: &str = "client.key";

/// The Secret with the certificates of a pool's admin API.
#[must_use]
pub fn admin_secret(pool: &str) -> String {
    format!("{pool}-admin")
}

/// The labels of a pool's proxies.
#[must_use]
pub fn proxy_selector(pool: &str) -> String {
    format!(
        "app.kubernetes.io/name=pg-routing-proxy,app.kubernetes.io/instance={pool},app.kubernetes.io/component=proxy"
    )
}

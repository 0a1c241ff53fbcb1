//! TLS on both sides of the proxies.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// TLS between clients and proxies, and between proxies and servers.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[x_kube(validation = Rule::new("self.client == 'Disabled' || has(self.certificateSecret)")
    .message("client TLS needs a certificate: name a Secret of type kubernetes.io/tls in certificateSecret")
    .field_path(".client"))]
#[x_kube(validation = Rule::new("self.client != 'Disabled' || !has(self.clientCa)")
    .message("clientCa asks clients for certificates, which needs TLS: set client to Allow or Require")
    .field_path(".clientCa"))]
#[x_kube(validation = Rule::new("!(self.server in ['VerifyCa', 'VerifyFull']) || has(self.serverCa)")
    .message("VerifyCa and VerifyFull need serverCa").field_path(".server"))]
#[x_kube(validation = Rule::new("self.server in ['VerifyCa', 'VerifyFull'] || !has(self.serverCa)")
    .message("serverCa is not looked at with this value of server: set it to VerifyCa or VerifyFull").field_path(".server"))]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// What clients get.
    #[serde(default)]
    pub client: ClientTls,
    /// The Secret of type kubernetes.io/tls with the certificate and key that clients see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub certificate_secret: Option<String>,
    /// The CA of clients' certificates: whoever comes by TLS must have one of it, beside the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<CaReference>,
    /// How the proxies connect to the servers; as libpq's sslmode of that name.
    #[serde(default)]
    pub server: ServerTls,
    /// The CA of the servers' certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_ca: Option<CaReference>,
    /// The Secret of type kubernetes.io/tls with the certificate that the proxies show to the servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server_client_certificate_secret: Option<String>,
}

/// TLS between proxies and the other database.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[x_kube(validation = Rule::new("!(self.server in ['VerifyCa', 'VerifyFull']) || has(self.serverCa)")
    .message("VerifyCa and VerifyFull need serverCa").field_path(".server"))]
#[x_kube(validation = Rule::new("self.server in ['VerifyCa', 'VerifyFull'] || !has(self.serverCa)")
    .message("serverCa is not looked at with this value of server: set it to VerifyCa or VerifyFull").field_path(".server"))]
#[serde(rename_all = "camelCase")]
pub struct MirrorTls {
    /// How the proxies connect there; as libpq's sslmode of that name.
    #[serde(default)]
    pub server: ServerTls,
    /// The CA of the certificate there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_ca: Option<CaReference>,
    /// The Secret of type kubernetes.io/tls with the certificate that the proxies show there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server_client_certificate_secret: Option<String>,
}

/// What clients get.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientTls {
    /// No TLS.
    #[default]
    Disabled,
    /// TLS for whoever asks for it.
    Allow,
    /// TLS; whoever comes without is sent away.
    Require,
}

/// How a proxy connects to a server.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerTls {
    /// By TLS where the server has it, in clear where it has not. Its certificate is not looked at.
    #[default]
    Prefer,
    /// In clear.
    Disabled,
    /// By TLS. The certificate is not looked at.
    Require,
    /// By TLS, with a certificate of the CA.
    VerifyCa,
    /// By TLS, with a certificate of the CA for the server's host.
    VerifyFull,
}

/// A CA's certificates in PEM form.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CaReference {
    /// What kind of object has it.
    #[serde(default)]
    pub kind: CaKind,
    /// The object, in the pool's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in it.
    #[serde(default = "default_ca_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// What kind of object has a CA's certificates.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum CaKind {
    /// A Secret.
    #[default]
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

fn default_ca_key() -> String {
    "ca.crt".to_owned()
}

//! TLS on both sides of a proxy: with its clients, and with the servers.
//!
//! Files are in PEM form and are read again when they change, as a mounted Secret does.

use serde::{Deserialize, Serialize};

/// TLS with clients and with servers. Where this is absent, nothing is encrypted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsConfig {
    /// With clients; disabled where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientTlsConfig>,
    /// With the servers of the pool; disabled where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerTlsConfig>,
}

/// Whether clients come over TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ClientTlsMode {
    /// They cannot.
    #[default]
    Disabled,
    /// They may.
    Allow,
    /// They must; a login in clear text is refused.
    Require,
}

/// What is asked of the certificate of a client that comes over TLS, as `clientcert` in `pg_hba.conf`
/// (<https://www.postgresql.org/docs/current/auth-pg-hba-conf.html>).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientCertificate {
    /// One that is shown must be of the CA; none need be shown.
    Request,
    /// One of the CA must be shown.
    VerifyCa,
    /// The same, and its common name must be the user's.
    VerifyFull,
}

/// TLS with clients.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientTlsConfig {
    /// Whether they come over it.
    #[serde(default)]
    pub mode: ClientTlsMode,
    /// The proxy's certificate chain; needed unless the mode is `Disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_file: Option<String>,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// The CA of clients' certificates; none is asked for where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<String>,
    /// What is asked of them; `VerifyCa` where this is absent and `clientCaFile` is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<ClientCertificate>,
}

/// Whether servers are spoken to over TLS, and what is verified: libpq's `sslmode`
/// (<https://www.postgresql.org/docs/current/libpq-ssl.html>).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ServerTlsMode {
    /// In clear text.
    Disabled,
    /// Over TLS where the server takes it, else in clear text; nothing is verified.
    #[default]
    Prefer,
    /// Over TLS; nothing is verified.
    Require,
    /// Over TLS, and the server's certificate must be of the CA.
    VerifyCa,
    /// The same, and it must have the name that the server is reached at.
    VerifyFull,
}

/// TLS with servers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerTlsConfig {
    /// Whether, and what is verified.
    #[serde(default)]
    pub mode: ServerTlsMode,
    /// The CA of the servers' certificates; needed by `VerifyCa` and `VerifyFull`, and of no use with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// The certificate chain that the proxy shows a server that asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_file: Option<String>,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
}

impl TlsConfig {
    pub(crate) fn faults(&self, faults: &mut Vec<String>) {
        if let Some(client) = &self.client {
            client.faults(faults);
        }
        if let Some(server) = &self.server {
            server.faults("tls.server", faults);
        }
    }
}

impl ClientTlsConfig {
    /// What is asked of clients' certificates; `None` where none is asked for.
    #[must_use]
    pub fn asks(&self) -> Option<ClientCertificate> {
        self.client_ca_file.as_ref()?;
        Some(self.client_certificate.unwrap_or(ClientCertificate::VerifyCa))
    }

    fn faults(&self, faults: &mut Vec<String>) {
        let path = "tls.client";
        let files = [&self.certificate_file, &self.key_file, &self.client_ca_file];
        if files.into_iter().any(is_empty) {
            faults.push(format!("{path}: the name of a file is empty"));
        }
        let is_whole = self.certificate_file.is_some() && self.key_file.is_some();
        if self.mode != ClientTlsMode::Disabled && !is_whole {
            faults.push(format!("{path}: mode {:?} needs certificateFile and keyFile", self.mode));
        }
        if self.client_certificate.is_some() && self.client_ca_file.is_none() {
            faults.push(format!("{path}.clientCertificate: needs clientCaFile"));
        }
    }
}

impl ServerTlsConfig {
    /// What is wrong with it; `path` is where it stands.
    pub(crate) fn faults(&self, path: &str, faults: &mut Vec<String>) {
        if [&self.ca_file, &self.certificate_file, &self.key_file].into_iter().any(is_empty) {
            faults.push(format!("{path}: the name of a file is empty"));
        }
        if self.certificate_file.is_some() != self.key_file.is_some() {
            faults.push(format!("{path}: certificateFile and keyFile go together"));
        }
        match (self.mode, &self.ca_file) {
            (ServerTlsMode::VerifyCa | ServerTlsMode::VerifyFull, None) => {
                faults.push(format!("{path}.caFile: mode {:?} needs it", self.mode));
            }
            // libpq would verify all the same; a document says what it means.
            (ServerTlsMode::Prefer | ServerTlsMode::Require, Some(_)) => faults.push(format!(
                "{path}.caFile: mode {:?} verifies nothing; use VerifyCa or VerifyFull",
                self.mode
            )),
            (ServerTlsMode::Disabled, _)
            | (ServerTlsMode::Prefer | ServerTlsMode::Require, None)
            | (ServerTlsMode::VerifyCa | ServerTlsMode::VerifyFull, Some(_)) => {}
        }
    }
}

fn is_empty(path: &Option<String>) -> bool {
    path.as_ref().is_some_and(String::is_empty)
}

/// One set of files of the document, as the proxy has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsReport {
    /// What it is for: `client`, `server` or `mirror`.
    pub side: String,
    /// Whether the files as they are now are in use.
    pub state: TlsFilesState,
    /// What is wrong with them, for a person; empty when nothing is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the certificate that is shown there expires, in RFC 3339, where one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<String>,
}

/// Whether files can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlsFilesState {
    /// They are in use.
    Valid,
    /// They cannot be; what they were before is in use.
    Broken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_given() {
        let of = |text: &str| {
            let config: TlsConfig = serde_yaml::from_str(text).unwrap();
            let mut faults = Vec::new();
            config.faults(&mut faults);
            faults
        };
        for (text, reasons) in [
            ("{}", 0),
            ("client: {mode: Disabled}", 0),
            ("client: {mode: Allow}", 1),
            ("client: {mode: Require, certificateFile: /c}", 1),
            ("client: {mode: Require, certificateFile: /c, keyFile: ''}", 1),
            ("client: {mode: Allow, certificateFile: /c, keyFile: /k, clientCertificate: Request}", 1),
            ("client: {mode: Allow, certificateFile: /c, keyFile: /k, clientCaFile: /a}", 0),
            ("server: {}", 0),
            ("server: {mode: VerifyFull}", 1),
            ("server: {mode: Require, caFile: /a}", 1),
            ("server: {caFile: /a, keyFile: /k}", 2),
            ("server: {mode: Disabled, caFile: /a}", 0),
            ("server: {mode: VerifyCa, caFile: /a, certificateFile: /c, keyFile: /k}", 0),
        ] {
            let faults = of(text);
            assert_eq!(faults.len(), reasons, "{text}: {faults:?}");
        }
    }

    #[test]
    fn a_certificate_is_demanded_where_there_is_a_ca() {
        let mut config = ClientTlsConfig::default();
        assert_eq!(config.asks(), None);
        config.client_ca_file = Some("/ca".to_owned());
        assert_eq!(config.asks(), Some(ClientCertificate::VerifyCa));
        config.client_certificate = Some(ClientCertificate::Request);
        assert_eq!(config.asks(), Some(ClientCertificate::Request));
    }
}

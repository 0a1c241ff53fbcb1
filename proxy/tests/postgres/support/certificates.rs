//! Certificates of the tests, and PostgreSQL with one of them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use pgrouting_contract::tls::{ClientTlsConfig, ClientTlsMode, ServerTlsConfig, ServerTlsMode, TlsConfig};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::proxy::new_directory;
use super::server::{password_of, primary};

/// A certificate authority.
#[derive(Debug)]
pub struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Where its certificate is, and what is made with it.
    pub directory: PathBuf,
}

/// A certificate and its key, in PEM form.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Ca {
    /// A new one.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, format!("tests {:x}", rand::random::<u64>()));
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = new_directory();
        std::fs::write(directory.join("ca.crt"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    /// Its certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The path of its certificate.
    pub fn file(&self) -> Option<String> {
        Some(self.directory.join("ca.crt").display().to_string())
    }

    /// A certificate of it.
    pub fn issue(&self, common_name: &str, names: &[&str]) -> Pair {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }

    /// The proxy's TLS with clients: a certificate for `localhost` in files of that name.
    pub fn accepting(&self, mode: ClientTlsMode) -> ClientTlsConfig {
        let (certificate, key) =
            self.issue("localhost", &["localhost", "127.0.0.1"]).write(&self.directory, "proxy");
        ClientTlsConfig {
            mode,
            certificate_file: Some(certificate),
            key_file: Some(key),
            ..ClientTlsConfig::default()
        }
    }

    /// The proxy's TLS with servers that are to have a certificate of this CA.
    pub fn connecting(&self, mode: ServerTlsMode) -> ServerTlsConfig {
        let is_verified = matches!(mode, ServerTlsMode::VerifyCa | ServerTlsMode::VerifyFull);
        let ca_file = self.file().filter(|_| is_verified);
        ServerTlsConfig { mode, ca_file, ..ServerTlsConfig::default() }
    }
}

impl Drop for Ca {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Pair {
    /// Writes both; gives their paths.
    pub fn write(&self, directory: &Path, name: &str) -> (String, String) {
        let write = |suffix: &str, text: &str| {
            let path = directory.join(format!("{name}.{suffix}"));
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            path.display().to_string()
        };
        (write("crt", &self.certificate), write("key", &self.key))
    }
}

/// TLS on one side or both.
pub fn tls(client: Option<ClientTlsConfig>, server: Option<ServerTlsConfig>) -> Option<TlsConfig> {
    Some(TlsConfig { client, server })
}

/// The CA of the primary of this run, which takes TLS from then on. Its certificate is for `localhost`, and not for
/// 127.0.0.1. Beside the usual roles there are `only_tls`, `only_clear` and `with_certificate`, of which each comes in only so.
pub fn secure_primary() -> &'static Ca {
    static CA: OnceLock<Ca> = OnceLock::new();
    CA.get_or_init(|| {
        let ca = Ca::new();
        let mut admin = primary().admin("postgres");
        let data = admin.value("SHOW data_directory").unwrap();
        let data = Path::new(&data);
        std::fs::write(data.join("clients.crt"), ca.pem()).unwrap();
        let (certificate, key) = ca.issue("db", &["localhost"]).write(data, "server");
        let hba = data.join("pg_hba.conf");
        let before = std::fs::read_to_string(&hba).unwrap();
        let rules = "hostnossl all only_tls all reject\nhostssl all only_clear all reject\n\
                     hostnossl all with_certificate all reject\n\
                     hostssl all with_certificate all scram-sha-256 clientcert=verify-ca\n";
        std::fs::write(&hba, format!("{rules}{before}")).unwrap();
        for file in [&certificate, &key, &data.join("clients.crt").display().to_string()] {
            let owner = format!("--reference={}", hba.display());
            assert!(Command::new("chown").args([&owner, file]).status().unwrap().success());
        }
        for role in ["only_tls", "only_clear", "with_certificate"] {
            admin.run(&format!("CREATE ROLE {role} LOGIN PASSWORD '{}'", password_of(role)));
        }
        admin.run("ALTER SYSTEM SET ssl_ca_file = 'clients.crt'");
        admin.run("ALTER SYSTEM SET ssl = on");
        admin.run("SELECT pg_reload_conf()");
        super::poll("the primary to take TLS", || {
            (primary().admin("postgres").value("SHOW ssl").unwrap() == "on").then_some(())
        });
        ca
    })
}

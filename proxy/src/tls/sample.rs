//! A CA for unit tests, and both ends of TLS under it.

use pgrouting_contract::tls::{ClientTlsConfig, ClientTlsMode, ServerTlsConfig, ServerTlsMode};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::ServerName;

use crate::tls::channel::Channel;
use crate::tls::clients::ClientTls;
use crate::tls::servers::ServerTls;

/// The CA and a certificate for `db` with its key, each in PEM form.
#[must_use]
pub fn texts() -> [Vec<u8>; 3] {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["db".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    [ca.pem(), certificate.pem(), key.serialize_pem()].map(String::into_bytes)
}

/// The client's end and the server's, with nothing sent yet.
#[must_use]
pub fn ends() -> (Channel, Channel) {
    let [ca, certificate, key] = texts();
    let file = || Some("/file".to_owned());
    let accepting = ClientTlsConfig {
        mode: ClientTlsMode::Require,
        certificate_file: file(),
        key_file: file(),
        ..ClientTlsConfig::default()
    };
    let accepting = ClientTls::new(&accepting, &[certificate, key]).unwrap();
    let connecting =
        ServerTlsConfig { mode: ServerTlsMode::VerifyFull, ca_file: file(), ..ServerTlsConfig::default() };
    let connecting = ServerTls::new(&connecting, &[ca]).unwrap();
    let name = ServerName::try_from("db").unwrap();
    (
        Channel::connect(connecting.config.clone(), name).unwrap(),
        Channel::accept(accepting.config.clone()).unwrap(),
    )
}

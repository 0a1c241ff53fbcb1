//! A proxy's admin API at the other end of a stream, with certificates as the operator makes them.

use std::convert::Infallible;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::io::DuplexStream;
use tokio_rustls::TlsAcceptor;

use super::*;

/// A CA that signs for both ends.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// A certificate and its key.
    fn sign(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// The admin Secret, as far as it is read.
    fn secret(&self) -> v1::Secret {
        let (certificate, key) = self.sign("pgrouting-operator", ExtendedKeyUsagePurpose::ClientAuth);
        let values = [
            (CA_CERTIFICATE, self.certificate.clone()),
            (CLIENT_CERTIFICATE, certificate),
            (CLIENT_KEY, key),
        ];
        let data = values.map(|(name, value)| (name.to_owned(), ByteString(value.into_bytes())));
        v1::Secret { data: Some(data.into()), ..v1::Secret::default() }
    }

    /// Answers one question with its path and body, or with 503 where the path is `/away`.
    fn serve(&self) -> DuplexStream {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let (certificate, key) = self.sign(PROXY_SERVER_NAME, ExtendedKeyUsagePurpose::ServerAuth);
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap();
        let (near, far) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            let Ok(tls) = TlsAcceptor::from(Arc::new(config)).accept(far).await else { return };
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(tls), service_fn(echo));
            let _ = connection.await;
        });
        near
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let status = if parts.uri.path() == "/away" { 503 } else { 200 };
    let text = format!("{} {} {}\n", parts.method, parts.uri, String::from_utf8_lossy(&body));
    Ok(Response::builder().status(status).body(Full::new(text.into())).unwrap())
}

#[tokio::test]
async fn question_is_answered_over_mutual_tls() {
    let authority = Authority::new();
    let connector = connector(&authority.secret(), "shop-admin").unwrap();
    for (question, expected) in [
        (Question::Get("/report"), "GET /report \n"),
        (Question::Post("/route/explain", Bytes::from_static(b"{}")), "POST /route/explain {}\n"),
    ] {
        assert_eq!(talk(&connector, authority.serve(), &question).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn an_answer_that_is_none_is_an_error() {
    let authority = Authority::new();
    let connector = connector(&authority.secret(), "shop-admin").unwrap();
    let error = talk(&connector, authority.serve(), &Question::Get("/away")).await.unwrap_err();
    assert_eq!(error.to_string(), "the admin API answers 503 Service Unavailable: GET /away");
}

#[tokio::test]
async fn a_proxy_of_another_authority_is_refused() {
    let connector = connector(&Authority::new().secret(), "shop-admin").unwrap();
    let error = talk(&connector, Authority::new().serve(), &Question::Get("/report")).await.unwrap_err();
    assert!(matches!(error, ProxyError::Tls(_)), "{error}");
}

#[test]
fn a_secret_without_a_key_is_named() {
    let mut secret = Authority::new().secret();
    secret.data.as_mut().unwrap().remove(CLIENT_KEY);
    let error = connector(&secret, "shop-admin").map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "Secret shop-admin has no client.key");
}

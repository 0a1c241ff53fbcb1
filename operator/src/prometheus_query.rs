//! Asks a Prometheus for one number: what gates that measure from outside are judged by.
//!
//! Plain HTTP, as a Prometheus in the cluster is usually reached. Safe to cancel: an answer that does not come in time is
//! none.

use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

use crate::rollout::stand::ExternalValue;

/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// Where a Prometheus is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusUrl {
    host: String,
    port: u16,
    path: String,
}

/// Why a URL is none that can be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be http://host[:port][/path]: {0}")]
pub struct UrlError(String);

impl std::str::FromStr for PrometheusUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|error| UrlError(format!("{text:?} does not read: {error}")))?;
        if uri.scheme_str() != Some("http") {
            return Err(UrlError(format!("{text:?} is not http")));
        }
        let host = uri.host().ok_or_else(|| UrlError(format!("{text:?} names no host")))?;
        Ok(Self {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(80),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

#[derive(Debug, Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Debug, Deserialize)]
struct Data {
    #[serde(rename = "resultType")]
    kind: String,
    result: serde_json::Value,
}

impl PrometheusUrl {
    /// The number that an instant query gives now.
    pub async fn ask(&self, query: &str) -> ExternalValue {
        match tokio::time::timeout(TIMEOUT, self.fetch(query)).await {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => ExternalValue::Failed(format!("the Prometheus at {}: {error}", self.host)),
            Err(_) => {
                ExternalValue::Failed(format!("the Prometheus at {} does not answer in time", self.host))
            }
        }
    }

    async fn fetch(&self, query: &str) -> Result<ExternalValue, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let tcp = TcpStream::connect((host, self.port)).await.map_err(|error| text(&error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await.map_err(|error| text(&error))?;
        let request = Request::builder()
            .uri(format!("{}/api/v1/query?query={}", self.path, encoded(query)))
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .body(Empty::<Bytes>::new())
            .map_err(|error| text(&error))?;
        let answered = async {
            let response = sender.send_request(request).await.map_err(|error| text(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            Ok::<_, String>((status, body.map_err(|error| error.to_string())?.to_bytes()))
        };
        let (status, body) = match futures::future::select(std::pin::pin!(answered), connection).await {
            futures::future::Either::Left((answered, _)) => answered?,
            futures::future::Either::Right((_, answered)) => answered.await?,
        };
        read(status, &body)
    }
}

fn read(status: StatusCode, body: &[u8]) -> Result<ExternalValue, String> {
    let answer: Answer = serde_json::from_slice(body).map_err(|_| format!("answers {status}"))?;
    if answer.status != "success" {
        return Err(answer.error);
    }
    let data = answer.data.ok_or_else(|| "its answer has no data".to_owned())?;
    let value = match (data.kind.as_str(), data.result.as_array()) {
        ("scalar", Some(pair)) => pair.get(1).cloned(),
        ("vector", Some(series)) => match series.as_slice() {
            [] => return Ok(ExternalValue::Nothing("the query gives no value".to_owned())),
            [one] => one.get("value").and_then(|pair| pair.get(1)).cloned(),
            several => {
                let count = several.len();
                return Ok(ExternalValue::Nothing(format!(
                    "the query gives {count} values, not one: sum them"
                )));
            }
        },
        (kind, _) => return Ok(ExternalValue::Nothing(format!("the query gives a {kind}, not a number"))),
    };
    let number = value.as_ref().and_then(serde_json::Value::as_str).and_then(|text| text.parse::<f64>().ok());
    Ok(match number {
        Some(number) if number.is_finite() => ExternalValue::Number(number),
        Some(_) | None => ExternalValue::Nothing("the query gives no finite number".to_owned()),
    })
}

/// A query as it stands in a URL.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_one_number_or_none() {
        let read = |body: &str| read(StatusCode::OK, body.as_bytes());
        let vector = |result: &str| {
            read(&format!(r#"{{"status":"success","data":{{"resultType":"vector","result":{result}}}}}"#))
                .unwrap()
        };
        assert_eq!(vector(r#"[{"metric":{},"value":[1,"0.5"]}]"#), ExternalValue::Number(0.5));
        for nothing in ["[]", r#"[{"value":[1,"1"]},{"value":[1,"2"]}]"#, r#"[{"value":[1,"NaN"]}]"#] {
            assert!(matches!(vector(nothing), ExternalValue::Nothing(_)), "{nothing}");
        }
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"-3"]}}"#;
        assert_eq!(read(scalar), Ok(ExternalValue::Number(-3.0)));
        let error = r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#;
        assert_eq!(read(error), Err("parse error".to_owned()));
        assert!(read("<html>").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn prometheus_that_hangs_or_breaks_off_gives_an_error_in_time() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: PrometheusUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        // The kernel accepts, and nobody ever answers.
        let hung = ExternalValue::Failed("the Prometheus at 127.0.0.1 does not answer in time".to_owned());
        assert_eq!(url.ask("up").await, hung);
        let broken = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        for _ in 0..2 {
            assert!(matches!(url.ask("up").await, ExternalValue::Failed(_)));
        }
        broken.abort();
    }

    #[test]
    fn url_must_be_one_that_can_be_asked() {
        let url: PrometheusUrl = "http://prometheus.monitoring:9090/prom/".parse().unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.path.as_str()),
            ("prometheus.monitoring", 9090, "/prom")
        );
        for text in ["https://p", "p:9090", "ftp://p", ""] {
            assert!(text.parse::<PrometheusUrl>().is_err(), "{text}");
        }
        assert_eq!(encoded("sum(a{b=\"c\"})"), "sum%28a%7Bb%3D%22c%22%7D%29");
    }
}

//! Whether the installed CustomResourceDefinition has everything that this operator acts on.
//!
//! `helm upgrade` may leave an old one, and the API server then drops new fields without a word.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use pgrouting_crds::definition::missing_parts;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::resolve::API_TIMEOUT;

const NAME: &str = "pgroutingpools.pgrouting.dev";
/// How often it is looked at while something is missing, or could not be looked at.
const BAD_PERIOD: Duration = Duration::from_secs(30);
/// How often else.
const GOOD_PERIOD: Duration = Duration::from_secs(600);

/// Tells `missing` what the installed definition lacks, until `stop`.
pub async fn compare(client: Client, missing: watch::Sender<Vec<String>>, stop: CancellationToken) {
    loop {
        let may_wait = match look(&client).await {
            Ok(now) => {
                let is_good = now.is_empty();
                missing.send_if_modified(|known| {
                    let is_new = *known != now;
                    if is_new && !is_good {
                        tracing::error!(missing = now.join(", "), "the installed definition is too old");
                    }
                    *known = now;
                    is_new
                });
                is_good
            }
            // Whoever leaves the right out, as the chart's rbac.clusterWide=false does, has said so once and for all.
            Err(LookError::Forbidden) => {
                tracing::warn!(
                    "may not read the installed definition: it is not compared with this operator's"
                );
                true
            }
            Err(LookError::Other(error)) => {
                tracing::warn!(error, "cannot compare the installed definition with this operator's");
                false
            }
        };
        // Both arms are cancel-safe.
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(if may_wait { GOOD_PERIOD } else { BAD_PERIOD }) => {}
        }
    }
}

/// Why the installed definition was not looked at.
enum LookError {
    Forbidden,
    Other(String),
}

async fn look(client: &Client) -> Result<Vec<String>, LookError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let installed = tokio::time::timeout(API_TIMEOUT, api.get(NAME))
        .await
        .map_err(|_| LookError::Other("no answer in time".to_owned()))?
        .map_err(|error| match error {
            kube::Error::Api(answer) if answer.code == 403 => LookError::Forbidden,
            other => LookError::Other(other.to_string()),
        })?;
    let installed = serde_json::to_value(installed).map_err(|error| LookError::Other(error.to_string()))?;
    missing_parts(&installed).map_err(|error| LookError::Other(error.to_string()))
}

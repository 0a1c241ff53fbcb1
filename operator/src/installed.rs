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
        let is_good = match look(&client).await {
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
            Err(error) => {
                tracing::warn!(error, "cannot compare the installed definition with this operator's");
                false
            }
        };
        // Both arms are cancel-safe.
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(if is_good { GOOD_PERIOD } else { BAD_PERIOD }) => {}
        }
    }
}

async fn look(client: &Client) -> Result<Vec<String>, String> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let installed = tokio::time::timeout(API_TIMEOUT, api.get(NAME))
        .await
        .map_err(|_| "no answer in time".to_owned())?
        .map_err(|error| error.to_string())?;
    let installed = serde_json::to_value(installed).map_err(|error| error.to_string())?;
    missing_parts(&installed).map_err(|error| error.to_string())
}

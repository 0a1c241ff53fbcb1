//! The API server: reads pools, and changes their specs.

use std::error::Error;
use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use pgrouting_crds::spec::PgRoutingPool;

use crate::decide::Decision;
use crate::names::FIELD_MANAGER;
use crate::settings::Target;

/// The longest wait for an answer of the API server.
pub const API_TIMEOUT: Duration = Duration::from_secs(15);
/// How many times a change is decided anew when the pool has changed meanwhile.
const TRIES: usize = 5;

/// Why the API server did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// It is not known where it is.
    #[error("cannot find the API server: {0}")]
    Config(String),
    /// There is no such pool.
    #[error("there is no PgRoutingPool {name} in namespace {namespace}")]
    NoPool {
        /// Where.
        namespace: String,
        /// What.
        name: String,
    },
    /// The kind is not known.
    #[error("this cluster does not know PgRoutingPool: install the operator's chart first")]
    NoKind,
    /// It must not be done.
    #[error("you may not {what}: {why}")]
    Forbidden {
        /// What.
        what: String,
        /// In the API server's words.
        why: String,
    },
    /// The pool changes all the time.
    #[error("pool {0} was changed by somebody else at the same time: try again")]
    Changed(String),
    /// It does not read.
    #[error("cannot {what}: the answer does not read: {why}; is this program as new as the operator?")]
    Decode {
        /// What was asked for.
        what: String,
        /// Why.
        why: String,
    },
    /// Anything else.
    #[error("cannot {what}: {why}")]
    Other {
        /// What was asked for.
        what: String,
        /// Why.
        why: String,
    },
}

/// Why a pool was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The API server did not do it.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// It should not be.
    #[error("{0}")]
    Refused(String),
}

/// One namespace of a cluster.
#[derive(Clone)]
pub struct Cluster {
    /// The connection.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
}

impl Cluster {
    /// The one that the command line or the kubeconfig names.
    ///
    /// # Errors
    /// When there is no kubeconfig that reads.
    pub async fn find(target: &Target) -> Result<Self, ClusterError> {
        let fault = |error: &dyn Error| ClusterError::Config(chain(error));
        let options = KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
        let mut config = match (&target.kubeconfig, &target.context) {
            (Some(path), _) => {
                let file = Kubeconfig::read_from(path).map_err(|error| fault(&error))?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(|error| fault(&error))?
            }
            (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|error| fault(&error))?,
            (None, None) => Config::infer().await.map_err(|error| fault(&error))?,
        };
        // Whoever waits at a terminal can try again.
        config.default_retry = false;
        let namespace = target.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| fault(&error))?;
        Ok(Self { client, namespace })
    }

    /// A pool.
    ///
    /// # Errors
    /// When there is none, or the API server does not give it.
    pub async fn pool(&self, name: &str) -> Result<PgRoutingPool, ClusterError> {
        answer(&format!("read pool {name}"), self.api().get(name))
            .await
            .map_err(|error| self.missing(error, name))
    }

    /// All pools of the namespace.
    ///
    /// # Errors
    /// When the API server does not give them.
    pub async fn pools(&self) -> Result<Vec<PgRoutingPool>, ClusterError> {
        self.list(&self.api()).await
    }

    /// All pools of all namespaces.
    ///
    /// # Errors
    /// When the API server does not give them.
    pub async fn pools_everywhere(&self) -> Result<Vec<PgRoutingPool>, ClusterError> {
        self.list(&Api::all(self.client.clone())).await
    }

    async fn list(&self, api: &Api<PgRoutingPool>) -> Result<Vec<PgRoutingPool>, ClusterError> {
        let params = ListParams::default();
        Ok(answer("list pools", api.list(&params)).await.map_err(|error| self.missing(error, ""))?.items)
    }

    /// Changes a pool as is decided on what it is, anew when somebody else has changed it meanwhile. Gives what to say.
    ///
    /// # Errors
    /// When it should not be changed, or the API server does not change it.
    pub async fn change(
        &self,
        name: &str,
        decide: impl Fn(&PgRoutingPool) -> Decision,
    ) -> Result<String, ChangeError> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let api = self.api();
        for _ in 0..TRIES {
            let pool = self.pool(name).await?;
            let change = decide(&pool).map_err(ChangeError::Refused)?;
            let patch = Patch::Merge(change.fields.patch(&pool));
            match answer(&format!("change pool {name}"), api.patch(name, &params, &patch)).await {
                Ok(_) => return Ok(change.text),
                Err(Fault::Status { code: 409, .. }) => {}
                Err(fault) => return Err(self.missing(fault, name).into()),
            }
        }
        Err(ClusterError::Changed(name.to_owned()).into())
    }

    fn api(&self) -> Api<PgRoutingPool> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// What a fault means where a pool was asked for.
    fn missing(&self, fault: Fault, name: &str) -> ClusterError {
        match fault {
            Fault::Status { code: 404, is_of_object: true, .. } => {
                ClusterError::NoPool { namespace: self.namespace.clone(), name: name.to_owned() }
            }
            Fault::Status { code: 404, is_of_object: false, .. } => ClusterError::NoKind,
            fault => fault.into(),
        }
    }
}

/// What the API server said instead of an answer.
#[derive(Debug)]
pub enum Fault {
    /// No.
    Status {
        /// What was asked for.
        what: String,
        /// The HTTP status.
        code: u16,
        /// Whether it is about an object with a name.
        is_of_object: bool,
        /// Its words.
        message: String,
    },
    /// What does not read.
    Decode {
        /// What was asked for.
        what: String,
        /// Why.
        why: String,
    },
    /// Nothing.
    Silence {
        /// What was asked for.
        what: String,
        /// Why.
        why: String,
    },
}

impl From<Fault> for ClusterError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Status { what, code: 401, message, .. } => {
                Self::Other { what, why: format!("the API server does not know you: {message}") }
            }
            Fault::Status { what, code: 403, message, .. } => Self::Forbidden { what, why: message },
            Fault::Status { what, message, .. } => Self::Other { what, why: message },
            Fault::Decode { what, why } => Self::Decode { what, why },
            Fault::Silence { what, why } => Self::Other { what, why },
        }
    }
}

/// Waits for an answer of the API server. `what` completes "cannot".
///
/// # Errors
/// When it says no, or nothing.
pub async fn answer<T>(what: &str, asked: impl Future<Output = kube::Result<T>>) -> Result<T, Fault> {
    let what = what.to_owned();
    match tokio::time::timeout(API_TIMEOUT, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(Fault::Status {
            what,
            code: status.code,
            is_of_object: status.details.as_ref().is_some_and(|details| !details.name.is_empty()),
            message: status.message.clone(),
        }),
        Ok(Err(kube::Error::SerdeError(error))) => Err(Fault::Decode { what, why: error.to_string() }),
        Ok(Err(kube::Error::Service(error))) => {
            let why = format!("the API server cannot be reached: {}", chain(error.as_ref()));
            Err(Fault::Silence { what, why })
        }
        Ok(Err(error)) => Err(Fault::Silence { what, why: chain(&error) }),
        Err(_) => Err(Fault::Silence { what, why: "the API server does not answer in time".to_owned() }),
    }
}

/// An error and what caused it, each said once.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;

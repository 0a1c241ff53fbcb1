//! The proxies of a pool as they were found, and what they said.

use k8s_openapi::api::core::v1;
use pgrouting_contract::report::ProxyReport;

/// A proxy's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// What it does.
    pub state: PodState,
}

/// What a pod does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodState {
    /// It serves.
    Ready,
    /// It runs and does not serve.
    NotReady,
    /// It runs until its clients have left.
    Ending,
    /// It has not begun to run, or does not run any more.
    Away,
}

impl PodState {
    /// The word in tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "yes",
            Self::NotReady => "no",
            Self::Ending => "ending",
            Self::Away => "not running",
        }
    }
}

impl Pod {
    /// What the API server says of it.
    #[must_use]
    pub fn of(pod: &v1::Pod) -> Self {
        let status = pod.status.as_ref();
        let is_running = status.and_then(|status| status.phase.as_deref()) == Some("Running");
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let is_ready =
            conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let state = match (is_running, pod.metadata.deletion_timestamp.is_some(), is_ready) {
            (false, ..) => PodState::Away,
            (true, true, _) => PodState::Ending,
            (true, false, true) => PodState::Ready,
            (true, false, false) => PodState::NotReady,
        };
        Self { name: pod.metadata.name.clone().unwrap_or_default(), state }
    }
}

/// What a pod said, or why it said nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAnswer<T> {
    /// The pod.
    pub pod: Pod,
    /// What it said.
    pub answer: Result<T, String>,
}

impl<T> PodAnswer<T> {
    /// The answer read in another way, where there is one.
    #[must_use]
    pub fn read<U>(self, read: impl FnOnce(T) -> Result<U, String>) -> PodAnswer<U> {
        PodAnswer { pod: self.pod, answer: self.answer.and_then(read) }
    }
}

/// What all pods said, or why none could be asked.
pub type Reports = Result<Vec<PodAnswer<ProxyReport>>, String>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_what_the_api_server_says() {
        for (phase, ready, deleted, state) in [
            ("Running", "True", false, PodState::Ready),
            ("Running", "False", false, PodState::NotReady),
            ("Running", "True", true, PodState::Ending),
            ("Pending", "False", false, PodState::Away),
            ("Failed", "False", false, PodState::Away),
        ] {
            let mut pod = serde_json::json!({
                "metadata": {"name": "shop-proxy-1"},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
            });
            if deleted {
                pod["metadata"]["deletionTimestamp"] = "2026-05-01T12:00:00Z".into();
            }
            let pod: v1::Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(Pod::of(&pod), Pod { name: "shop-proxy-1".to_owned(), state }, "{phase} {ready}");
        }
    }
}

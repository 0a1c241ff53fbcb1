//! pgbench in a pod that knows nothing but names.

use anyhow::Result;
use serde_json::json;

use crate::story::Story;

/// Runs a script of the shell, with pgbench at hand and the story's login in its environment, and returns what it printed.
///
/// # Errors
/// When it fails or does not end in time, after its log has been printed.
#[expect(clippy::print_stdout, reason = "a story prints its figures")]
pub async fn pgbench(story: &Story, pod: &str, script: &str, seconds: u64) -> Result<String> {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "pgbench", "image": "localhost/postgres:15", "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/bash", "-c", script],
                "env": [
                    {"name": "PGUSER", "value": story.login.user},
                    {"name": "PGPASSWORD", "value": story.login.password},
                    {"name": "PGDATABASE", "value": story.login.user},
                ],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    story.apply(&manifest.to_string()).await?;
    let namespace = story.namespace.as_str();
    let (pod, timeout) = (format!("pod/{pod}"), format!("--timeout={seconds}s"));
    let wait = ["-n", namespace, "wait", &pod, "--for=jsonpath={.status.phase}=Succeeded", &timeout];
    let ended = story.cluster.kubectl(&wait).await;
    let log = story.cluster.kubectl(&["-n", namespace, "logs", &pod]).await?;
    println!("{log}");
    ended?;
    Ok(log)
}

/// How many runs of pgbench a log tells of in which no transaction failed.
#[must_use]
pub fn clean_runs(log: &str) -> usize {
    log.matches("number of failed transactions: 0 (0.000%)").count()
}

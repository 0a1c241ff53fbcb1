//! Story: bad edits of the spec are refused, or said to be bad in a condition, and traffic goes on.

use anyhow::Result;
use pgrouting_crds::status::ConditionStatus::{False, True};
use pgrouting_e2e::load::Load;
use pgrouting_e2e::story::{Story, servers_named};
use serde_json::json;

/// Case 229: each value that makes no sense.
#[tokio::test]
async fn bad_edit_is_explained_and_traffic_goes_on() -> Result<()> {
    let story = Story::begin("bad-edit").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({})).await?;
    let load = Load::start(&story.postgres, &story.login, &pool.address("").await?, 4).await?;

    let hash = pool.config().await?.hash;
    for (edit, expected) in [
        (json!({"rollout": {"stage": "Everything"}}), "spec.rollout.stage"),
        (
            json!({"split": {"primaryFunctions": ["f", "g"], "readFunctions": ["g"]}}),
            "leave it in one of the two",
        ),
        (json!({"split": {"catalogInterval": "10ms"}}), "catalogInterval must be at least 100ms"),
        (json!({"split": {"consistency": "Bounded"}}), "consistency Bounded needs maxStaleness"),
        (json!({"split": {"maxStaleness": "1ms"}}), "maxStaleness must be at least 50ms"),
        (json!({"split": {"ejectLag": "1ms"}}), "ejectLag must be at least 100ms"),
        (json!({"split": {"maxPercent": 101}}), "spec.split.maxPercent"),
        (json!({"rollout": {"stage": "Mirror"}}), "stage Mirror needs spec.mirror"),
        (json!({"rollout": {"mode": "StepApproval"}}), "mode StepApproval needs approvedStep"),
        (json!({"rollout": {"evaluationPeriod": "1s"}}), "evaluationPeriod must be at least 5s"),
        (
            json!({"rollout": {"splitSteps": [{"percent": 50, "soak": "1m"}, {"percent": 10, "soak": "1m"}]}}),
            "splitSteps must be in the order of percent",
        ),
        (
            json!({"rollout": {"mirrorSteps": [{"percent": 50, "soak": "1m"}, {"percent": 10, "soak": "1m"}]}}),
            "mirrorSteps must be in the order of percent",
        ),
        (
            json!({"rollout": {"splitSteps": [{"percent": 10, "soak": "1m"}, {"percent": 10, "soak": "2m"}]}}),
            "Duplicate value",
        ),
        (json!({"rollout": {"splitSteps": []}}), "spec.rollout.splitSteps"),
        (
            json!({"rollout": {"gates": {"replicaLag": {"mode": "Sometimes"}}}}),
            "spec.rollout.gates.replicaLag.mode",
        ),
        (
            json!({"rollout": {"gates": {"external": [{"name": "cpu", "query": "up"}]}}}),
            "give max, min or both",
        ),
        (
            json!({"mirror": {"target": {"host": "pg-a"}}}),
            "the mirror must be another database than the pool's own",
        ),
        (json!({"mirror": {"target": {"host": "m"}, "maxPercent": 101}}), "spec.mirror.maxPercent"),
        (
            json!({"mirror": {"target": {"host": "m"}, "queueBytes": 9, "budgetBytes": 8}}),
            "queueBytes must be at most budgetBytes",
        ),
        (
            json!({"mirror": {"target": {"host": "m"}, "transactionTimeout": "1ms"}}),
            "transactionTimeout must be at least 10ms",
        ),
        (json!({"pooling": {"checkoutTimeout": "1d"}}), "spec.pooling.checkoutTimeout"),
        (json!({"pooling": {"maxServerConnections": 0}}), "spec.pooling.maxServerConnections"),
        (json!({"pooling": {"maxServerConnections": -1}}), "spec.pooling.maxServerConnections"),
        (json!({"pooling": {"mode": "Statement"}}), "spec.pooling.mode"),
        (json!({"pooling": {"traffic": "Halted"}}), "spec.pooling.traffic"),
        (json!({"split": {"ejectLag": "-5s"}}), "spec.split.ejectLag"),
        (json!({"service": {"port": 70000}}), "spec.service.port"),
        (json!({"service": {"loadBalancerClass": "x"}}), "loadBalancerClass needs type LoadBalancer"),
        (json!({"service": {"externalTrafficPolicy": "Local"}}), "externalTrafficPolicy needs type NodePort"),
        (json!({"backends": {"static": {"servers": [{"name": "a", "host": ""}]}}}), "servers[0].host"),
        (
            json!({"backends": {"static": {"servers": [{"name": "a", "host": "a", "port": 70000}]}}}),
            "servers[0].port",
        ),
        (json!({"backends": {"type": "Services"}}), "set exactly the member that type names"),
        (json!({"backends": {"type": "Dns"}}), "set exactly the member that type names"),
        (json!({"backends": {"static": {"servers": servers_named(&["pg-a", "pg-a"])}}}), "Duplicate value"),
        (json!({"tls": {"client": "Require"}}), "client TLS needs a certificate"),
        (json!({"tls": {"clientCa": {"name": "ca"}}}), "clientCa asks clients for certificates"),
        (json!({"tls": {"server": "VerifyFull"}}), "VerifyCa and VerifyFull need serverCa"),
        (json!({"tls": {"server": "Require", "serverCa": {"name": "ca"}}}), "serverCa is not looked at"),
        (
            json!({"mirror": {"target": {"host": "m"}, "tls": {"server": "VerifyCa"}}}),
            "VerifyCa and VerifyFull need serverCa",
        ),
        (json!({"auth": {"users": null}}), "UserList needs auth.users"),
        (json!({"auth": {"type": "Query"}}), "Query needs auth.query"),
        (
            json!({"auth": {"type": "Query", "query": {"credentialsSecret": {"name": "app"}, "sql": "SELECT 1"}}}),
            "sql must have the user's name as $1",
        ),
    ] {
        let error = pool.patch(edit.clone()).await.expect_err(&edit.to_string());
        let text = format!("{error:#}");
        assert!(text.contains(expected), "{edit}: {text}");
    }
    assert_eq!(pool.config().await?.hash, hash, "the document is the one of before");
    // Case 221: what the definition cannot compare, the document's rules do.
    let twice = json!([{"name": "pg-a", "host": "pg-a"}, {"name": "pg-z", "host": "PG-A."}]);
    pool.patch(json!({"backends": {"static": {"servers": twice}}})).await?;
    let condition = pool.wait_for("ConfigAccepted", False, 30).await?;
    println!("ConfigAccepted=False: {}: {}", condition.reason, condition.message);
    assert!(condition.message.contains("as pg-a and as pg-z"), "{}", condition.message);
    assert_eq!(pool.config().await?.hash, hash, "the last good one stays in use");
    pool.patch(json!({"backends": {"static": {"servers": servers_named(&["pg-a", "pg-b"])}}})).await?;
    pool.wait_for("ConfigAccepted", True, 30).await?;

    // What only the operator can know: a Secret that is not there.
    pool.patch(json!({"auth": {"users": [{"name": "no-such-secret"}]}})).await?;
    let condition = pool.wait_for("CredentialsValid", False, 30).await?;
    println!("CredentialsValid=False: {}: {}", condition.reason, condition.message);
    assert_eq!(condition.reason, "SecretNotFound");
    assert!(condition.message.contains("no-such-secret"), "{}", condition.message);
    pool.patch(json!({"auth": {"users": [{"name": "app"}]}})).await?;
    pool.wait_for("CredentialsValid", True, 30).await?;

    // That of a mirror keeps no one out, and the stage stays as it was.
    let mirror = json!({"target": {"host": "m"}, "credentialsSecret": {"name": "no-such-mirror"}});
    pool.patch(json!({"mirror": mirror, "rollout": {"stage": "Mirror"}})).await?;
    let condition = pool.wait_for("CredentialsValid", False, 30).await?;
    assert!(condition.message.contains("no-such-mirror"), "{}", condition.message);
    let condition = pool.wait_for_reason("MirrorHealthy", "ConfigNotApplied", 30).await?;
    println!("MirrorHealthy={}: {}", condition.status.as_str(), condition.message);
    pool.wait_for("Ready", True, 30).await?;
    pool.patch(json!({"mirror": null, "rollout": {"stage": "PoolingOnly"}})).await?;
    pool.wait_for("CredentialsValid", True, 30).await?;

    // What only the document's rules know: a setting that is none.
    pool.patch(json!({"pooling": {"parameters": {"no name": "1"}}})).await?;
    let condition = pool.wait_for("ConfigAccepted", False, 30).await?;
    println!("ConfigAccepted=False: {}: {}", condition.reason, condition.message);
    assert!(condition.message.contains("no name"), "{}", condition.message);
    pool.patch(json!({"pooling": {"parameters": null}})).await?;
    pool.wait_for("ConfigAccepted", True, 30).await?;
    pool.wait_until_serving(30).await?;

    let figures = load.stop(&story.postgres, &story.login).await?;
    figures.expect_clean("bad edits")?;
    assert_eq!(figures.reconnects, 0, "a connection was broken");
    story.end().await
}

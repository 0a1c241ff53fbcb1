//! A mock API server: what is read and written, and what is said of its errors.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::decide::{Promotion, promote};

/// The answers in their order: a status and a body.
type Answers = Vec<(u16, Value)>;
/// What was sent: method, path with query, content type, body.
type Sent = Arc<Mutex<Vec<(String, String, String, Value)>>>;

fn cluster(answers: Answers) -> (Cluster, Sent) {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let sent = Sent::default();
    let log = sent.clone();
    tokio::spawn(async move {
        for (status, answer) in answers {
            let Some((request, send)) = handle.next_request().await else { return };
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await.unwrap();
            let kind = parts.headers.get("content-type").map_or("", |kind| kind.to_str().unwrap());
            log.lock().unwrap().push((
                parts.method.to_string(),
                parts.uri.to_string(),
                kind.to_owned(),
                serde_json::from_slice(&bytes).unwrap_or_default(),
            ));
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            send.send_response(Response::builder().status(status).body(body).unwrap());
        }
    });
    (Cluster { client: Client::new(service, "acme"), namespace: "acme".to_owned() }, sent)
}

fn pool(version: &str) -> (u16, Value) {
    let servers = json!([{"name": "pg-0", "host": "pg-0.pg"}]);
    let pool = json!({
        "apiVersion": "pgrouting.dev/v1alpha1",
        "kind": "PgRoutingPool",
        "metadata": {"name": "shop", "namespace": "acme", "resourceVersion": version},
        "spec": {"backends": {"type": "Static", "static": {"servers": servers}}},
    });
    (200, pool)
}

fn failure(code: u16, reason: &str, message: &str, name: &str) -> (u16, Value) {
    let body = json!({
        "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
        "details": {"name": name},
    });
    (code, body)
}

#[tokio::test]
async fn change_is_a_merge_patch_of_the_version_that_was_read() {
    let conflict = failure(409, "Conflict", "the object has been modified", "shop");
    let (cluster, sent) = cluster(vec![pool("7"), conflict, pool("8"), pool("9")]);

    let text = cluster.change("shop", |pool| promote(pool, Promotion::Next)).await.unwrap();

    assert!(text.starts_with("pool shop: stage Split is asked for"), "{text}");
    let sent = sent.lock().unwrap();
    let (method, path, kind, body) = &sent[3];
    assert_eq!(method, "PATCH");
    let expected =
        "/apis/pgrouting.dev/v1alpha1/namespaces/acme/pgroutingpools/shop?&fieldManager=kubectl-pgrp";
    assert_eq!(path, expected);
    assert_eq!(kind, "application/merge-patch+json");
    let expected = json!({"metadata": {"resourceVersion": "8"}, "spec": {"rollout": {"stage": "Split"}}});
    assert_eq!(*body, expected);
}

#[tokio::test]
async fn what_is_refused_is_not_written() {
    let (cluster, sent) = cluster(vec![pool("7")]);
    let error = cluster.change("shop", |pool| promote(pool, Promotion::Retry)).await.unwrap_err();
    assert_eq!(error.to_string(), "pool shop is not held, so that there is nothing to try again");
    assert_eq!(sent.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn errors_are_sentences() {
    let denied = r#"pgroutingpools.pgrouting.dev "shop" is forbidden: User "eve" cannot get it"#;
    for ((code, reason, message, name), expected) in [
        (
            (404, "NotFound", "pgroutingpools \"shop\" not found", "shop"),
            "there is no PgRoutingPool shop in namespace acme".to_owned(),
        ),
        (
            (404, "NotFound", "the server could not find the requested resource", ""),
            "this cluster does not know PgRoutingPool: install the operator's chart first".to_owned(),
        ),
        ((403, "Forbidden", denied, "shop"), format!("you may not read pool shop: {denied}")),
        (
            (401, "Unauthorized", "Unauthorized", ""),
            "cannot read pool shop: the API server does not know you: Unauthorized".to_owned(),
        ),
        ((500, "InternalError", "etcd is away", ""), "cannot read pool shop: etcd is away".to_owned()),
    ] {
        let (cluster, _) = cluster(vec![failure(code, reason, message, name)]);
        assert_eq!(cluster.pool("shop").await.unwrap_err().to_string(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn silence_ends_in_time() {
    let (service, _handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let cluster = Cluster { client: Client::new(service, "acme"), namespace: "acme".to_owned() };
    let error = cluster.pool("shop").await.unwrap_err();
    assert_eq!(error.to_string(), "cannot read pool shop: the API server does not answer in time");
}

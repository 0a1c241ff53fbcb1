//! A mock API server: what counts as a change, and how seldom one is asked that refuses.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{SMALL, pool};

/// Answers with a version, or a code of failure, that the test sets; counts the requests.
fn client(answer: Arc<Mutex<(Result<u32, u16>, u32)>>) -> Client {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((request, send)) = handle.next_request().await {
            let accept = request.headers()[http::header::ACCEPT].to_str().unwrap().to_owned();
            assert!(accept.contains("PartialObjectMetadata"), "no content is asked for: {accept}");
            let (code, body): (u16, Value) = {
                let mut answer = answer.lock().unwrap();
                answer.1 += 1;
                match answer.0 {
                    Ok(version) => (
                        200,
                        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                               "metadata": {"name": "app", "resourceVersion": version.to_string()}}),
                    ),
                    Err(code) => {
                        let reason = if code == 404 { "NotFound" } else { "Other" };
                        let body = json!({
                            "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "m",
                        });
                        (code, body)
                    }
                }
            };
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            send.send_response(Response::builder().status(code).body(body).unwrap());
        }
    });
    Client::new(service, "acme")
}

fn key() -> BTreeSet<Key> {
    let object = ObjectReference { kind: CaKind::Secret, name: "app".into() };
    BTreeSet::from([("acme".to_owned(), object)])
}

#[tokio::test]
async fn change_is_another_version_an_end_or_a_beginning() {
    let answer = Arc::new(Mutex::new((Ok(1), 0)));
    let client = client(answer.clone());
    let mut versions = Versions::default();
    for (says, is_change) in [
        (Ok(1), false),
        (Ok(1), false),
        (Ok(2), true),
        (Ok(2), false),
        (Err(404), true),
        (Err(404), false),
        // Nobody knows what is there meanwhile, and then it is something else.
        (Err(500), false),
        (Ok(3), true),
    ] {
        answer.lock().unwrap().0 = says;
        let changed = versions.look(&client, key()).await;
        assert_eq!(!changed.is_empty(), is_change, "{says:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_read_is_asked_for_once_a_minute() {
    let answer = Arc::new(Mutex::new((Err(403), 0)));
    let client = client(answer.clone());
    let mut versions = Versions::default();
    for _ in 0..10 {
        assert!(versions.look(&client, key()).await.is_empty());
        sleep(PERIOD).await;
    }
    assert_eq!(answer.lock().unwrap().1, 1);
    sleep(FORBIDDEN_PAUSE).await;
    versions.look(&client, key()).await;
    assert_eq!(answer.lock().unwrap().1, 2);
}

#[test]
fn pool_names_its_logins_and_its_files() {
    let pool = pool(&format!(
        "{SMALL}tls: {{client: Allow, certificateSecret: cert, serverCa: {{kind: ConfigMap, name: ca}}, server: VerifyCa}}"
    ));
    for (name, is_named) in
        [("app", true), ("cert", true), ("ca", true), ("ledger-users", false), ("", false)]
    {
        assert_eq!(names(&pool, name), is_named, "{name}");
    }
}

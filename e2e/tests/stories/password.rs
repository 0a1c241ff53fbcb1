//! Story: the password in the Secret is rotated.

use anyhow::Result;
use pgrouting_e2e::pool::restarts;
use pgrouting_e2e::postgres::{Login, connect};
use pgrouting_e2e::story::Story;
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;

/// Case 217: carried to every proxy, without a restart and without a broken connection.
#[tokio::test]
async fn new_logins_use_the_new_password_and_open_connections_live_on() -> Result<()> {
    let mut story = Story::begin("password").await?;
    let pool = story.pool("orders", &["pg-a", "pg-b"], json!({})).await?;
    let before = restarts(&pool.wait_for_pods(2, 60).await?);
    let address = pool.address("").await?;
    let user = story.login.user.clone();
    let open = connect(&address, 5432, &story.login, &user).await?;
    open.batch_execute("SET application_name = 'kept'").await?;

    story.postgres.change_password(&mut story.login, "second-password").await?;
    story.write_secret("app").await?;
    let began = Instant::now();

    // Each proxy is asked by its own address, so that none can hide behind another.
    let pods = pool.wait_for_pods(2, 30).await?;
    let addresses: Vec<_> = pods.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.clone()).collect();
    assert_eq!(addresses.len(), 2);
    for address in &addresses {
        until("a login works with the new password", Duration::from_secs(120), || async {
            connect(address, 5432, &story.login, &user).await?;
            Ok(Look::Done(()))
        })
        .await?;
        println!("{address} takes the rotated password after {} ms", began.elapsed().as_millis());
        let wrong = Login { password: "third-password".to_owned(), ..story.login.clone() };
        let refused = connect(address, 5432, &wrong, &user).await.err();
        let error = refused.as_ref().and_then(|error| error.downcast_ref::<tokio_postgres::Error>());
        assert_eq!(
            error.and_then(tokio_postgres::Error::code),
            Some(&SqlState::INVALID_PASSWORD),
            "{refused:?}"
        );
    }
    let row = open.query_one("SELECT current_setting('application_name')", &[]).await?;
    assert_eq!(row.get::<_, String>(0), "kept", "the open connection lives on with its settings");
    // New server connections are made with the new password too.
    let fresh = connect(&address, 5432, &story.login, &user).await?;
    fresh.batch_execute("BEGIN; SELECT 1").await?;
    open.batch_execute("BEGIN; SELECT 1; COMMIT").await?;
    fresh.batch_execute("COMMIT").await?;
    pool.wait_until_serving(30).await?;
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "nothing was restarted");
    story.end().await
}

//! Story: the further Services of a pool lead where their names say.

use anyhow::Result;
use pgrouting_e2e::postgres::connect_soon;
use pgrouting_e2e::story::Story;
use serde_json::json;
use tokio_postgres::error::SqlState;

#[tokio::test]
async fn primary_and_readonly_services_lead_where_they_say() -> Result<()> {
    let story = Story::begin("services").await?;
    let endpoints = json!({"service": {"port": 6432, "endpoints": ["Primary", "ReadOnly"]}});
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], endpoints).await?;

    for (suffix, is_replica) in [("", false), ("-primary", false), ("-readonly", true)] {
        let client =
            connect_soon(&pool.address(suffix).await?, 6432, &story.login, &story.login.user).await?;
        for _ in 0..5 {
            let row = client.query_one("SELECT pg_is_in_recovery()", &[]).await?;
            assert_eq!(row.get::<_, bool>(0), is_replica, "Service orders{suffix}");
        }
        let write = client.batch_execute("CREATE TABLE IF NOT EXISTS of_services (a int)").await;
        if is_replica {
            let code = write.expect_err("a standby takes no write").code().cloned();
            assert_eq!(code, Some(SqlState::READ_ONLY_SQL_TRANSACTION));
        } else {
            write?;
        }
    }
    story.end().await
}

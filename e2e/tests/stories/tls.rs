//! Story: TLS on both sides is switched on, demanded and renewed, and neither a pod nor a connection is lost.

use std::time::Duration;

use anyhow::{Result, ensure};
use pgrouting_crds::status::ConditionStatus::{False, True};
use pgrouting_e2e::pgbench::{clean_runs, pgbench};
use pgrouting_e2e::pool::restarts;
use pgrouting_e2e::postgres::connect;
use pgrouting_e2e::story::Story;
use pgrouting_e2e::tls::{Authority, connections, serve_clear, serve_tls, write_authority, write_identity};
use pgrouting_e2e::wait::{Look, until};
use serde_json::json;

#[tokio::test]
async fn tls_comes_to_a_running_pool_and_is_renewed_under_open_connections() -> Result<()> {
    let story = Story::begin("tls").await?;
    let (first, second, servers) =
        (Authority::new("first")?, Authority::new("second")?, Authority::new("servers")?);
    serve_tls(&story.postgres, &servers.identity(&["pg-a", "pg-b", "pg-c"])?).await?;
    let told = play(&story, &first, &second, &servers).await;
    serve_clear(&story.postgres).await?;
    told?;
    story.end().await
}

async fn play(story: &Story, first: &Authority, second: &Authority, servers: &Authority) -> Result<()> {
    let names = ["orders", "orders-primary"];
    write_identity(story, "orders-tls", &first.identity(&names)?).await?;
    write_authority(story, "pg-ca", servers).await?;
    let spec = json!({"tls": {"server": "Disabled"}, "rollout": {"stage": "Split"}});
    let pool = story.pool("orders", &["pg-a", "pg-b", "pg-c"], spec).await?;
    let before = restarts(&pool.wait_for_pods(2, 60).await?);
    let address = pool.address("").await?;
    let client = connect(&address, 5432, &story.login, &story.login.user).await?;
    client.batch_execute("SELECT 1").await?;
    let (encrypted, clear) = connections(story).await?;
    ensure!(encrypted == 0 && clear > 0, "{encrypted} by TLS, {clear} in clear");

    // On both sides at once, under an open connection.
    pool.patch(json!({"tls": {
        "client": "Allow", "certificateSecret": "orders-tls",
        "server": "VerifyFull", "serverCa": {"kind": "ConfigMap", "name": "pg-ca"},
    }}))
    .await?;
    pool.wait_for("ConfigApplied", True, 120).await?;
    let verified = psql(first, "verify-full");
    println!("{}", pgbench(story, "verified", &verified, 60).await?);
    pgbench(story, "clear", &psql(first, "disable"), 60).await?;
    client.batch_execute("SELECT 1").await?;
    let seen = until("the servers see TLS only", Duration::from_secs(60), || async {
        client.batch_execute("SELECT 1").await?;
        let (encrypted, clear) = connections(story).await?;
        let seen = format!("{encrypted} by TLS, {clear} in clear");
        Ok(if encrypted > 0 && clear == 0 { Look::Done(seen) } else { Look::NotYet(seen) })
    })
    .await?;
    println!("{seen}");

    // A Secret that is not there changes nothing.
    pool.patch(json!({"tls": {"client": "Require", "certificateSecret": "typo"}})).await?;
    let condition = pool.wait_for("CredentialsValid", False, 60).await?;
    println!("{}: {}", condition.reason, condition.message);
    ensure!(condition.message.contains("Secret typo does not exist"), "{}", condition.message);
    pgbench(story, "typo", &verified, 60).await?;
    pool.patch(json!({"tls": {"certificateSecret": "orders-tls"}})).await?;
    pool.wait_for("CredentialsValid", True, 60).await?;
    let refusal = until("who comes in clear is sent away", Duration::from_secs(60), || async {
        Ok(match connect(&address, 5432, &story.login, &story.login.user).await {
            Ok(_) => Look::NotYet("let in".to_owned()),
            Err(error) => Look::Done(format!("{error:#}")),
        })
    })
    .await?;
    println!("{refusal}");

    // The certificate is renewed while clients work, under another CA.
    write_identity(story, "orders-tls", &second.identity(&names)?).await?;
    let script = format!(
        "{}\n{}",
        preamble(&format!("{}{}", first.certificate, second.certificate), "verify-full"),
        r#"echo "SELECT 1" >/tmp/one.sql
pgbench -n -c 4 -T 20 -f /tmp/one.sql & load=$!
export PGSSLROOTCERT=/tmp/second.crt
for try in $(seq 200); do
  if psql -Atc "SELECT 'renewed'" 2>/dev/null; then break; fi
  sleep 0.5
done
wait $load && psql -Atc "SELECT 'of the new CA'""#
    );
    let script = format!("cat >/tmp/second.crt <<'EOF'\n{}EOF\n{script}", second.certificate);
    let log = pgbench(story, "renewed", &script, 180).await?;
    ensure!(clean_runs(&log) == 1 && log.contains("of the new CA"), "{log}");
    // The connection from before TLS lives on.
    client.batch_execute("SELECT 1").await?;
    assert_eq!(restarts(&pool.wait_for_pods(2, 30).await?), before, "nothing was restarted");
    Ok(())
}

/// Sets psql and pgbench up to trust certificates.
fn preamble(trusted: &str, mode: &str) -> String {
    format!(
        "set -e\ncat >/tmp/ca.crt <<'EOF'\n{trusted}EOF\nexport PGHOST=orders PGSSLROOTCERT=/tmp/ca.crt PGSSLMODE={mode}"
    )
}

/// Says how psql is connected.
fn psql(trusted: &Authority, mode: &str) -> String {
    format!("{}\npsql -c '\\conninfo' -c 'SELECT 1'", preamble(&trusted.certificate, mode))
}

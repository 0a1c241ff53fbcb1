//! A driver that knows nothing of the proxy: tokio-postgres, with its pipelines and cached statements.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use super::support::proxy::{Proxy, pool_of};
use super::support::server::Database;

#[tokio::test]
async fn prepared_statements_and_pipelines_work_on_a_shared_connection() {
    let (database, proxy) = pool();
    let clients = [connect(&proxy, &database).await, connect(&proxy, &database).await];
    clients[0].batch_execute("CREATE TABLE item(id int PRIMARY KEY, label text)").await.unwrap();
    let mut inserts = Vec::new();
    for client in &clients {
        inserts.push(client.prepare("INSERT INTO item VALUES ($1, $2) RETURNING id").await.unwrap());
    }
    for round in 0..5_i32 {
        for (number, (client, insert)) in (0_i32..).zip(clients.iter().zip(&inserts)) {
            let id = round * 2 + number;
            let label = format!("label {id}");
            let row = client.query_one(insert, &[&id, &label]).await.unwrap();
            assert_eq!(row.get::<_, i32>(0), id);
        }
    }
    // Five at once on one connection: the driver sends them without waiting.
    let select = clients[0].prepare("SELECT label FROM item WHERE id = $1").await.unwrap();
    let [a, b, c, d, e] = [0, 1, 2, 3, 4_i32];
    let select = &select;
    let clients = &clients;
    let ask = |id: i32| async move { clients[0].query_one(select, &[&id]).await };
    let (a, b, c, d, e) = tokio::join!(ask(a), ask(b), ask(c), ask(d), ask(e));
    for (id, row) in [a, b, c, d, e].into_iter().enumerate() {
        assert_eq!(row.unwrap().get::<_, String>(0), format!("label {id}"));
    }
    assert_eq!(database.backends().len(), 1);
}

#[tokio::test]
async fn a_dropped_transaction_rolls_back() {
    let (database, proxy) = pool();
    let mut client = connect(&proxy, &database).await;
    client.batch_execute("CREATE TABLE t(n int)").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
    drop(transaction);
    let other = connect(&proxy, &database).await;
    assert_eq!(other.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get::<_, i64>(0), 0);
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(other.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get::<_, i64>(0), 1);
}

#[tokio::test]
async fn the_drivers_cancel_token_works() {
    let (database, proxy) = pool();
    let client = connect(&proxy, &database).await;
    let token = client.cancel_token();
    let sleeping = async { client.batch_execute("SELECT pg_sleep(60)").await.unwrap_err() };
    let cancelling = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                       AND wait_event = 'PgSleep'";
        let watched = database.name.clone();
        tokio::task::spawn_blocking(move || {
            let mut admin = super::support::server::primary().admin(&watched);
            super::support::poll("the query to run", || admin.value(waiting).filter(|count| count == "1"));
        })
        .await
        .unwrap();
        token.cancel_query(NoTls).await.unwrap();
    };
    let (error, ()) = tokio::join!(sleeping, cancelling);
    assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
    assert_eq!(client.query_one("SELECT 1", &[]).await.unwrap().get::<_, i32>(0), 1);
}

async fn connect(proxy: &Proxy, database: &Database) -> Client {
    let config = format!(
        "host=127.0.0.1 port={} user=app password='app secret' dbname={} application_name=driver",
        proxy.port, database.name
    );
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    // It ends with the client.
    tokio::spawn(connection);
    client
}

fn pool() -> (Database, Proxy) {
    (Database::create(), Proxy::start(pool_of(1)))
}

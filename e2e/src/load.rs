//! A load that counts what a user would call a failure.
//!
//! Each client runs small transactions that write. The rules: a proxy may close a connection between two
//! transactions, with 57P01 or plainly, and the client connects again; everything else that goes wrong is a failure: an
//! error inside a transaction, a COMMIT without its answer, a connection that is refused, a committed row that is
//! missing afterwards or one that is there twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use crate::postgres::{Login, Postgres, connect};

/// A load under way. Ends with `stop`.
pub struct Load {
    clients: JoinSet<ClientFigures>,
    is_stopping: Arc<AtomicBool>,
    began: Instant,
}

/// What a load came to.
#[derive(Debug, Default)]
pub struct Figures {
    /// Transactions that were committed.
    pub committed: u64,
    /// Connections that ended between two transactions.
    pub reconnects: u64,
    /// What went wrong, in words.
    pub failures: Vec<String>,
    /// The longest time from one answered COMMIT of a client to its next.
    pub longest_gap: Duration,
    /// Committed transactions a second.
    pub per_second: f64,
}

#[derive(Debug, Default)]
struct ClientFigures {
    committed: u64,
    reconnects: u64,
    failures: Vec<String>,
    longest_gap: Duration,
}

impl Load {
    /// Makes the table and starts the clients. They connect to `host:port` as `login`, to its own database.
    ///
    /// # Errors
    /// When the table cannot be made.
    pub async fn start(postgres: &Postgres, login: &Login, host: &str, clients: i32) -> Result<Self> {
        let primary = postgres.direct(0, login).await?;
        primary
            .batch_execute("DROP TABLE IF EXISTS load; CREATE TABLE load (client int, number bigint)")
            .await?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let mut set = JoinSet::new();
        for client in 0..clients {
            set.spawn(run_client(client, host.to_owned(), login.clone(), Arc::clone(&is_stopping)));
        }
        Ok(Self { clients: set, is_stopping, began: Instant::now() })
    }

    /// Lets each client end its transaction, and checks the table against what was committed.
    ///
    /// # Errors
    /// When a client hangs or the primary does not answer.
    pub async fn stop(mut self, postgres: &Postgres, login: &Login) -> Result<Figures> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.is_stopping.store(true, Ordering::Relaxed);
        let mut figures = Figures::default();
        while !self.clients.is_empty() {
            let joined = tokio::time::timeout(Duration::from_secs(30), self.clients.join_next());
            let Some(joined) = joined.await.context("a client of the load hangs")? else { break };
            let client = joined?;
            figures.committed += client.committed;
            figures.reconnects += client.reconnects;
            figures.failures.extend(client.failures);
            figures.longest_gap = figures.longest_gap.max(client.longest_gap);
        }
        let primary = postgres.direct(0, login).await?;
        let row =
            primary.query_one("SELECT count(*), count(DISTINCT (client, number)) FROM load", &[]).await?;
        let (rows, distinct): (i64, i64) = (row.get(0), row.get(1));
        if u64::try_from(rows)? != figures.committed || rows != distinct {
            let committed = figures.committed;
            figures.failures.push(format!("{committed} committed, but {rows} rows, {distinct} distinct"));
        }
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let per_second = figures.committed as f64 / seconds;
        figures.per_second = per_second;
        Ok(figures)
    }
}

impl Figures {
    /// Prints the figures under a title, and fails when something went wrong.
    ///
    /// # Errors
    /// With the first failures.
    #[expect(clippy::print_stdout, reason = "a story prints its figures")]
    pub fn expect_clean(&self, title: &str) -> Result<()> {
        let Self { committed, reconnects, failures, longest_gap, per_second } = self;
        println!(
            "{title}: {committed} transactions committed ({per_second:.0}/s), {} failed, {reconnects} reconnects, \
             longest gap {} ms",
            failures.len(),
            longest_gap.as_millis()
        );
        let first: Vec<_> = failures.iter().take(5).collect();
        ensure!(failures.is_empty(), "{} failures: {first:#?}", failures.len());
        ensure!(*committed > 0, "the load committed nothing");
        Ok(())
    }
}

async fn run_client(client: i32, host: String, login: Login, is_stopping: Arc<AtomicBool>) -> ClientFigures {
    let mut figures = ClientFigures::default();
    let mut connection = None;
    let mut last_commit = Instant::now();
    let mut number = 0;
    while !is_stopping.load(Ordering::Relaxed) && figures.failures.len() < FAILURES_MAX {
        let open = match connection.take() {
            Some(open) => open,
            None => match connect(&host, 5432, &login, &login.user).await {
                Ok(open) => open,
                Err(error) => {
                    figures.failures.push(format!("client {client} cannot connect: {error:#}"));
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        number += 1;
        match transaction(&open, client, number).await {
            Ok(Outcome::Committed) => {
                figures.committed += 1;
                figures.longest_gap = figures.longest_gap.max(last_commit.elapsed());
                last_commit = Instant::now();
                connection = Some(open);
            }
            Ok(Outcome::ClosedBefore) => figures.reconnects += 1,
            Err(error) => figures.failures.push(format!("client {client}: {error:#}")),
        }
        // Think time: the load shows failures, it does not measure speed.
        sleep(Duration::from_millis(10)).await;
    }
    figures
}

enum Outcome {
    Committed,
    /// The connection ended between two transactions, so nothing of this one was run.
    ClosedBefore,
}

async fn transaction(connection: &Client, client: i32, number: i64) -> Result<Outcome> {
    if let Err(error) = connection.batch_execute("BEGIN").await {
        if error.is_closed() || error.code() == Some(&SqlState::ADMIN_SHUTDOWN) {
            return Ok(Outcome::ClosedBefore);
        }
        bail!("BEGIN: {}", describe(&error));
    }
    let insert = "INSERT INTO load (client, number) VALUES ($1, $2)";
    connection
        .execute(insert, &[&client, &number])
        .await
        .map_err(|error| anyhow::anyhow!("INSERT in an open transaction: {}", describe(&error)))?;
    let select = "SELECT count(*) FROM load WHERE client = $1 AND number = $2";
    let row = connection
        .query_one(select, &[&client, &number])
        .await
        .map_err(|error| anyhow::anyhow!("SELECT in an open transaction: {}", describe(&error)))?;
    ensure!(row.get::<_, i64>(0) == 1, "the transaction does not see its own row");
    connection
        .batch_execute("COMMIT")
        .await
        .map_err(|error| anyhow::anyhow!("COMMIT, outcome unknown: {}", describe(&error)))?;
    Ok(Outcome::Committed)
}

fn describe(error: &Error) -> String {
    match error.as_db_error() {
        Some(database) => format!("{} {}", database.code().code(), database.message()),
        None => error.to_string(),
    }
}

/// A client that fails over and over tells nothing new.
const FAILURES_MAX: usize = 20;

//! A load of reads that knows where each ran, and of writes that are read back.
//!
//! It never connects again: whatever goes wrong, a closed connection too, is a failure.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::postgres::{Login, Postgres, connect};

/// The function that says where a statement runs. A pool must have it among its `readFunctions`, for what tells of the
/// server is no read by itself.
pub const FUNCTION: &str = "served_by";

/// A load under way. Ends with `stop`.
pub struct Reads {
    clients: JoinSet<Result<()>>,
    counts: Arc<Mutex<Counts>>,
    is_stopping: Arc<AtomicBool>,
}

/// What the load has done so far.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    /// Reads by the address of the server that they ran on.
    pub reads: BTreeMap<String, u64>,
    /// Reads of what the same session had just written, by the same.
    pub own_reads: BTreeMap<String, u64>,
    /// Writes that were read back, each several times.
    pub writes: u64,
}

impl Reads {
    /// Makes tables and function on the primary and starts clients that read, as many of each protocol, and as many
    /// that write and read back.
    ///
    /// # Errors
    /// When something cannot be made or a client cannot connect.
    pub async fn start(postgres: &Postgres, login: &Login, host: &str, clients: i32) -> Result<Self> {
        let primary = postgres.direct(0, login).await?;
        let made = format!(
            "CREATE TABLE items AS SELECT generate_series(1, 1000) AS id;
             CREATE TABLE own_writes AS SELECT client, 0::bigint AS number FROM generate_series(1, {clients}) client;
             CREATE FUNCTION {FUNCTION}() RETURNS text LANGUAGE sql AS 'SELECT host(inet_server_addr())'"
        );
        primary.batch_execute(&made).await?;
        let mut reads = Self { clients: JoinSet::new(), counts: Arc::default(), is_stopping: Arc::default() };
        for client in 1..=clients {
            for kind in [Kind::Simple, Kind::Prepared, Kind::OwnWrites(client)] {
                let connection = connect(host, 5432, login, &login.user).await?;
                let (counts, is_stopping) = (Arc::clone(&reads.counts), Arc::clone(&reads.is_stopping));
                reads.clients.spawn(async move {
                    let run = run_client(&connection, kind, &counts, &is_stopping).await;
                    run.with_context(|| format!("{kind:?}"))
                });
            }
        }
        Ok(reads)
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        lock(&self.counts).clone()
    }

    /// Lets each client end what it does.
    ///
    /// # Errors
    /// With the first failure of the load.
    pub async fn stop(mut self) -> Result<Counts> {
        self.is_stopping.store(true, Ordering::Relaxed);
        while !self.clients.is_empty() {
            let joined = tokio::time::timeout(Duration::from_secs(30), self.clients.join_next());
            let Some(joined) = joined.await.context("a client of the reads hangs")? else { break };
            joined??;
        }
        Ok(self.counts())
    }
}

impl Counts {
    /// What was done since an earlier count.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>| {
            now.iter().map(|(at, n)| (at.clone(), n - then.get(at).copied().unwrap_or(0))).collect()
        };
        Self {
            reads: less(&self.reads, &earlier.reads),
            own_reads: less(&self.own_reads, &earlier.own_reads),
            writes: self.writes - earlier.writes,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Simple,
    Prepared,
    OwnWrites(i32),
}

async fn run_client(
    connection: &Client,
    kind: Kind,
    counts: &Mutex<Counts>,
    is_stopping: &AtomicBool,
) -> Result<()> {
    let counted = format!("SELECT {FUNCTION}(), count(*) FROM items WHERE id <= 500");
    let prepared = connection.prepare(&counted).await?;
    let own = format!("SELECT {FUNCTION}(), number FROM own_writes WHERE client = $1");
    let mut number = 0;
    while !is_stopping.load(Ordering::Relaxed) {
        match kind {
            Kind::Simple => {
                connection.simple_query("SELECT sum(id) FROM items").await?;
                let messages = connection.simple_query(&counted).await?;
                let row = messages.iter().find_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some((row.get(0)?, row.get(1)?)),
                    _ => None,
                });
                let (server, count) = row.context("no row")?;
                ensure!(count == "500", "{count} rows");
                count_one(&mut lock(counts).reads, server);
            }
            Kind::Prepared => {
                let row = connection.query_one(&prepared, &[]).await?;
                ensure!(row.get::<_, i64>(1) == 500, "{row:?}");
                count_one(&mut lock(counts).reads, row.get(0));
            }
            Kind::OwnWrites(client) => {
                number += 1;
                let update = "UPDATE own_writes SET number = $2 WHERE client = $1";
                connection.execute(update, &[&client, &number]).await?;
                for _ in 0..READS_OF_A_WRITE {
                    let row = connection.query_one(&own, &[&client]).await?;
                    let (server, read): (&str, i64) = (row.get(0), row.get(1));
                    ensure!(read == number, "wrote {number}, then read {read} on {server}");
                    count_one(&mut lock(counts).own_reads, server);
                    sleep(PAUSE).await;
                }
                lock(counts).writes += 1;
            }
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count_one(reads: &mut BTreeMap<String, u64>, server: &str) {
    *reads.entry(server.to_owned()).or_default() += 1;
}

/// Think time: the load shows where reads go, it does not measure speed.
const PAUSE: Duration = Duration::from_millis(5);
/// Enough that the first run before a replica can have the write, and the last after it.
const READS_OF_A_WRITE: usize = 10;

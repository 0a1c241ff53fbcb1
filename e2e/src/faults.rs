//! A load of reads whose servers can be told to go wrong, each in its own way; clients bear it and go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::postgres::{Login, Postgres, connect};

/// The function that goes wrong. A pool must have it among its `readFunctions`: one of its faults is that it writes.
pub const FUNCTION: &str = "work";

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The replicas answer with errors.
    ErrorsOnReplicas,
    /// The replicas are slow.
    SlowReplicas,
    /// The function writes, which replicas refuse.
    HiddenWrite,
    /// It fails wherever it runs.
    ErrorsEverywhere,
    /// It is slow wherever it runs.
    SlowEverywhere,
}

impl Fault {
    const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ErrorsOnReplicas => "error",
            Self::SlowReplicas => "slow",
            Self::HiddenWrite => "write",
            Self::ErrorsEverywhere => "everywhere",
            Self::SlowEverywhere => "slow everywhere",
        }
    }
}

/// The table of the fault, the function that asks it, and what the function writes.
const MADE: &str = "
    CREATE TABLE fault (kind text);
    INSERT INTO fault VALUES ('none');
    CREATE TABLE written (number bigint);
    CREATE SEQUENCE hidden;
    CREATE FUNCTION work() RETURNS text LANGUAGE plpgsql STABLE AS $$
    DECLARE kind text := (SELECT fault.kind FROM fault);
    BEGIN
        IF kind = 'everywhere' THEN RAISE EXCEPTION 'a fault everywhere'; END IF;
        IF kind = 'slow everywhere' THEN PERFORM pg_sleep(0.06); END IF;
        IF kind = 'write' THEN PERFORM nextval('hidden'); END IF;
        IF NOT pg_is_in_recovery() THEN RETURN kind; END IF;
        IF kind = 'error' THEN RAISE EXCEPTION 'a fault of a replica'; END IF;
        IF kind = 'slow' THEN PERFORM pg_sleep(0.06); END IF;
        RETURN kind;
    END $$";

/// Makes the function in a database.
///
/// # Errors
/// When the server refuses.
pub async fn make(database: &Client) -> Result<()> {
    Ok(database.batch_execute(MADE).await?)
}

/// Sets the fault of a database.
///
/// # Errors
/// When the server refuses.
pub async fn set(database: &Client, fault: Fault) -> Result<()> {
    Ok(database.batch_execute(&format!("UPDATE fault SET kind = '{}'", fault.word())).await?)
}

/// A load under way. It ends when it is dropped.
pub struct Faults {
    clients: JoinSet<()>,
    is_stopping: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
}

impl Faults {
    /// Makes the function on the primary and starts clients that call it, and now and then write.
    ///
    /// # Errors
    /// When something cannot be made.
    pub async fn start(postgres: &Postgres, login: &Login, host: &str, clients: usize) -> Result<Self> {
        make(&postgres.direct(0, login).await?).await?;
        Ok(Self::more(login, host, clients))
    }

    /// Starts clients where the function is there already.
    #[must_use]
    pub fn more(login: &Login, host: &str, clients: usize) -> Self {
        let mut load = Self { clients: JoinSet::new(), is_stopping: Arc::default(), reads: Arc::default() };
        for _ in 0..clients {
            let (host, login) = (host.to_owned(), login.clone());
            let (is_stopping, reads) = (Arc::clone(&load.is_stopping), Arc::clone(&load.reads));
            load.clients.spawn(async move {
                while !is_stopping.load(Ordering::Relaxed) {
                    // A client that is sent away comes back.
                    if let Ok(client) = connect(&host, 5432, &login, &login.user).await {
                        run(&client, &is_stopping, &reads).await;
                    }
                    sleep(Duration::from_millis(200)).await;
                }
            });
        }
        load
    }

    /// Reads that were answered.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Lets each client end what it does.
    pub async fn stop(mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        while self.clients.join_next().await.is_some() {}
    }
}

async fn run(client: &Client, is_stopping: &AtomicBool, reads: &AtomicU64) {
    let mut round = 0_u64;
    while !is_stopping.load(Ordering::Relaxed) && !client.is_closed() {
        round += 1;
        let sql = if round.is_multiple_of(25) {
            "INSERT INTO written VALUES (1)".to_owned()
        } else {
            format!("SELECT {FUNCTION}()")
        };
        // An error is what some faults are about.
        if client.simple_query(&sql).await.is_ok() {
            reads.fetch_add(1, Ordering::Relaxed);
        }
        sleep(Duration::from_millis(4)).await;
    }
}

/// Makes recovery cancel what runs on the standbys, again and again: they wait for no read, and on the primary the table that
/// each of them looks at is locked as a change of its columns would. [`Self::stop`] has the standbys as before.
pub struct Conflicts {
    work: JoinHandle<Result<()>>,
    is_stopping: Arc<AtomicBool>,
}

impl Conflicts {
    /// Begins.
    ///
    /// # Errors
    /// When a server refuses.
    pub async fn start(postgres: &Postgres, login: &Login) -> Result<Self> {
        for standby in [1, 2] {
            alter(postgres, standby, "SET max_standby_streaming_delay = 0").await?;
        }
        let primary = postgres.direct(0, login).await?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_stopping);
        let work = tokio::spawn(async move {
            while !flag.load(Ordering::Relaxed) {
                let lock = "BEGIN; LOCK TABLE fault IN ACCESS EXCLUSIVE MODE; COMMIT";
                primary.batch_execute(lock).await?;
                sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        });
        Ok(Self { work, is_stopping })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When a server refused meanwhile, or does now.
    pub async fn stop(self, postgres: &Postgres) -> Result<()> {
        self.is_stopping.store(true, Ordering::Relaxed);
        let made = self.work.await.context("the work")?;
        for standby in [1, 2] {
            alter(postgres, standby, "RESET max_standby_streaming_delay").await?;
        }
        made
    }
}

async fn alter(postgres: &Postgres, standby: usize, setting: &str) -> Result<()> {
    let superuser = postgres.superuser_at(standby).await?;
    superuser.batch_execute(&format!("ALTER SYSTEM {setting}")).await?;
    Ok(superuser.batch_execute("SELECT pg_reload_conf()").await?)
}

//! A load of writes, each client to a row of its own that it keeps locked for a moment, so that whoever else writes there
//! is felt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;

use crate::postgres::{Login, Postgres, connect};

/// A load under way. It ends when it is dropped.
pub struct Rows {
    clients: JoinSet<Result<()>>,
    is_stopping: Arc<AtomicBool>,
}

impl Rows {
    /// Makes the rows on the primary and starts the clients.
    ///
    /// # Errors
    /// When something cannot be made.
    pub async fn start(postgres: &Postgres, login: &Login, host: &str, clients: i32) -> Result<Self> {
        let made = format!(
            "CREATE TABLE own (id int PRIMARY KEY, number bigint); INSERT INTO own SELECT i, 0 FROM generate_series(1, {clients}) i"
        );
        postgres.direct(0, login).await?.batch_execute(&made).await?;
        let mut load = Self { clients: JoinSet::new(), is_stopping: Arc::default() };
        for id in 1..=clients {
            let client = connect(host, 5432, login, &login.user).await?;
            let is_stopping = Arc::clone(&load.is_stopping);
            load.clients.spawn(async move {
                let sql = format!(
                    "BEGIN; UPDATE own SET number = number + 1 WHERE id = {id}; SELECT pg_sleep(0.02); COMMIT"
                );
                while !is_stopping.load(Ordering::Relaxed) {
                    client.batch_execute(&sql).await?;
                }
                Ok(())
            });
        }
        Ok(load)
    }

    /// Lets each client end what it does.
    ///
    /// # Errors
    /// When one had ended before, by an error.
    pub async fn stop(mut self) -> Result<()> {
        self.is_stopping.store(true, Ordering::Relaxed);
        let mut ended = 0;
        while let Some(client) = self.clients.join_next().await {
            client??;
            ended += 1;
        }
        ensure!(ended > 0, "nobody wrote");
        Ok(())
    }
}

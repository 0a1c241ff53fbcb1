//! Numbered writes and plain reads through a failover: a write whose connection breaks has an unknown outcome and is not made
//! again; a read never fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::postgres::{Login, connect};

/// A load under way. Ends with `stop`.
pub struct Ledger {
    writers: JoinSet<Result<Written>>,
    readers: JoinSet<Result<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    next: AtomicI64,
    acknowledged: AtomicU64,
    reads: AtomicU64,
    is_stopping: AtomicBool,
}

#[derive(Default)]
struct Written {
    acknowledged: Vec<i64>,
    unknown: u64,
    longest_gap: Duration,
}

/// What a load came to.
#[derive(Debug)]
pub struct Book {
    /// The numbers that were acknowledged.
    pub acknowledged: Vec<i64>,
    /// Writes whose outcome the client does not know.
    pub unknown: u64,
    /// Reads.
    pub reads: u64,
    /// The longest time of one client from one acknowledgement to the next.
    pub longest_gap: Duration,
}

impl Ledger {
    /// Makes the tables over `primary` and starts as many writers and readers.
    ///
    /// # Errors
    /// When the tables cannot be made or a reader cannot connect.
    pub async fn start(primary: &Client, login: &Login, host: &str, clients: usize) -> Result<Self> {
        let tables =
            "CREATE TABLE ledger (number bigint); CREATE TABLE shelf AS SELECT generate_series(1, 100) AS id";
        primary.batch_execute(tables).await?;
        let shared = Arc::new(Shared::default());
        let mut ledger = Self { writers: JoinSet::new(), readers: JoinSet::new(), shared };
        for _ in 0..clients {
            let (login, host) = (login.clone(), host.to_owned());
            ledger.writers.spawn(write(login.clone(), host.clone(), Arc::clone(&ledger.shared)));
            let connection = connect(&host, 5432, &login, &login.user).await?;
            ledger.readers.spawn(read(connection, Arc::clone(&ledger.shared)));
        }
        Ok(ledger)
    }

    /// Writes that were acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until so many writes are acknowledged.
    ///
    /// # Errors
    /// When they are not in two minutes.
    pub async fn reaches(&self, count: u64) -> Result<()> {
        let began = Instant::now();
        while self.acknowledged() < count {
            ensure!(began.elapsed() < Duration::from_secs(120), "{} of {count} writes", self.acknowledged());
            // Finer than a wait's pause, because stories measure by it.
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Lets each client end what it does.
    ///
    /// # Errors
    /// When a client hangs or a read failed.
    pub async fn stop(mut self) -> Result<Book> {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        let mut book = Book { acknowledged: Vec::new(), unknown: 0, reads: 0, longest_gap: Duration::ZERO };
        let limit = Duration::from_secs(60);
        while let Some(written) =
            tokio::time::timeout(limit, self.writers.join_next()).await.context("a writer hangs")?
        {
            let written = written??;
            book.acknowledged.extend(written.acknowledged);
            book.unknown += written.unknown;
            book.longest_gap = book.longest_gap.max(written.longest_gap);
        }
        while let Some(read) =
            tokio::time::timeout(limit, self.readers.join_next()).await.context("a reader hangs")?
        {
            read?.context("a read failed")?;
        }
        book.reads = self.shared.reads.load(Ordering::Relaxed);
        Ok(book)
    }
}

impl Book {
    /// Compares it with what a server has: each acknowledged number is there, and none twice.
    ///
    /// # Errors
    /// With the numbers for which that is not so.
    #[expect(clippy::print_stdout, reason = "a story prints its figures")]
    pub async fn expect_kept(&self, server: &Client) -> Result<()> {
        let mut there: BTreeMap<i64, u32> = BTreeMap::new();
        for row in server.query("SELECT number FROM ledger", &[]).await? {
            *there.entry(row.get(0)).or_default() += 1;
        }
        println!(
            "ledger: {} writes acknowledged, {} of unknown outcome, {} there; {} reads, none failed; longest pause of a \
             client's writes {} ms",
            self.acknowledged.len(),
            self.unknown,
            there.len(),
            self.reads,
            self.longest_gap.as_millis()
        );
        let lost: Vec<_> = self.acknowledged.iter().filter(|number| !there.contains_key(number)).collect();
        ensure!(lost.is_empty(), "acknowledged, and not there: {lost:?}");
        let twice: Vec<_> = there.iter().filter(|(_, count)| **count > 1).collect();
        ensure!(twice.is_empty(), "made twice: {twice:?}");
        ensure!(!self.acknowledged.is_empty() && self.reads > 0, "nothing was done");
        Ok(())
    }
}

async fn write(login: Login, host: String, shared: Arc<Shared>) -> Result<Written> {
    let mut written = Written::default();
    let mut connection: Option<Client> = None;
    let mut last = Instant::now();
    while !shared.is_stopping.load(Ordering::Relaxed) {
        let open = match connection.take() {
            Some(open) => open,
            None => connect(&host, 5432, &login, &login.user).await?,
        };
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        if open.execute("INSERT INTO ledger VALUES ($1)", &[&number]).await.is_ok() {
            shared.acknowledged.fetch_add(1, Ordering::Relaxed);
            written.acknowledged.push(number);
            written.longest_gap = written.longest_gap.max(last.elapsed());
            last = Instant::now();
            connection = Some(open);
        } else {
            written.unknown += 1;
        }
        sleep(PAUSE).await;
    }
    Ok(written)
}

async fn read(connection: Client, shared: Arc<Shared>) -> Result<()> {
    while !shared.is_stopping.load(Ordering::Relaxed) {
        let row = connection.query_one("SELECT count(*) FROM shelf", &[]).await?;
        ensure!(row.get::<_, i64>(0) == 100, "{row:?}");
        shared.reads.fetch_add(1, Ordering::Relaxed);
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Think time: the load shows failures, it does not measure speed.
const PAUSE: Duration = Duration::from_millis(5);

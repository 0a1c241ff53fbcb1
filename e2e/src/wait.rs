//! Waits on a condition with a deadline.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// What one look at the world says.
#[derive(Debug)]
pub enum Look<T> {
    /// The condition holds.
    Done(T),
    /// Not yet; this is how things stand, for the message of a deadline that passes.
    NotYet(String),
}

/// Looks again and again until the condition holds.
///
/// # Errors
/// When the deadline passes, with what was waited for and how things stood last. An error of a look counts as "not
/// yet": the API server may be busy.
pub async fn until<T, F, L>(what: &str, deadline: Duration, mut look: L) -> Result<T>
where
    F: Future<Output = Result<Look<T>>>,
    L: FnMut() -> F,
{
    let began = Instant::now();
    loop {
        let last = match look().await {
            Ok(Look::Done(value)) => return Ok(value),
            Ok(Look::NotYet(state)) => state,
            Err(error) => format!("{error:#}"),
        };
        if began.elapsed() > deadline {
            bail!("{what}: not within {} s; last seen: {last}", deadline.as_secs());
        }
        sleep(PAUSE).await;
    }
}

/// Looks for as long as the span lasts, and fails as soon as the condition does not hold.
///
/// # Errors
/// With what did not hold.
pub async fn throughout<F, L>(what: &str, span: Duration, mut look: L) -> Result<()>
where
    F: Future<Output = Result<Look<()>>>,
    L: FnMut() -> F,
{
    let began = Instant::now();
    while began.elapsed() < span {
        if let Look::NotYet(state) = look().await? {
            bail!("{what}: not after {} ms: {state}", began.elapsed().as_millis());
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

const PAUSE: Duration = Duration::from_millis(100);

//! How long a request takes: counted for a sample of all, and written to the log for those that are slow.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tracing::info;

use crate::classify::comment::{comment_tags, cut};
use crate::classify::fold::folded;
use crate::metrics::times::SessionTimes;
use crate::server::connection::ServerConnection;
use crate::session::judge::first_text;
use crate::session::prepared::ClientStatements;
use crate::session::tenancy::Tenancy;

/// Bytes of a statement that are kept while it runs.
const KEPT_BYTES: usize = 4096;

/// Bytes of a statement, and of its tags, that are written.
const SHOWN_BYTES: usize = 1024;

/// The request at hand, while its time is taken.
#[derive(Debug, Default)]
pub struct Clocked(Option<Box<Begun>>);

#[derive(Debug)]
struct Begun {
    at: Instant,
    is_sampled: bool,
    /// From which time on it is slow, and its text.
    slow: Option<(Duration, Vec<u8>)>,
}

impl Clocked {
    /// Whether time is being taken.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A request is about to be passed on. Costs a few instructions where nobody wants to know.
    #[inline]
    pub fn begin(
        &mut self,
        slow: Option<Duration>,
        times: &SessionTimes,
        request: &[u8],
        statements: &ClientStatements,
    ) {
        let is_sampled = times.is_due();
        if is_sampled || slow.is_some() {
            self.take(is_sampled, slow, times, request, statements);
        }
    }

    #[inline(never)]
    fn take(
        &mut self,
        is_sampled: bool,
        slow: Option<Duration>,
        times: &SessionTimes,
        request: &[u8],
        statements: &ClientStatements,
    ) {
        let at = Instant::now();
        if is_sampled {
            times.draw_next(at);
        }
        let text = |slow| {
            let text = first_text(request, statements).unwrap_or_default();
            (slow, text.get(..KEPT_BYTES).unwrap_or(text).to_vec())
        };
        self.0 = Some(Box::new(Begun { at, is_sampled, slow: slow.map(text) }));
    }

    /// The answer is complete, as far as the server is concerned.
    #[inline(never)]
    pub fn finish(&mut self, tenancy: &Tenancy, server: &ServerConnection, session: u64) {
        let Some(begun) = self.0.take() else { return };
        let Begun { at, is_sampled, slow } = *begun;
        let took = at.elapsed();
        if is_sampled {
            let times = &tenancy.worker.metrics.times;
            let times = if tenancy.is_at_primary() { &times.primary } else { &times.replica };
            times.count(took);
        }
        if let Some((limit, text)) = slow
            && took >= limit
        {
            tell(tenancy, server, session, took, &text);
        }
    }

    /// The request came to no end.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}

/// Writes a slow request to the log, without the constants of its text.
fn tell(tenancy: &Tenancy, server: &ServerConnection, session: u64, took: Duration, text: &[u8]) {
    let statement = folded(text);
    info!(
        target: "pgrouting_proxy::slow",
        session,
        user = tenancy.identity.user,
        database = tenancy.identity.database,
        server = &*tenancy.server_name(),
        server_pid = server.cancel.key.process_id,
        milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        fingerprint = fingerprint(&statement),
        tags = cut(comment_tags(text).unwrap_or_default(), SHOWN_BYTES),
        statement = cut(statement, SHOWN_BYTES),
        "slow"
    );
}

/// A short name of a statement without constants, the same in every process.
fn fingerprint(statement: &str) -> String {
    Sha256::digest(statement.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

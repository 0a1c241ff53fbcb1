//! Statements that a server has prepared and that do not fit its tables any more.
//!
//! PostgreSQL refuses to run a statement whose result has other columns than when it was prepared
//! (`RevalidateCachedQuery` in its `plancache.c`). Every connection that has prepared it is to prepare it anew before
//! its next use. The request that met it is sent anew, once, where nobody can tell: it is the only one under way,
//! outside a transaction, nothing of its answer has come, and the client asked what the columns are.

use crate::server::connection::ServerConnection;
use crate::server::prepared::Statement;
use crate::server::replies::Owed;
use crate::session::client::Client;
use crate::session::supply::prepare;
use crate::transaction::TransactionStatus;
use crate::wire::backend::error_field;
use crate::wire::frame::header;
use crate::wire::frontend::{BIND, DESCRIBE, EXECUTE, SYNC};

/// Whether an error says that a statement is outdated. The text may be translated; the routine is not.
#[must_use]
pub fn is_outdated(message: &[u8]) -> bool {
    error_field(message, b'C') == Some(b"0A000")
        && error_field(message, b'R') == Some(b"RevalidateCachedQuery")
}

/// Notes that the statement is outdated that the next answer is for. Tells whether its request was sent anew: then the
/// error is not the client's business.
pub fn take(client: &mut Client, server: &mut ServerConnection) -> bool {
    let Some(Owed::Bind(id) | Owed::Describe(id)) = server.replies.front() else { return false };
    let Some(statement) = client.statements.with_id(*id).cloned() else { return false };
    server.prepared.outdate(&statement);
    let run = is_alone(server, &statement).then(|| last_run(server.outbox.last_sent())).flatten();
    let Some(run) = run.map(<[u8]>::to_vec) else { return false };
    // The server ignores everything to the Sync that it has been sent, and answers that.
    server.replies.clear();
    server.replies.push(Owed::HiddenSync);
    prepare(server, &statement);
    server.outbox.bytes().extend_from_slice(&run);
    for owed in [Owed::Bind(statement.id), Owed::Describe(0), Owed::Execute, Owed::Sync] {
        server.replies.push(owed);
    }
    server.is_retried = true;
    true
}

/// Whether nothing but one run of the statement is under way, outside a transaction, for the first time.
fn is_alone(server: &ServerConnection, statement: &Statement) -> bool {
    !server.is_retried
        && server.transaction == TransactionStatus::Idle
        && server.replies.single_run() == Some(statement.id)
}

/// The last four messages, if they are Bind, Describe, Execute and Sync.
fn last_run(sent: &[u8]) -> Option<&[u8]> {
    let mut starts = Vec::new();
    let mut at = 0;
    while let Ok(Some(found)) = header(sent.get(at..)?, usize::MAX) {
        starts.push((found.kind, at));
        at += found.total;
    }
    match *starts.last_chunk()? {
        [(BIND, from), (DESCRIBE, _), (EXECUTE, _), (SYNC, _)] if at == sent.len() => sent.get(from..),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec::put_message;

    #[test]
    fn the_last_run_is_cut_out() {
        let mut sent = Vec::new();
        for kind in [b'P', BIND, DESCRIBE, EXECUTE, SYNC] {
            put_message(&mut sent, kind, |body| body.extend_from_slice(b"body"));
        }
        assert_eq!(last_run(&sent), sent.get(9..));
        assert_eq!(last_run(&sent[..18]), None);
        assert_eq!(last_run(b""), None);
    }
}

//! What of a session's exchanges is offered to the mirror.

use std::sync::Arc;

use pgrouting_contract::mirror::MirrorStatements;
use pgrouting_contract::stage::Stage;

use crate::classify::verdict::Verdict;
use crate::mirror::loss::Loss;
use crate::mirror::recorder::{Beginning, Ending};
use crate::server::settings::REPLICATION;
use crate::session::client::Client;
use crate::session::routing::Decision;
use crate::session::tenancy::Tenancy;
use crate::transaction::PinReason;

/// Begins the record of an exchange, where the session is one of those that are copied.
pub fn begin(client: &mut Client, tenancy: &Tenancy, decision: &Decision, pinned: Option<PinReason>) {
    let view = tenancy.view();
    let config = &view.active.config;
    if config.stage < Stage::Mirror {
        return;
    }
    let has_run = std::mem::replace(&mut client.recorder.has_run, true);
    let Some(mirror) = config.mirror.as_ref().filter(|mirror| client.recorder.is_in(mirror)) else {
        return;
    };
    if client.state.startup.value(REPLICATION).is_some() {
        return;
    }
    let is_read = matches!(decision.verdict, Verdict::Read | Verdict::ReadOnlyBlock);
    let loss = (!is_read && mirror.statements == MirrorStatements::ReadsOnly).then_some(Loss::NotRead);
    let beginning = Beginning {
        identity: Arc::clone(&tenancy.identity),
        settings: Arc::clone(&client.state.settings),
        statements: mirror.statements,
        is_tracked: client.state.is_tracked,
        is_read,
        needs_state: match pinned {
            None | Some(PinReason::Listen) => false,
            Some(PinReason::SessionMode) => has_run,
            Some(_) => true,
        },
        unsent: client.outbox.len(),
        bytes_max: usize::try_from(mirror.queue_bytes).unwrap_or(usize::MAX),
    };
    client.recorder.begin(beginning, loss);
}

/// The exchange has come to rest: offers the record. `before` and `now` are why the session kept and keeps its
/// connection.
pub fn finish(client: &mut Client, before: Option<PinReason>, now: Option<PinReason>, touches: bool) {
    let is_listening = |reason| reason == Some(PinReason::Listen);
    client.recorder.finish(Ending {
        keeps: now.is_some() && !is_listening(now),
        touches,
        listens: is_listening(now) && !is_listening(before),
    });
}

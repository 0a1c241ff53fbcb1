//! A cancel request of a client: for a session here, or for one at a peer.

use std::net::IpAddr;

use tracing::debug;

use crate::cancel::{CancelOutcome, CancelVerdict};
use crate::peers::Forwarded;
use crate::session::context::{Context, Worker};
use crate::wire::startup::CancelKey;

/// Does what a request asks for, and counts it. `own` is the address at which it came in.
pub async fn cancel(key: &CancelKey, own: IpAddr, context: &Context, worker: &Worker) {
    let outcome = context.cancels.request(key).await;
    if outcome == CancelOutcome::Sent {
        worker.metrics.cancels.add_one();
    }
    let verdict = match outcome {
        CancelOutcome::Sent | CancelOutcome::Idle | CancelOutcome::Failed => CancelVerdict::Known,
        // No peer gave a key without the mark, and none is asked about it.
        CancelOutcome::Unknown if !context.cancels.is_marked(key) => CancelVerdict::Unknown,
        CancelOutcome::Unknown => {
            let view = context.fleet.view();
            let (forwarded, asked) = context.peers.forward(&view.active.config, own, key).await;
            worker.metrics.cancel_peers_asked.add(asked);
            match forwarded {
                Forwarded::Taken => CancelVerdict::Forwarded,
                Forwarded::Unknown => CancelVerdict::Unknown,
                Forwarded::Limited => CancelVerdict::Limited,
            }
        }
    };
    debug!(?outcome, ?verdict, "a cancel request");
    worker.metrics.count_cancel(verdict);
}

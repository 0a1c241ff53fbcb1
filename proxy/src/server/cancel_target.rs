//! What cancels the query of one connection: the server that it leads to, and the key that the server gave it.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;

use crate::server::dial::{DialFault, dial};
use crate::server::endpoint::Endpoint;
use crate::socket::{Inbox, Outbox};
use crate::wire::startup::{CancelKey, put_cancel};

/// Where to, and with which key.
#[derive(Debug)]
pub struct CancelTarget {
    /// Where the connection leads, as resolved: the request must go to the same server.
    pub peer: SocketAddr,
    /// The key.
    pub key: CancelKey,
    /// The server; the request is encrypted as its connections are.
    pub endpoint: Endpoint,
    /// The settings of TLS that the connection was opened under.
    pub revision: u64,
}

impl CancelTarget {
    /// Sends a request and waits until the server closes: it has sent the signal then.
    ///
    /// # Errors
    /// When the server cannot be reached, or not as it must be.
    pub async fn request(&self) -> Result<(), DialFault> {
        let mut stream = dial(self.peer, &self.endpoint).await?;
        let mut outbox = Outbox::default();
        put_cancel(outbox.bytes(), &self.key);
        poll_fn(|cx| outbox.poll_send(&mut stream, cx)).await?;
        let mut rest = Inbox::default();
        loop {
            match poll_fn(|cx| rest.poll_read(&mut stream, cx, 64)).await {
                Ok(0) => return Ok(()),
                Ok(_) => rest.advance(rest.len()),
                // The server does not say goodbye after such a request.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

//! What a pool keeps of its open connections, whoever has them: it can forbid that anything more is sent, and break them
//! off.

use std::collections::HashMap;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::{SockRef, Socket};
use tokio::net::TcpStream;

/// The pool's end.
#[derive(Debug, Default)]
pub struct Leash {
    is_fenced: AtomicBool,
    sockets: Mutex<Sockets>,
}

#[derive(Debug, Default)]
struct Sockets {
    next: u64,
    open: HashMap<u64, Socket>,
}

/// A connection's end; the connection counts as open while it is there.
#[derive(Debug, Default)]
pub struct Held {
    leash: Option<Arc<Leash>>,
    number: u64,
}

impl Leash {
    /// Takes a connection on.
    ///
    /// # Errors
    /// When the system has no further handle for its socket.
    pub fn hold(self: &Arc<Self>, stream: &TcpStream) -> std::io::Result<Held> {
        let socket = SockRef::from(stream).try_clone()?;
        let mut sockets = self.sockets();
        sockets.next += 1;
        let number = sockets.next;
        sockets.open.insert(number, socket);
        Ok(Held { leash: Some(Arc::clone(self)), number })
    }

    /// Forbids, or allows again, that anything is sent. Tells what was before.
    pub fn set_fenced(&self, is_fenced: bool) -> bool {
        self.is_fenced.swap(is_fenced, Ordering::AcqRel)
    }

    /// Breaks all connections off: whoever has one sees its end.
    pub fn cut(&self) {
        for socket in self.sockets().open.values() {
            // One that is closed already is what is wanted.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Whether nothing more may be sent.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.leash.as_ref().is_some_and(|leash| leash.is_fenced.load(Ordering::Relaxed))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(leash) = &self.leash {
            leash.sockets().open.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_is_cut_is_seen_to_end_by_whoever_has_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let leash = Arc::new(Leash::default());
        let mut here = TcpStream::connect(address).await.unwrap();
        let (mut there, _) = listener.accept().await.unwrap();
        let held = leash.hold(&here).unwrap();
        assert!(!held.is_fenced() && !leash.set_fenced(true) && held.is_fenced());
        leash.cut();
        assert_eq!(here.read(&mut [0; 1]).await.unwrap(), 0);
        assert_eq!(there.read(&mut [0; 1]).await.unwrap(), 0);
        drop(held);
        assert!(leash.sockets().open.is_empty());
    }
}

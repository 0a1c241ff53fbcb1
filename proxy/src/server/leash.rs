//! What a pool keeps of its open connections, whoever has them: it can forbid that anything more is sent, and break them
//! off.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::{SockRef, Socket};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::server::cancel_target::CancelTarget;
use crate::server::connection::Identity;

/// The pool's end.
#[derive(Debug, Default)]
pub struct Leash {
    is_fenced: AtomicBool,
    sockets: Mutex<Sockets>,
}

#[derive(Debug, Default)]
struct Sockets {
    next: u64,
    open: HashMap<u64, (Socket, About)>,
}

/// What does not change of a connection while it is open, but for one number.
#[derive(Debug, Clone)]
pub struct About {
    /// Who it is logged in as.
    pub identity: Arc<Identity>,
    /// What cancels its query: where it leads, and the server's process.
    pub cancel: Arc<CancelTarget>,
    /// Since when it is open.
    pub opened_at: Instant,
    /// How it is encrypted; empty where it is not.
    pub encryption: String,
    /// How many statements it has prepared, as far as it was looked.
    pub prepared: Arc<AtomicUsize>,
}

/// An open connection, as its pool knows it.
#[derive(Debug)]
pub struct Open {
    /// Unique among the connections of its pool.
    pub number: u64,
    /// Where it comes from, if the system still says.
    pub local: Option<SocketAddr>,
    /// What it is.
    pub about: About,
}

/// A connection's end; the connection counts as open while it is there.
#[derive(Debug, Default)]
pub struct Held {
    leash: Option<Arc<Leash>>,
    number: u64,
    prepared: Arc<AtomicUsize>,
}

impl Leash {
    /// Takes a connection on.
    ///
    /// # Errors
    /// When the system has no further handle for its socket.
    pub fn hold(self: &Arc<Self>, stream: &TcpStream, about: About) -> std::io::Result<Held> {
        let socket = SockRef::from(stream).try_clone()?;
        let mut sockets = self.sockets();
        sockets.next += 1;
        let number = sockets.next;
        let prepared = Arc::clone(&about.prepared);
        sockets.open.insert(number, (socket, about));
        Ok(Held { leash: Some(Arc::clone(self)), number, prepared })
    }

    /// Forbids, or allows again, that anything is sent. Tells what was before.
    pub fn set_fenced(&self, is_fenced: bool) -> bool {
        self.is_fenced.swap(is_fenced, Ordering::AcqRel)
    }

    /// Breaks off the connections that are so: whoever has one sees its end.
    pub fn cut(&self, is_cut: impl Fn(&About) -> bool) {
        for (socket, _) in self.sockets().open.values().filter(|(_, about)| is_cut(about)) {
            // One that is closed already is what is wanted.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Whether there is one that is so.
    pub fn any(&self, is_it: impl Fn(&About) -> bool) -> bool {
        self.sockets().open.values().any(|(_, about)| is_it(about))
    }

    /// All connections that are open, whoever has them.
    #[must_use]
    pub fn open(&self) -> Vec<Open> {
        let known = |(number, (socket, about)): (&u64, &(Socket, About))| Open {
            number: *number,
            local: socket.local_addr().ok().and_then(|address| address.as_socket()),
            about: about.clone(),
        };
        self.sockets().open.iter().map(known).collect()
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// The number that the pool knows the connection by.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Tells how many statements the connection has prepared.
    pub fn note_prepared(&self, count: usize) {
        self.prepared.store(count, Ordering::Relaxed);
    }

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

    use crate::server::endpoint::Endpoint;
    use crate::tls::store::TlsStore;
    use crate::wire::startup::CancelKey;

    use super::*;

    #[tokio::test]
    async fn what_is_cut_is_seen_to_end_by_whoever_has_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let leash = Arc::new(Leash::default());
        let mut here = TcpStream::connect(address).await.unwrap();
        let (mut there, _) = listener.accept().await.unwrap();
        let identity = Arc::new(Identity {
            id: 1,
            user: "app".to_owned(),
            database: "shop".to_owned(),
            settings: crate::server::settings::SettingsRegistry::default().none(),
            is_exclusive: false,
        });
        let about = About {
            identity,
            cancel: Arc::new(CancelTarget {
                peer: address,
                key: CancelKey { process_id: 7, secret: vec![0; 4] },
                endpoint: Endpoint { host: "h".to_owned(), port: 1, tls: TlsStore::default().server },
                revision: 0,
            }),
            opened_at: Instant::now(),
            encryption: String::new(),
            prepared: Arc::default(),
        };
        let held = leash.hold(&here, about).unwrap();
        assert_eq!(leash.open()[0].local, here.local_addr().ok());
        assert!(!held.is_fenced() && !leash.set_fenced(true) && held.is_fenced());
        leash.cut(|about| about.identity.database == "depot");
        assert!(here.try_read(&mut [0; 1]).is_err(), "it still stands");
        leash.cut(|about| about.identity.database == "shop");
        assert_eq!(here.read(&mut [0; 1]).await.unwrap(), 0);
        assert_eq!(there.read(&mut [0; 1]).await.unwrap(), 0);
        drop(held);
        assert!(leash.sockets().open.is_empty());
    }
}

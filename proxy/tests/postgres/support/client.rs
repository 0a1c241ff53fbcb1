//! A blocking client that sends any bytes and gives back messages.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;

use pgrouting_proxy::auth::scram::{Channel, ClientExchange, Keys, MECHANISM, Salting};
use pgrouting_proxy::wire::backend::{Authentication, authentication, backend_key, parameter_status};
use pgrouting_proxy::wire::frame::header;
use pgrouting_proxy::wire::frontend::{put_password, put_sasl_initial};
use pgrouting_proxy::wire::startup::{CancelKey, put_cancel, put_startup};

use rustls::ClientConnection;

use super::PATIENCE;
use super::message::{Answer, Message, message, notification, query};
use super::secure::{Proof, Secure, end_point};
use super::server::password_of;

/// What to log in with.
#[derive(Debug, Clone)]
pub struct Login {
    /// Where, on 127.0.0.1.
    pub port: u16,
    /// The role.
    pub user: String,
    /// Its password.
    pub password: String,
    /// The database.
    pub database: String,
    /// Further parameters of the startup message.
    pub parameters: Vec<(String, String)>,
    /// How it comes over TLS, where it does.
    pub secure: Option<Secure>,
    /// How it proves its password.
    pub proof: Proof,
}

impl Login {
    /// A login with the role's usual password.
    pub fn new(port: u16, user: &str, database: &str) -> Self {
        Self {
            port,
            user: user.to_owned(),
            password: password_of(user),
            database: database.to_owned(),
            parameters: Vec::new(),
            secure: None,
            proof: Proof::Plain,
        }
    }

    /// The same over TLS.
    pub fn over(mut self, secure: &Secure) -> Self {
        self.secure = Some(secure.clone());
        self
    }

    /// The same with another proof.
    pub const fn proving(mut self, proof: Proof) -> Self {
        self.proof = proof;
        self
    }

    /// The same with a further parameter.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with another password.
    pub fn password(mut self, password: &str) -> Self {
        password.clone_into(&mut self.password);
        self
    }

    /// Logs in.
    pub fn connect(&self) -> Client {
        Client::connect(self).unwrap()
    }

    /// Tries to log in and gives the refusal's code; empty when the connection was closed without a word.
    pub fn refused(&self) -> String {
        Client::connect(self).unwrap_err().sqlstate()
    }
}

/// Why there is no session: the server's error, or `None` when it closed without one.
#[derive(Debug)]
pub struct Refusal(pub Option<Message>);

impl Refusal {
    /// The code of the error.
    pub fn sqlstate(&self) -> String {
        self.0.as_ref().and_then(|message| message.field('C')).unwrap_or_default()
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// The mechanisms that were offered at the login.
    pub mechanisms: Vec<String>,
    inbox: Vec<u8>,
    /// What to cancel with.
    pub key: CancelKey,
    /// The parameters reported at the login, in order.
    pub parameters: Vec<(String, String)>,
    /// What was said of the protocol's version at the login.
    pub negotiated: Option<Message>,
    port: u16,
}

impl Client {
    /// A connection that has said nothing yet.
    pub fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let key = CancelKey { process_id: 0, secret: vec![0; 4] };
        Self {
            stream,
            tls: None,
            mechanisms: Vec::new(),
            inbox: Vec::new(),
            key,
            parameters: Vec::new(),
            negotiated: None,
            port,
        }
    }

    /// A connection that has said nothing yet but its handshake.
    pub fn open_secure(port: u16, secure: &Secure) -> std::io::Result<Self> {
        let mut client = Self::open(port);
        client.tls = Some(Box::new(secure.shake(&mut client.stream)?));
        Ok(client)
    }

    /// Whether its handshake went on from an earlier one.
    pub fn is_resumed(&self) -> bool {
        self.tls.as_ref().unwrap().handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    /// Takes new keys for what it sends from now on, and asks the other side to do the same.
    pub fn renew_keys(&mut self) {
        self.tls.as_mut().unwrap().refresh_traffic_keys().unwrap();
    }

    fn read(&mut self, chunk: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.tls {
            None => self.stream.read(chunk),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).read(chunk),
        }
    }

    /// Logs in.
    pub fn connect(login: &Login) -> Result<Self, Refusal> {
        let mut client = match &login.secure {
            None => Self::open(login.port),
            Some(secure) => Self::open_secure(login.port, secure).map_err(|_| Refusal(None))?,
        };
        let mut parameters = vec![("user", login.user.as_str()), ("database", login.database.as_str())];
        parameters.extend(login.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let mut packet = Vec::new();
        put_startup(&mut packet, &parameters);
        client.send(&packet);
        client.log_in_with(&login.password, login.proof)?;
        Ok(client)
    }

    /// Answers the server's questions to its first `ReadyForQuery`.
    pub fn log_in(&mut self, password: &str) -> Result<(), Refusal> {
        self.log_in_with(password, Proof::Plain)
    }

    /// The same with another proof.
    pub fn log_in_with(&mut self, password: &str, proof: Proof) -> Result<(), Refusal> {
        let hash = self.tls.as_ref().map(|tls| end_point(tls)).unwrap_or_default();
        let (mechanism, channel) = proof.of(&hash);
        let nonce = std::array::from_fn::<u8, 18, _>(|_| rand::random());
        let (exchange, first) = ClientExchange::start(&nonce, channel);
        let mut exchange = Some(exchange);
        loop {
            let Some(message) = self.next() else { return Err(Refusal(None)) };
            match message.kind() {
                'R' => match authentication(&message.bytes).unwrap() {
                    Authentication::Sasl(offered) => {
                        let text = |name: &&[u8]| String::from_utf8_lossy(name).into_owned();
                        self.mechanisms = offered.iter().map(text).collect();
                        let mut out = Vec::new();
                        put_sasl_initial(&mut out, mechanism, first.as_bytes());
                        self.send(&out);
                    }
                    Authentication::SaslContinue(data) => {
                        let challenge = exchange.take().unwrap().challenge(data).unwrap();
                        let keys = derive(password, &challenge.salting);
                        let mut out = Vec::new();
                        put_password(&mut out, challenge.answer(&keys).as_bytes());
                        self.send(&out);
                    }
                    _ => {}
                },
                'S' => {
                    let (name, value) = parameter_status(&message.bytes).unwrap();
                    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                    self.parameters.push((text(name), text(value)));
                }
                'K' => self.key = backend_key(&message.bytes).unwrap(),
                'E' => {
                    assert!(self.next().is_none(), "nothing comes after a refusal");
                    return Err(Refusal(Some(message)));
                }
                'Z' => return Ok(()),
                'v' => self.negotiated = Some(message),
                'N' => {}
                kind => panic!("unexpected {kind} at the login"),
            }
        }
    }

    /// Sends bytes. A peer that has gone is not an error here: it is read what it said.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = match &mut self.tls {
            None => self.stream.write_all(bytes),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).write_all(bytes),
        };
    }

    /// The next message; `None` at the end of the stream. Panics when nothing comes.
    pub fn next(&mut self) -> Option<Message> {
        self.try_next().unwrap_or_else(|error| panic!("no message came: {error}"))
    }

    /// The next message; `None` at the end of the stream, an error when nothing comes.
    pub fn try_next(&mut self) -> std::io::Result<Option<Message>> {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            if let Some(header) = header(&self.inbox, 0x7fff_ffff).unwrap()
                && self.inbox.len() >= header.total
            {
                let rest = self.inbox.split_off(header.total);
                return Ok(Some(Message { bytes: std::mem::replace(&mut self.inbox, rest) }));
            }
            match self.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(count) => self.inbox.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
                // The proxy has ended it with an alert.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits no longer than that for a message from now on.
    pub fn set_patience(&self, patience: std::time::Duration) {
        self.stream.set_read_timeout(Some(patience)).unwrap();
    }

    /// Reads messages until one of them, inclusive, is what is waited for.
    pub fn read_until(&mut self, mut is_last: impl FnMut(&Message) -> bool) -> Answer {
        let mut messages = Vec::new();
        loop {
            let Some(message) = self.next() else { panic!("the connection was closed after {messages:?}") };
            let is_over = is_last(&message);
            messages.push(message);
            if is_over {
                return Answer { messages };
            }
        }
    }

    /// Reads to the next `ReadyForQuery`.
    pub fn ready(&mut self) -> Answer {
        self.read_until(|message| message.kind() == 'Z')
    }

    /// Reads to the next `ReadyForQuery`, or to the end of the stream.
    pub fn ready_or_end(&mut self) -> Answer {
        let mut messages = Vec::new();
        while let Some(message) = self.next() {
            let is_over = message.kind() == 'Z';
            messages.push(message);
            if is_over {
                break;
            }
        }
        Answer { messages }
    }

    /// Reads to the `count`th `ReadyForQuery` from here.
    pub fn ready_times(&mut self, count: usize) -> Answer {
        let mut left = count;
        self.read_until(|message| {
            left -= usize::from(message.kind() == 'Z');
            left == 0
        })
    }

    /// Reads to the first message of this type.
    pub fn until(&mut self, kind: char) -> Answer {
        self.read_until(|message| message.kind() == kind)
    }

    /// Reads what is left to the end of the stream.
    pub fn rest(&mut self) -> Answer {
        let mut messages = Vec::new();
        while let Some(message) = self.next() {
            messages.push(message);
        }
        Answer { messages }
    }

    /// Reads what is left and gives the code of the error that ended the connection; empty without one.
    pub fn ended_with(&mut self) -> String {
        self.rest().sqlstate().unwrap_or_default()
    }

    /// Sends bytes and reads to the next `ReadyForQuery`.
    pub fn ask(&mut self, bytes: &[u8]) -> Answer {
        self.send(bytes);
        self.ready()
    }

    /// Runs a simple query, whatever comes of it.
    pub fn try_query(&mut self, sql: &str) -> Answer {
        self.ask(&query(sql))
    }

    /// Runs a simple query, which must succeed.
    pub fn run(&mut self, sql: &str) -> Answer {
        let answer = self.try_query(sql);
        assert_eq!(answer.sqlstate(), None, "{sql}: {}", answer.error());
        answer
    }

    /// The first value of each row of a query.
    pub fn column(&mut self, sql: &str) -> Vec<String> {
        self.run(sql).column()
    }

    /// The first value of a query's first row.
    pub fn value(&mut self, sql: &str) -> Option<String> {
        self.column(sql).into_iter().next()
    }

    /// The process of the server connection that it has at the moment.
    pub fn backend(&mut self) -> String {
        self.value("SELECT pg_backend_pid()").unwrap()
    }

    /// Waits for a notification; gives `channel payload`.
    pub fn notified(&mut self) -> String {
        notification(self.until('A').messages.last().unwrap())
    }

    /// Asks to cancel what it runs, over another connection, and waits until the request has been taken.
    pub fn cancel(&self) {
        self.cancel_with(&self.key);
    }

    /// The same with another key.
    pub fn cancel_with(&self, key: &CancelKey) {
        Self::cancel_at(self.port, key);
    }

    /// The same with any key at any port.
    pub fn cancel_at(port: u16, key: &CancelKey) {
        let mut packet = Vec::new();
        put_cancel(&mut packet, key);
        let mut other = Self::open(port);
        other.send(&packet);
        assert!(other.next().is_none(), "nothing answers a cancel request");
    }

    /// Says goodbye and closes.
    pub fn leave(mut self) {
        self.send(&message(b'X', |_| {}));
    }

    /// Closes its sending half without a word.
    pub fn hang_up(&self) {
        match self.stream.shutdown(Shutdown::Write) {
            // The proxy has closed it already.
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => {}
            other => other.unwrap(),
        }
    }

    /// Reads these bytes, which are no messages.
    pub fn expect_bytes(&mut self, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        assert!(self.tls.is_none(), "bytes of the socket itself");
        self.stream.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, expected);
    }

    /// The server's first SCRAM message, without the nonce that is new each time: salt and iterations.
    pub fn first_salt(&mut self) -> String {
        assert_eq!(self.next().unwrap().kind(), 'R');
        let (_, first) = ClientExchange::start(b"some nonce", Channel::Unable);
        let mut out = Vec::new();
        put_sasl_initial(&mut out, MECHANISM, first.as_bytes());
        self.send(&out);
        let message = self.next().unwrap();
        let Some(Authentication::SaslContinue(data)) = authentication(&message.bytes) else {
            panic!("unexpected {message:?}")
        };
        String::from_utf8_lossy(data).split_once(",s=").unwrap().1.to_owned()
    }

    /// A second handle that can only send, for one thread, while this one reads.
    pub fn split(&mut self) -> (Sender, &mut Self) {
        assert!(self.tls.is_none(), "one thread has the keys");
        (Sender(self.stream.try_clone().unwrap()), self)
    }

    /// Reads whatever comes to the end of the stream.
    pub fn drain(&mut self) {
        let mut chunk = [0; 4096];
        while self.read(&mut chunk).is_ok_and(|count| count > 0) {}
    }
}

/// The sending half of a client.
#[derive(Debug)]
pub struct Sender(TcpStream);

impl Sender {
    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }
}

/// Keys of a password. They are kept: deriving them takes long in a debug build.
fn derive(password: &str, salting: &Salting) -> Keys {
    static KNOWN: Mutex<Option<HashMap<(String, Salting), Keys>>> = Mutex::new(None);
    let key = (password.to_owned(), salting.clone());
    if let Some(keys) = KNOWN.lock().unwrap().get_or_insert_default().get(&key) {
        return keys.clone();
    }
    let keys = Keys::derive(password, salting);
    KNOWN.lock().unwrap().get_or_insert_default().insert(key, keys.clone());
    keys
}

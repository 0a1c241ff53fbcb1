//! SCRAM-SHA-256: keys, and both ends of the exchange, bound to a channel or not, without I/O.
//!
//! RFC 5802, RFC 7677 and, for the channel, RFC 5929; how PostgreSQL uses it: <https://www.postgresql.org/docs/current/sasl-authentication.html>.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The mechanism's name in SASL.
pub const MECHANISM: &str = "SCRAM-SHA-256";
/// The name of the one that is bound to a channel.
pub const BOUND_MECHANISM: &str = "SCRAM-SHA-256-PLUS";
/// What both sides say of the channel where it is bound to the server's certificate.
const END_POINT: &str = "p=tls-server-end-point";
/// Rounds of PBKDF2 where we choose them; PostgreSQL's own default.
pub const ITERATIONS: u32 = 4096;

/// Rounds beyond which a peer is not believed: a hostile one must not buy minutes of CPU.
const ITERATIONS_MAX: u32 = 1_000_000;

type Digest = [u8; 32];

/// What a login over a connection can be bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// Nothing: it is not encrypted, or its certificate cannot be bound to.
    None,
    /// The server's certificate, by its `tls-server-end-point`.
    EndPoint(Vec<u8>),
}

/// What a client says of the channel (the header of GS2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel<'a> {
    /// It cannot bind to it.
    Unable,
    /// It could, but the server does not offer that.
    Unoffered,
    /// It is bound to the server's certificate.
    Bound(&'a [u8]),
}

/// Salt and rounds, which together with a password make [`Keys`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Salting {
    /// Random bytes.
    pub salt: Vec<u8>,
    /// Rounds of PBKDF2.
    pub iterations: u32,
}

/// What a server stores of a password: enough to check a proof, not to make one.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    stored_key: Digest,
    server_key: Digest,
}

/// What a client knows: enough to make a proof.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    client_key: Digest,
    /// What the server stores beside it.
    pub verifier: Verifier,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier(..)")
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// Why an exchange ends without a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScramFault {
    /// The peer's message is not SCRAM.
    #[error("malformed SCRAM message")]
    Malformed,
    /// What the client says of channel binding does not go with the mechanism that it chose.
    #[error("the SCRAM message and the selected mechanism differ about channel binding")]
    ChannelBinding,
    /// The client binds to something else than the server's certificate.
    #[error("unsupported SCRAM channel-binding type")]
    BindingType,
    /// The client could bind and was told that the server cannot, which is not what the server said.
    #[error("SCRAM channel binding negotiation error")]
    Downgrade,
    /// The client is bound to another channel: somebody is in between.
    #[error("SCRAM channel binding check failed")]
    OtherChannel,
    /// The proof or signature is wrong.
    #[error("wrong password")]
    Mismatch,
    /// The server asks for more rounds than anyone should.
    #[error("too many iterations")]
    Iterations,
}

impl Keys {
    /// Derives the keys of a password. Takes milliseconds: not for an I/O thread.
    #[must_use]
    pub fn derive(password: &str, salting: &Salting) -> Self {
        // RFC 4013; PostgreSQL too falls back to the bytes as they are where SASLprep refuses them.
        let prepared = stringprep::saslprep(password).unwrap_or_else(|_| password.into());
        let mut salted = Digest::default();
        pbkdf2::pbkdf2_hmac::<Sha256>(prepared.as_bytes(), &salting.salt, salting.iterations, &mut salted);
        let client_key = hmac(&salted, &[b"Client Key"]);
        let verifier = Verifier {
            stored_key: Sha256::digest(client_key).into(),
            server_key: hmac(&salted, &[b"Server Key"]),
        };
        Self { client_key, verifier }
    }
}

impl Verifier {
    /// Reads the text that PostgreSQL stores in `pg_authid.rolpassword`:
    /// `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`.
    #[must_use]
    pub fn parse(text: &str) -> Option<(Salting, Self)> {
        let rest = text.strip_prefix("SCRAM-SHA-256$")?;
        let (salting, keys) = rest.split_once('$')?;
        let (iterations, salt) = salting.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let salting = Salting { salt: BASE64.decode(salt).ok()?, iterations: iterations.parse().ok()? };
        if salting.iterations == 0 || salting.salt.is_empty() {
            return None;
        }
        Some((salting, Self { stored_key: decode(stored_key)?, server_key: decode(server_key)? }))
    }
}

/// The server's end, after it has sent its first message.
#[derive(Debug)]
pub struct ServerExchange {
    auth_message_start: String,
    nonce: String,
    channel_binding: String,
}

impl ServerExchange {
    /// Takes the client's first message; gives the server's first. The mechanism for bound logins was offered where
    /// `binding` has something to bind to, and chosen where `is_bound`.
    ///
    /// # Errors
    /// When the message is not SCRAM, or says of the channel what does not go with that.
    pub fn start(
        client_first: &[u8],
        salting: &Salting,
        nonce: &[u8],
        binding: &Binding,
        is_bound: bool,
    ) -> Result<(Self, String), ScramFault> {
        let text = std::str::from_utf8(client_first).map_err(|_| ScramFault::Malformed)?;
        let (flag, rest) = text.split_once(',').ok_or(ScramFault::Malformed)?;
        let mut channel_binding = format!("{flag},,").into_bytes();
        match (flag, binding) {
            ("n", _) | ("y", Binding::None) if !is_bound => {}
            ("y", Binding::EndPoint(_)) if !is_bound => return Err(ScramFault::Downgrade),
            (END_POINT, Binding::EndPoint(hash)) if is_bound => channel_binding.extend_from_slice(hash),
            (END_POINT | "n" | "y", _) => return Err(ScramFault::ChannelBinding),
            _ if flag.starts_with("p=") && is_bound => return Err(ScramFault::BindingType),
            _ if flag.starts_with("p=") => return Err(ScramFault::ChannelBinding),
            _ => return Err(ScramFault::Malformed),
        }
        let (authzid, bare) = rest.split_once(',').ok_or(ScramFault::Malformed)?;
        let (_user, client_nonce) = bare.split_once(",r=").ok_or(ScramFault::Malformed)?;
        let is_printable = client_nonce.bytes().all(|b| (0x21..=0x7e).contains(&b) && b != b',');
        if !authzid.is_empty() || !bare.starts_with("n=") || client_nonce.is_empty() || !is_printable {
            return Err(ScramFault::Malformed);
        }
        let nonce = format!("{client_nonce}{}", BASE64.encode(nonce));
        let server_first = format!("r={nonce},s={},i={}", BASE64.encode(&salting.salt), salting.iterations);
        let exchange = Self {
            auth_message_start: format!("{bare},{server_first}"),
            nonce,
            channel_binding: BASE64.encode(channel_binding),
        };
        Ok((exchange, server_first))
    }

    /// Takes the client's last message; gives the server's last and the keys that the client proved to have. Each
    /// candidate is a password that is right at present: two while a password is being rotated.
    ///
    /// # Errors
    /// When the message is not SCRAM, or the proof fits no candidate.
    pub fn finish(self, client_final: &[u8], candidates: &[Verifier]) -> Result<(String, Keys), ScramFault> {
        let text = std::str::from_utf8(client_final).map_err(|_| ScramFault::Malformed)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(ScramFault::Malformed)?;
        let proof: Digest = decode(proof).ok_or(ScramFault::Malformed)?;
        let (channel, nonce) = without_proof.split_once(',').ok_or(ScramFault::Malformed)?;
        if nonce.strip_prefix("r=") != Some(&*self.nonce) {
            return Err(ScramFault::Malformed);
        }
        if channel.strip_prefix("c=").ok_or(ScramFault::Malformed)? != self.channel_binding {
            return Err(ScramFault::OtherChannel);
        }
        let auth_message = format!("{},{without_proof}", self.auth_message_start);
        for verifier in candidates {
            let signature = hmac(&verifier.stored_key, &[auth_message.as_bytes()]);
            let client_key = xor(&proof, &signature);
            let stored_key: Digest = Sha256::digest(client_key).into();
            if bool::from(stored_key.ct_eq(&verifier.stored_key)) {
                let signature = hmac(&verifier.server_key, &[auth_message.as_bytes()]);
                let server_final = format!("v={}", BASE64.encode(signature));
                return Ok((server_final, Keys { client_key, verifier: verifier.clone() }));
            }
        }
        Err(ScramFault::Mismatch)
    }
}

/// The client's end, after it has sent its first message.
#[derive(Debug)]
pub struct ClientExchange {
    client_first_bare: String,
    client_nonce: String,
    /// What is said of the channel, in base64.
    channel: String,
}

/// The client's end, before its last message: the server has said how it salts.
#[derive(Debug)]
pub struct ClientChallenge {
    /// How to derive the keys.
    pub salting: Salting,
    auth_message: String,
    without_proof: String,
}

impl ClientExchange {
    /// Gives the client's first message. PostgreSQL ignores the name in it and takes the startup packet's.
    #[must_use]
    pub fn start(nonce: &[u8], channel: Channel<'_>) -> (Self, String) {
        let client_nonce = BASE64.encode(nonce);
        let client_first_bare = format!("n=,r={client_nonce}");
        let (flag, hash): (&str, &[u8]) = match channel {
            Channel::Unable => ("n", &[]),
            Channel::Unoffered => ("y", &[]),
            Channel::Bound(hash) => (END_POINT, hash),
        };
        let message = format!("{flag},,{client_first_bare}");
        let channel = BASE64.encode([flag.as_bytes(), b",,", hash].concat());
        (Self { client_first_bare, client_nonce, channel }, message)
    }

    /// Takes the server's first message.
    ///
    /// # Errors
    /// When it is not SCRAM, does not continue our nonce, or asks for an absurd number of rounds.
    pub fn challenge(self, server_first: &[u8]) -> Result<ClientChallenge, ScramFault> {
        let text = std::str::from_utf8(server_first).map_err(|_| ScramFault::Malformed)?;
        let (nonce, rest) =
            text.strip_prefix("r=").and_then(|t| t.split_once(",s=")).ok_or(ScramFault::Malformed)?;
        let (salt, iterations) = rest.split_once(",i=").ok_or(ScramFault::Malformed)?;
        if !nonce.starts_with(&self.client_nonce) || nonce.len() == self.client_nonce.len() {
            return Err(ScramFault::Malformed);
        }
        let iterations: u32 = iterations.parse().map_err(|_| ScramFault::Malformed)?;
        if iterations == 0 || iterations > ITERATIONS_MAX {
            return Err(ScramFault::Iterations);
        }
        let salt = BASE64.decode(salt).map_err(|_| ScramFault::Malformed)?;
        let without_proof = format!("c={},r={nonce}", self.channel);
        let auth_message = format!("{},{text},{without_proof}", self.client_first_bare);
        Ok(ClientChallenge { salting: Salting { salt, iterations }, auth_message, without_proof })
    }
}

impl ClientChallenge {
    /// Gives the client's last message.
    #[must_use]
    pub fn answer(&self, keys: &Keys) -> String {
        let signature = hmac(&keys.verifier.stored_key, &[self.auth_message.as_bytes()]);
        format!("{},p={}", self.without_proof, BASE64.encode(xor(&keys.client_key, &signature)))
    }

    /// Checks the server's last message: it must know the password too.
    ///
    /// # Errors
    /// When it does not, or says that we do not.
    pub fn verify(&self, server_final: &[u8], keys: &Keys) -> Result<(), ScramFault> {
        let text = std::str::from_utf8(server_final).map_err(|_| ScramFault::Malformed)?;
        let signature: Digest = text.strip_prefix("v=").and_then(decode).ok_or(ScramFault::Malformed)?;
        let expected = hmac(&keys.verifier.server_key, &[self.auth_message.as_bytes()]);
        if bool::from(signature.ct_eq(&expected)) { Ok(()) } else { Err(ScramFault::Mismatch) }
    }
}

/// A salt for a user whom nobody knows: the same each time for the same name, so that asking twice tells nothing.
#[must_use]
pub fn mock_salting(process_secret: &[u8], user: &str) -> Salting {
    let salt = hmac(process_secret, &[b"mock salt", user.as_bytes()]);
    Salting { salt: salt[..16].to_vec(), iterations: ITERATIONS }
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Digest {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn xor(a: &Digest, b: &Digest) -> Digest {
    let mut out = *a;
    for (byte, other) in out.iter_mut().zip(b) {
        *byte ^= other;
    }
    out
}

fn decode(text: &str) -> Option<Digest> {
    BASE64.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests;

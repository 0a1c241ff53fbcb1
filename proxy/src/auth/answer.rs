//! The proxy's login at a server, with the proxy as the client; no I/O.

use std::sync::Arc;

use crate::auth::md5::Md5Secret;
use crate::auth::scram::{
    BOUND_MECHANISM, Binding, Channel, ClientChallenge, ClientExchange, Keys, MECHANISM, Salting, ScramFault,
};
use crate::auth::users::{LoginSecret, User};
use crate::wire::backend::Authentication;
use crate::wire::frontend::{put_password, put_sasl_initial};

/// A login under way.
#[derive(Debug)]
pub struct ServerLogin {
    user: Arc<User>,
    /// Which of the user's secrets to try: a server closes after a wrong one, so each try is a new connection.
    attempt: usize,
    binding: Binding,
    /// Whether nobody but the server can read a password: one in clear text is sent to no one else.
    is_private: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Begun,
    /// A password or what MD5 makes of it was sent, one of so many.
    Sent(usize),
    FirstSent(ClientExchange),
    Challenged(ClientChallenge),
    Answered {
        challenge: ClientChallenge,
        keys: Keys,
    },
    Proved(Salting, Keys),
    Over,
}

/// What to do after an `Authentication…` message.
#[derive(Debug, PartialEq, Eq)]
pub enum AnswerStep {
    /// Send what was written and read on.
    Continue,
    /// Derive the keys of this password with this salting, off the I/O thread, and hand them to
    /// [`ServerLogin::answer`].
    Derive(Arc<str>, Salting),
    /// The server is satisfied.
    Done,
}

/// Why the proxy cannot answer a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    /// The server wants another method.
    #[error("the server asks for {0}, which is not supported: use scram-sha-256 in pg_hba.conf")]
    Method(&'static str),
    /// No password or key of this user is known that could be tried, or all were.
    #[error("no password or key of this user is known")]
    NoSecret,
    /// The exchange went wrong.
    #[error("{0}")]
    Scram(#[from] ScramFault),
}

impl ServerLogin {
    /// Begins a login with the user's secret number `attempt`, from 0; it is bound to the channel where the server offers
    /// that.
    #[must_use]
    pub const fn start(user: Arc<User>, attempt: usize, binding: Binding, is_private: bool) -> Self {
        Self { user, attempt, binding, is_private, state: State::Begun }
    }

    /// Takes an authentication request. `nonce` is used once, for the client's first message.
    ///
    /// # Errors
    /// When the request cannot be answered.
    pub fn take(
        &mut self,
        request: &Authentication<'_>,
        nonce: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<AnswerStep, AnswerFault> {
        let state = std::mem::replace(&mut self.state, State::Over);
        match (request, state) {
            (Authentication::Ok, state @ (State::Begun | State::Sent(_) | State::Proved(..))) => {
                self.state = state;
                Ok(AnswerStep::Done)
            }
            (Authentication::Sasl(mechanisms), State::Begun) => {
                let (channel, mechanism) = match &self.binding {
                    Binding::EndPoint(hash) if mechanisms.contains(&BOUND_MECHANISM.as_bytes()) => {
                        (Channel::Bound(hash), BOUND_MECHANISM)
                    }
                    Binding::EndPoint(_) => (Channel::Unoffered, MECHANISM),
                    Binding::None => (Channel::Unable, MECHANISM),
                };
                if !mechanisms.contains(&mechanism.as_bytes()) {
                    return Err(AnswerFault::Method("another SASL mechanism"));
                }
                let (exchange, first) = ClientExchange::start(nonce, channel);
                put_sasl_initial(out, mechanism, first.as_bytes());
                self.state = State::FirstSent(exchange);
                Ok(AnswerStep::Continue)
            }
            (Authentication::SaslContinue(data), State::FirstSent(exchange)) => {
                self.choose_secret(exchange.challenge(data)?, out)
            }
            (Authentication::SaslFinal(data), State::Answered { challenge, keys }) => {
                challenge.verify(data, &keys)?;
                self.state = State::Proved(challenge.salting, keys);
                Ok(AnswerStep::Continue)
            }
            (Authentication::Md5Password(salt), State::Begun) => {
                let mut secrets: Vec<_> = self.user.md5().cloned().into_iter().collect();
                let passwords = self.user.passwords();
                secrets.extend(passwords.iter().map(|password| Md5Secret::derive(password, &self.user.name)));
                self.send(secrets.iter().map(|secret| secret.answer(*salt)).collect(), out)
            }
            (Authentication::CleartextPassword, State::Begun) if self.is_private => {
                let with_end = |password: Arc<str>| [password.as_bytes(), &[0]].concat();
                self.send(self.user.passwords().into_iter().map(with_end).collect(), out)
            }
            (Authentication::CleartextPassword, State::Begun) => {
                Err(AnswerFault::Method("a password in clear text where its certificate is not verified"))
            }
            (Authentication::Other(_), _) => Err(AnswerFault::Method("GSSAPI or SSPI")),
            (
                Authentication::Ok
                | Authentication::CleartextPassword
                | Authentication::Md5Password(_)
                | Authentication::Sasl(_)
                | Authentication::SaslContinue(_)
                | Authentication::SaslFinal(_),
                _,
            ) => Err(AnswerFault::Scram(ScramFault::Malformed)),
        }
    }

    /// Sends the one of these whose turn it is.
    fn send(&mut self, secrets: Vec<Vec<u8>>, out: &mut Vec<u8>) -> Result<AnswerStep, AnswerFault> {
        let secret = secrets.get(self.attempt).ok_or(AnswerFault::NoSecret)?;
        put_password(out, secret);
        self.state = State::Sent(secrets.len());
        Ok(AnswerStep::Continue)
    }

    fn choose_secret(
        &mut self,
        challenge: ClientChallenge,
        out: &mut Vec<u8>,
    ) -> Result<AnswerStep, AnswerFault> {
        let mut secrets = self.user.login_secrets(&challenge.salting);
        if self.attempt >= secrets.len() {
            return Err(AnswerFault::NoSecret);
        }
        match secrets.swap_remove(self.attempt) {
            LoginSecret::Keys(keys) => {
                self.state = State::Challenged(challenge);
                self.answer(keys, out);
                Ok(AnswerStep::Continue)
            }
            LoginSecret::Password(password) => {
                let step = AnswerStep::Derive(password, challenge.salting.clone());
                self.state = State::Challenged(challenge);
                Ok(step)
            }
        }
    }

    /// Writes the proof, once the keys that [`AnswerStep::Derive`] asked for are there.
    pub fn answer(&mut self, keys: Keys, out: &mut Vec<u8>) {
        if let State::Challenged(challenge) = std::mem::replace(&mut self.state, State::Over) {
            put_password(out, challenge.answer(&keys).as_bytes());
            self.state = State::Answered { challenge, keys };
        }
    }

    /// Whether, after a refusal, another secret is left that a new connection may try.
    #[must_use]
    pub fn has_another_secret(&self) -> bool {
        match &self.state {
            State::Answered { challenge, .. } => {
                self.attempt + 1 < self.user.login_secrets(&challenge.salting).len()
            }
            State::Sent(count) => self.attempt + 1 < *count,
            State::Begun | State::FirstSent(_) | State::Challenged(_) | State::Proved(..) | State::Over => {
                false
            }
        }
    }

    /// Notes that the server let us in, and keeps the keys for the next login.
    pub fn accepted(self) {
        if let State::Proved(salting, keys) = self.state {
            self.user.keep_derived(salting, keys);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::scram::ServerExchange;
    use crate::wire::frame::HEADER_LEN;

    fn salting() -> Salting {
        Salting { salt: b"server's salt".to_vec(), iterations: 7 }
    }

    /// Plays a server that accepts `password`; gives whether it let the login in, and the login.
    fn play(user: &Arc<User>, attempt: usize, password: &str) -> (bool, ServerLogin) {
        let mut login = ServerLogin::start(Arc::clone(user), attempt, Binding::None, false);
        let mut out = Vec::new();
        let offer = Authentication::Sasl(vec![b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"]);
        assert_eq!(login.take(&offer, b"nonce", &mut out), Ok(AnswerStep::Continue));
        let first = &out[HEADER_LEN + MECHANISM.len() + 1 + 4..];
        let (server, server_first) =
            ServerExchange::start(first, &salting(), b"more", &Binding::None, false).unwrap();
        out.clear();
        match login.take(&Authentication::SaslContinue(server_first.as_bytes()), b"", &mut out).unwrap() {
            AnswerStep::Derive(password, salting) => {
                login.answer(Keys::derive(&password, &salting), &mut out)
            }
            AnswerStep::Continue => {}
            AnswerStep::Done => panic!("done before the proof"),
        }
        let verifier = Keys::derive(password, &salting()).verifier;
        let Ok((server_final, _)) = server.finish(&out[HEADER_LEN..], &[verifier]) else {
            return (false, login);
        };
        login.take(&Authentication::SaslFinal(server_final.as_bytes()), b"", &mut out).unwrap();
        assert_eq!(login.take(&Authentication::Ok, b"", &mut out), Ok(AnswerStep::Done));
        (true, login)
    }

    #[test]
    fn the_old_password_is_tried_after_the_new_one() {
        let old = User::from_secret("app", "old", b"salt", None);
        let user = Arc::new(User::from_secret("app", "new", b"salt", Some(&old)));
        let (is_in, login) = play(&user, 0, "old");
        assert!(!is_in && login.has_another_secret());
        let (is_in, login) = play(&user, 1, "old");
        assert!(is_in);
        login.accepted();
        let (is_in, _) = play(&user, 0, "old");
        assert!(is_in, "the keys that worked come first");
    }

    #[test]
    fn a_server_that_asks_for_another_method_is_told_apart() {
        let user = Arc::new(User::from_secret("app", "secret", b"salt", None));
        for request in [Authentication::CleartextPassword, Authentication::Other(7)] {
            let mut login = ServerLogin::start(Arc::clone(&user), 0, Binding::None, false);
            assert!(matches!(login.take(&request, b"n", &mut Vec::new()), Err(AnswerFault::Method(_))));
        }
    }

    #[test]
    fn passwords_of_a_rotation_are_sent_in_turn_as_the_server_asks() {
        let old = User::from_secret("app", "old", b"salt", None);
        let user = Arc::new(User::from_secret("app", "new", b"salt", Some(&old)));
        let md5 = |password| Md5Secret::derive(password, "app").answer(*b"salt");
        let hashed = Authentication::Md5Password(*b"salt");
        for (request, first, second) in [
            (hashed, md5("new"), md5("old")),
            (Authentication::CleartextPassword, b"new\0".to_vec(), b"old\0".to_vec()),
        ] {
            for (attempt, expected, has_another) in [(0, first, true), (1, second, false)] {
                let mut login = ServerLogin::start(Arc::clone(&user), attempt, Binding::None, true);
                let mut out = Vec::new();
                assert_eq!(login.take(&request, b"n", &mut out), Ok(AnswerStep::Continue));
                assert_eq!(out[HEADER_LEN..], expected);
                assert_eq!(login.has_another_secret(), has_another);
                assert_eq!(login.take(&Authentication::Ok, b"n", &mut out), Ok(AnswerStep::Done));
            }
            let mut login = ServerLogin::start(Arc::clone(&user), 2, Binding::None, true);
            assert_eq!(login.take(&request, b"n", &mut Vec::new()), Err(AnswerFault::NoSecret));
        }
    }

    #[test]
    fn what_md5_stores_answers_md5_and_nothing_else() {
        let secret = Md5Secret::derive("secret", "app");
        let user = Arc::new(User::from_md5("app", secret.clone()));
        let start = || ServerLogin::start(Arc::clone(&user), 0, Binding::None, true);
        let mut out = Vec::new();
        assert_eq!(
            start().take(&Authentication::Md5Password(*b"salt"), b"n", &mut out),
            Ok(AnswerStep::Continue)
        );
        assert_eq!(out[HEADER_LEN..], secret.answer(*b"salt"));
        assert_eq!(
            start().take(&Authentication::CleartextPassword, b"n", &mut out),
            Err(AnswerFault::NoSecret)
        );
    }

    #[test]
    fn a_login_is_bound_where_the_server_offers_that() {
        let user = Arc::new(User::from_secret("app", "secret", b"salt", None));
        let both: &[&[u8]] = &[b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"];
        let plain: &[&[u8]] = &[b"SCRAM-SHA-256"];
        let end_point = Binding::EndPoint(b"hash".to_vec());
        for (offer, binding, mechanism, flag) in [
            (both, &end_point, BOUND_MECHANISM, "p=tls-server-end-point,,"),
            (plain, &end_point, MECHANISM, "y,,"),
            (both, &Binding::None, MECHANISM, "n,,"),
        ] {
            let mut login = ServerLogin::start(Arc::clone(&user), 0, binding.clone(), false);
            let mut out = Vec::new();
            login.take(&Authentication::Sasl(offer.to_vec()), b"nonce", &mut out).unwrap();
            let said = String::from_utf8_lossy(&out[HEADER_LEN..]).into_owned();
            assert!(said.starts_with(&format!("{mechanism}\0")) && said.contains(flag), "{said}");
        }
    }

    #[test]
    fn a_server_that_does_not_know_the_password_is_not_believed() {
        let user = Arc::new(User::from_secret("app", "secret", b"salt", None));
        let mut login = ServerLogin::start(user, 0, Binding::None, false);
        let mut out = Vec::new();
        login.take(&Authentication::Sasl(vec![b"SCRAM-SHA-256"]), b"nonce", &mut out).unwrap();
        assert!(login.take(&Authentication::Ok, b"", &mut out).is_err());
    }
}

//! A client's login, with the proxy as the server; no I/O.

use std::sync::Arc;

use crate::auth::md5::Md5Secret;
use crate::auth::scram::{BOUND_MECHANISM, Binding, Keys, MECHANISM, Salting, ScramFault, ServerExchange};
use crate::auth::users::User;
use crate::wire::backend::put_authentication;
use crate::wire::codec::{split_cstr, split_i32};
use crate::wire::frame::HEADER_LEN;
use crate::wire::frontend::PASSWORD;

/// Codes of `Authentication…` messages.
const MD5: i32 = 5;
const SASL: i32 = 10;
const SASL_CONTINUE: i32 = 11;
const SASL_FINAL: i32 = 12;

/// A login under way. An unknown user goes through the same exchange as a known one, so that the answer and its form
/// do not tell who exists.
#[derive(Debug)]
pub struct ClientLogin {
    user: Option<Arc<User>>,
    salting: Salting,
    binding: Binding,
    state: State,
}

#[derive(Debug)]
enum State {
    Offered,
    /// The salt that the client hashes with.
    Salted(Md5Secret, [u8; 4]),
    Challenged(ServerExchange),
    Over,
}

/// What to do after a message of the client's.
#[derive(Debug, PartialEq, Eq)]
pub enum LoginStep {
    /// Send what was written and read on.
    Continue,
    /// The client is who it says; send what was written.
    Done,
    /// It is not.
    Failed(LoginFault),
}

/// Why a login fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginFault {
    /// The password is wrong or the user unknown.
    Password,
    /// The client's message is not part of a SCRAM exchange.
    Protocol(ScramFault),
    /// The client chose a mechanism that was not offered.
    Mechanism,
}

impl ClientLogin {
    /// Begins a login: writes the offer, of a bound login first where there is something to bind to. `mock` is the salting
    /// that an unknown user is shown, and `salt` what a user is given of whom only MD5 is known.
    pub fn start(
        user: Option<Arc<User>>,
        mock: Salting,
        salt: [u8; 4],
        binding: Binding,
        out: &mut Vec<u8>,
    ) -> Self {
        let salting = user.as_ref().map_or(mock, |user| user.salting.clone());
        let offer = match binding {
            Binding::None => format!("{MECHANISM}\0\0"),
            Binding::EndPoint(_) => format!("{BOUND_MECHANISM}\0{MECHANISM}\0\0"),
        };
        let state = match user.as_ref().and_then(|user| user.md5()) {
            Some(secret) => {
                put_authentication(out, MD5, &salt);
                State::Salted(secret.clone(), salt)
            }
            None => {
                put_authentication(out, SASL, offer.as_bytes());
                State::Offered
            }
        };
        Self { user, salting, binding, state }
    }

    /// Takes a whole message of the client's. `nonce` is used once, for the server's first message.
    pub fn take(&mut self, message: &[u8], nonce: &[u8], out: &mut Vec<u8>) -> LoginStep {
        let step = match std::mem::replace(&mut self.state, State::Over) {
            State::Offered => self.challenge(message, nonce, out),
            State::Salted(secret, salt) => body(message).and_then(|answer| {
                if !secret.is_answer(salt, answer) {
                    return Err(LoginFault::Password);
                }
                put_authentication(out, 0, &[]);
                Ok(LoginStep::Done)
            }),
            State::Challenged(exchange) => self.finish(exchange, message, out),
            State::Over => Err(LoginFault::Protocol(ScramFault::Malformed)),
        };
        step.unwrap_or_else(LoginStep::Failed)
    }

    fn challenge(
        &mut self,
        message: &[u8],
        nonce: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<LoginStep, LoginFault> {
        const MALFORMED: LoginFault = LoginFault::Protocol(ScramFault::Malformed);
        let (mechanism, rest) = split_cstr(body(message)?).ok_or(MALFORMED)?;
        let is_bound = mechanism == BOUND_MECHANISM.as_bytes() && self.binding != Binding::None;
        if !is_bound && mechanism != MECHANISM.as_bytes() {
            return Err(LoginFault::Mechanism);
        }
        let (length, data) = split_i32(rest).ok_or(MALFORMED)?;
        if usize::try_from(length) != Ok(data.len()) {
            return Err(MALFORMED);
        }
        let (exchange, server_first) =
            ServerExchange::start(data, &self.salting, nonce, &self.binding, is_bound)
                .map_err(LoginFault::Protocol)?;
        put_authentication(out, SASL_CONTINUE, server_first.as_bytes());
        self.state = State::Challenged(exchange);
        Ok(LoginStep::Continue)
    }

    fn finish(
        &self,
        exchange: ServerExchange,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<LoginStep, LoginFault> {
        let candidates = self.user.as_ref().map(|user| user.verifiers()).unwrap_or_default();
        let (server_final, keys): (String, Keys) =
            exchange.finish(body(message)?, &candidates).map_err(|fault| match fault {
                ScramFault::Mismatch => LoginFault::Password,
                ScramFault::Malformed
                | ScramFault::ChannelBinding
                | ScramFault::BindingType
                | ScramFault::Downgrade
                | ScramFault::OtherChannel
                | ScramFault::Iterations => LoginFault::Protocol(fault),
            })?;
        if let Some(user) = &self.user {
            user.learn(keys);
        }
        put_authentication(out, SASL_FINAL, server_final.as_bytes());
        put_authentication(out, 0, &[]);
        Ok(LoginStep::Done)
    }
}

fn body(message: &[u8]) -> Result<&[u8], LoginFault> {
    match message.split_at_checked(HEADER_LEN) {
        Some((&[PASSWORD, ..], body)) => Ok(body),
        _ => Err(LoginFault::Protocol(ScramFault::Malformed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::scram::{Channel, ClientExchange, mock_salting};
    use crate::wire::backend::{Authentication, authentication};
    use crate::wire::frame::header;
    use crate::wire::frontend::{put_password, put_sasl_initial};

    fn login(user: Option<Arc<User>>, password: &str) -> LoginStep {
        let mut out = Vec::new();
        let mut login =
            ClientLogin::start(user, mock_salting(b"secret", "nobody"), [0; 4], Binding::None, &mut out);
        assert!(matches!(authentication(&out), Some(Authentication::Sasl(m)) if m == [MECHANISM.as_bytes()]));
        let (client, first) = ClientExchange::start(b"nonce", Channel::Unable);
        let mut message = Vec::new();
        put_sasl_initial(&mut message, MECHANISM, first.as_bytes());
        out.clear();
        assert_eq!(login.take(&message, b"server", &mut out), LoginStep::Continue);
        let Some(Authentication::SaslContinue(server_first)) = authentication(&out) else {
            panic!("{out:?}")
        };
        let challenge = client.challenge(server_first).unwrap();
        let keys = Keys::derive(password, &challenge.salting);
        message.clear();
        put_password(&mut message, challenge.answer(&keys).as_bytes());
        out.clear();
        let step = login.take(&message, b"", &mut out);
        if step == LoginStep::Done {
            let total = header(&out, 1000).unwrap().unwrap().total;
            let Some(Authentication::SaslFinal(last)) = authentication(&out[..total]) else { panic!() };
            challenge.verify(last, &keys).unwrap();
            assert_eq!(authentication(&out[total..]), Some(Authentication::Ok));
        }
        step
    }

    #[test]
    fn the_right_password_logs_in_and_nothing_else_does() {
        let user = Arc::new(User::from_secret("app", "secret", b"salt", None));
        assert_eq!(login(Some(Arc::clone(&user)), "secret"), LoginStep::Done);
        assert_eq!(login(Some(user), "Secret"), LoginStep::Failed(LoginFault::Password));
    }

    #[test]
    fn an_unknown_user_is_answered_like_a_wrong_password() {
        assert_eq!(login(None, "secret"), LoginStep::Failed(LoginFault::Password));
    }

    #[test]
    fn who_is_known_by_md5_only_is_asked_for_that() {
        let secret = Md5Secret::derive("secret", "app");
        let user = Arc::new(User::from_md5("app", secret.clone()));
        let mock = || mock_salting(b"secret", "nobody");
        for (answer, step) in [
            (secret.answer(*b"salt"), LoginStep::Done),
            (secret.answer(*b"Salt"), LoginStep::Failed(LoginFault::Password)),
            (b"secret\0".to_vec(), LoginStep::Failed(LoginFault::Password)),
        ] {
            let mut out = Vec::new();
            let mut login =
                ClientLogin::start(Some(Arc::clone(&user)), mock(), *b"salt", Binding::None, &mut out);
            assert_eq!(authentication(&out), Some(Authentication::Md5Password(*b"salt")));
            out.clear();
            let mut message = Vec::new();
            put_password(&mut message, &answer);
            assert_eq!(login.take(&message, b"", &mut out), step);
            assert_eq!(authentication(&out) == Some(Authentication::Ok), step == LoginStep::Done);
        }
    }

    #[test]
    fn another_mechanism_is_refused() {
        let mut out = Vec::new();
        let mut login = ClientLogin::start(None, mock_salting(b"s", "n"), [0; 4], Binding::None, &mut out);
        let mut message = Vec::new();
        put_sasl_initial(&mut message, "SCRAM-SHA-256-PLUS", b"n,,n=,r=x");
        assert_eq!(login.take(&message, b"x", &mut out), LoginStep::Failed(LoginFault::Mechanism));
    }
}

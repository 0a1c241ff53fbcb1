use super::*;

fn salting() -> Salting {
    Salting { salt: b"salt and more salt".to_vec(), iterations: 17 }
}

fn exchange(client_keys: &Keys, candidates: &[Verifier]) -> Result<Keys, ScramFault> {
    let (client, client_first) = ClientExchange::start(b"client nonce", Channel::Unable);
    let (server, server_first) =
        ServerExchange::start(client_first.as_bytes(), &salting(), b"server nonce", &Binding::None, false)?;
    let challenge = client.challenge(server_first.as_bytes())?;
    assert_eq!(challenge.salting, salting());
    let (server_final, learned) = server.finish(challenge.answer(client_keys).as_bytes(), candidates)?;
    challenge.verify(server_final.as_bytes(), client_keys)?;
    Ok(learned)
}

#[test]
fn the_rfc_example_is_reproduced() {
    // RFC 7677, section 3, with the password "pencil".
    let (client, _) = ClientExchange::start(b"", Channel::Unable);
    let client = ClientExchange { client_first_bare: "n=user,r=rOprNGfwEbeRWgbNEkqO".to_owned(), ..client };
    let challenge = client
        .challenge(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
        .unwrap();
    let keys = Keys::derive("pencil", &challenge.salting);
    assert_eq!(
        challenge.answer(&keys),
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
         p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    );
    challenge.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", &keys).unwrap();
}

#[test]
fn a_proof_reveals_the_keys_that_it_was_made_with() {
    let keys = Keys::derive("secret", &salting());
    assert_eq!(exchange(&keys, std::slice::from_ref(&keys.verifier)), Ok(keys));
}

#[test]
fn either_password_of_a_rotation_is_right_and_no_other() {
    let [old, new, wrong] = ["old", "new", "wrong"].map(|p| Keys::derive(p, &salting()));
    let candidates = [new.verifier.clone(), old.verifier.clone()];
    assert_eq!(exchange(&old, &candidates), Ok(old.clone()));
    assert_eq!(exchange(&new, &candidates), Ok(new.clone()));
    assert_eq!(exchange(&wrong, &candidates), Err(ScramFault::Mismatch));
    assert_eq!(exchange(&wrong, &[]), Err(ScramFault::Mismatch));
}

#[test]
fn a_stored_verifier_is_read() {
    // Made by PostgreSQL 15: CREATE ROLE r PASSWORD 'secret'.
    let keys = Keys::derive("secret", &salting());
    let text = format!(
        "SCRAM-SHA-256$17:{}${}:{}",
        BASE64.encode(salting().salt),
        BASE64.encode(keys.verifier.stored_key),
        BASE64.encode(keys.verifier.server_key)
    );
    assert_eq!(Verifier::parse(&text), Some((salting(), keys.verifier)));
    for broken in ["", "md5abc", "SCRAM-SHA-256$0:c2FsdA==$eA==:eA==", "SCRAM-SHA-256$17:c2FsdA==$eA=="] {
        assert_eq!(Verifier::parse(broken), None, "{broken}");
    }
}

#[test]
fn broken_messages_are_refused() {
    let start = |message: &str| {
        ServerExchange::start(message.as_bytes(), &salting(), b"n", &Binding::None, false).map(|_| ())
    };
    assert_eq!(start("p=tls-server-end-point,,n=,r=x"), Err(ScramFault::ChannelBinding));
    for message in ["", "n", "n,,", "n,,n=", "n,,n=,r=", "x,,n=,r=a", "n,a=b,n=,r=a", "n,,n=,r=a,b"] {
        assert_eq!(start(message), Err(ScramFault::Malformed), "{message}");
    }
    let challenge = |message: &str| {
        let (client, _) = ClientExchange::start(b"abc", Channel::Unable);
        client.challenge(message.as_bytes()).map(|_| ())
    };
    assert_eq!(challenge("r=YWJjx,s=c2FsdA==,i=99999999"), Err(ScramFault::Iterations));
    for message in ["", "r=other,s=c2FsdA==,i=1", "r=YWJj,s=c2FsdA==,i=1", "r=YWJjx,s=!,i=1"] {
        assert_eq!(challenge(message), Err(ScramFault::Malformed), "{message}");
    }
}

/// A login over a channel that the client takes for `client`, and the server for `server`.
fn bound(client: &[u8], server: &[u8]) -> Result<(), ScramFault> {
    let keys = Keys::derive("secret", &salting());
    let (exchange, first) = ClientExchange::start(b"client", Channel::Bound(client));
    let binding = Binding::EndPoint(server.to_vec());
    let (server, server_first) =
        ServerExchange::start(first.as_bytes(), &salting(), b"server", &binding, true)?;
    let challenge = exchange.challenge(server_first.as_bytes())?;
    let last = challenge.answer(&keys);
    let (server_final, _) = server.finish(last.as_bytes(), std::slice::from_ref(&keys.verifier))?;
    challenge.verify(server_final.as_bytes(), &keys)
}

#[test]
fn a_login_is_bound_to_one_channel() {
    assert_eq!(bound(b"certificate", b"certificate"), Ok(()));
    assert_eq!(bound(b"certificate", b"another"), Err(ScramFault::OtherChannel));
}

#[test]
fn the_bound_message_is_that_of_the_rfcs() {
    // RFC 5802, section 7: c= is base64 of the header of GS2 and the data of the channel.
    let (exchange, first) = ClientExchange::start(b"abc", Channel::Bound(b"\x01\x02"));
    assert_eq!(first, "p=tls-server-end-point,,n=,r=YWJj");
    let challenge = exchange.challenge(b"r=YWJjx,s=c2FsdA==,i=1").unwrap();
    let last = challenge.answer(&Keys::derive("secret", &challenge.salting));
    assert!(last.starts_with("c=cD10bHMtc2VydmVyLWVuZC1wb2ludCwsAQI=,r=YWJjx,p="), "{last}");
}

#[test]
fn what_a_client_says_of_the_channel_must_go_with_the_offer_and_the_mechanism() {
    let offered = Binding::EndPoint(b"certificate".to_vec());
    let start = |flag: &str, binding: &Binding, is_bound: bool| {
        let message = format!("{flag},,n=,r=abc");
        ServerExchange::start(message.as_bytes(), &salting(), b"n", binding, is_bound).map(drop)
    };
    let end_point = "p=tls-server-end-point";
    for (flag, binding, is_bound, expected) in [
        ("n", &offered, false, Ok(())),
        ("y", &offered, false, Err(ScramFault::Downgrade)),
        (end_point, &offered, false, Err(ScramFault::ChannelBinding)),
        (end_point, &offered, true, Ok(())),
        ("n", &offered, true, Err(ScramFault::ChannelBinding)),
        ("y", &offered, true, Err(ScramFault::ChannelBinding)),
        ("p=tls-unique", &offered, true, Err(ScramFault::BindingType)),
        ("n", &Binding::None, false, Ok(())),
        ("y", &Binding::None, false, Ok(())),
        (end_point, &Binding::None, false, Err(ScramFault::ChannelBinding)),
        ("q", &offered, true, Err(ScramFault::Malformed)),
    ] {
        assert_eq!(start(flag, binding, is_bound), expected, "{flag} {is_bound}");
    }
}

use super::*;
use crate::tls::sample::ends;

/// Carries what one end has to send to the other, in pieces of that size.
fn carry(from: &mut Channel, to: &mut Channel, piece: usize) -> Vec<u8> {
    let mut plain = Vec::new();
    let sent = from.unsent().to_vec();
    from.sent(sent.len());
    for piece in sent.chunks(piece) {
        let mut received = [to.partial(), piece].concat();
        to.receive(&mut received, &mut plain).unwrap();
    }
    plain
}

fn shaken(piece: usize) -> (Channel, Channel) {
    let (mut client, mut server) = ends();
    client.receive(&mut [], &mut Vec::new()).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        carry(&mut client, &mut server, piece);
        carry(&mut server, &mut client, piece);
    }
    (client, server)
}

#[test]
fn a_handshake_may_come_in_pieces_of_any_size() {
    for piece in [1, 7, 1000, 100_000] {
        let (client, server) = shaken(piece);
        assert_eq!(client.protocol(), Some(&b"postgresql"[..]));
        assert!(client.peer_certificate().is_some() && server.peer_certificate().is_none());
    }
}

#[test]
fn what_is_sealed_comes_out_whole_in_few_records() {
    let (mut client, mut server) = shaken(100_000);
    carry(&mut server, &mut client, 100_000);
    let plain: Vec<u8> = (0..251_u8).cycle().take(SEALED_MAX).collect();
    server.seal(&plain).unwrap();
    let sealed = server.unsent().len();
    assert!(sealed <= SEALED_MAX + 4 * RECORD_OVERHEAD, "{sealed} bytes are more than four records");
    for piece in [1000, 16_384, 17_000] {
        assert_eq!(carry(&mut server, &mut client, piece), if piece == 1000 { &plain[..] } else { &[] });
        assert!(client.partial().is_empty());
    }
    // Several at a time, and both ways.
    client.seal(b"one").unwrap();
    client.seal(b"two").unwrap();
    assert_eq!(carry(&mut client, &mut server, 10), b"onetwo");
    client.rest();
    assert_eq!((client.outgoing.capacity(), client.partial.capacity()), (0, 0));
}

#[test]
fn an_end_is_told_from_a_cut() {
    let (mut client, mut server) = shaken(100_000);
    carry(&mut server, &mut client, 100_000);
    client.seal(b"last words").unwrap();
    client.end().unwrap();
    assert!(!server.has_peer_ended());
    assert_eq!(carry(&mut client, &mut server, 5), b"last words");
    assert!(server.has_peer_ended());
    server.seal(b"still here").unwrap();
    assert_eq!(carry(&mut server, &mut client, 5), b"still here");
}

#[test]
fn what_was_changed_on_its_way_is_refused_and_the_other_side_is_told() {
    let (mut client, mut server) = shaken(100_000);
    carry(&mut server, &mut client, 100_000);
    client.seal(b"SELECT 1").unwrap();
    let mut changed = client.unsent().to_vec();
    *changed.last_mut().unwrap() ^= 1;
    let mut plain = Vec::new();
    assert!(server.receive(&mut changed, &mut plain).is_err());
    assert!(plain.is_empty() && !server.unsent().is_empty());
    let mut alert = server.unsent().to_vec();
    assert!(client.receive(&mut alert, &mut plain).unwrap_err().to_string().contains("BadRecordMac"));
}

#[test]
fn clear_text_in_place_of_a_handshake_is_refused() {
    let (_, mut server) = ends();
    let mut startup = b"\0\0\0\x0d\0\x03\0\0user\0".to_vec();
    assert!(server.receive(&mut startup, &mut Vec::new()).is_err());
}

#[test]
fn a_handshake_that_was_changed_anywhere_brings_nothing_and_breaks_nothing() {
    let (mut client, _) = ends();
    client.receive(&mut [], &mut Vec::new()).unwrap();
    for at in 0..client.unsent().len() {
        let (mut client, mut server) = ends();
        client.receive(&mut [], &mut Vec::new()).unwrap();
        let mut hello = client.unsent().to_vec();
        if let Some(byte) = hello.get_mut(at) {
            *byte ^= 0x55;
        }
        let mut plain = Vec::new();
        let _ = server.receive(&mut hello, &mut plain);
        // Whatever has become of it: the end may be said, and more may come.
        let _ = server.end();
        let _ = server.receive(&mut vec![0x16; 300], &mut plain);
        assert!(server.is_handshaking() && plain.is_empty(), "byte {at}");
    }
    // The same for what the server says, and for what is encrypted of it.
    let mut answer = 0..1;
    while let Some(at) = answer.next() {
        let (mut client, mut server) = ends();
        client.receive(&mut [], &mut Vec::new()).unwrap();
        carry(&mut client, &mut server, 100_000);
        let mut said = server.unsent().to_vec();
        answer.end = said.len();
        if let Some(byte) = said.get_mut(at) {
            *byte ^= 0x55;
        }
        let mut plain = Vec::new();
        // Versions in headers of records mean nothing any more.
        let _ = client.receive(&mut said, &mut plain);
        let _ = client.seal(b"startup");
        let _ = client.end();
        assert!(plain.is_empty(), "byte {at}");
    }
}

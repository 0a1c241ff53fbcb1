use std::future::poll_fn;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::tls::sample::ends;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

#[tokio::test]
async fn what_is_sent_is_read_in_pieces_of_any_size() {
    let (near, mut far) = pair().await;
    let mut near = Stream::plain(near);
    let mut inbox = Inbox::default();
    assert!(inbox.is_at_rest());
    let sent: Vec<u8> = (0..200_u8).cycle().take(10_000).collect();
    let mut got = Vec::new();
    for piece in sent.chunks(777) {
        far.write_all(piece).await.unwrap();
        while got.len() < sent.len() && inbox.len() < piece.len() {
            assert!(poll_fn(|cx| inbox.poll_read(&mut near, cx, 100)).await.unwrap() > 0);
        }
        got.extend_from_slice(&inbox);
        inbox.advance(inbox.len());
    }
    assert_eq!(got, sent);
    drop(far);
    assert_eq!(poll_fn(|cx| inbox.poll_read(&mut near, cx, 100)).await.unwrap(), 0);
    inbox.rest();
    assert!(inbox.is_at_rest());
}

#[tokio::test]
async fn a_full_socket_is_waited_for() {
    let (near, far) = pair().await;
    let (mut near, mut far) = (Stream::plain(near), Stream::plain(far));
    let mut outbox = Outbox::default();
    outbox.bytes().resize(8_000_000, 7);
    let receiving = async {
        let mut inbox = Inbox::default();
        let mut total = 0;
        while total < 8_000_000 {
            total += poll_fn(|cx| inbox.poll_read(&mut far, cx, 65_536)).await.unwrap();
            inbox.advance(inbox.len());
        }
    };
    let sending = poll_fn(|cx| outbox.poll_send(&mut near, cx));
    let (sent, ()) = tokio::join!(sending, receiving);
    sent.unwrap();
    assert!(outbox.is_empty() && outbox.last_sent().is_empty());
}

#[test]
fn bytes_are_taken_from_the_front() {
    let mut inbox = Inbox::with(b"hello".to_vec());
    inbox.advance(2);
    assert_eq!(*inbox, *b"llo");
    inbox.reserve(1000);
    assert_eq!(*inbox, *b"llo");
    inbox.advance(3);
    assert!(inbox.is_empty());
}

/// Both ends of an encrypted connection.
async fn secure_pair() -> (Stream, Stream) {
    let (near, far) = pair().await;
    let (mut near, mut far) = (Stream::plain(near), Stream::plain(far));
    let (client, server) = ends();
    let (said, heard) = tokio::join!(near.secure(client, Vec::new()), far.secure(server, Vec::new()));
    assert!(said.unwrap().is_empty() && heard.unwrap().is_empty());
    (near, far)
}

#[tokio::test]
async fn more_than_a_socket_holds_comes_through_tls_whole() {
    let (mut near, mut far) = secure_pair().await;
    let sent: Vec<u8> = (0..251_u8).cycle().take(8_000_000).collect();
    let mut outbox = Outbox::default();
    outbox.bytes().extend_from_slice(&sent);
    let receiving = async {
        let mut inbox = Inbox::default();
        let mut got = Vec::new();
        while got.len() < sent.len() {
            assert!(poll_fn(|cx| inbox.poll_read(&mut far, cx, 100)).await.unwrap() > 0);
            // Something always stays, as half a message does.
            let taken = inbox.len() - usize::from(got.len() + inbox.len() < sent.len());
            got.extend_from_slice(&inbox[..taken]);
            inbox.advance(taken);
            assert!(inbox.bytes.len() < 200_000, "what was taken is let go of");
        }
        got
    };
    let (done, got) = tokio::join!(poll_fn(|cx| outbox.poll_send(&mut near, cx)), receiving);
    done.unwrap();
    assert!(got == sent && near.is_flushed() && outbox.is_empty());
}

#[tokio::test]
async fn an_end_over_tls_is_an_end_and_a_cut_is_an_error() {
    for is_cut in [false, true] {
        let (mut near, mut far) = secure_pair().await;
        // Tickets that nobody has read would make a reset of the end.
        near.tcp().readable().await.unwrap();
        assert!(near.is_silent(true));
        let mut inbox = Inbox::default();
        assert!(poll_fn(|cx| near.poll_write(cx, b"last words")).await.unwrap() == 10 && !near.is_flushed());
        poll_fn(|cx| near.poll_flush(cx)).await.unwrap();
        assert_eq!(poll_fn(|cx| inbox.poll_read(&mut far, cx, 100)).await.unwrap(), 10);
        if !is_cut {
            near.end().await.unwrap();
        }
        drop(near);
        let end = poll_fn(|cx| inbox.poll_read(&mut far, cx, 100)).await;
        assert_eq!(
            end.map_err(|error| error.kind()),
            if is_cut { Err(io::ErrorKind::UnexpectedEof) } else { Ok(0) }
        );
    }
}

#[tokio::test]
async fn an_idle_connection_is_silent_until_something_is_said() {
    let (mut near, mut far) = secure_pair().await;
    // The tickets of the handshake are no word.
    for is_told_late in [true, false] {
        near.tcp().readable().await.unwrap();
        assert!(near.is_silent(is_told_late));
        assert!(near.is_silent(is_told_late));
    }
    poll_fn(|cx| far.poll_write(cx, b"FATAL")).await.unwrap();
    poll_fn(|cx| far.poll_flush(cx)).await.unwrap();
    near.tcp().readable().await.unwrap();
    assert!(!near.is_silent(true));
    let (mut near, far) = secure_pair().await;
    drop(far);
    near.tcp().readable().await.unwrap();
    assert!(!near.is_silent(true) || !near.is_silent(true));
}

//! The mark in a cancel key by which the proxies of a pool know the keys that one of them gave out.
//!
//! The last two bytes of its secret are a keyed hash over the rest of the key. Without the pool's secret nobody makes a
//! key that bears the mark, but for one guess in 65,536; so garbage costs one hash, and no peer is asked about it. To
//! somebody without the pool's secret the mark of a key that he was not given is as good as random, and the key as hard
//! to guess as if it were. The process id has no part of the mark: it may have to be the server's.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::wire::startup::CancelKey;

/// What marks are made with. The proxies of one pool have the same.
#[derive(Clone, PartialEq, Eq)]
pub struct MarkSecret(Vec<u8>);

/// Bytes of a key's secret that are its mark.
const MARK_LEN: usize = 2;

impl MarkSecret {
    /// One that no other process has.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random::<[u8; 32]>().to_vec())
    }

    /// The one that the proxies of a pool share.
    #[must_use]
    pub fn shared(secret: &[u8]) -> Self {
        Self(secret.to_vec())
    }

    /// A new key with this process id, whose secret has that many bytes and is not known to anybody.
    #[must_use]
    pub fn make_key(&self, process_id: i32, secret_len: usize) -> CancelKey {
        let drawn_len = secret_len.saturating_sub(MARK_LEN);
        let mut secret: Vec<u8> = std::iter::repeat_with(rand::random).take(drawn_len).collect();
        secret.extend(self.mark(process_id, &secret));
        CancelKey { process_id, secret }
    }

    /// Whether a key bears our mark.
    #[must_use]
    pub fn is_on(&self, key: &CancelKey) -> bool {
        let Some((drawn, mark)) = key.secret.split_last_chunk::<MARK_LEN>() else { return false };
        self.mark(key.process_id, drawn).ct_eq(mark).into()
    }

    fn mark(&self, process_id: i32, drawn: &[u8]) -> [u8; MARK_LEN] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(b"pgrouting cancel key");
        mac.update(&process_id.to_be_bytes());
        mac.update(drawn);
        let [first, second, ..]: [u8; 32] = mac.finalize().into_bytes().into();
        [first, second]
    }
}

impl std::fmt::Debug for MarkSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MarkSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::startup::{LONG_SECRET_LEN, SHORT_SECRET_LEN};

    #[test]
    fn those_who_share_the_secret_know_the_key_and_others_do_not() {
        let [here, there, elsewhere] = [&b"shared"[..], b"shared", b"other"].map(MarkSecret::shared);
        for secret_len in [SHORT_SECRET_LEN, LONG_SECRET_LEN] {
            let keys: Vec<_> = (0..64).map(|process_id| here.make_key(process_id, secret_len)).collect();
            assert!(keys.iter().all(|key| key.secret.len() == secret_len));
            assert!(keys.iter().all(|key| there.is_on(key)));
            assert!(!keys.iter().all(|key| elsewhere.is_on(key)));
        }
    }

    #[test]
    fn a_key_that_is_changed_in_any_place_loses_its_mark() {
        let secret = MarkSecret::shared(b"shared");
        // One change in 65,536 would keep it, and the same key is tried each time.
        let mark = secret.mark(7, &[1, 2]);
        let key = CancelKey { process_id: 7, secret: [&[1, 2], &mark[..]].concat() };
        assert!(secret.is_on(&key));
        for bit in 0..32 {
            assert!(!secret.is_on(&CancelKey { process_id: key.process_id ^ (1 << bit), ..key.clone() }));
            let mut changed = key.clone();
            changed.secret[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.is_on(&changed));
        }
        assert!(!secret.is_on(&CancelKey { process_id: 7, secret: vec![1] }));
    }
}

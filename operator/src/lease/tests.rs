//! Who may take the Lease, and that the epoch only grows.

use super::*;

fn settings(identity: &str) -> LeaseSettings {
    LeaseSettings { name: "l".into(), namespace: "n".into(), identity: identity.into() }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_796_000_000).unwrap()
}

fn take(stored: Option<&Lease>, who: &str, unchanged_secs: u64) -> Option<Lease> {
    match next_step(stored, &settings(who), Duration::from_secs(unchanged_secs), now()) {
        Step::Take(lease) => Some(*lease),
        Step::Wait => None,
    }
}

#[test]
fn free_lease_is_taken_with_a_new_epoch() {
    let first = take(None, "a", 0).unwrap();
    assert_eq!(first.spec.as_ref().unwrap().holder_identity.as_deref(), Some("a"));
    let mut released = first.clone();
    released.spec.as_mut().unwrap().holder_identity = None;
    let second = take(Some(&released), "b", 0).unwrap();
    assert!(epoch_of(&second) > epoch_of(&first));
}

#[test]
fn holder_renews_under_the_same_epoch() {
    let held = take(None, "a", 0).unwrap();
    let renewed = take(Some(&held), "a", 5).unwrap();
    assert_eq!(epoch_of(&renewed), epoch_of(&held));
    assert_eq!(renewed.spec.unwrap().acquire_time, held.spec.unwrap().acquire_time);
}

#[test]
fn others_wait_until_it_has_run_out_on_their_own_clock() {
    let held = take(None, "a", 0).unwrap();
    assert_eq!(take(Some(&held), "b", 19), None);
    let taken = take(Some(&held), "b", 20).unwrap();
    assert!(epoch_of(&taken) > epoch_of(&held));
}

#[test]
fn lease_that_was_deleted_and_made_again_goes_on_above() {
    let mut lease = take(None, "a", 0).unwrap();
    // A year of one change a day.
    for _ in 0..365 {
        lease.spec.as_mut().unwrap().holder_identity = None;
        lease = take(Some(&lease), "a", 0).unwrap();
    }
    let a_year_later = Timestamp::from_second(now().as_second() + 365 * 86_400).unwrap();
    let Step::Take(anew) = next_step(None, &settings("a"), Duration::ZERO, a_year_later) else {
        panic!("nobody holds it")
    };
    assert!(epoch_of(&anew) > epoch_of(&lease));
}

#[test]
fn write_carries_the_version_that_was_read() {
    let mut held = take(None, "a", 0).unwrap();
    held.metadata.resource_version = Some("7".into());
    let renewed = take(Some(&held), "a", 0).unwrap();
    assert_eq!(renewed.metadata.resource_version.as_deref(), Some("7"));
}

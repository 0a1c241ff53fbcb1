use std::time::Duration;

use super::*;

/// How many of so many transactions, one after the other at this distance, are timed, and at which places.
fn timed(sampler: &Sampler, from: Instant, count: u32, distance: Duration) -> Vec<u32> {
    let at = |number: u32| from + distance * number;
    let is_timed = |number: &u32| {
        let is_due = sampler.is_due();
        if is_due {
            sampler.draw_next(at(*number));
        }
        is_due
    };
    (0..count).filter(is_timed).collect()
}

#[test]
fn where_there_are_few_each_is_timed() {
    let sampler = Sampler::default();
    let from = Instant::now() + Duration::from_secs(1);
    assert_eq!(timed(&sampler, from, 1_000, Duration::from_micros(2_500)).len(), 1_000);
}

#[test]
fn where_there_are_many_about_one_a_millisecond_or_two_is_timed() {
    let sampler = Sampler::default();
    let from = Instant::now() + Duration::from_secs(1);
    // 20 a millisecond, for two seconds.
    let found = timed(&sampler, from, 40_000, Duration::from_micros(50)).len();
    assert!((600..4_000).contains(&found), "{found}");
}

#[test]
fn there_is_a_bound_to_what_is_left_out() {
    let sampler = Sampler::default();
    let from = Instant::now() + Duration::from_secs(1);
    let found = timed(&sampler, from, 650_000, Duration::from_nanos(100)).len();
    assert!((9_000..11_500).contains(&found), "{found}");
    // It falls again when there are few.
    let later = from + Duration::from_secs(10);
    timed(&sampler, later, 2_000, Duration::from_millis(3));
    assert_eq!(timed(&sampler, later + Duration::from_secs(10), 100, Duration::from_millis(3)).len(), 100);
}

#[test]
fn no_pattern_of_statements_keeps_step() {
    for period in [2, 3, 8, 64, 65] {
        let sampler = Sampler::default();
        let from = Instant::now() + Duration::from_secs(1);
        let places = timed(&sampler, from, 200_000, Duration::from_micros(10));
        let met = places.iter().filter(|place| **place % period == 0).count();
        let share = met * usize::try_from(period).unwrap() * 100 / places.len();
        assert!((60..=140).contains(&share), "every {period}: {share} of 100");
    }
}

#[test]
fn threads_are_summed_and_what_did_not_wait_waited_for_no_time() {
    let threads = [Arms::default(), Arms::default()];
    for arms in &threads {
        let cohort = arms.of(Arm::Cohort);
        cohort.transactions.add(3);
        cohort.errors.add_one();
        cohort.latency.count(Duration::from_micros(20));
        arms.of(Arm::Unmirrored).transactions.add_one();
        arms.waits.count(Duration::from_micros(7));
        arms.waited.add_one();
    }
    threads[1].misrouted.add_one();
    let sum = sum(threads.iter(), 10);
    assert_eq!((sum.cohort.transactions, sum.cohort.errors, sum.cohort.latency.count()), (6, 2, 2));
    assert_eq!((sum.control.transactions, sum.unmirrored.transactions, sum.misrouted), (0, 2, 1));
    assert_eq!(sum.waits.0, [(0, 8), (7, 2)].into());
}

#[test]
fn each_arm_is_its_own_part_of_the_report() {
    let arms = Arms::default();
    for (arm, count) in Arm::ALL.into_iter().zip(1..) {
        arms.of(arm).transactions.add(count);
    }
    let sum = sum([&arms].into_iter(), 0);
    for (arm, count) in Arm::ALL.into_iter().zip(1..) {
        assert_eq!(arm.of(&sum).transactions, count, "{arm:?}");
    }
}

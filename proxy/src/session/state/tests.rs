use super::*;
use crate::classify::tags::tag_effect;
use crate::classify::touches::touches;

fn state(startup: &[(&str, &str)]) -> State {
    let registry = Arc::new(SettingsRegistry::default());
    let pairs: Vec<_> = startup.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    let startup = registry.from_startup(&pairs, false).unwrap();
    State::new(Databases::default().tracking("d", &registry, &Arc::default(), &Arc::default()), startup, true)
}

fn run(state: &mut State, sql: &str) {
    state.note(&touches(sql.as_bytes()), sql.as_bytes());
}

/// Lets the server answer with these settings and kinds.
fn answer(state: &mut State, settings: &[(&str, &str)], present: Kinds) {
    let (mut question, _) = state.question(15).unwrap();
    question.settings = settings.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    question.present = present;
    state.answered(question, "app");
}

#[test]
fn a_setting_is_asked_about_and_kept() {
    let mut state = state(&[("timezone", "UTC")]);
    run(&mut state, "SET geqo = off");
    answer(
        &mut state,
        &[("geqo", "off"), ("timezone", "UTC"), ("session_authorization", "app")],
        Kinds::NONE,
    );
    assert_eq!(state.settings.value("geqo"), Some("off"));
    assert_eq!(state.settings.value("session_authorization"), None);
    assert_eq!(state.reason(), None);
    assert!(state.question(15).is_none());
}

#[test]
fn a_reset_goes_back_to_what_the_client_came_with() {
    let mut state = state(&[("timezone", "UTC")]);
    run(&mut state, "RESET timezone");
    answer(&mut state, &[], Kinds::NONE);
    assert_eq!(state.settings.value("timezone"), Some("UTC"));
}

#[test]
fn what_is_there_pins_until_it_is_gone() {
    let mut state = state(&[]);
    run(&mut state, "CREATE TEMP TABLE t ()");
    answer(&mut state, &[], Kinds::TEMP);
    assert_eq!((state.reason(), state.tie()), (Some(PinReason::TempTable), Tie::Fast));
    // What there is, once it is known that there is something.
    let (mut question, _) = state.question(15).unwrap();
    assert_eq!(question.kinds, Kinds::TEMP_NAMES);
    question.temporary = Some(vec!["t".into()]);
    state.answered(question, "app");
    assert_eq!(state.tie(), Tie::of_temporary(Some(&["t".into()])));
    run(&mut state, "SELECT 1");
    assert!(state.question(15).is_none());
    run(&mut state, "DROP TABLE t");
    answer(&mut state, &[], Kinds::NONE);
    assert_eq!(state.reason(), None);
}

#[test]
fn what_is_local_is_not_asked_about() {
    let mut state = state(&[]);
    run(&mut state, "SET LOCAL my.user = 'x'; SELECT set_config('my.user', $1, true)");
    state.note_tag(tag_effect(b"SET"));
    assert!(state.question(15).is_none());
    assert_eq!(state.reason(), None);
}

#[test]
fn a_tag_tells_of_what_was_not_read() {
    let mut state = state(&[]);
    state.note_tag(tag_effect(b"SET"));
    assert!(state.question(15).is_none(), "the session stays, so nothing has to be known");
    assert_eq!(state.reason(), Some(PinReason::Opaque));
    state.note_tag(tag_effect(b"DISCARD ALL"));
    assert_eq!(state.reason(), None);
}

#[test]
fn without_an_answer_the_session_stays_and_asks_again() {
    let mut state = state(&[]);
    run(&mut state, "SET geqo = off");
    let (question, _) = state.question(15).unwrap();
    state.unanswered(question);
    assert!(state.question(15).is_none());
    assert_eq!(state.reason(), Some(PinReason::Opaque));
    run(&mut state, "SET LOCAL geqo = off");
    answer(&mut state, &[("geqo", "off")], Kinds::NONE);
    assert_eq!(state.reason(), None);
}

#[test]
fn a_function_is_asked_about_the_first_time_only() {
    let mut state = state(&[]);
    run(&mut state, "SELECT lower('A')");
    let (question, sql) = state.question(15).unwrap();
    assert!(sql.contains("pg_proc") && sql.contains("E'lower'"));
    state.answered(question, "app");
    run(&mut state, "SELECT lower('B')");
    assert!(state.question(15).is_none());
}

#[test]
fn in_session_mode_nothing_is_asked() {
    let mut state = state(&[]);
    state.is_tracked = false;
    run(&mut state, "SET geqo = off; LISTEN x");
    state.note_unread();
    assert!(state.question(15).is_none());
    assert_eq!(state.reason(), None);
    assert!(!state.is_spoilt());
    assert_eq!(state.tracking.audit.entries().len(), 1);
}

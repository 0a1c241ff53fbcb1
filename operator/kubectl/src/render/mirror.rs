//! What comes of the copied traffic, as the status has it.

use kube::ResourceExt as _;
use pgrouting_crds::spec::PgRoutingPool;
use pgrouting_crds::status::MirrorStatus;

use crate::pods::PodAnswer;
use crate::render::facts::Facts;
use crate::text::{micros_text, time_text};

/// In a line.
#[must_use]
pub fn summary(mirror: &MirrorStatus) -> String {
    format!(
        "{} to {}: {} of {} transactions were run there; {} of {} compared requests differ",
        mirror.state.as_str(),
        mirror.target,
        mirror.mirrored,
        mirror.offered,
        mirror.differing,
        mirror.compared
    )
}

/// What each proxy said, with a heading; where none could be asked, the figures of the status.
#[must_use]
pub fn reports(pool: &PgRoutingPool, answers: &Result<Vec<PodAnswer<String>>, String>) -> String {
    let why = match answers {
        Ok(answers) if answers.iter().any(|one| one.answer.is_ok()) => {
            return answers.iter().map(report).collect::<Vec<_>>().join("\n");
        }
        Ok(answers) => {
            let faults: Vec<_> = answers
                .iter()
                .filter_map(|one| one.answer.as_ref().err().map(|fault| format!("{}: {fault}", one.pod.name)))
                .collect();
            if faults.is_empty() { "no proxy is ready".to_owned() } else { faults.join("; ") }
        }
        Err(why) => why.clone(),
    };
    let mut facts = Facts::default();
    facts.add("Proxies", format!("not asked: {why}"));
    match pool.status.as_ref().and_then(|status| status.mirror.as_ref()) {
        Some(mirror) => figures(&mut facts, mirror),
        None => facts.add("Mirror", format!("the status of pool {} has no figures of one", pool.name_any())),
    }
    facts.text()
}

fn report(one: &PodAnswer<String>) -> String {
    let name = &one.pod.name;
    match &one.answer {
        Ok(text) => format!("== {name} ==\n{}\n", text.trim_end()),
        Err(fault) => format!("== {name} ==\nNot asked: {fault}\n"),
    }
}

/// All of them. They are sums over the proxies.
fn figures(facts: &mut Facts, mirror: &MirrorStatus) {
    let MirrorStatus {
        target: _,
        state: _,
        offered: _,
        mirrored: _,
        dropped,
        skipped,
        compared,
        differing: _,
        errors,
        source_micros,
        mirror_micros,
        diverged_since,
        message,
        taken_at,
    } = mirror;
    facts.add("Mirror", summary(mirror));
    facts.more(format!("{dropped} transactions were dropped, {skipped} are not of the kind that is copied"));
    facts.more(format!("errors there that were none here: {errors}"));
    if *compared > 0 {
        facts.more(format!(
            "a compared request took {} here and {} there",
            micros_text(source_micros / compared),
            micros_text(mirror_micros / compared)
        ));
    }
    if let Some(since) = diverged_since {
        facts.more(format!("rows there may differ since {}", time_text(since.0)));
    }
    if let Some(message) = message {
        facts.more(format!("the last failure: {message}"));
    }
    facts.more(format!("as of {}, in the status of the pool", time_text(taken_at.0)));
}

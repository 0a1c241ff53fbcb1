//! The document in effect: offers are taken whole or refused whole, and the higher generation wins.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pgrouting_contract::config::{ConfigHash, InvalidConfig, ProxyConfig};
use pgrouting_contract::report::{ConfigAnswer, ConfigOutcome, ConfigReport, RefusedConfig};

/// A document with its hash.
#[derive(Debug, PartialEq, Eq)]
pub struct ActiveConfig {
    /// The document.
    pub config: ProxyConfig,
    /// The hash of its canonical bytes.
    pub hash: ConfigHash,
}

impl ActiveConfig {
    /// Computes the hash.
    #[must_use]
    pub fn new(config: ProxyConfig) -> Arc<Self> {
        let hash = config.hash();
        Arc::new(Self { config, hash })
    }
}

/// Where a document comes from, which decides what it may replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The file changed by itself, as a mounted ConfigMap does: only a higher generation counts, so that an old copy
    /// never undoes a newer push.
    File,
    /// Somebody asked to read the file again (SIGHUP): the same generation counts too, since people forget to raise
    /// it.
    Reload,
    /// The operator, with the epoch of its lease: a lower epoch than one seen before is a leader that was replaced.
    Push {
        /// The lease's number of transitions.
        epoch: u64,
    },
}

/// The document in effect and what is remembered of others.
#[derive(Debug)]
pub struct ConfigStore {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    active: Arc<ActiveConfig>,
    refused: Option<RefusedConfig>,
    epoch: u64,
}

impl ConfigStore {
    /// Begins with the document that was read at start.
    #[must_use]
    pub const fn new(active: Arc<ActiveConfig>) -> Self {
        Self { state: Mutex::new(State { active, refused: None, epoch: 0 }) }
    }

    /// The document in effect.
    #[must_use]
    pub fn active(&self) -> Arc<ActiveConfig> {
        Arc::clone(&self.lock().active)
    }

    /// The document in effect and the one refused last, for the report.
    #[must_use]
    pub fn report(&self) -> ConfigReport {
        let state = self.lock();
        ConfigReport {
            generation: state.active.config.generation,
            hash: state.active.hash.clone(),
            stage: state.active.config.stage,
            refused: state.refused.clone(),
        }
    }

    /// Decides about a document. `put_into_effect` is called, before anyone is answered, when it is to run; it may still
    /// refuse it, with its reasons, and must have changed nothing then.
    pub fn offer(
        &self,
        document: &[u8],
        source: Source,
        put_into_effect: impl FnOnce(&Arc<ActiveConfig>) -> Result<(), Vec<String>>,
    ) -> ConfigAnswer {
        let parsed = ProxyConfig::parse(document);
        let mut state = self.lock();
        let offered = match parsed {
            Ok(config) => ActiveConfig::new(config),
            Err(InvalidConfig { generation, reasons }) => {
                return state.refuse(RefusedConfig { generation, reasons });
            }
        };
        if let Source::Push { epoch } = source {
            if epoch < state.epoch {
                let seen = state.epoch;
                return state.answer(
                    ConfigOutcome::Stale,
                    vec![format!("epoch {epoch} is over, epoch {seen} has spoken")],
                );
            }
            state.epoch = epoch;
        }
        if offered.hash == state.active.hash {
            return state.answer(ConfigOutcome::Unchanged, Vec::new());
        }
        let (new, old) = (offered.config.generation, state.active.config.generation);
        let is_stale = match source {
            Source::File | Source::Push { .. } => new <= old,
            Source::Reload => new < old,
        };
        if is_stale {
            return state.answer(
                ConfigOutcome::Stale,
                vec![format!("generation {new} is not above {old}, which runs")],
            );
        }
        if offered.config.process != state.active.config.process {
            let reasons = vec!["process: a change needs a restart of the proxy".to_owned()];
            return state.refuse(RefusedConfig { generation: Some(new), reasons });
        }
        if let Err(reasons) = put_into_effect(&offered) {
            return state.refuse(RefusedConfig { generation: Some(new), reasons });
        }
        state.active = offered;
        state.refused = None;
        state.answer(ConfigOutcome::Applied, Vec::new())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn refuse(&mut self, refused: RefusedConfig) -> ConfigAnswer {
        let reasons = refused.reasons.clone();
        self.refused = Some(refused);
        self.answer(ConfigOutcome::Refused, reasons)
    }

    fn answer(&self, outcome: ConfigOutcome, reasons: Vec<String>) -> ConfigAnswer {
        let generation = self.active.config.generation;
        ConfigAnswer { outcome, generation, hash: self.active.hash.clone(), reasons }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(generation: u64, extra: &str) -> Vec<u8> {
        format!(
            "{{version: 1, generation: {generation}, pool: p, servers: [{{name: a, host: h}}], \
             auth: {{type: UserList, users: [{{name: u, password: p}}]}}{extra}}}"
        )
        .into_bytes()
    }

    fn store(generation: u64) -> ConfigStore {
        ConfigStore::new(ActiveConfig::new(ProxyConfig::parse(&document(generation, "")).unwrap()))
    }

    fn offer(store: &ConfigStore, document: &[u8], source: Source) -> ConfigOutcome {
        let before = store.active();
        let mut is_put_into_effect = false;
        let outcome = store
            .offer(document, source, |_| {
                is_put_into_effect = true;
                Ok(())
            })
            .outcome;
        assert_eq!(is_put_into_effect, outcome == ConfigOutcome::Applied);
        assert_eq!(store.active() != before, outcome == ConfigOutcome::Applied);
        outcome
    }

    #[test]
    fn the_higher_generation_wins_whatever_the_order_of_arrival() {
        let push = Source::Push { epoch: 1 };
        for (generation, extra, source, outcome) in [
            (6, "", push, ConfigOutcome::Applied),
            (5, "", push, ConfigOutcome::Unchanged),
            (5, ", stage: Split", push, ConfigOutcome::Stale),
            (5, ", stage: Split", Source::File, ConfigOutcome::Stale),
            (5, ", stage: Split", Source::Reload, ConfigOutcome::Applied),
            (4, ", stage: Split", Source::Reload, ConfigOutcome::Stale),
            (6, "", Source::File, ConfigOutcome::Applied),
        ] {
            let store = store(5);
            assert_eq!(
                offer(&store, &document(generation, extra), source),
                outcome,
                "{generation}{extra} from {source:?}"
            );
        }
    }

    #[test]
    fn a_replaced_leader_is_not_listened_to() {
        let store = store(1);
        assert_eq!(offer(&store, &document(2, ""), Source::Push { epoch: 7 }), ConfigOutcome::Applied);
        assert_eq!(offer(&store, &document(3, ""), Source::Push { epoch: 6 }), ConfigOutcome::Stale);
        assert_eq!(offer(&store, &document(3, ""), Source::Push { epoch: 7 }), ConfigOutcome::Applied);
    }

    #[test]
    fn a_refused_document_leaves_the_old_one_running_and_is_remembered() {
        let store = store(1);
        assert_eq!(offer(&store, b"{generation: 9, version: 1}", Source::File), ConfigOutcome::Refused);
        let report = store.report();
        assert_eq!(report.generation.0, 1);
        assert_eq!(report.refused.unwrap().generation.unwrap().0, 9);
        assert_eq!(offer(&store, &document(2, ""), Source::File), ConfigOutcome::Applied);
        assert_eq!(store.report().refused, None);
    }

    #[test]
    fn a_document_that_cannot_be_put_into_effect_is_refused_with_the_reasons() {
        let store = store(1);
        let answer = store.offer(&document(2, ""), Source::File, |_| Err(vec!["tls: no".to_owned()]));
        assert_eq!((answer.outcome, answer.reasons), (ConfigOutcome::Refused, vec!["tls: no".to_owned()]));
        assert_eq!(store.active().config.generation.0, 1);
    }

    #[test]
    fn a_change_that_needs_a_restart_is_refused() {
        let store = store(1);
        let changed = document(2, ", process: {workers: 3}");
        assert_eq!(offer(&store, &changed, Source::File), ConfigOutcome::Refused);
    }
}

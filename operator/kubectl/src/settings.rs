//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pgrouting_crds::stage::Stage;

/// Shows PgRoutingPool objects and moves their rollouts.
#[derive(Debug, Parser)]
#[command(name = "kubectl-pgrp", bin_name = "kubectl pgrp", version, propagate_version = true)]
pub struct Settings {
    /// Where the API server is.
    #[command(flatten)]
    pub target: Target,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster and namespace.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// The namespace; the kubeconfig's current one where absent
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// The kubeconfig's context; its current one where absent
    #[arg(long, global = true, value_name = "CONTEXT")]
    pub context: Option<String>,
    /// The kubeconfig file; as kubectl finds it where absent
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows all pools in short, or one in full
    Status {
        /// The pool; all pools of the namespace where absent
        pool: Option<String>,
        /// All pools of all namespaces
        #[arg(short = 'A', long, conflicts_with = "pool")]
        all_namespaces: bool,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Asks for the next stage, or approves of the next step where one waits for that
    Promote {
        /// The pool
        pool: String,
        /// The stage to ask for: Split or Mirror
        #[arg(long, value_name = "STAGE", value_parser = stage)]
        to: Option<Stage>,
        /// Tries again what was held or rolled back
        #[arg(long, conflicts_with = "to")]
        retry: bool,
    },
    /// Goes back to the stage before, at once
    Rollback {
        /// The pool
        pool: String,
        /// The stage to go back to: PoolingOnly or Split
        #[arg(long, value_name = "STAGE", value_parser = stage)]
        to: Option<Stage>,
    },
    /// Asks a proxy where a statement may run, and why
    ExplainRoute {
        /// The pool
        pool: String,
        /// The database whose catalog the statement is judged by
        #[arg(short, long)]
        database: String,
        /// The statement; - reads it from the standard input
        statement: String,
    },
    /// Shows what came of the copied traffic, proxy by proxy
    MirrorReport {
        /// The pool
        pool: String,
    },
}

/// How to print a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// As the API server has it.
    Json,
}

/// A stage as it stands in the spec, in large or small letters.
fn stage(text: &str) -> Result<Stage, String> {
    [Stage::PoolingOnly, Stage::Split, Stage::Mirror]
        .into_iter()
        .find(|stage| stage.as_str().eq_ignore_ascii_case(text))
        .ok_or_else(|| "the stages are PoolingOnly, Split and Mirror".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        <Settings as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn arguments_are_read_or_refused() {
        for (line, is_good) in [
            ("status", true),
            ("status shop -n a -o json", true),
            ("status -A", true),
            ("status shop -A", false),
            ("promote shop --to split", true),
            ("promote shop --to Nowhere", false),
            ("promote shop --to Mirror --retry", false),
            ("promote", false),
            ("rollback shop --to PoolingOnly", true),
            ("explain-route shop --database app -", true),
            ("explain-route shop", false),
            ("mirror-report shop --context c --kubeconfig /k", true),
        ] {
            let words = std::iter::once("kubectl-pgrp").chain(line.split(' '));
            assert_eq!(Settings::try_parse_from(words).is_ok(), is_good, "{line}");
        }
    }
}

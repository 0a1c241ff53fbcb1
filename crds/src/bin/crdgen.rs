//! Prints the CustomResourceDefinition: `cargo run -p pgrouting-crds --bin crdgen > crds/pgroutingpools.yaml`.

use std::io::Write as _;

use anyhow::Context as _;
use pgrouting_crds::definition::definition_yaml;

fn main() -> anyhow::Result<()> {
    let text = definition_yaml().context("the definition has no YAML form")?;
    std::io::stdout().write_all(text.as_bytes()).context("cannot write")
}

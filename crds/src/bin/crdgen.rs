//! Prints what is generated from the types: the definition, or with `reference` the page on the API. See `make crd`.

use std::io::Write as _;

use anyhow::{Context as _, bail};
use pgrouting_crds::definition::definition_yaml;
use pgrouting_crds::reference::reference;

fn main() -> anyhow::Result<()> {
    let text = match std::env::args().nth(1).as_deref() {
        None => definition_yaml().context("the definition has no YAML form")?,
        Some("reference") => reference().context("the types have no JSON form")?,
        Some(other) => bail!("{other:?} is neither nothing nor `reference`"),
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write")
}

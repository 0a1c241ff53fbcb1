//! A page of the documentation as what can be run: its fenced blocks, in order.

use anyhow::{Context, Result, ensure};

use crate::cluster::root;

/// One fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The heading that it stands under, without marks.
    pub heading: String,
    /// The word behind the fence: `sh`, `yaml`, `python`, or nothing.
    pub language: String,
    /// The lines between the fences.
    pub text: String,
}

/// The blocks of a page of `docs`.
///
/// # Errors
/// When there is no such page, or a fence is not closed.
pub fn blocks(page: &str) -> Result<Vec<Block>> {
    let path = root().join("docs").join(page);
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    blocks_of(&text).with_context(|| page.to_owned())
}

/// The blocks of a text.
///
/// # Errors
/// When a fence is not closed.
pub fn blocks_of(text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut heading = String::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, Some(language)) => {
                open = Some(Block {
                    heading: heading.clone(),
                    language: language.trim().to_owned(),
                    text: String::new(),
                });
            }
            (None, None) if line.starts_with('#') => {
                line.trim_start_matches('#').trim().clone_into(&mut heading);
            }
            (None, None) => {}
        }
    }
    ensure!(open.is_none(), "a fence is not closed: {open:?}");
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_in_order_with_heading_and_language() {
        let text = "# A page\n\n```sh\nls # no heading\n```\n\n## Next\ntext\n```\n\nx\n```\n";
        let block = |heading: &str, language: &str, text: &str| Block {
            heading: heading.to_owned(),
            language: language.to_owned(),
            text: text.to_owned(),
        };
        let expected = [block("A page", "sh", "ls # no heading\n"), block("Next", "", "\nx\n")];
        assert_eq!(blocks_of(text).unwrap(), expected);
    }

    #[test]
    fn open_fence_is_an_error() {
        assert!(blocks_of("```sh\nls\n").is_err());
    }
}

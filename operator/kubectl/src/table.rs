//! Tables in aligned columns, and colours where the output is a terminal.

/// Whether there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// There are none.
    Plain,
    /// There are some.
    Colours,
}

/// How a word is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As any other.
    Plain,
    /// All is well.
    Good,
    /// Somebody should know.
    Warning,
    /// Somebody should do something.
    Bad,
}

impl Paint {
    /// A word in its colour.
    #[must_use]
    pub fn word(self, text: &str, tone: Tone) -> String {
        let code = match (self, tone) {
            (Self::Plain, _) | (Self::Colours, Tone::Plain) => return text.to_owned(),
            (Self::Colours, Tone::Good) => 32,
            (Self::Colours, Tone::Warning) => 33,
            (Self::Colours, Tone::Bad) => 31,
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// One cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell with a colour.
    #[must_use]
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// Rows under a heading, with lines between them that keep to no column.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
}

#[derive(Debug)]
enum Row {
    Cells(Vec<Cell>),
    Line(String),
}

impl Table {
    /// With this heading.
    #[must_use]
    pub fn new(heading: &[&str]) -> Self {
        Self { rows: vec![Row::Cells(heading.iter().map(|word| Cell::from(*word)).collect())] }
    }

    /// One more row. An empty cell is shown as a dash.
    pub fn row(&mut self, cells: Vec<Cell>) {
        let dash = |cell: Cell| if cell.text.is_empty() { Cell::from("-") } else { cell };
        self.rows.push(Row::Cells(cells.into_iter().map(dash).collect()));
    }

    /// One more line, which is about the row above it.
    pub fn line(&mut self, text: impl Into<String>) {
        self.rows.push(Row::Line(text.into()));
    }

    /// Whether it has nothing but its heading.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// All of it, each row a line.
    #[must_use]
    pub fn text(&self, paint: Paint) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for row in &self.rows {
            match row {
                Row::Line(line) => text.push_str(&format!("    {line}")),
                Row::Cells(cells) => {
                    for (at, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                        text.push_str(&paint.word(&cell.text, cell.tone));
                        if at + 1 < cells.len() {
                            let missing = width.saturating_sub(cell.text.chars().count()) + 3;
                            text.push_str(&" ".repeat(missing));
                        }
                    }
                }
            }
            text.push('\n');
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            let Row::Cells(cells) = row else { continue };
            for (at, cell) in cells.iter().enumerate() {
                let width = cell.text.chars().count();
                match widths.get_mut(at) {
                    Some(known) => *known = width.max(*known),
                    None => widths.push(width),
                }
            }
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let mut table = Table::new(&["GATE", "VALUE", "LIMIT"]);
        table.row(vec!["latencyP99".into(), "850 µs".into(), "".into()]);
        table.line("a remark");
        table.row(vec!["x".into(), "1".into(), "2".into()]);
        let expected = "GATE         VALUE    LIMIT\n\
                        latencyP99   850 µs   -\n    a remark\n\
                        x            1        2\n";
        assert_eq!(table.text(Paint::Plain), expected);
    }

    #[test]
    fn colour_takes_no_room() {
        let mut table = Table::new(&["A", "B"]);
        table.row(vec![Cell::toned("Fail", Tone::Bad), "1".into()]);
        assert_eq!(table.text(Paint::Colours), "A      B\n\u{1b}[31mFail\u{1b}[0m   1\n");
    }
}

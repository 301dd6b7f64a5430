//! Colours and bars on standard output.

use std::io::IsTerminal;

/// Characters of the longest bar.
const LONGEST_BAR: usize = 40;

/// Marks of learned tokens: colours in a terminal, else brackets.
pub(super) struct Styles {
    has_color: bool,
}

impl Styles {
    /// For standard output; `NO_COLOR` asks for none.
    pub(super) fn of_stdout() -> Styles {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Styles { has_color: std::io::stdout().is_terminal() && !no_color }
    }

    /// A text that is learned, or not.
    pub(super) fn learned(&self, text: &str, is_learned: bool) -> String {
        match (self.has_color, is_learned) {
            (true, true) => format!("\u{1b}[32m{text}\u{1b}[0m"),
            (true, false) => format!("\u{1b}[2m{text}\u{1b}[0m"),
            (false, true) => format!("[[{text}]]"),
            (false, false) => text.to_owned(),
        }
    }
}

/// A text on one line, in which control characters are spelled.
pub(super) fn visible(text: &str) -> String {
    let spelled = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.chars().map(spelled).collect()
}

/// A bar for a count, of the longest one for the most.
pub(super) fn bar(count: usize, most: usize) -> String {
    "#".repeat((count * LONGEST_BAR).div_ceil(most.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_and_control_characters_for_none() {
        let [plain, colored] = [false, true].map(|has_color| Styles { has_color });
        assert_eq!((plain.learned("a", true), plain.learned("a", false)), ("[[a]]".into(), "a".into()));
        assert_eq!(colored.learned("a", true), "\u{1b}[32ma\u{1b}[0m");
        assert_eq!(visible("a\n\u{1b}[2Jé"), "a\\n\\u{1b}[2Jé");
        assert_eq!([bar(0, 9), bar(9, 9), bar(1, 900)], [String::new(), "#".repeat(40), "#".into()]);
    }
}

//! Undoing the tokenisation of published test sets, whose texts have spaces around punctuation and other marks.
//!
//! Defines [`Detokenizer`]. Source: the rules of Megatron-LM's evaluation, which published perplexities depend on,
//! quirks included: single quotes are taken in pairs, and a rule applies to the output of the ones before it.
//! Deliberate difference: one of its rules, for a quote between slashes, matches no text of these sets and is left out.

use std::path::Path;

/// Rules of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Detokenizer {
    /// The text as it is.
    #[default]
    None,
    /// WikiText-2 and WikiText-103.
    Wikitext,
    /// The Penn Treebank.
    Ptb,
}

/// WikiText: thousands, decimals and hyphens have marks of their own, then punctuation after a word.
const WIKITEXT_BEFORE: [(&str, &str); 10] = [
    ("s '", "s'"),
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    (" : ", ": "),
    (" ; ", "; "),
    (" . ", ". "),
    (" ! ", "! "),
    (" ? ", "? "),
    (" , ", ", "),
];

/// Pairs that lose the white space inside them.
const PAIRS: [(char, char); 5] = [('(', ')'), ('[', ']'), ('{', '}'), ('"', '"'), ('\'', '\'')];

/// WikiText: headings, degrees, lines, unknown numbers and genitives.
const WIKITEXT_AFTER: [(&str, &str); 8] = [
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
];

const PTB: [(&str, &str); 7] =
    [(" '", "'"), (" \n", "\n"), ("\n ", "\n"), (" n't", "n't"), (" N ", "1 "), ("$ 1", "$1"), ("# 1", "#1")];

impl Detokenizer {
    /// The rules that Megatron-LM chooses by a path: the rules of the data set that it names.
    pub fn of(path: &Path) -> Detokenizer {
        let path = path.to_string_lossy().to_lowercase();
        match () {
            () if path.contains("ptb") => Detokenizer::Ptb,
            () if path.contains("wiki") => Detokenizer::Wikitext,
            () => Detokenizer::None,
        }
    }

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Detokenizer::None => "none",
            Detokenizer::Wikitext => "wikitext",
            Detokenizer::Ptb => "ptb",
        }
    }

    /// The text as it was before it was tokenised.
    pub fn apply(self, text: &str) -> String {
        let replaced = |text: String, rules: &[(&str, &str)]| {
            rules.iter().fold(text, |text, (from, to)| if text.contains(from) { text.replace(from, to) } else { text })
        };
        match self {
            Detokenizer::None => text.to_owned(),
            Detokenizer::Ptb => replaced(text.to_owned(), &PTB),
            Detokenizer::Wikitext => {
                let text = replaced(text.to_owned(), &WIKITEXT_BEFORE);
                let text = PAIRS.iter().fold(text, |text, pair| tightened(&text, *pair));
                replaced(text, &WIKITEXT_AFTER)
            }
        }
    }
}

/// The text without white space after each opening mark and before the closing mark that follows it.
fn tightened(text: &str, (open, close): (char, char)) -> String {
    let mut tight = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, inner)) = rest.split_once(open) {
        let Some((inner, after)) = inner.split_once(close) else { break };
        tight.push_str(before);
        tight.push(open);
        tight.push_str(inner.trim());
        tight.push(close);
        rest = after;
    }
    tight.push_str(rest);
    tight
}

#[cfg(test)]
mod tests {
    use super::Detokenizer;
    use std::path::Path;

    #[test]
    fn marks_of_wikitext_are_undone() {
        let text =
            " = = Early life = = \n Bob 's dogs ' 1 @,@ 200 @-@ page ( see [ 3 ] ) book , \" in 3 @.@ 5 ° C \" .\n";
        let plain = " == Early life ==\nBob's dogs' 1,200-page (see [3]) book, \"in 3.5°C\" .\n";
        assert_eq!(Detokenizer::Wikitext.apply(text), plain);
    }

    #[test]
    fn marks_without_a_partner_stay() {
        assert_eq!(Detokenizer::Wikitext.apply("a ( b \" c"), "a ( b \" c");
        assert_eq!(Detokenizer::Ptb.apply("it does n't cost $ N million"), "it doesn't cost $1 million");
        assert_eq!(Detokenizer::None.apply(" @-@ "), " @-@ ");
    }

    #[test]
    fn the_path_names_the_data_set() {
        let of = |path: &str| Detokenizer::of(Path::new(path));
        assert_eq!(of("data/wikitext-103/wiki.test.tokens"), Detokenizer::Wikitext);
        assert_eq!(of("PTB.test.txt"), Detokenizer::Ptb);
        assert_eq!(of("corpus.jsonl"), Detokenizer::None);
    }
}

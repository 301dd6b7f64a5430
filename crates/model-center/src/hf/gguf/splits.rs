//! How byte-level vocabularies cut a text before merging: the kinds that `tokenizer.ggml.pre` names.
//!
//! Defines [`Split`]; called by [`super::tokenizer`].

use serde_json::{Value, json};

/// One kind of cutting, as the models' own `tokenizer.json` have it.
#[derive(Debug)]
pub(super) struct Split {
    names: &'static [&'static str],
    cut: Cut,
    /// Whether texts are brought into Unicode's composed form first.
    pub(super) composes: bool,
    /// Whether a piece that is a word of the vocabulary is taken whole, whatever the merges say.
    pub(super) takes_whole_words: bool,
    /// Whether a text begins with the token of beginning where the file does not say.
    pub(super) begins: bool,
}

#[derive(Debug)]
enum Cut {
    /// The expression that is built into byte-level pre-tokenizers, that of GPT-2; digits one by one before it or not.
    BuiltIn { single_digits: bool },
    /// An expression whose runs of digits have at most so many.
    Digits(&'static str),
}

const KINDS: &[Split] = &[
    Split {
        // `default` is what converters write that did not know the model's own; GPT-2's is the family's oldest.
        names: &["gpt-2", "default"],
        cut: Cut::BuiltIn { single_digits: false },
        composes: false,
        takes_whole_words: false,
        begins: false,
    },
    Split {
        names: &["smollm"],
        cut: Cut::BuiltIn { single_digits: true },
        composes: false,
        takes_whole_words: false,
        begins: false,
    },
    Split {
        names: &["llama-bpe", "llama3", "llama-v3"],
        cut: Cut::Digits(r"\p{N}{1,3}"),
        composes: false,
        takes_whole_words: true,
        begins: true,
    },
    Split { names: &["qwen2"], cut: Cut::Digits(r"\p{N}"), composes: true, takes_whole_words: false, begins: false },
];

impl Split {
    /// The kind of a name.
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.names.contains(&name))
    }

    /// The names that are known, for messages.
    pub(super) fn known() -> String {
        KINDS.iter().flat_map(|kind| kind.names).copied().collect::<Vec<_>>().join(", ")
    }

    /// The `pre_tokenizer` of a `tokenizer.json`.
    pub(super) fn pre_tokenizer(&self) -> Value {
        let bytes = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
        let before = match self.cut {
            Cut::BuiltIn { single_digits: false } => return bytes(true),
            Cut::BuiltIn { single_digits: true } => json!({ "type": "Digits", "individual_digits": true }),
            Cut::Digits(digits) => {
                // Endings such as 's; a word with the sign before it; digits; signs with the line's end; white space.
                let pattern = [
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
                    r"[^\r\n\p{L}\p{N}]?\p{L}+",
                    digits,
                    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                    r"\s*[\r\n]+",
                    r"\s+(?!\S)",
                    r"\s+",
                ];
                json!({ "type": "Split", "pattern": { "Regex": pattern.join("|") }, "behavior": "Isolated", "invert": false })
            }
        };
        let own = matches!(self.cut, Cut::BuiltIn { .. });
        json!({ "type": "Sequence", "pretokenizers": [before, bytes(own)] })
    }
}

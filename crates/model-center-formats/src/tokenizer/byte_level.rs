//! Pre-tokenization of byte-level vocabularies: the kinds that models' own `tokenizer.json` have.
//!
//! Defines [`Split`]; called by [`super::byte_pairs`] and by [`crate::formats::gguf`], whose files name the kind alone.

use serde_json::{Value, json};

use super::document::byte_level;

/// One kind of cutting, as the models' own `tokenizer.json` have it.
#[derive(Debug)]
pub(crate) struct Split {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Whether texts are brought into Unicode's composed form first.
    pub(crate) composes: bool,
    /// Whether a piece that is in the vocabulary becomes one token without consulting the merges.
    pub(crate) ignores_merges: bool,
    /// Whether BOS precedes a text if a GGUF file does not specify it.
    pub(crate) begins: bool,
}

/// One pass over what the passes before it left.
#[derive(Debug)]
enum Step {
    /// GPT-2's expression, built into byte-level pre-tokenizers.
    BuiltIn,
    /// Digits one by one, or in runs.
    Digits {
        single: bool,
    },
    Punctuation,
    /// Isolates the matches of the expression.
    Isolated(&'static str),
}

/// Words with one leading non-letter, punctuation with line ends, and white space; runs of digits have at most three.
const LLAMA_3: Step = Step::Isolated(concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));
/// Qwen 2's expression, with single digits.
const QWEN_2: Step = Step::Isolated(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Qwen 3.5's expression, with marks as parts of words.
const QWEN_3_5: Step = Step::Isolated(concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));
const LINE_ENDS: Step = Step::Isolated(r"[\r\n]");
/// Chinese, and with it all between Samaritan and Chinese, and Hangul: the range is the models' own.
const EAST_ASIAN: Step = Step::Isolated("[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+");

/// A kind without peculiarities.
const PLAIN: Split =
    Split { names: &[], steps: &[Step::BuiltIn], composes: false, ignores_merges: false, begins: false };

const KINDS: &[Split] = &[
    // `default` is what converters write that did not know the model's own; GPT-2's is the family's oldest.
    Split { names: &["gpt-2", "default", "phi-2", "olmo", "jais"], ..PLAIN },
    Split { names: &["mpt"], composes: true, ..PLAIN },
    Split {
        names: &["smollm", "starcoder", "refact", "codeshell"],
        steps: &[Step::Digits { single: true }, Step::BuiltIn],
        ..PLAIN
    },
    Split {
        names: &["command-r"],
        steps: &[Step::Digits { single: true }, Step::BuiltIn],
        composes: true,
        begins: true,
        ..PLAIN
    },
    Split {
        names: &["llama-bpe", "llama3", "llama-v3"],
        steps: &[LLAMA_3],
        ignores_merges: true,
        begins: true,
        ..PLAIN
    },
    Split { names: &["qwen2", "stablelm2"], steps: &[QWEN_2], composes: true, ..PLAIN },
    // The known ids of this kind leave texts unnormalized.
    Split { names: &["qwen35"], steps: &[QWEN_3_5], ..PLAIN },
    Split {
        names: &["falcon"],
        steps: &[Step::Punctuation, Step::BuiltIn, Step::Digits { single: false }, Step::Isolated("[0-9][0-9][0-9]")],
        ..PLAIN
    },
    Split {
        names: &["deepseek-coder"],
        steps: &[
            LINE_ENDS,
            Step::Isolated(r"\s?\p{L}+"),
            Step::Isolated(r"\s?\p{P}+"),
            EAST_ASIAN,
            Step::Digits { single: true },
        ],
        begins: true,
        ..PLAIN
    },
    Split {
        names: &["deepseek-llm"],
        steps: &[
            LINE_ENDS,
            // Letters that have a case.
            Step::Isolated(r"\s?[\p{Lu}\p{Ll}\p{Lt}]+"),
            // Punctuation and signs of ASCII, their wide forms, quotation marks, and CJK's space, comma and full stop.
            Step::Isolated("\\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+"),
            Step::Isolated(r"\s+$"),
            EAST_ASIAN,
            Step::Digits { single: true },
        ],
        begins: true,
        ..PLAIN
    },
];

impl Split {
    /// The kind of a name, as GGUF's `tokenizer.ggml.pre` has it.
    pub(crate) fn of(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.names.contains(&name))
    }

    /// GPT-2's, which most byte-level vocabularies share.
    pub(crate) const fn built_in() -> &'static Self {
        &PLAIN
    }

    pub(crate) fn known() -> String {
        KINDS.iter().flat_map(|kind| kind.names).copied().collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn normalizer(&self) -> Value {
        if self.composes { json!({ "type": "NFC" }) } else { Value::Null }
    }

    /// The `pre_tokenizer` of a `tokenizer.json`; `prefix_space` puts a space before texts that begin with none.
    pub(crate) fn pre_tokenizer(&self, prefix_space: bool) -> Value {
        let bytes = |use_regex: bool| byte_level(prefix_space, true, use_regex);
        if let [Step::BuiltIn] = self.steps {
            return bytes(true);
        }
        let mut steps: Vec<Value> = self
            .steps
            .iter()
            .map(|step| match step {
                Step::BuiltIn => bytes(true),
                Step::Digits { single } => json!({ "type": "Digits", "individual_digits": single }),
                Step::Punctuation => json!({ "type": "Punctuation", "behavior": "Contiguous" }),
                Step::Isolated(pattern) => {
                    json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
                }
            })
            .collect();
        // What the built-in expression cut is in the bytes' alphabet already.
        if !self.steps.iter().any(|step| matches!(step, Step::BuiltIn)) {
            steps.push(bytes(false));
        }
        json!({ "type": "Sequence", "pretokenizers": steps })
    }
}

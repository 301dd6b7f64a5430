//! The keys of `[data]` that set which tokens a pretraining run predicts, and from what.
//!
//! Defines [`ObjectiveSettings`], a part of the [`PretrainingSettings`](super::PretrainingSettings). The objectives
//! themselves are in [`model_center_data::pretraining`].

use super::engine::kinds::{Expected, Range};
use super::engine::reader::Reader;
use model_center_data::pretraining::{PairSampler, RowSampler, SecondSentence};
use model_center_formats::config::TextHead;

/// BERT's share of predicted tokens, and T5's of hidden ones.
const SHARE: f64 = 0.15;
/// Share of the groups of sentences that are made short, so that a model sees short inputs, too.
const SHORT: f64 = 0.1;
/// Shares that leave something to predict, and to predict from.
const MASKED: Range = Range::Within(0.001, 1.0);
const HIDDEN: Range = Range::Within(0.001, 0.999);
/// Longest n-gram that is masked; Megatron-LM's longest is 3.
const MAX_NGRAM: u64 = 16;
const EOD: Expected = Expected { what: "a token of the tokenizer", example: "<|endoftext|>" };

const OF_CAUSAL: &[&str] = &["data.eod_mask_loss", "data.document_mask"];
const OF_ROWS: &[&str] = &["data.eod_token", "data.row_sampler"];
const OF_MASKED: &[&str] = &[
    "data.masking.share",
    "data.masking.second_sentence",
    "data.masking.whole_words",
    "data.masking.longest_ngram",
    "data.masking.short",
    "data.masking.pair_sampler",
];
const OF_SPANS: &[&str] = &["data.spans.preset", "data.spans.share"];

/// Kind of samples, and the tokens of them that are predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PretrainingObjective {
    /// The next token.
    Causal,
    /// Masked tokens of one or two segments.
    Masked,
    /// Hidden spans, which the decoder generates.
    SpanCorruption,
    /// A part of each document, from what is before and after it.
    Infilling,
}

/// The objective and its settings; settings of other objectives have their defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectiveSettings {
    /// Kind of the objective.
    pub kind: PretrainingObjective,
    /// The token that ends a document; `None` for the tokenizer's EOS token.
    pub eod_token: Option<String>,
    /// Whether the token after EOD has no loss, for next tokens.
    pub eod_mask_loss: bool,
    /// Whether tokens attend to their own document alone, with positions from its beginning, for next tokens.
    pub document_mask: bool,
    /// Sampler that cuts rows of tokens from documents.
    pub row_sampler: RowSampler,
    /// Settings of masked tokens.
    pub masking: MaskingSettings,
    /// Settings of hidden spans.
    pub spans: SpanSettings,
}

impl ObjectiveSettings {
    /// The head that has the loss.
    pub fn head(&self) -> TextHead {
        match (self.kind, self.masking.second_sentence) {
            (PretrainingObjective::Masked, SecondSentence::None) => TextHead::MaskedLm,
            (PretrainingObjective::Masked, _) => TextHead::Pretraining,
            _ => TextHead::CausalLm,
        }
    }
}

/// Settings of masking tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MaskingSettings {
    /// Share of predicted tokens.
    pub share: f64,
    /// Kind of the second segment.
    pub second_sentence: SecondSentence,
    /// Whether a word is masked with all its tokens.
    pub whole_words: bool,
    /// Words of the longest masked n-gram.
    pub longest_ngram: u32,
    /// Share of short inputs.
    pub short: f64,
    /// Sampler of pairs of sentences.
    pub pair_sampler: PairSampler,
}

/// Settings of hiding spans.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpanSettings {
    /// Preset of the samples.
    pub preset: SpanPreset,
    /// Share of hidden tokens.
    pub share: f64,
}

/// Sets of choices that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanPreset {
    /// The T5 paper's.
    T5,
    /// Megatron-LM's T5.
    Megatron,
    /// CPM-2's.
    Cpm2,
}

/// Reads the keys; `kind` is what `data.objective` sets.
pub(super) fn read(r: &mut Reader, kind: PretrainingObjective) -> ObjectiveSettings {
    let rows = [("packed", RowSampler::Packed), ("random-windows", RowSampler::RandomWindows)];
    let seconds = [("next", SecondSentence::Next), ("order", SecondSentence::Order), ("none", SecondSentence::None)];
    let pairs = [("groups", PairSampler::Groups), ("random", PairSampler::Random)];
    let presets = [("t5", SpanPreset::T5), ("megatron", SpanPreset::Megatron), ("cpm2", SpanPreset::Cpm2)];
    ObjectiveSettings {
        kind,
        eod_token: r.optional_text("data.eod_token", "not set: the tokenizer's EOS token", EOD),
        eod_mask_loss: r.flag("data.eod_mask_loss", false),
        document_mask: r.flag("data.document_mask", false),
        row_sampler: r.choice("data.row_sampler", &rows, RowSampler::Packed),
        masking: MaskingSettings {
            share: r.float("data.masking.share", SHARE, MASKED),
            second_sentence: r.choice("data.masking.second_sentence", &seconds, SecondSentence::Next),
            whole_words: r.flag("data.masking.whole_words", false),
            longest_ngram: r.integer("data.masking.longest_ngram", 1, 1..=MAX_NGRAM),
            short: r.float("data.masking.short", SHORT, Range::Within(0.0, 1.0)),
            pair_sampler: r.choice("data.masking.pair_sampler", &pairs, PairSampler::Groups),
        },
        spans: SpanSettings {
            preset: r.choice("data.spans.preset", &presets, SpanPreset::T5),
            share: r.float("data.spans.share", SHARE, HIDDEN),
        },
    }
}

/// Settings that this objective does not use; `None` for tasks that do not pretrain.
pub(super) fn refuse_foreign(r: &mut Reader, kind: Option<PretrainingObjective>) {
    use PretrainingObjective as Kind;
    let groups: [(&[&'static str], &[Kind], &str); 4] = [
        (OF_CAUSAL, &[Kind::Causal], "it is for data.objective = \"causal\""),
        (
            OF_ROWS,
            &[Kind::Causal, Kind::SpanCorruption, Kind::Infilling],
            "it is for objectives over rows of documents",
        ),
        (OF_MASKED, &[Kind::Masked], "it is for data.objective = \"masked\""),
        (OF_SPANS, &[Kind::SpanCorruption], "it is for data.objective = \"span-corruption\""),
    ];
    for (keys, kinds, reason) in groups {
        for key in keys {
            match kind {
                None => r.without_effect(key, "data.task", "it is for task pretrain", "remove it"),
                Some(kind) if !kinds.contains(&kind) => {
                    r.without_effect(key, "data.objective", reason, "remove it");
                }
                Some(_) => {}
            }
        }
    }
}

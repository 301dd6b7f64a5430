//! ModelCenter's names of parameters, which are alike for all of its families:
//! `encoder.layers.3.self_att.self_attention.project_q.weight`.
//!
//! Defines [`encoder`], [`decoder`] and [`encoder_decoder`], called by the families that ModelCenter has.

use super::{BlockPlace, ModelFamily};
use crate::layer::{AttentionConfig, BlockConfig, Placement};
use crate::model::head::Head;
use model_center_formats::{Alias, NameTable, Rule};
use std::borrow::Cow;

/// The masked-LM projection in ModelCenter's files, a copy of the token embedding.
static LM_PROJECTION: [Alias; 1] = [Alias::new(LM_TABLE[0], "input_embedding.weight")];

/// ModelCenter's class reads the token embedding instead, so that this copy is stale after training.
static LM_TABLE: [&str; 1] = ["lm_head.decoder.weight"];

/// The names of an encoder, with this crate's names for the heads. ModelCenter has no heads for the next sentence,
/// token classes and answer spans, and no classifier with a dense layer; their names match no tensor.
pub fn encoder<C: ModelFamily>(family: &C, head: Head) -> NameTable {
    let heads = [
        "pooler.dense",
        "lm_head.dense",
        "lm_head.layer_norm",
        "lm_head.decoder",
        "cls_projection",
        "cls_dense",
        "nsp_projection",
        "token_projection",
        "span_projection",
    ];
    let table = table(family, &["encoder"], heads.into_iter().flat_map(|name| both(name, name)));
    match head {
        Head::MaskedLm | Head::Pretraining => {
            NameTable { aliases: Cow::Borrowed(&LM_PROJECTION), ignored: Cow::Borrowed(&LM_TABLE), ..table }
        }
        _ => table,
    }
}

/// The names of a decoder, with an untied language-modelling head and a classifier; `stack` is ModelCenter's name of
/// the stack, `encoder` for every family but OPT.
pub fn decoder<C: ModelFamily>(family: &C, stack: &str) -> NameTable {
    let heads = [("lm_head", "output_projection"), ("cls_projection", "cls_projection")];
    let bias = Rule::new("decoder.relative_attention_bias.weight", "position_bias.relative_attention_bias");
    table(family, &[stack], heads.into_iter().flat_map(|(ours, theirs)| both(ours, theirs)).chain([bias]))
}

/// The names of an encoder-decoder: of T5 and CPM-2, whose positions are relative position biases, and of CPM-T5, whose
/// stacks share a position embedding.
pub fn encoder_decoder<C: ModelFamily>(family: &C) -> NameTable {
    let rules = [
        Rule::new("lm_head.weight", "output_projection.weight"),
        Rule::new("encoder.relative_attention_bias.weight", "position_bias_enc.relative_attention_bias"),
        Rule::new("decoder.relative_attention_bias.weight", "position_bias_dec.relative_attention_bias"),
    ];
    table(family, &["encoder", "decoder"], rules)
}

/// The rules of a layer's weight and bias.
fn both(ours: &str, theirs: &str) -> [Rule; 2] {
    ["weight", "bias"].map(|kind| Rule::owned(format!("{ours}.{kind}"), format!("{theirs}.{kind}")))
}

/// The names of a family, given ModelCenter's names of its stacks and the rules of its heads.
fn table<C: ModelFamily>(family: &C, stacks: &[&str], heads: impl IntoIterator<Item = Rule>) -> NameTable {
    let mut rules: Vec<Rule> = ["input_embedding", "position_embedding", "token_type_embedding"]
        .map(|name| Rule::owned(format!("{name}.weight"), format!("{name}.weight")))
        .into();
    let mut aliases = Vec::new();
    for (stack, (spec, theirs)) in family.spec().stacks.iter().zip(stacks).enumerate() {
        let block = family.block(BlockPlace { stack, layer: 0 });
        Stack { ours: spec.name, theirs, block, layers: spec.layers }.rules(&mut rules, &mut aliases);
    }
    rules.extend(heads);
    NameTable { rules: Cow::Owned(rules), aliases: Cow::Owned(aliases), ..NameTable::default() }
}

/// A stack of blocks under both names.
#[derive(Debug)]
struct Stack<'a> {
    ours: &'a str,
    theirs: &'a str,
    block: BlockConfig,
    layers: usize,
}

impl Stack<'_> {
    fn rules(&self, rules: &mut Vec<Rule>, aliases: &mut Vec<Alias>) {
        let Stack { ours, theirs, block, .. } = self;
        for kind in ["weight", "bias"] {
            self.norms(rules, kind);
            let mut rule = |layer: &str, their_layer: &str, rows: Vec<usize>| {
                let rule = Rule::owned(
                    format!("{ours}.layers.{{i}}.{layer}.{kind}"),
                    format!("{theirs}.layers.{{i}}.{their_layer}.{kind}"),
                );
                rules.push(rule.rows(rows));
            };
            let [q, kv] = widths(&block.attention);
            rule("attention.project_qkv", "self_att.self_attention.{project_q|project_k|project_v}", vec![q, kv, kv]);
            rule("attention.attention_out", "self_att.self_attention.attention_out", Vec::new());
            if let Some(cross) = &block.cross {
                let [_, kv] = widths(cross);
                rule("cross_norm", "cross_att.layernorm_before_attention", Vec::new());
                rule("cross_attention.project_q", "cross_att.self_attention.project_q", Vec::new());
                rule("cross_attention.project_kv", "cross_att.self_attention.{project_k|project_v}", vec![kv, kv]);
                rule("cross_attention.attention_out", "cross_att.self_attention.attention_out", Vec::new());
            }
            let w_in = if block.ffn.gated { "ffn.ffn.w_in.{w_0|w_1}" } else { "ffn.ffn.w_in.w" };
            rule("ffn.w_in", w_in, Vec::new());
            rule("ffn.w_out", "ffn.ffn.w_out", Vec::new());
        }
        if block.placement == Placement::Parallel {
            // Both norms of a block are one, which ModelCenter stores twice.
            for layer in 0..self.layers {
                for kind in ["weight", "bias"] {
                    let name = |part: &str| format!("{theirs}.layers.{layer}.{part}.{kind}");
                    let (twin, of) = (name("ffn.layernorm_before_ffn"), name("self_att.layernorm_before_attention"));
                    aliases.push(Alias::owned(twin, of));
                }
            }
        }
    }

    /// ModelCenter has its norms before layers only: where ours follow sums, each is the one before the next layer.
    fn norms(&self, rules: &mut Vec<Rule>, kind: &str) {
        let Stack { ours, theirs, block, layers } = self;
        let mut rule = |our: String, their: String| {
            rules.push(Rule::owned(format!("{our}.{kind}"), format!("{their}.{kind}")));
        };
        let before_attention = |layer: &str| format!("{theirs}.layers.{layer}.self_att.layernorm_before_attention");
        let before_ffn = format!("{theirs}.layers.{{i}}.ffn.layernorm_before_ffn");
        let ours_of = |layer: &str, norm: &str| format!("{ours}.layers.{layer}.{norm}");
        let last = format!("{theirs}.output_layernorm");
        if block.placement == Placement::Post {
            rule("embedding_norm".to_owned(), before_attention("0"));
            rule(ours_of("{i}", "attention_norm"), before_ffn);
            // The last block's first: of two rules for a name the first counts.
            rule(ours_of(&layers.saturating_sub(1).to_string(), "ffn_norm"), last);
            rule(ours_of("{i}", "ffn_norm"), before_attention("{i+1}"));
            return;
        }
        rule(ours_of("{i}", "attention_norm"), before_attention("{i}"));
        rule(ours_of("{i}", "ffn_norm"), before_ffn);
        rule(format!("{ours}.output_norm"), last);
    }
}

/// Rows of queries, and of keys or values.
fn widths(attention: &AttentionConfig) -> [usize; 2] {
    [attention.num_heads * attention.dim_head, attention.num_heads_kv * attention.dim_head]
}

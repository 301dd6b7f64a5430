//! ModelCenter's names of parameters, which are alike for all of its families:
//! `encoder.layers.3.self_att.self_attention.project_q.weight`.
//!
//! Defines [`Stack`], [`table`], [`encoder_decoder`] and [`decoder_heads`]. Called by the families that ModelCenter
//! has.

use crate::layer::{AttentionConfig, BlockConfig, Placement};
use model_center_formats::{Alias, NameTable, Rule};
use std::borrow::Cow;

/// A stack of blocks under both names.
#[derive(Debug, Clone, Copy)]
pub struct Stack<'a> {
    /// Ours, such as `decoder`.
    pub ours: &'a str,
    /// ModelCenter's, `encoder` for every model of one stack but OPT.
    pub theirs: &'a str,
    /// What a block is made of.
    pub block: &'a BlockConfig,
    /// Blocks.
    pub layers: usize,
}

/// The names of a model of these stacks. `heads` are rules for the task heads.
pub fn table(stacks: &[Stack<'_>], heads: Vec<Rule>) -> NameTable {
    let mut rules: Vec<Rule> = ["input_embedding", "position_embedding", "token_type_embedding"]
        .map(|name| Rule::owned(format!("{name}.weight"), format!("{name}.weight")))
        .into();
    let mut aliases = Vec::new();
    for stack in stacks {
        stack.rules(&mut rules, &mut aliases);
    }
    rules.extend(heads);
    NameTable {
        base_prefix: "",
        rules: Cow::Owned(rules),
        aliases: Cow::Owned(aliases),
        ignored: Cow::Borrowed(&[]),
        old_names: Cow::Borrowed(&[]),
    }
}

/// The names of an encoder-decoder: of T5 and CPM-2, whose positions are relative position biases, and of CPM-T5, whose
/// stacks share a position embedding. Each stack is its blocks and their number.
pub fn encoder_decoder(encoder: (&BlockConfig, usize), decoder: (&BlockConfig, usize)) -> NameTable {
    let stack = |name, (block, layers)| Stack { ours: name, theirs: name, block, layers };
    let rules = vec![
        Rule::new("lm_head.weight", "output_projection.weight"),
        Rule::new("encoder.relative_attention_bias.weight", "position_bias_enc.relative_attention_bias"),
        Rule::new("decoder.relative_attention_bias.weight", "position_bias_dec.relative_attention_bias"),
    ];
    table(&[stack("encoder", encoder), stack("decoder", decoder)], rules)
}

/// The rules of a decoder's heads: an untied language-modelling head, and classes.
pub fn decoder_heads() -> Vec<Rule> {
    ["weight", "bias"]
        .into_iter()
        .flat_map(|kind| {
            let rule = |ours: &str, theirs: &str| Rule::owned(format!("{ours}.{kind}"), format!("{theirs}.{kind}"));
            [rule("lm_head", "output_projection"), rule("cls_projection", "cls_projection")]
        })
        .collect()
}

impl Stack<'_> {
    fn rules(&self, rules: &mut Vec<Rule>, aliases: &mut Vec<Alias>) {
        let Stack { ours, theirs, block, .. } = *self;
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
        let Stack { ours, theirs, block, layers } = *self;
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

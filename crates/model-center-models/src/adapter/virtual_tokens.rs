//! The trained values of virtual tokens: embeddings of prompt tuning, keys and values of prefix tuning, and PEFT's one
//! tensor of either.
//!
//! Source: PEFT 0.21, `PromptTuningConfig`, `PrefixTuningConfig` and `PeftModel.get_prompt`.

use super::plan::TOKENS;
use super::{PrefixConfig, PromptConfig};
use crate::layer::{attention::PROJECT_QKV, prefix::PREFIX};
use crate::{Error, Result};
use bmtrain_dist::Parameters;
use model_center_formats::config::TextHead;
use model_center_formats::{Fill, names::ParamShape};
use std::ops::Range;

/// Why models with an encoder have none.
pub const DECODERS_ALONE: &str = "prefix tuning is for decoders with a language-modelling head";
/// Fix for a model without this method.
pub const OTHER_METHOD: &str = "set adapter.method = \"prompt\" or \"lora\", or use a decoder";

/// The tables of virtual tokens, `prompt.<name>.weight`: before the first stack, and before the decoder of two.
pub const PROMPT_NAMES: [&str; 2] = ["first", "decoder"];

/// PEFT's tensor of the embeddings of virtual tokens, before the encoder and then before the decoder where both have
/// them; of prefix tuning, of each virtual token the keys and values of all layers.
pub const PROMPT_EMBEDDINGS: &str = "prompt_embeddings";

/// The virtual tokens of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenTables {
    /// Our names of the tables, `[tokens, size]`: before the first stack and, if it has its own, before the decoder; of
    /// prefix tuning, of each layer.
    pub(super) names: Vec<String>,
    pub(super) tokens: usize,
    /// Length of a token's row: of its embedding, or of its keys and values.
    pub(super) size: usize,
    /// Number of key heads, for prefix tuning.
    pub(super) kv_heads: Option<usize>,
}

impl TokenTables {
    /// Virtual tokens of prompt tuning. `head` is the head that the model is opened with, with whether it generates
    /// from an encoder's input.
    pub(super) fn of_prompt(
        config: &PromptConfig,
        parameters: &Parameters,
        (head, generates_targets): (Option<TextHead>, bool),
    ) -> Result<Self> {
        if !matches!(head, None | Some(TextHead::CausalLm)) {
            let reason = "prompt tuning is for decoders and encoder-decoders with a language-modelling head";
            let fix = "set adapter.method = \"lora\", or use a task of a language model";
            return Err(Error::argument("adapter.method", reason, fix));
        }
        if config.decoder && !generates_targets {
            let reason = "the model has no decoder beside an encoder, which virtual tokens could precede";
            return Err(Error::argument("adapter.prompt_stacks", reason, "leave it out"));
        }
        let table = parameters.find_declared(TOKENS).map(|param| param.spec().shape.last());
        let missing = || Error::model("the model", format!("it has no {TOKENS}"), "use a transformer");
        let count = if config.decoder { 2 } else { 1 };
        let names = PROMPT_NAMES[..count].iter().map(|name| format!("prompt.{name}.weight")).collect();
        Ok(TokenTables { names, tokens: config.tokens, size: table.ok_or_else(missing)?, kv_heads: None })
    }

    /// Virtual tokens of prefix tuning, likewise.
    pub(super) fn of_prefix(
        config: &PrefixConfig,
        parameters: &Parameters,
        (head, generates_targets): (Option<TextHead>, bool),
    ) -> Result<Self> {
        let refused = |reason: &str, fix: &str| Error::argument("adapter.method", reason, fix);
        if !matches!(head, None | Some(TextHead::CausalLm)) || generates_targets {
            return Err(refused(DECODERS_ALONE, OTHER_METHOD));
        }
        // Elements of the keys of a token, and of one head.
        let (mut names, mut keys) = (Vec::new(), None);
        for layer in parameters.linear_layers().iter().filter(|layer| layer.is_in_block) {
            let attention = layer.name.strip_suffix(PROJECT_QKV).filter(|path| path.ends_with(".attention."));
            let (Some(attention), [_, key, _]) = (attention, layer.outputs.as_slice()) else { continue };
            if keys.is_some_and(|keys| keys != *key) {
                return Err(refused("the layers of the model have keys of different sizes", OTHER_METHOD));
            }
            keys = Some(*key);
            names.push(format!("{attention}{PREFIX}"));
        }
        let keys = keys.ok_or_else(|| refused("the model has no self-attention in its blocks", OTHER_METHOD))?;
        let kv_heads = Some(keys.size.checked_div(keys.unit).unwrap_or(0));
        Ok(TokenTables { names, tokens: config.tokens, size: 2 * keys.size, kv_heads })
    }

    /// Names and full shapes of our parameters.
    pub(super) fn shapes(&self) -> impl Iterator<Item = ParamShape> {
        self.names.iter().map(|name| ParamShape::new(name.clone(), [self.tokens, self.size]))
    }

    /// The shape of PEFT's tensor: the tables one after the other, or of prefix tuning side by side.
    pub fn shape(&self) -> [usize; 2] {
        match self.kv_heads {
            None => [self.names.len() * self.tokens, self.size],
            Some(_) => [self.tokens, self.names.len() * self.size],
        }
    }

    /// The elements of PEFT's tensor that make up a table, by its number, in order.
    pub(super) fn ranges(&self, table: usize) -> impl Iterator<Item = Range<usize>> {
        let TokenTables { tokens, size, .. } = *self;
        let (count, length, first, stride) = match self.kv_heads {
            None => (1, tokens * size, table * tokens * size, 0),
            Some(_) => (tokens, size, table * size, self.names.len() * size),
        };
        (0..count).map(move |row| first + row * stride).map(move |first| first..first + length)
    }

    /// PEFT's tensor; `fill` appends the values of the named table, `[tokens, size]`.
    ///
    /// # Errors
    /// What `fill` returns.
    pub fn tensor(&self, fill: Fill<'_>) -> Result<Vec<f32>> {
        let (mut tensor, mut values) = (vec![0.0; self.names.len() * self.tokens * self.size], Vec::new());
        for (table, name) in self.names.iter().enumerate() {
            values.clear();
            fill(name, &mut values)?;
            let mut from = values.as_slice();
            for range in self.ranges(table) {
                let (values, rest) = from.split_at(range.len().min(from.len()));
                if let Some(out) = tensor.get_mut(range).filter(|out| out.len() == values.len()) {
                    out.copy_from_slice(values);
                }
                from = rest;
            }
        }
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_pefts_tensor_has_the_keys_and_values_of_all_layers() {
        let names = vec!["a".to_owned(), "b".to_owned()];
        let prompt = TokenTables { names, tokens: 2, size: 3, kv_heads: None };
        // The first table has 0 to 5, the second 6 to 11.
        let tensor = |tables: &TokenTables| {
            let fill = &mut |name: &str, out: &mut Vec<f32>| {
                let first = if name == "a" { 0 } else { 6 };
                out.extend((first..first + 6).map(|value| value as f32));
                Ok(())
            };
            tables.tensor(fill).unwrap()
        };
        assert_eq!((prompt.shape(), tensor(&prompt)), ([4, 3], (0..12).map(|value| value as f32).collect()));
        assert!(prompt.ranges(1).eq(std::iter::once(6..12)));
        let prefix = TokenTables { kv_heads: Some(1), ..prompt };
        assert_eq!(prefix.shape(), [2, 6]);
        assert_eq!(tensor(&prefix), [0., 1., 2., 6., 7., 8., 3., 4., 5., 9., 10., 11.]);
        assert_eq!(prefix.ranges(1).collect::<Vec<_>>(), [3..6, 9..12]);
    }
}

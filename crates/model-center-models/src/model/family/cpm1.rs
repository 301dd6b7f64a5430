//! CPM-1 (Zhang et al., 2021) as ModelCenter implements it: a decoder whose sequences may begin with a context with
//! bidirectional attention and may pack several texts as spans; RMS norms, gated feed-forward layers, one table of
//! relative position biases shared by all blocks, and linear layers that divide their input by the square root of its
//! dimension.
//!
//! ModelCenter treats the last relative position bucket as padding and never trains it. Here it is trained.

use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a CPM-1.
    ///
    /// Defaults are taken from ModelCenter's class, whose scales are off; its published model, `cpm1-large`, has both
    /// on, a tied head, and weights of variance one. Only ModelCenter has the family: files have its names, to which a
    /// written directory adds `model_type`, `architectures` and the dtype of the weights.
    ///
    /// Source: ModelCenter 1.0.3, `model_center/model/config/cpm1_config.py`.
    pub struct Cpm1Config {
        /// The common fields. There is no dropout after the embeddings. `position_size` bounds no table, and files need
        /// not state it.
        text: TextConfig {
            vocab_size: 30968,
            dim_ff: 1920,
            position_size: UNLIMITED,
            norm_eps: 1e-6,
            ffn_gated: true,
            ..TextConfig::default()
        };
        /// Number of relative position buckets.
        position_bias_num_buckets: usize = 32, Size("position_bias_num_buckets");
        /// Distances from here on share the last bucket.
        position_bias_max_distance: usize = 128, Size("position_bias_max_distance");
        /// Standard deviation of the initializer of the relative position biases.
        pos_init_std: f32 = 1.0, Deviation("pos_init_std");
        /// Divide the input of each linear layer by the square root of its dimension.
        length_scale: bool = false, Flag("length_scale");
        /// Divide attention scores by the square root of H.
        attn_scale: bool = false, Flag("attn_scale");
    }
}

impl RowConfig for Cpm1Config {
    const DIALECT: Dialect = Dialect {
        class: Some(Class { family: "cpm1", order: 9, title: "CPM-1", ..Class::DISTANCES }),
        title: "CPM-1",
        model_type: "cpm1",
        fixed: &[
            Fixed::NO_BIASES,
            &[("post_layer_norm", Fixed::Flag(false)), ("pos_bias_type", Fixed::Text("relative"))],
        ],
        ..Dialect::MODEL_CENTER
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        take(fields)
    }

    fn validate(&self, place: &str) -> Result<()> {
        self.text.validate(place)?;
        rows::check(Self::ROWS, self, place)?;
        Ranges { place }.distances([self.position_bias_num_buckets, self.position_bias_max_distance], BUCKETS)
    }

    fn adjust_dict(&self, map: &mut Map<String, Value>) {
        adjust_dict(&self.text, map);
    }
}

/// The fields of relative position buckets.
pub(in crate::model) const BUCKETS: [&str; 2] = ["position_bias_num_buckets", "position_bias_max_distance"];

/// Takes a configuration without dropout after the embeddings.
pub(in crate::model) fn take<C: RowConfig>(fields: &mut Fields) -> Result<C> {
    C::DIALECT.take_no_embedding_dropout(fields)?;
    let (mut config, _) = rows::take_config::<C>(fields)?;
    config.text_mut().embedding_dropout_p = 0.0;
    Ok(config)
}

/// Leaves out what the files do not have: dropout after the embeddings, and a `position_size` that bounds nothing.
pub(in crate::model) fn adjust_dict(text: &TextConfig, map: &mut Map<String, Value>) {
    map.shift_remove("embedding_dropout_p");
    if text.position_size == UNLIMITED {
        map.shift_remove("position_size");
    }
}

/// A CPM-1 with its head.
pub type Cpm1 = Transformer<Cpm1Config>;

impl ModelFamily for Cpm1Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    /// Only directories of this crate use these class names, to name the model's head.
    fn classes(&self) -> Classes {
        Classes::decoder("CPM1")
    }

    fn spec(&self) -> Spec {
        let (text, buckets) = (&self.text, [self.position_bias_num_buckets, self.position_bias_max_distance]);
        // Keys after the query have relative position buckets of their own even without a context.
        let relative = RelativeConfig::new(text.num_heads, buckets, self.pos_init_std);
        let norm = NormOptions::rms(text.dim_model, text.norm_eps);
        let stack = StackSpec::decoder(text, PositionsConfig::Relative(relative), norm);
        Spec { padding_learns: true, length_scale: self.length_scale, has_spans: true, ..Spec::decoder(self, stack) }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let block = block(&self.text, self.length_scale, self.attn_scale);
        BlockConfig { attention: AttentionConfig { causal: true, ..block.attention }, ..block }
    }

    /// Only ModelCenter names its parameters.
    fn names(&self, _head: Head) -> NameTable {
        model_center_names::decoder(self, "encoder")
    }

    fn names_of_model_center(&self, head: Head) -> Option<NameTable> {
        Some(self.names(head))
    }
}

/// A block with bidirectional attention.
pub(in crate::model) fn block(text: &TextConfig, length_scale: bool, attn_scale: bool) -> BlockConfig {
    let block = block_without_biases(text);
    let scale = if attn_scale { block.attention.scale } else { 1.0 };
    BlockConfig {
        attention: AttentionConfig { scale, length_scale, ..block.attention },
        ffn: FeedForwardConfig { length_scale, ..block.ffn },
        ..block
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "cpm1",
        doc: "CPM-1 with heads for the next token and for classification",
        open: Cpm1::open,
        facts: Cpm1::FACTS,
    },
    class: Cpm1Config::DIALECT.class,
    class_prefix: "",
    signatures: &[],
};

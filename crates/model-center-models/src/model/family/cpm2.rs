//! CPM-2 (Zhang et al., 2021) as ModelCenter implements it: T5 with gated feed-forward layers. Linear layers, including
//! the heads, divide their input by the square root of its dimension; the embeddings are not scaled.
//!
//! ModelCenter treats the last relative position bucket as padding and never trains it. Here it is trained.

use super::cpm1::{self, Cpm1Config, block};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a CPM-2.
    ///
    /// Defaults are taken from ModelCenter's class, whose scales are off; its published model, `cpm2-large`, has both
    /// on, and weights of variance one. A tied head and a classification head, which newer versions have, are not
    /// supported here. Its 190 sentinels are ordinary tokens of the vocabulary.
    ///
    /// Source: ModelCenter 1.0.3, `model_center/model/config/cpm2_config.py`.
    pub struct Cpm2Config {
        /// The common fields, as of CPM-1; `num_layers` counts encoder blocks.
        text: TextConfig { vocab_size: 26240, ..Cpm1Config::default().text };
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
        /// Number of decoder blocks.
        num_decoder_layers: usize = 12, Size("num_decoder_layers");
        /// The decoder start token, if the file specifies one. ModelCenter has no such field: its decoder gets its
        /// input as given, beginning with a sentinel.
        decoder_start_token_id: Option<usize> = None, OptionalIndex("decoder_start_token_id");
    }
}

impl RowConfig for Cpm2Config {
    const DIALECT: Dialect = Dialect {
        class: Some(Class {
            family: "cpm2",
            order: 10,
            title: "CPM-2",
            own: &["num_encoder_layers", "num_decoder_layers", RELATIVE[0], RELATIVE[1], RELATIVE[2], RELATIVE[3]],
            ..Class::DISTANCES
        }),
        title: "CPM-2",
        model_type: "cpm2",
        ..Cpm1Config::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let states_layers = fields.peek("num_layers").is_some();
        let mut config: Self = cpm1::take(fields)?;
        let text = &mut config.text;
        encoder_decoder::take_encoder_layers(fields, text, states_layers)?;
        // ModelCenter has two further heads, not supported here: a classifier, and a language-modelling head tied
        // to the embedding table without its scale.
        if text.tied {
            return Err(Self::DIALECT.unsupported(fields, "tied", "false"));
        }
        if text.cls_head.is_some() {
            return Err(Self::DIALECT.unsupported(fields, "cls_head", "null"));
        }
        Ok(config)
    }

    fn validate(&self, place: &str) -> Result<()> {
        self.text.validate(place)?;
        rows::check(Self::ROWS, self, place)?;
        let ranges = Ranges { place };
        ranges.distances([self.position_bias_num_buckets, self.position_bias_max_distance], cpm1::BUCKETS)?;
        ranges.decoder_start_token(self.decoder_start_token_id, self.text.vocab_size)
    }

    fn adjust_dict(&self, map: &mut Map<String, Value>) {
        cpm1::adjust_dict(&self.text, map);
        map.shift_remove("num_layers");
        map.insert("num_encoder_layers".to_string(), json!(self.text.num_layers));
    }
}

/// A CPM-2 with its head.
pub type Cpm2 = Transformer<Cpm2Config>;

impl ModelFamily for Cpm2Config {
    const ARCHITECTURE: Architecture = Architecture::EncoderDecoder;

    /// Only directories of this crate use these class names, to name the model's head.
    fn classes(&self) -> Classes {
        Classes::encoder_decoder("CPM2")
    }

    fn spec(&self) -> Spec {
        let (text, buckets) = (&self.text, [self.position_bias_num_buckets, self.position_bias_max_distance]);
        let relative = RelativeConfig::new(text.num_heads, buckets, self.pos_init_std);
        let stacks = StackSpec::with_relative_positions(text, self.num_decoder_layers, relative);
        let spec = Spec::encoder_decoder(self, stacks);
        let factor = if self.length_scale { 1.0 / (text.dim_model as f32).sqrt() } else { 1.0 };
        Spec {
            padding_learns: true,
            head: HeadSpec { factor, ..spec.head },
            decoder_start_token: self.decoder_start_token_id,
            starts_with_sentinel: true,
            ..spec
        }
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let block = block(&self.text, self.length_scale, self.attn_scale);
        if place.stack == 0 { block } else { block.attending_to_encoder() }
    }

    /// Only ModelCenter names its parameters.
    fn names(&self, _head: Head) -> NameTable {
        model_center_names::encoder_decoder(self)
    }

    fn names_of_model_center(&self, head: Head) -> Option<NameTable> {
        Some(self.names(head))
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "cpm2",
        doc: "CPM-2 with the head for the decoder's next token",
        open: Cpm2::open,
        facts: Cpm2::FACTS,
    },
    class: Cpm2Config::DIALECT.class,
    class_prefix: "",
    signatures: &[],
};

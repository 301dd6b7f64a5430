//! T5 1.0 and 1.1, FLAN-T5 and mT5 (Raffel et al., 2020; Xue et al., 2021): RMS norms, relative position biases from
//! one bucket table per stack, unscaled attention scores, no other biases.

use crate::model::prelude::*;
use bmtrain_core::dtype::DType;
use model_center_formats::config::activations;
use model_center_formats::directory::DirectoryLayout;

/// T5 or mT5, which differ in names and defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum T5Kind {
    /// T5 1.0 and 1.1, FLAN-T5 and their derivatives.
    T5,
    /// The multilingual T5, with the architecture of T5 1.1.
    MT5,
}

impl T5Kind {
    /// Its `model_type`.
    pub const fn model_type(self) -> &'static str {
        match self {
            T5Kind::T5 => "t5",
            T5Kind::MT5 => "mt5",
        }
    }

    fn of(fields: &Fields) -> Result<Self> {
        let is_multilingual = fields.peek_text("model_type")? == Some(T5Kind::MT5.model_type());
        Ok(if is_multilingual { T5Kind::MT5 } else { T5Kind::T5 })
    }

    const fn dialect(self) -> &'static Dialect {
        match self {
            T5Kind::T5 => &T5_DIALECT,
            T5Kind::MT5 => &MT5_DIALECT,
        }
    }
}

/// Factor of the decoder's hidden states before the language-modelling head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadScale {
    /// 1. ModelCenter: no `scale`.
    One,
    /// 1 / √D. Hugging Face: `scale_decoder_outputs`; in files without the field it applies if the head is tied.
    Root,
    /// 100 / √D. ModelCenter: `scale`, for the embeddings of T5 1.0, which its converter divides by 100.
    HundredRoot,
}

impl HeadScale {
    /// The factor.
    pub fn factor(self, dim_model: usize) -> f32 {
        let root = (dim_model as f32).sqrt();
        match self {
            HeadScale::One => 1.0,
            HeadScale::Root => 1.0 / root,
            HeadScale::HundredRoot => 100.0 / root,
        }
    }
}

model_config! {
    /// Sizes and options of a T5.
    ///
    /// Source: ModelCenter 1.0.3, `model_center/model/config/t5_config.py`; Raffel et al. 2020 for the architecture.
    /// Initializers are ModelCenter's; `initializer_factor` of transformers is kept but has no effect.
    pub struct T5Config {
        /// The common fields; `num_layers` counts encoder blocks.
        text: TextConfig {
            vocab_size: 32128,
            num_layers: 12,
            position_size: UNLIMITED,
            norm_eps: 1e-6,
            ffn_activate_fn: Activation::Relu,
            tied: true,
            pad_token_id: Some(0),
            ..TextConfig::default()
        };
        /// T5 or mT5.
        kind: T5Kind = T5Kind::T5;
        /// Number of decoder blocks.
        num_decoder_layers: usize = 12, Size("num_decoder_layers");
        /// Number of relative position buckets. Hugging Face: `relative_attention_num_buckets`.
        position_bias_num_buckets: usize = 32, Size("relative_attention_num_buckets" => "position_bias_num_buckets");
        /// Distances from here on share the last bucket. Hugging Face: `relative_attention_max_distance`.
        position_bias_max_distance: usize = 128,
            Size("relative_attention_max_distance" => "position_bias_max_distance");
        /// Standard deviation of the initializer of the relative position biases.
        pos_init_std: f32 = 1.0, Deviation(=> "pos_init_std");
        /// Factor of the hidden states before the head.
        scale: HeadScale = HeadScale::One;
        /// The decoder start token, if the file specifies one.
        decoder_start_token_id: Option<usize> = Some(0), OptionalIndex("decoder_start_token_id");
    }
}

/// The field names of T5's files.
const T5_DIALECT: Dialect = Dialect {
    class: Some(Class {
        family: "t5",
        order: 8,
        title: "T5",
        own: &["num_encoder_layers", "num_decoder_layers", RELATIVE[0], RELATIVE[1], RELATIVE[2], RELATIVE[3], "scale"],
        ..Class::DISTANCES
    }),
    title: "T5",
    model_type: T5Kind::T5.model_type(),
    dim_model: &["d_model", "hidden_size"],
    num_layers: &["num_layers", "num_hidden_layers"],
    num_heads: &["num_heads", "num_attention_heads"],
    dim_ff: &["d_ff"],
    dim_head: &["d_kv", "head_dim"],
    head_required: true,
    position_size: &[],
    dropout: &["dropout_rate"],
    attention_dropout: &[],
    init_std: &[],
    norm_eps: &["layer_norm_epsilon"],
    // T5 has its own field for the activation.
    activation: &[],
    gated: None,
    hugging_face: |defaults| TextConfig {
        dropout_p: 0.1,
        embedding_dropout_p: 0.1,
        attention_dropout_p: 0.1,
        ..defaults
    },
    fixed: &[
        Fixed::NO_BIASES,
        Fixed::PRE_NORM,
        &[
            ("is_encoder_decoder", Fixed::Flag(true)),
            ("attn_scale", Fixed::Flag(false)),
            ("pos_bias_type", Fixed::Text("relative")),
        ],
    ],
    ..Dialect::HUGGING_FACE
};

/// The field names of mT5's files.
const MT5_DIALECT: Dialect = Dialect {
    title: "mT5",
    model_type: T5Kind::MT5.model_type(),
    hugging_face: |defaults| TextConfig {
        ffn_activate_fn: Activation::GeluTanh,
        ffn_gated: true,
        ..(T5_DIALECT.hugging_face)(defaults)
    },
    ..T5_DIALECT
};

/// Reads the factor of the hidden states before the head; it defaults to 1 / √D if `is_scaled`, else to 1.
fn take_scale(fields: &mut Fields, kind: T5Kind, is_scaled: bool) -> Result<HeadScale> {
    let root = fields.take_flag("scale_decoder_outputs")?;
    let hundred = fields.take_flag("scale")?;
    let scale = match (root, hundred) {
        (Some(_), Some(true)) => {
            let reason = "scale_decoder_outputs and scale both scale the states before the head";
            return Err(fields.error("scale", reason, "remove one of the two fields"));
        }
        (None, Some(true)) => HeadScale::HundredRoot,
        (Some(true), _) => HeadScale::Root,
        (None, None) if is_scaled => HeadScale::Root,
        (None, Some(false)) | (Some(false), _) | (None, None) => HeadScale::One,
    };
    match kind == T5Kind::MT5 && scale != HeadScale::One {
        true => Err(kind.dialect().unsupported(fields, "scale", "false")),
        false => Ok(scale),
    }
}

impl RowConfig for T5Config {
    const DIALECT: Dialect = T5_DIALECT;

    fn dialect(&self) -> &'static Dialect {
        self.kind.dialect()
    }

    fn dialect_of(fields: &Fields) -> Result<&'static Dialect> {
        Ok(T5Kind::of(fields)?.dialect())
    }

    fn read(fields: &mut Fields) -> Result<Self> {
        let kind = T5Kind::of(fields)?;
        let stated = |names: &[&str]| names.iter().any(|name| fields.peek(name).is_some());
        let states_layers = stated(&["num_layers", "num_hidden_layers"]);
        let states_function = stated(&["ffn_activate_fn"]);
        let states_decoder = stated(&["num_decoder_layers"]);
        let states_start = stated(&["decoder_start_token_id"]);
        let (mut config, spoken) = rows::take_config::<Self>(fields)?;
        config.kind = kind;
        encoder_decoder::take_encoder_layers(fields, &mut config.text, states_layers)?;
        activations::take_projection(fields, &mut config.text, states_function)?;
        kind.dialect().refuse_lone_stacks(fields)?;
        let is_hugging_face = spoken == Spoken::HuggingFace;
        if is_hugging_face && !states_decoder {
            config.num_decoder_layers = config.text.num_layers;
        }
        let is_scaled = is_hugging_face && kind == T5Kind::T5 && config.text.tied;
        config.scale = take_scale(fields, kind, is_scaled)?;
        if !states_start {
            // transformers has a default for mT5 only; ModelCenter starts with the padding token.
            let is_silent = is_hugging_face && kind == T5Kind::T5;
            config.decoder_start_token_id = Self::default().decoder_start_token_id.filter(|_| !is_silent);
        }
        Ok(config)
    }

    fn validate(&self, place: &str) -> Result<()> {
        self.text.validate(place)?;
        rows::check(Self::ROWS, self, place)?;
        let ranges = Ranges { place };
        let (buckets, distance) = (self.position_bias_num_buckets, self.position_bias_max_distance);
        let names = ["relative_attention_num_buckets", "relative_attention_max_distance"];
        ranges.distances([buckets, distance], names)?;
        ranges.decoder_start_token(self.decoder_start_token_id, self.text.vocab_size)
    }

    fn adjust_dict(&self, map: &mut Map<String, Value>) {
        map.shift_remove("num_layers");
        map.insert("num_encoder_layers".to_string(), json!(self.text.num_layers));
        map.insert("scale".to_string(), json!((self.scale == HeadScale::HundredRoot).then_some(true)));
        if self.scale == HeadScale::Root {
            map.insert("scale_decoder_outputs".to_string(), json!(true));
        }
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        if self.kind == T5Kind::MT5 && self.scale != HeadScale::One {
            let reason = "transformers has no mT5 whose states are scaled before the head";
            let fix = "this model cannot be written as a Hugging Face directory";
            return Err(Error::model("mT5 configuration, field scale", reason, fix));
        }
        if self.kind == T5Kind::T5 {
            // The decoder's final norm takes the 100 of a factor of 100 / √D.
            map.insert("scale_decoder_outputs".to_string(), json!(self.scale != HeadScale::One));
        }
        let (projection, function) = activations::projection(&self.text);
        map.insert("feed_forward_proj".to_string(), json!(projection));
        map.insert("dense_act_fn".to_string(), json!(function));
        map.insert("is_gated_act".to_string(), json!(self.text.ffn_gated));
        map.insert("is_encoder_decoder".to_string(), json!(true));
        Ok(())
    }

    fn to_class(&self, header: &HfHeader) -> Result<ClassFields> {
        if header.dtype == DType::F16 {
            let reason = "ModelCenter would compute in f16, whose range the hidden states may leave";
            return Err(Error::model("T5 in ModelCenter's layout", reason, "write the weights as f32"));
        }
        let mut written = model_center::class_fields(self, header)?;
        if self.scale == HeadScale::Root {
            // The decoder's final norm takes the rest of the factor.
            written.map.insert("scale".to_string(), json!(true));
            written.left_out.retain(|name| name != "scale_decoder_outputs");
        }
        Ok(written)
    }
}

/// A T5 with its head.
pub type T5 = Transformer<T5Config>;

impl ModelFamily for T5Config {
    const ARCHITECTURE: Architecture = Architecture::EncoderDecoder;
    const DROPS_EMBEDDINGS: bool = true;
    const LEAVES_F16: bool = true;
    const STARTS_WITH_PADDING: bool = true;

    fn classes(&self) -> Classes {
        match self.kind {
            T5Kind::T5 => Classes::encoder_decoder("T5"),
            T5Kind::MT5 => Classes::encoder_decoder("MT5"),
        }
    }

    fn weights_tell_the_head(&self) -> bool {
        // Since version 5 transformers marks the head of every model as tied, and stores the matrix of an untied one.
        self.text.tied && self.scale == HeadScale::One
    }

    fn spec(&self) -> Spec {
        let (text, buckets) = (&self.text, [self.position_bias_num_buckets, self.position_bias_max_distance]);
        let relative = RelativeConfig::new(text.num_heads, buckets, self.pos_init_std);
        let stacks = StackSpec::with_relative_positions(text, self.num_decoder_layers, relative)
            .map(|stack| StackSpec { output_dropout: text.dropout_p, ..stack });
        let spec = Spec::encoder_decoder(self, stacks);
        Spec {
            padding_learns: true,
            head: HeadSpec { factor: self.scale.factor(text.dim_model), ..spec.head },
            decoder_start_token: self.decoder_start_token_id,
            ..spec
        }
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let block = block_without_biases(&self.text);
        let block = BlockConfig {
            attention: AttentionConfig { scale: 1.0, ..block.attention },
            ffn: FeedForwardConfig { dropout: self.text.dropout_p, ..block.ffn },
            ..block
        };
        if place.stack == 0 { block } else { block.attending_to_encoder() }
    }

    fn names_of_model_center(&self, _head: Head) -> Option<NameTable> {
        Some(model_center_names::encoder_decoder(self))
    }

    fn rescaled_norm(&self, layout: DirectoryLayout) -> Option<fn(f32) -> f32> {
        match (self.scale, layout) {
            (HeadScale::Root, DirectoryLayout::ModelCenter) => Some(|value| value / 100.0),
            (HeadScale::HundredRoot, DirectoryLayout::HuggingFace) => Some(|value| value * 100.0),
            _ => None,
        }
    }

    fn names(&self, head: Head) -> NameTable {
        let mut rules =
            vec![Rule::new("input_embedding.weight", "shared.weight"), Rule::new("lm_head.weight", "lm_head.weight")];
        rules.extend(stack("encoder", 1, self.text.ffn_gated));
        rules.extend(stack("decoder", 2, self.text.ffn_gated));
        let mut aliases = vec![
            Alias::new("encoder.embed_tokens.weight", "shared.weight"),
            Alias::new("decoder.embed_tokens.weight", "shared.weight"),
        ];
        aliases.extend(head.tied_alias("shared.weight"));
        NameTable {
            base_prefix: "",
            rules: Cow::Owned(rules),
            aliases: Cow::Owned(aliases),
            // The first versions stored an unused one.
            ignored: Cow::Borrowed(&["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"]),
            ..NameTable::default()
        }
    }
}

/// Parameters of one stack in files; `last` is the index of the feed-forward layer among a block's layers.
fn stack(name: &str, last: usize, is_gated: bool) -> Vec<Rule> {
    let rule = |ours: &str, theirs: &str| Rule::owned(format!("{name}.{ours}"), format!("{name}.{theirs}"));
    let block =
        |ours: &str, theirs: &str| rule(&format!("layers.{{i}}.{ours}"), &format!("block.{{i}}.layer.{theirs}"));
    let w_in = if is_gated { "{wi_0|wi_1}" } else { "wi" };
    vec![
        // Stored with the first block and used by all blocks.
        rule("relative_attention_bias.weight", "block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        block("attention_norm.weight", "0.layer_norm.weight"),
        block("attention.project_qkv.weight", "0.SelfAttention.{q|k|v}.weight"),
        block("attention.attention_out.weight", "0.SelfAttention.o.weight"),
        block("cross_norm.weight", "1.layer_norm.weight"),
        block("cross_attention.project_q.weight", "1.EncDecAttention.q.weight"),
        block("cross_attention.project_kv.weight", "1.EncDecAttention.{k|v}.weight"),
        block("cross_attention.attention_out.weight", "1.EncDecAttention.o.weight"),
        block("ffn_norm.weight", &format!("{last}.layer_norm.weight")),
        block("ffn.w_in.weight", &format!("{last}.DenseReluDense.{w_in}.weight")),
        block("ffn.w_out.weight", &format!("{last}.DenseReluDense.wo.weight")),
        rule("output_norm.weight", "final_layer_norm.weight"),
    ]
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "t5",
        doc: "T5 1.0 and 1.1 and FLAN-T5 with the head for the decoder's next token",
        open: T5::open,
        facts: T5::FACTS,
    },
    class: T5Config::DIALECT.class,
    class_prefix: "T5",
    signatures: &[Signature { has: &[TENSORS, &["encoder.block.0.layer.1.DenseReluDense.wi.weight"]], ..GATED }, GATED],
};

/// mT5.
pub(in crate::model) const MULTILINGUAL: Family = Family {
    entry: ModelEntry {
        model_type: "mt5",
        doc: "mT5 with the head for the decoder's next token",
        open: T5::open,
        facts: T5::FACTS,
    },
    class_prefix: "MT5",
    signatures: &[GATED],
    ..FAMILY
};

/// The weights of a model with gated feed-forward layers.
const GATED: Signature = Signature {
    prefix: "",
    has: &[TENSORS, &["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"]],
    lacks: &["encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"],
};

/// Tensors that identify the weights.
const TENSORS: &[&str] = &["shared.weight", "encoder.block.0.layer.0.SelfAttention.q.weight"];

//! The keys of `[model]`: what training begins with, and the sizes of a model that begins without weights.

use super::{DEFAULT_SEED, DTYPES, Settings};
use crate::recipe::engine::kinds::Range::{Above, Below};
use crate::recipe::engine::kinds::{Expected, MAX_INTEGER, name_of};
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::settings;
use bmtrain_core::DType;
use bmtrain_dist::param::F32Parameters;
use model_center_formats::config::{ConfigOverrides, LayerSharing, SharingStyle};

/// The largest size of a model.
const MAX_SIZE: u64 = 1 << 28;

const MODEL_DIRECTORY: Expected = Expected {
    what: "the path of a Hugging Face model directory, or the hub's name of a model that is in its cache",
    example: "models/bert-base-uncased",
};
const FAMILY: Expected = Expected { what: "a family of models", example: "bert" };
const TOKENIZER: Expected =
    Expected { what: "the path of a tokenizer: a directory or a file", example: "models/tokenizer" };
const REVISION: Expected = Expected { what: "a branch, a tag or a whole commit", example: "main" };

/// Default of the keys of sizes.
const OWN: &str = "not set: as in the model's config.json";
const OF_RANDOM: &str = "it is for model.init = \"random\"";

const RANDOM: &[&str] = &["random"];
const INITS: [(&str, ModelInit); 2] = [("weights", ModelInit::Weights), ("random", ModelInit::Random)];

settings! {
    /// `[model]`: what is trained.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ModelSettings in "model" (r) then checked() {
        /// Source of initial values: the weights in `model.path`, or `random`, which reads its `config.json` alone.
        pub init: ModelInit = choice(&INITS, ModelInit::Weights), "0.2", later("\"weights\"");
        /// The model that training begins with: a Hugging Face directory, or a model of the hub that is in its cache.
        pub path: String = model_path(init), "0.1";
        /// Branch, tag or commit of a model of the hub.
        pub revision: Option<String> = optional_text("not set: main, of a model of the hub", REVISION), "0.1";
        /// The family, where `config.json` does not name one.
        pub family: Option<String> = optional_text(
            "not set: as config.json states, else as the names of the tensors tell", FAMILY), "0.1";
        /// Patterns of tensors in the model's directory that are not read, as `--leave` gives them.
        pub leave: Vec<String> = texts("not set: only tensors of other heads", "[\"ner_head.*\"]"), "0.1",
            uncounted();
        /// Tokenizer of a model without weights, where it is not in `model.path`.
        pub tokenizer: Option<String> = optional_text("not set: the one in model.path", TOKENIZER), "0.2", uses(RANDOM);
        /// Without weights: what replaces sizes of the configuration.
        pub shape: ConfigOverrides = { ShapeKeys::read(r).overrides() } rows ShapeKeys;
        /// Dtype of the parameters. With `f16` and `bf16` the optimizer keeps f32 master weights.
        pub dtype: DType = choice(&DTYPES, DType::F32), "0.1";
        /// Parameters that are stored, gathered and updated in f32 where `model.dtype` has 16 bits: tables of tokens
        /// and learned positions, all norms, tables of token types.
        pub f32_parameters: F32Parameters = f32_parameters(), "0.2";
        /// `auto` takes the classification head of the directory if it has one; `new` initializes a new one.
        pub head: Head = choice(&[("auto", Head::Auto), ("new", Head::New)], Head::Auto), "0.1";
        /// Dropout of hidden states.
        pub hidden_dropout: Option<f32> = optional_single(OWN, Below(0.0, 1.0), 0.1), "0.1";
        /// Dropout of attention probabilities.
        pub attention_dropout: Option<f32> = optional_single(OWN, Below(0.0, 1.0), 0.1), "0.1";
        /// Seed of the initial values of parameters that the directory does not hold: [`SeedKey`] reads it.
        pub init_seed: u64 = { DEFAULT_SEED } rows SeedKey;
    }
}

settings! {
    #[derive(Debug)]
    pub(super) struct ShapeKeys in "model" (r) {
        /// Blocks of a model without weights; of an encoder-decoder, of each stack.
        layers: Option<usize> = optional_integer(OWN, 1..=MAX_SIZE, 24), "0.2", uses(RANDOM);
        /// Size of its hidden states.
        hidden: Option<usize> = optional_integer(OWN, 1..=MAX_SIZE, 1024), "0.2", uses(RANDOM);
        /// Its attention heads.
        heads: Option<usize> = optional_integer(OWN, 1..=MAX_SIZE, 16), "0.2", uses(RANDOM);
        /// Its key and value heads.
        kv_heads: Option<usize> = optional_integer(OWN, 1..=MAX_SIZE, 8), "0.2", uses(RANDOM);
        /// Size of each head, in families where it is not `model.hidden` / `model.heads`.
        head_size: Option<usize> = optional_integer(OWN, 1..=MAX_SIZE, 64), "0.2", uses(RANDOM);
        /// Size of its feed-forward layers; 4 × `model.hidden` where nothing states it.
        feed_forward: Option<usize> = optional_integer(OWN, 1..=MAX_SIZE, 4096), "0.2", uses(RANDOM);
        /// The longest sequence it has positions for.
        positions: Option<usize> = optional_integer(OWN, 1..=MAX_SIZE, 1024), "0.2", uses(RANDOM);
        /// Rows of its token embedding; at least the tokens of the tokenizer.
        vocabulary: Option<usize> = optional_integer(OWN, 1..=MAX_SIZE, 50_304), "0.2", uses(RANDOM);
        /// Biases in the linear layers of attention and feed-forward, in CPM-Pretrain's T5.
        hidden_bias: Option<bool> = optional_flag(OWN), "0.2", uses(RANDOM);
        /// Standard deviation of its initial values.
        init_std: Option<f32> = optional_single(OWN, Above(0.0), 0.02), "0.2", uses(RANDOM);
        /// Divide the initial values of the projections that add to a block's input by the root of 2 × `model.layers`.
        scale_init_by_depth: Option<bool> = optional_flag("not set: as the family does"), "0.2", uses(RANDOM);
        /// Layers with parameters of their own, a divisor of `model.layers`: the others share theirs. Saved models have
        /// all.
        unique_layers: Option<usize> = optional_integer("not set: each has its own parameters", 1..=MAX_SIZE, 6), "0.2",
            uses(RANDOM);
        /// Order of the layers that share: of two, `grouped` is 1 2 1 2 and `spaced` is 1 1 2 2.
        sharing_style: SharingStyle = choice(
            &[("grouped", SharingStyle::Grouped), ("spaced", SharingStyle::Spaced)], SharingStyle::Grouped), "0.2",
            uses(RANDOM);
    }
}

settings! {
    /// The key whose default is the seed of training, which is read later.
    #[derive(Debug)]
    pub(super) struct SeedKey in "model" (r, train_seed: u64) {
        /// Seed of the initial values of parameters that the directory does not hold.
        pub(super) init_seed: u64 = integer(train_seed, 0..=MAX_INTEGER), "0.1", follows("train.seed");
    }
}

/// Source of a model's initial values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelInit {
    /// From the weights of its directory.
    Weights,
    /// All are initialized randomly; its configuration is all that is read.
    Random,
}

/// Source of the classifier: one output per class, one per choice, or one number. A language-modelling head is always
/// the directory's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// From the directory if it has one, which must then be for the same labels; else randomly initialized.
    Auto,
    /// Randomly initialized, even if the directory has one.
    New,
}

/// Whether only a model without weights has the key.
pub fn is_of_random_model(key: &str) -> bool {
    ModelSettings::TABLE.rows().iter().any(|row| row.key == key && row.uses == RANDOM)
}

impl ShapeKeys {
    fn overrides(self) -> ConfigOverrides {
        ConfigOverrides {
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_size: self.head_size,
            feed_forward: self.feed_forward,
            positions: self.positions,
            vocabulary: self.vocabulary,
            hidden_bias: self.hidden_bias,
            init_std: self.init_std,
            scale_init_by_depth: self.scale_init_by_depth,
            sharing: self.unique_layers.map(|unique| LayerSharing { unique, style: self.sharing_style }),
            ..ConfigOverrides::default()
        }
    }
}

impl ModelSettings {
    /// Adds what is missing or has no effect.
    fn checked(self, r: &mut Reader) -> Self {
        r.refuse_others(&ModelSettings::TABLE, ("model.init", name_of(&INITS, &self.init)), |_| {
            (OF_RANDOM.to_owned(), "remove it, or set model.init = \"random\"".to_owned())
        });
        if self.init == ModelInit::Random {
            if self.shape.sharing.is_none() {
                let (why, fix) = ("it is for model.unique_layers", "remove it, or set model.unique_layers");
                r.without_effect("model.sharing_style", "model.unique_layers", why, fix);
            }
            r.without_effect("model.leave", "model.init", "a model without weights has no tensors", "remove it");
            if self.path.is_empty() && self.family.is_none() {
                let fix =
                    "set model.path to a directory with a config.json, or model.family with model.layers and so on";
                r.absent(&["model.path", "model.family"], "neither `model.path` nor `model.family` is set", fix);
            }
            if self.path.is_empty() && self.tokenizer.is_none() {
                let fix = "set model.tokenizer to the directory of a tokenizer";
                r.absent(&["model.path", "model.tokenizer"], "there is no tokenizer without `model.path`", fix);
            }
        }
        if self.dtype == DType::F32 {
            let (why, fix) = ("all parameters are f32", "remove it, or set model.dtype to bf16 or f16");
            r.without_effect("model.f32_parameters", "model.dtype", why, fix);
        }
        self
    }
}

impl Reader {
    /// Path of the model to begin with; it may be absent without weights.
    fn model_path(&mut self, key: &'static str, init: ModelInit) -> String {
        match init {
            ModelInit::Weights => self.required_text(key, MODEL_DIRECTORY),
            ModelInit::Random => {
                let absent = "not set: model.family and sizes";
                self.optional_text(key, absent, MODEL_DIRECTORY).unwrap_or_default()
            }
        }
    }

    fn f32_parameters(&mut self, key: &'static str) -> F32Parameters {
        let kinds =
            [("embeddings", F32Kind::Embeddings), ("norms", F32Kind::Norms), ("token-types", F32Kind::TokenTypes)];
        let kinds = self.optional_choices(key, "not set: all have model.dtype", &kinds).unwrap_or_default();
        F32Parameters {
            embeddings: kinds.contains(&F32Kind::Embeddings),
            norms: kinds.contains(&F32Kind::Norms),
            token_types: kinds.contains(&F32Kind::TokenTypes),
        }
    }
}

/// A field of [`F32Parameters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum F32Kind {
    Embeddings,
    Norms,
    TokenTypes,
}

/// Adds what contradicts itself.
pub(crate) fn check(r: &mut Reader, s: &Settings) {
    let shape = &s.model.shape;
    if let (Some(hidden), Some(heads), None) = (shape.hidden, shape.heads, shape.head_size)
        && !hidden.is_multiple_of(heads)
    {
        let reason = format!("`model.heads` = {heads} does not divide `model.hidden` = {hidden}");
        r.contradiction(&["model.heads", "model.hidden"], reason, "choose a divisor, or set model.head_size");
    }
    if let (Some(heads), Some(kv_heads)) = (shape.heads, shape.kv_heads)
        && !heads.is_multiple_of(kv_heads)
    {
        let reason = format!("`model.kv_heads` = {kv_heads} does not divide `model.heads` = {heads}");
        r.contradiction(&["model.kv_heads", "model.heads"], reason, "choose a divisor");
    }
    let Some(LayerSharing { unique, .. }) = shape.sharing else { return };
    if let Some(layers) = shape.layers.filter(|layers| !layers.is_multiple_of(unique)) {
        let reason = format!("`model.unique_layers` = {unique} does not divide `model.layers` = {layers}");
        r.contradiction(&["model.unique_layers", "model.layers"], reason, "choose a divisor");
    }
    if s.parallel.pipeline > 1 {
        let reason = "layers that share their parameters are on one pipeline stage";
        r.contradiction(&["model.unique_layers", "parallel.pipeline"], reason, "remove one of the two");
    }
}

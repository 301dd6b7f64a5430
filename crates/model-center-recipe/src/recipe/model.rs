//! The keys of `[model]`: what training begins with, and the sizes of a model that begins without weights.

use super::kinds::{Expected, Range};
use super::reader::Reader;
use super::settings::{Head, ModelInit, ModelSettings, Settings};
use bmtrain_core::DType;
use bmtrain_dist::param::F32Parameters;
use model_center_formats::config::{ConfigOverrides, LayerSharing, SharingStyle};

/// The largest size of a model.
const MOST: u64 = 1 << 28;

const MODEL_DIRECTORY: Expected = Expected {
    what: "the path of a Hugging Face model directory, or the hub's name of a model that is in its cache",
    example: "models/bert-base-uncased",
};
const FAMILY: Expected = Expected { what: "a family of models", example: "bert" };
const TOKENIZER: Expected =
    Expected { what: "the path of a tokenizer: a directory or a file", example: "models/tokenizer" };
const LEAVE: &str = "[\"ner_head.*\"]";
const REVISION: Expected = Expected { what: "a branch, a tag or a whole commit", example: "main" };

/// What the keys of sizes have in common.
const OWN: &str = "not set: as in the model's config.json";
const OF_RANDOM: &str = "it is for model.init = \"random\"";

/// The keys that only a model without weights has.
pub const SHAPE: [&str; 14] = [
    "model.tokenizer",
    "model.layers",
    "model.hidden",
    "model.heads",
    "model.kv_heads",
    "model.head_size",
    "model.feed_forward",
    "model.positions",
    "model.vocabulary",
    "model.hidden_bias",
    "model.init_std",
    "model.scale_init_by_depth",
    "model.unique_layers",
    "model.sharing_style",
];

/// A field of [`F32Parameters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum F32Kind {
    Embeddings,
    Norms,
    TokenTypes,
}

pub(super) fn read_model(r: &mut Reader) -> ModelSettings {
    let share = Range::Below(0.0, 1.0);
    let inits = [("weights", ModelInit::Weights), ("random", ModelInit::Random)];
    let init = r.choice("model.init", &inits, ModelInit::Weights);
    let path = match init {
        ModelInit::Weights => r.required_text("model.path", MODEL_DIRECTORY),
        ModelInit::Random => {
            let absent = "not set: model.family and sizes";
            r.optional_text("model.path", absent, MODEL_DIRECTORY).unwrap_or_default()
        }
    };
    let revision = r.optional_text("model.revision", "not set: main, of a model of the hub", REVISION);
    let family_absent = "not set: as config.json states, else as the names of the tensors tell";
    let family = r.optional_text("model.family", family_absent, FAMILY);
    let leave =
        r.optional_texts("model.leave", "not set: nothing but what other heads have", LEAVE).unwrap_or_default();
    let tokenizer = r.optional_text("model.tokenizer", "not set: the one in model.path", TOKENIZER);
    let shape = read_shape(r);
    if init == ModelInit::Weights {
        for key in SHAPE {
            r.without_effect(key, "model.init", OF_RANDOM, "remove it, or set model.init = \"random\"");
        }
    } else {
        if shape.sharing.is_none() {
            let (why, fix) = ("it is for model.unique_layers", "remove it, or set model.unique_layers");
            r.without_effect("model.sharing_style", "model.unique_layers", why, fix);
        }
        r.without_effect("model.leave", "model.init", "a model without weights has no tensors", "remove it");
        if path.is_empty() && family.is_none() {
            let fix = "set model.path to a directory with a config.json, or model.family with model.layers and so on";
            r.absent(&["model.path", "model.family"], "neither `model.path` nor `model.family` is set", fix);
        }
        if path.is_empty() && tokenizer.is_none() {
            let fix = "set model.tokenizer to the directory of a tokenizer";
            r.absent(&["model.path", "model.tokenizer"], "there is no tokenizer without `model.path`", fix);
        }
    }
    let dtype = r.choice("model.dtype", &[("f32", DType::F32), ("bf16", DType::BF16), ("f16", DType::F16)], DType::F32);
    let f32_parameters = read_f32_parameters(r);
    if dtype == DType::F32 {
        let (why, fix) = ("all parameters are f32", "remove it, or set model.dtype to bf16 or f16");
        r.without_effect("model.f32_parameters", "model.dtype", why, fix);
    }
    ModelSettings {
        init,
        path,
        revision,
        family,
        leave,
        tokenizer,
        shape,
        dtype,
        f32_parameters,
        head: r.choice("model.head", &[("auto", Head::Auto), ("new", Head::New)], Head::Auto),
        hidden_dropout: r.optional_single("model.hidden_dropout", OWN, share, 0.1),
        attention_dropout: r.optional_single("model.attention_dropout", OWN, share, 0.1),
        init_seed: 0,
    }
}

fn read_f32_parameters(r: &mut Reader) -> F32Parameters {
    let kinds = r.optional_choices(
        "model.f32_parameters",
        "not set: all have model.dtype",
        &[("embeddings", F32Kind::Embeddings), ("norms", F32Kind::Norms), ("token-types", F32Kind::TokenTypes)],
    );
    let kinds = kinds.unwrap_or_default();
    F32Parameters {
        embeddings: kinds.contains(&F32Kind::Embeddings),
        norms: kinds.contains(&F32Kind::Norms),
        token_types: kinds.contains(&F32Kind::TokenTypes),
    }
}

fn read_shape(r: &mut Reader) -> ConfigOverrides {
    let mut size =
        |key: &'static str, example: u64| r.optional_integer(key, OWN, 1..=MOST, example).map(|size| size as usize);
    let shape = ConfigOverrides {
        layers: size("model.layers", 24),
        hidden: size("model.hidden", 1024),
        heads: size("model.heads", 16),
        kv_heads: size("model.kv_heads", 8),
        head_size: size("model.head_size", 64),
        feed_forward: size("model.feed_forward", 4096),
        positions: size("model.positions", 1024),
        vocabulary: size("model.vocabulary", 50_304),
        ..ConfigOverrides::default()
    };
    ConfigOverrides {
        hidden_bias: r.optional_flag("model.hidden_bias", OWN),
        init_std: r.optional_single("model.init_std", OWN, Range::Above(0.0), 0.02),
        scale_init_by_depth: r.optional_flag("model.scale_init_by_depth", "not set: as the family does"),
        sharing: read_sharing(r),
        ..shape
    }
}

fn read_sharing(r: &mut Reader) -> Option<LayerSharing> {
    let unique = r.optional_integer("model.unique_layers", "not set: each has its own parameters", 1..=MOST, 6);
    let styles = [("grouped", SharingStyle::Grouped), ("spaced", SharingStyle::Spaced)];
    let style = r.choice("model.sharing_style", &styles, SharingStyle::Grouped);
    unique.map(|unique| LayerSharing { unique: unique as usize, style })
}

/// Adds what contradicts itself.
pub(super) fn check(r: &mut Reader, s: &Settings) {
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

//! The keys of `[adapter]`: what is trained where the model is frozen.

use super::kinds::{Expected, Range};
use super::reader::Reader;
use super::settings::{ModelInit, SaveWhich, Settings};
use bmtrain_core::DeviceChoice;
use bmtrain_core::kernel::Activation;
use model_center_models::WeightForm;
use model_center_models::adapter::{
    Adapter, AdapterConfig, BottleneckConfig, BottleneckPlacement, Ia3Config, LoraConfig, PrefixConfig, PromptConfig,
};

/// The largest rank.
const MOST_RANK: u64 = 1 << 16;
const DIRECTORY: Expected = Expected { what: "the path of a PEFT directory", example: "runs/first/model" };
const TEXT: Expected = Expected { what: "a text", example: "Classify the sentence:" };
/// The most virtual tokens.
const MOST_TOKENS: u64 = 1 << 16;
/// The methods by name.
const METHODS: [(&str, Method); 6] = [
    ("none", Method::None),
    ("lora", Method::Lora),
    ("ia3", Method::Ia3),
    ("prompt", Method::Prompt),
    ("prefix", Method::Prefix),
    ("bottleneck", Method::Bottleneck),
];

/// The keys that some methods alone take.
const KEYS: [(&str, &[Method]); 14] = [
    ("adapter.rank", &[Method::Lora]),
    ("adapter.alpha", &[Method::Lora]),
    ("adapter.rank_stabilized", &[Method::Lora]),
    ("adapter.dora", &[Method::Lora]),
    ("adapter.dropout", &[Method::Lora]),
    ("adapter.targets", &[Method::Lora, Method::Ia3, Method::Bottleneck]),
    ("adapter.feed_forward", &[Method::Ia3]),
    ("adapter.trained", &[Method::Lora, Method::Ia3, Method::Bottleneck]),
    ("adapter.virtual_tokens", &[Method::Prompt, Method::Prefix]),
    ("adapter.prompt_text", &[Method::Prompt]),
    ("adapter.prompt_stacks", &[Method::Prompt]),
    ("adapter.bottleneck_size", &[Method::Bottleneck]),
    ("adapter.activation", &[Method::Bottleneck]),
    ("adapter.placement", &[Method::Bottleneck]),
];

const NO_ADAPTER: &str = "adapter.method = \"none\" trains the model itself";

/// How a model is tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    None,
    Lora,
    Ia3,
    Prompt,
    Prefix,
    Bottleneck,
}

/// The names of methods, quoted and joined.
fn names_of(methods: &[Method], by: &str) -> String {
    let named = METHODS.iter().filter(|(_, method)| methods.contains(method));
    named.map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>().join(by)
}

/// What is trained, and how the frozen model is held.
pub(super) fn read(r: &mut Reader) -> (Option<Adapter>, WeightForm) {
    let defaults = LoraConfig::default();
    let method = r.choice("adapter.method", &METHODS, Method::None);
    let forms =
        [("none", WeightForm::Dequantised), ("nf4", WeightForm::Nf4), ("as-stored", WeightForm::LayersAsStored)];
    let form = r.choice("adapter.quantize", &forms, WeightForm::Dequantised);
    let path = r.optional_path("adapter.path", "not set: a new adapter", DIRECTORY);
    let mut lora = LoraConfig {
        rank: r.integer("adapter.rank", defaults.rank as u64, 1..=MOST_RANK) as usize,
        alpha: r.single("adapter.alpha", f64::from(defaults.alpha), Range::Above(0.0)),
        rank_stabilized: r.flag("adapter.rank_stabilized", defaults.rank_stabilized),
        dora: r.flag("adapter.dora", defaults.dora),
        dropout: r.single("adapter.dropout", f64::from(defaults.dropout), Range::Below(0.0, 1.0)),
        targets: Vec::new(),
        trained: Vec::new(),
    };
    let unset = match method {
        Method::Ia3 => "not set: keys, values and second layers of feed-forwards",
        Method::Bottleneck => "not set: as adapter.placement states",
        Method::None | Method::Lora | Method::Prompt | Method::Prefix => {
            "not set: [\"all-linear\"], the linear layers of all blocks"
        }
    };
    let targets = r.optional_texts("adapter.targets", unset, "[\"q_proj\", \"v_proj\"]");
    let unset = "not set: second layers of feed-forwards";
    let feed_forward = r.optional_texts("adapter.feed_forward", unset, "[\"down_proj\"]").unwrap_or_default();
    let trained = r.optional_texts("adapter.trained", "not set: a new head alone", "[\"lm_head\"]").unwrap_or_default();
    let tokens = r.integer("adapter.virtual_tokens", PromptConfig::default().tokens as u64, 1..=MOST_TOKENS);
    let prompt = PromptConfig {
        tokens: tokens as usize,
        text: r.optional_text("adapter.prompt_text", "not set: random embeddings", TEXT),
        decoder: r.choice("adapter.prompt_stacks", &[("first", false), ("both", true)], false),
    };
    let bottleneck = read_bottleneck(r);
    if method == Method::None {
        let all: &[Method] = &[Method::Lora, Method::Ia3, Method::Prompt, Method::Prefix, Method::Bottleneck];
        let of_all = ["adapter.quantize", "adapter.path"].map(|key| (key, all));
        for (key, methods) in of_all.into_iter().chain(KEYS) {
            let fix = format!("remove it, or set adapter.method = {}", names_of(methods, " or "));
            r.without_effect(key, "adapter.method", NO_ADAPTER, &fix);
        }
        return (None, WeightForm::Dequantised);
    }
    for (key, methods) in KEYS {
        if !methods.contains(&method) {
            let why = format!("it is for adapter.method = {}", names_of(methods, " and "));
            r.without_effect(key, "adapter.method", &why, "remove it");
        } else if key == "adapter.placement" && targets.is_some() && path.is_none() {
            r.without_effect(key, "adapter.targets", "adapter.targets names the layers", "remove one of the two");
        } else if path.is_some() {
            let why = "adapter.path has the adapter and its settings";
            r.without_effect(key, "adapter.path", why, "remove one of the two");
        }
    }
    let adapter = match (method, path) {
        (_, Some(path)) => Adapter::Saved(path),
        (Method::Ia3, None) => {
            let targets = targets.unwrap_or_default();
            Adapter::New(AdapterConfig::Ia3(Ia3Config { targets, feed_forward, trained }))
        }
        (Method::None | Method::Lora, None) => {
            (lora.targets, lora.trained) = (targets.unwrap_or(defaults.targets), trained);
            Adapter::New(AdapterConfig::Lora(lora))
        }
        (Method::Prompt, None) => Adapter::New(AdapterConfig::Prompt(prompt)),
        (Method::Bottleneck, None) => {
            let targets = targets.unwrap_or_default();
            Adapter::New(AdapterConfig::Bottleneck(BottleneckConfig { targets, trained, ..bottleneck }))
        }
        (Method::Prefix, None) => Adapter::New(AdapterConfig::Prefix(PrefixConfig { tokens: prompt.tokens })),
    };
    (Some(adapter), form)
}

/// Bottlenecks without the layers that are named.
fn read_bottleneck(r: &mut Reader) -> BottleneckConfig {
    let defaults = BottleneckConfig::default();
    let activations = Activation::ALL.map(|activation| (activation.name(), activation));
    let placements = [
        ("both", BottleneckPlacement::Both),
        ("attention", BottleneckPlacement::Attention),
        ("feed-forward", BottleneckPlacement::FeedForward),
    ];
    BottleneckConfig {
        size: r.integer("adapter.bottleneck_size", defaults.size as u64, 1..=MOST_RANK) as usize,
        activation: r.choice("adapter.activation", &activations, defaults.activation),
        placement: r.choice("adapter.placement", &placements, defaults.placement),
        ..defaults
    }
}

/// Adds what contradicts itself or has no effect.
pub(super) fn check(r: &mut Reader, s: &Settings) {
    if s.adapter.is_none() {
        r.without_effect("save.merged", "adapter.method", "without updates there is nothing to merge", "remove it");
        return;
    }
    if s.save.which == SaveWhich::None {
        r.without_effect("save.merged", "save.which", "save.which = \"none\" saves no model", "remove one of the two");
    }
    check_quantized(r, s);
    let is_prompt = matches!(s.adapter, Some(Adapter::New(AdapterConfig::Prompt(_))));
    let has_virtual_tokens = is_prompt || matches!(s.adapter, Some(Adapter::New(AdapterConfig::Prefix(_))));
    if s.save.merged && has_virtual_tokens {
        let reason = "virtual tokens are not part of a model's weights, and `save.merged` writes a model alone";
        r.contradiction(&["save.merged", "adapter.method"], reason, "remove save.merged");
    }
    if s.save.merged && matches!(s.adapter, Some(Adapter::New(AdapterConfig::Bottleneck(_)))) {
        let reason = "bottleneck adapters are not linear, and `save.merged` adds them to a model's weights";
        r.contradiction(&["save.merged", "adapter.method"], reason, "remove save.merged");
    }
    if s.parallel.sequence && is_prompt {
        let reason = "virtual tokens are not sharded over tensor-parallel ranks";
        r.contradiction(&["parallel.sequence", "adapter.method"], reason, "set parallel.sequence = false");
    }
    if s.data.packing && has_virtual_tokens {
        let reason = "virtual tokens precede a sequence, and `data.packing` puts several documents into one";
        r.contradiction(&["data.packing", "adapter.method"], reason, "set data.packing = false");
    }
    if !(s.train.frozen.is_empty() && s.train.only.is_empty()) {
        let key = if s.train.frozen.is_empty() { "train.only" } else { "train.frozen" };
        let reason = "a model with an adapter is frozen but for the adapter and `adapter.trained`";
        r.contradiction(&[key, "adapter.method"], reason, "remove it, or name modules in adapter.trained");
    }
    if s.data.source.pretraining().is_some() {
        let reason = "task pretrain trains a whole model, and `adapter.method` trains updates of one that is frozen";
        r.contradiction(&["adapter.method", "data.task"], reason, "set adapter.method = \"none\", or use another task");
    }
}

/// What a model in quantised blocks does not have.
fn check_quantized(r: &mut Reader, s: &Settings) {
    if s.base_weights == WeightForm::Dequantised {
        return;
    }
    if s.save.merged {
        let reason = "a merged model has the model's own weights, and `adapter.quantize` keeps quantised ones";
        let fix = "remove save.merged, and merge with `bmtrain convert MODEL OUT --merge RUN/model` after the run";
        r.contradiction(&["save.merged", "adapter.quantize"], reason, fix);
    }
    if s.model.init == ModelInit::Random {
        let reason = "`adapter.quantize` reads weights, and a model with `model.init` = \"random\" begins without any";
        r.contradiction(&["adapter.quantize", "model.init"], reason, "set adapter.quantize = \"none\"");
    }
    if matches!(s.device.name, DeviceChoice::Cuda | DeviceChoice::CudaDevice(_)) {
        let reason = "products with quantised blocks are computed on the CPU alone";
        r.contradiction(&["adapter.quantize", "device.name"], reason, "set device.name = \"cpu\"");
    }
}

//! The keys of `[adapter]`: what is trained where the model is frozen.

use super::Settings;
use super::model::ModelInit;
use super::save::SaveWhich;
use crate::Result;
use crate::recipe::engine::kinds::{Expected, Range, name_of, quoted};
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::settings;
use bmtrain_core::DeviceChoice;
use bmtrain_core::kernel::Activation;
use model_center_models::WeightForm;
use model_center_models::adapter::{
    Adapter, AdapterConfig, BottleneckConfig, BottleneckPlacement, Ia3Config, LoraConfig, PrefixConfig, PromptConfig,
};
use std::path::PathBuf;

/// The largest rank.
const MAX_RANK: u64 = 1 << 16;
const DIRECTORY: Expected = Expected { what: "the path of a PEFT directory", example: "runs/first/model" };
const TEXT: Expected = Expected { what: "a text", example: "Classify the sentence:" };
/// The most virtual tokens.
const MAX_TOKENS: u64 = 1 << 16;
/// The methods by name.
const METHODS: [(&str, Method); 6] = [
    ("none", Method::None),
    ("lora", Method::Lora),
    ("ia3", Method::Ia3),
    ("prompt", Method::Prompt),
    ("prefix", Method::Prefix),
    ("bottleneck", Method::Bottleneck),
];

const LORA: &[&str] = &["lora"];
const BOTTLENECK: &[&str] = &["bottleneck"];
/// The methods that put virtual tokens before sequences.
pub(super) const VIRTUAL_TOKENS: &[&str] = &["prompt", "prefix"];
const LAYERS: &[&str] = &["lora", "ia3", "bottleneck"];
const ALL: &[&str] = &["lora", "ia3", "prompt", "prefix", "bottleneck"];
const FORMS: [(&str, WeightForm); 3] =
    [("none", WeightForm::Dequantised), ("nf4", WeightForm::Nf4), ("as-stored", WeightForm::LayersAsStored)];
const PLACEMENTS: [(&str, BottleneckPlacement); 3] = [
    ("both", BottleneckPlacement::Both),
    ("attention", BottleneckPlacement::Attention),
    ("feed-forward", BottleneckPlacement::FeedForward),
];

settings! {
    #[derive(Debug)]
    pub(super) struct AdapterKeys in "adapter" (r) {
        /// `lora` freezes the model and trains low-rank updates of its linear layers, `ia3` factors of keys, values and
        /// feed-forwards, `prompt` the embeddings of virtual tokens before every sequence, `prefix` their keys and
        /// values in each layer, `bottleneck` two maps after attention and feed-forward: all that checkpoints and the
        /// saved directory have, `docs/adapters.md`.
        method: Method = choice(&METHODS, Method::None), "0.2", later("\"none\"");
        /// How the frozen model is held: `nf4` quantises the linear layers of its blocks to 4 bits while they are read
        /// (QLoRA), `as-stored` keeps them in the blocks of a GGUF file.
        quantize: WeightForm = choice(&FORMS, WeightForm::Dequantised), "0.2", later("\"none\""), uses(ALL);
        /// PEFT directory of an adapter that training begins with.
        path: Option<PathBuf> = optional_path("not set: a new adapter", DIRECTORY), "0.2", uses(ALL);
        /// Rank of an update.
        rank: usize = integer(LoraConfig::default().rank, 1..=MAX_RANK), "0.2", uses(LORA);
        /// An update is multiplied by `adapter.alpha` / `adapter.rank`.
        alpha: f32 = single(f64::from(LoraConfig::default().alpha), Range::Above(0.0)), "0.2", uses(LORA);
        /// Divide by the root of the rank instead.
        rank_stabilized: bool = flag(LoraConfig::default().rank_stabilized), "0.2", uses(LORA);
        /// Train the lengths of the rows of updated weights, too: DoRA.
        dora: bool = flag(LoraConfig::default().dora), "0.2", uses(LORA);
        /// Dropout of what enters an update.
        dropout: f32 = single(f64::from(LoraConfig::default().dropout), Range::Below(0.0, 1.0)), "0.2", uses(LORA);
        /// The layers that are updated, by Hugging Face's names of modules, whole or from any dot on; `*` stands for
        /// any text.
        targets: Option<Vec<String>> = optional_texts(default_targets(method), "[\"q_proj\", \"v_proj\"]"), "0.2",
            uses(LAYERS);
        /// IA³: the layers among `adapter.targets` whose inputs are multiplied, not the outputs.
        feed_forward: Vec<String> = texts("not set: second layers of feed-forwards", "[\"down_proj\"]"), "0.2",
            uses(&["ia3"]);
        /// Modules that are trained as a whole, by the same names, and saved with the updates.
        trained: Vec<String> = texts("not set: a new head alone", "[\"lm_head\"]"), "0.2", uses(LAYERS);
        /// Number of virtual tokens.
        virtual_tokens: usize = integer(PromptConfig::default().tokens, 1..=MAX_TOKENS), "0.2",
            uses(VIRTUAL_TOKENS);
        /// Text whose tokens' embeddings they begin with, repeated or truncated to their number.
        prompt_text: Option<String> = optional_text("not set: random embeddings", TEXT), "0.2", uses(&["prompt"]);
        /// Of an encoder-decoder: `both` gives the decoder as many of its own.
        prompt_stacks: bool = choice(&[("first", false), ("both", true)], false), "0.2", uses(&["prompt"]);
        /// Bottleneck adapters: values between the two maps.
        bottleneck_size: usize = integer(BottleneckConfig::default().size, 1..=MAX_RANK), "0.2", uses(BOTTLENECK);
        /// Their activation.
        activation: Activation = choice(
            &Activation::ALL.map(|activation| (activation.name(), activation)),
            BottleneckConfig::default().activation), "0.2", uses(BOTTLENECK);
        /// After which layers of a block they are: `both` as in Houlsby et al., `feed-forward` as in Pfeiffer et al.
        placement: BottleneckPlacement = choice(&PLACEMENTS, BottleneckConfig::default().placement), "0.2",
            uses(BOTTLENECK);
    }
}

/// Method of tuning a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    None,
    Lora,
    Ia3,
    Prompt,
    Prefix,
    Bottleneck,
}

fn default_targets(method: Method) -> &'static str {
    match method {
        Method::Ia3 => "not set: keys, values and second layers of feed-forwards",
        Method::Bottleneck => "not set: as adapter.placement states",
        Method::None | Method::Lora | Method::Prompt | Method::Prefix => {
            "not set: [\"all-linear\"], the linear layers of all blocks"
        }
    }
}

/// Adapter that is trained, and the form of the frozen model.
pub(super) fn read(r: &mut Reader) -> (Option<Adapter>, WeightForm) {
    let keys = AdapterKeys::read(r);
    let (method, form) = (keys.method, keys.quantize);
    if method == Method::None {
        r.refuse_others(&AdapterKeys::TABLE, ("adapter.method", "none"), |methods| {
            let fix = format!("remove it, or set adapter.method = {}", quoted(methods, " or "));
            ("adapter.method = \"none\" trains the model itself".to_owned(), fix)
        });
        return (None, WeightForm::Dequantised);
    }
    r.refuse_others(&AdapterKeys::TABLE, ("adapter.method", name_of(&METHODS, &method)), |methods| {
        (format!("it is for adapter.method = {}", quoted(methods, " and ")), "remove it".to_owned())
    });
    if let Some(path) = keys.path {
        let name = name_of(&METHODS, &method);
        for row in AdapterKeys::TABLE.rows().iter().filter(|row| row.uses != ALL && row.uses.contains(&name)) {
            let why = "adapter.path has the adapter and its settings";
            r.without_effect(row.key, "adapter.path", why, "remove one of the two");
        }
        return (Some(Adapter::Saved(path)), form);
    }
    if method == Method::Bottleneck && keys.targets.is_some() {
        let why = "adapter.targets names the layers";
        r.without_effect("adapter.placement", "adapter.targets", why, "remove one of the two");
    }
    (Some(Adapter::New(keys.config())), form)
}

/// The adapter of texts such as `adapter.method="lora"` and `adapter.rank=8`, for a model that a program opens itself,
/// and how the frozen model is held (`adapter.quantize`). `None` for `adapter.method="none"`, the default.
///
/// # Errors
/// The first key that is unknown, out of range, without effect or of another table; quantised weights on a CUDA device.
pub fn adapter_of_settings(texts: &[String], device: DeviceChoice) -> Result<(Option<Adapter>, WeightForm)> {
    let refuse = |key: &str| {
        let fix = "give keys of the table [adapter], such as adapter.method=\"lora\"";
        (!key.starts_with("adapter.")).then_some(("it is not a setting of an adapter", fix))
    };
    super::read_texts(texts, refuse, |r| {
        let (adapter, form) = read(r);
        check_device(r, form, device);
        (adapter, form)
    })
}

impl AdapterKeys {
    /// A new adapter.
    fn config(self) -> AdapterConfig {
        let AdapterKeys { rank, alpha, rank_stabilized, dora, dropout, targets, feed_forward, trained, .. } = self;
        match self.method {
            Method::None | Method::Lora => {
                let targets = targets.unwrap_or(LoraConfig::default().targets);
                AdapterConfig::Lora(LoraConfig { rank, alpha, rank_stabilized, dora, dropout, targets, trained })
            }
            Method::Ia3 => {
                AdapterConfig::Ia3(Ia3Config { targets: targets.unwrap_or_default(), feed_forward, trained })
            }
            Method::Prompt => AdapterConfig::Prompt(PromptConfig {
                tokens: self.virtual_tokens,
                text: self.prompt_text,
                decoder: self.prompt_stacks,
            }),
            Method::Prefix => AdapterConfig::Prefix(PrefixConfig { tokens: self.virtual_tokens }),
            Method::Bottleneck => AdapterConfig::Bottleneck(BottleneckConfig {
                size: self.bottleneck_size,
                activation: self.activation,
                placement: self.placement,
                targets: targets.unwrap_or_default(),
                trained,
            }),
        }
    }
}

/// Whether the adapter, new or of `adapter.path`, is of one of these methods.
pub(super) fn is_of(r: &Reader, methods: &[&str]) -> bool {
    r.value("adapter.method").is_some_and(|value| methods.contains(&value.trim_matches('"')))
}

/// Adds what contradicts itself or has no effect.
pub(crate) fn check(r: &mut Reader, s: &Settings) {
    if s.adapter.is_none() {
        r.without_effect("save.merged", "adapter.method", "without updates there is nothing to merge", "remove it");
        return;
    }
    if s.save.which == SaveWhich::None {
        r.without_effect("save.merged", "save.which", "save.which = \"none\" saves no model", "remove one of the two");
    }
    check_quantized(r, s);
    let (is_prompt, has_virtual_tokens) = (is_of(r, &["prompt"]), is_of(r, VIRTUAL_TOKENS));
    if s.save.merged && has_virtual_tokens {
        let reason = "virtual tokens are not part of a model's weights, and `save.merged` writes a model alone";
        r.contradiction(&["save.merged", "adapter.method"], reason, "remove save.merged");
    }
    if s.save.merged && is_of(r, BOTTLENECK) {
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

/// Refuses settings that a model in quantised blocks does not have.
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
    check_device(r, s.base_weights, s.device.name);
}

fn check_device(r: &mut Reader, form: WeightForm, device: DeviceChoice) {
    if device.is_cuda() && form != WeightForm::Dequantised {
        let reason = "products with quantised blocks are computed on the CPU alone";
        r.contradiction(&["adapter.quantize", "device.name"], reason, "set device.name = \"cpu\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &[&str], device: DeviceChoice) -> Result<(Option<Adapter>, WeightForm)> {
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        adapter_of_settings(&settings, device)
    }

    #[test]
    fn settings_have_the_defaults_of_a_recipe() {
        let lora = |config| Some(Adapter::New(AdapterConfig::Lora(config)));
        let (adapter, form) = read(&["adapter.method=\"lora\""], DeviceChoice::Cpu).unwrap();
        assert_eq!((adapter, form), (lora(LoraConfig::default()), WeightForm::Dequantised));
        let settings = ["adapter.method=\"lora\"", "adapter.rank=8", "adapter.alpha=16", "adapter.quantize=\"nf4\""];
        let (adapter, form) = read(&settings, DeviceChoice::Cpu).unwrap();
        let expected = LoraConfig { rank: 8, alpha: 16.0, ..LoraConfig::default() };
        assert_eq!((adapter, form), (lora(expected), WeightForm::Nf4));
        assert_eq!(read(&[], DeviceChoice::Cpu).unwrap(), (None, WeightForm::Dequantised));
    }

    #[test]
    fn mistakes_have_the_messages_of_a_recipe() {
        let refused = |settings: &[&str], device| read(settings, device).unwrap_err().to_string();
        for (settings, expected) in [
            (&["adapter.method=\"lorra\""][..], "did you mean \"lora\"?"),
            (&["adapter.method=\"lora\"", "adapter.r=8"], "adapter.r"),
            (&["adapter.method=\"lora\"", "adapter.rank=0"], "`adapter.rank` must be"),
            (&["adapter.method=\"lora\"", "adapter.virtual_tokens=3"], "it is for adapter.method = \"prompt\""),
            (&["adapter.method=\"lora\"", "adapter.r=8", "adapter.alpha=0"], "adapter.r"),
            (&["adapter.rank=8"], "set adapter.method = \"lora\""),
            (&["train.lr=1"], "train.lr: it is not a setting of an adapter"),
        ] {
            let error = refused(settings, DeviceChoice::Cpu);
            assert!(error.contains(expected) && !error.contains('\n'), "{settings:?}: {error}");
        }
        let error = refused(&["adapter.method=\"lora\"", "adapter.quantize=\"nf4\""], DeviceChoice::Cuda);
        assert!(error.contains("computed on the CPU alone"), "{error}");
    }
}

//! `adapter_config.json` of a PEFT directory, read.
//!
//! Source: PEFT 0.21.2, `LoraConfig`, `IA3Config`, `PromptTuningConfig`, `PromptEncoderConfig`, `PrefixTuningConfig`.

use super::pattern::{Patterns, Targets, Whole};
use super::{BOTTLENECK, SAVE_AGAIN, fields};
use crate::adapter::config::ALL_LINEAR;
use crate::adapter::{
    AdapterConfig, BottleneckConfig, BottleneckPlacement, Ia3Config, LoraConfig, PrefixConfig, PromptConfig,
};
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::config::activations;
use serde_json::{Map, Value};

/// Settings of a directory beside its tensors.
#[derive(Debug)]
pub(super) struct PeftSettings {
    pub(super) config: AdapterConfig,
    /// The model that is updated: a path, or a name of the hub.
    pub(super) base_model: Option<String>,
    /// `task_type`, such as `SEQ_CLS`.
    pub(super) task: Option<String>,
    /// Modules that the directory has as a whole.
    pub(super) saved_modules: Vec<String>,
    pub(super) targets: Targets,
    pub(super) ranks: Patterns<usize>,
    pub(super) alphas: Patterns<f32>,
    pub(super) initial: InitialUpdate,
    pub(super) bias: Bias,
    /// Whether a tied head follows an embedding that the directory changes.
    pub(super) ensures_tying: bool,
    /// Rows of embeddings that are replaced, by the end of the module's path; `None` for the token embedding.
    pub(super) token_rows: Vec<(Option<String>, Vec<usize>)>,
}

/// Values that PEFT subtracts from the updated weights when it opens a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::adapter) enum InitialUpdate {
    /// Nothing.
    #[default]
    None,
    /// The part of the largest singular values.
    Pissa,
    /// The projection on the first columns.
    Olora,
}

/// Which biases of the base model a directory has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::adapter) enum Bias {
    #[default]
    None,
    /// Matrices of the updated layers.
    Updated,
    All,
}

impl Bias {
    /// PEFT's name of it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Bias::None => "none",
            Bias::Updated => "lora_only",
            Bias::All => "all",
        }
    }
}

/// The fields of one file.
struct FieldReader<'f> {
    fields: &'f Map<String, Value>,
    place: &'f str,
}

impl PeftSettings {
    /// # Errors
    /// Another method than LoRA, DoRA, IA³, prompt tuning, P-tuning, prefix tuning and bottlenecks; a part of them that
    /// is not available; unknown fields; malformed values.
    pub(super) fn read(fields: &Map<String, Value>, place: &str) -> Result<Self> {
        let r = FieldReader { fields, place };
        let method = fields.get("peft_type").and_then(Value::as_str).unwrap_or_default();
        if fields::of_method(method).is_none() {
            let reason = format!("the method \"{}\" is not read", printable(method, 60));
            return Err(r.wrong("peft_type", &reason, "use an adapter of LoRA, of IA3, or of virtual tokens"));
        }
        fields::check(fields, method, place)?;
        let mut settings = PeftSettings {
            config: AdapterConfig::Prefix(PrefixConfig { tokens: 0 }),
            base_model: r.text("base_model_name_or_path")?,
            task: r.text("task_type")?,
            saved_modules: r.texts("modules_to_save")?,
            targets: Targets::default(),
            ranks: Patterns::default(),
            alphas: Patterns::default(),
            initial: InitialUpdate::None,
            bias: Bias::None,
            ensures_tying: r.flag("ensure_weight_tying")?,
            token_rows: Vec::new(),
        };
        settings.config = match method {
            "LORA" => r.lora(&mut settings)?,
            "IA3" => {
                settings.targets = r.targets()?;
                let feed_forward = r.texts("feedforward_modules")?;
                AdapterConfig::Ia3(Ia3Config { targets: r.texts("target_modules")?, feed_forward, trained: Vec::new() })
            }
            // The tensor of P-tuning has what its encoder computed, and is read as prompt tuning reads it.
            "PROMPT_TUNING" | "P_TUNING" => AdapterConfig::Prompt(PromptConfig {
                tokens: r.tokens()?,
                text: r.text("prompt_tuning_init_text")?,
                // PEFT's tensor may have room for the decoder's, which PEFT does not read.
                decoder: r.flag("decoder_prompt")?,
            }),
            BOTTLENECK => AdapterConfig::Bottleneck(r.bottleneck()?),
            _ => AdapterConfig::Prefix(PrefixConfig { tokens: r.tokens()? }),
        };
        let saved = settings.saved_modules.clone();
        match &mut settings.config {
            AdapterConfig::Lora(LoraConfig { trained, .. })
            | AdapterConfig::Ia3(Ia3Config { trained, .. })
            | AdapterConfig::Bottleneck(BottleneckConfig { trained, .. }) => *trained = saved,
            AdapterConfig::Prompt(_) | AdapterConfig::Prefix(_) => {}
        }
        Ok(settings)
    }
}

impl FieldReader<'_> {
    fn wrong(&self, field: &str, reason: &str, fix: &str) -> Error {
        Error::model(format!("{}, field {field}", self.place), reason, fix)
    }

    fn malformed(&self, field: &str, what: &str) -> Error {
        self.wrong(field, &format!("it is not {what}"), SAVE_AGAIN)
    }

    /// The value, unless it is null.
    fn value(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    fn flag(&self, field: &str) -> Result<bool> {
        self.value(field)
            .map_or(Ok(false), |value| value.as_bool().ok_or_else(|| self.malformed(field, "true or false")))
    }

    fn text(&self, field: &str) -> Result<Option<String>> {
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| self.malformed(field, "a text"));
        self.value(field).map(text).transpose()
    }

    fn number(&self, field: &str, default: f32) -> Result<f32> {
        let number = |value: &Value| value.as_f64().filter(|value| value.is_finite());
        self.value(field).map_or(Ok(default), |value| {
            number(value).map(|value| value as f32).ok_or_else(|| self.malformed(field, "a number"))
        })
    }

    fn size(&self, field: &str, value: &Value) -> Result<usize> {
        let size = value.as_u64().filter(|size| (1..=1 << 20).contains(size));
        size.map(|size| size as usize).ok_or_else(|| self.malformed(field, "a number of values"))
    }

    /// A list of names, or one.
    fn texts(&self, field: &str) -> Result<Vec<String>> {
        match self.value(field) {
            None => Ok(Vec::new()),
            Some(Value::String(name)) => Ok(vec![name.clone()]),
            Some(Value::Array(names)) => names
                .iter()
                .map(|name| name.as_str().map(str::to_owned).ok_or_else(|| self.malformed(field, "a list of names")))
                .collect(),
            Some(_) => Err(self.malformed(field, "a list of names")),
        }
    }

    /// A list of names, or a regular expression.
    fn targets(&self) -> Result<Targets> {
        let field = "target_modules";
        Ok(match self.value(field) {
            None => Targets::Unstated,
            Some(Value::String(all)) if all == ALL_LINEAR => Targets::AllLinear,
            Some(Value::String(pattern)) => {
                Targets::Pattern(Whole::new(pattern, &format!("{}, field {field}", self.place))?)
            }
            Some(_) => Targets::Names(self.texts(field)?),
        })
    }

    /// The number of virtual tokens.
    fn tokens(&self) -> Result<usize> {
        let field = "num_virtual_tokens";
        self.size(field, self.value(field).unwrap_or(&Value::Null))
    }

    fn bottleneck(&self) -> Result<BottleneckConfig> {
        let size = self.size("bottleneck_size", self.value("bottleneck_size").unwrap_or(&Value::Null))?;
        let name = self.text("activation")?.unwrap_or_default();
        let activation = activations::parse(&name).filter(|between| !between.gated);
        let activation =
            activation.ok_or_else(|| self.malformed("activation", "the name of an activation"))?.activation;
        let (targets, trained) = (self.texts("target_modules")?, Vec::new());
        // The tensors tell the layers.
        Ok(BottleneckConfig { size, activation, placement: BottleneckPlacement::Both, targets, trained })
    }

    fn lora(&self, settings: &mut PeftSettings) -> Result<AdapterConfig> {
        settings.targets = self.targets()?;
        settings.initial = self.initial()?;
        settings.bias = match self.text("bias")?.as_deref() {
            None | Some("none") => Bias::None,
            Some("lora_only") => Bias::Updated,
            Some("all") => Bias::All,
            Some(_) => return Err(self.malformed("bias", "\"none\", \"lora_only\" or \"all\"")),
        };
        settings.token_rows = self.token_rows()?;
        for (pattern, rank) in self.pattern("rank_pattern")? {
            let place = format!("{}, field rank_pattern", self.place);
            settings.ranks.add(pattern, self.size("rank_pattern", rank)?, &place)?;
        }
        for (pattern, alpha) in self.pattern("alpha_pattern")? {
            let place = format!("{}, field alpha_pattern", self.place);
            let alpha = alpha.as_f64().filter(|alpha| alpha.is_finite());
            let alpha = alpha.ok_or_else(|| self.malformed("alpha_pattern", "an object of numbers"))?;
            settings.alphas.add(pattern, alpha as f32, &place)?;
        }
        let config = LoraConfig {
            rank: self.value("r").map_or(Ok(8), |value| self.size("r", value))?,
            alpha: self.number("lora_alpha", 8.0)?,
            rank_stabilized: self.flag("use_rslora")?,
            dora: self.flag("use_dora")?,
            dropout: self.number("lora_dropout", 0.0)?,
            targets: self.texts("target_modules")?,
            trained: Vec::new(),
        };
        if !(0.0..1.0).contains(&config.dropout) {
            return Err(self.malformed("lora_dropout", "in [0, 1)"));
        }
        Ok(AdapterConfig::Lora(config))
    }

    fn pattern(&self, field: &str) -> Result<impl Iterator<Item = (&String, &Value)>> {
        let object = self.value(field).map(|value| value.as_object().ok_or_else(|| self.malformed(field, "an object")));
        Ok(object.transpose()?.into_iter().flatten())
    }

    /// How the matrices began: of interest where PEFT changes the base model by it on opening.
    fn initial(&self) -> Result<InitialUpdate> {
        let field = "init_lora_weights";
        let kind = match self.value(field) {
            None | Some(Value::Bool(_)) => return Ok(InitialUpdate::None),
            Some(value) => value.as_str().ok_or_else(|| self.malformed(field, "a kind of initialization"))?,
        };
        let merge = "merge it in PEFT (merge_and_unload), or save it there as plain LoRA \
                     (save_pretrained with path_initial_model_for_weight_conversion)";
        match kind {
            "gaussian" | "eva" | "orthogonal" | "mica" => Ok(InitialUpdate::None),
            "pissa" => Ok(InitialUpdate::Pissa),
            "olora" => Ok(InitialUpdate::Olora),
            "corda" | "loftq" | "lora_ga" => {
                let reason = format!("\"{kind}\" changes the base model, by data or settings that the directory lacks");
                Err(self.wrong(field, &reason, merge))
            }
            kind if kind.starts_with("pissa_niter_") => {
                let reason = "PEFT changes the base model by a random approximation, another one on each opening";
                Err(self.wrong(field, reason, merge))
            }
            kind => {
                let reason = format!("whether \"{}\" changes the base model is not known", printable(kind, 60));
                Err(self.wrong(field, &reason, merge))
            }
        }
    }

    fn token_rows(&self) -> Result<Vec<(Option<String>, Vec<usize>)>> {
        let field = "trainable_token_indices";
        let rows = |value: &Value| {
            let ids = value.as_array().into_iter().flatten().map(|id| id.as_u64().and_then(|id| id.try_into().ok()));
            let ids = ids.collect::<Option<Vec<usize>>>().filter(|ids| !ids.is_empty());
            ids.ok_or_else(|| self.malformed(field, "a list of token ids"))
        };
        match self.value(field) {
            None => Ok(Vec::new()),
            Some(Value::Object(modules)) => {
                modules.iter().map(|(name, ids)| Ok((Some(name.clone()), rows(ids)?))).collect()
            }
            Some(ids) => Ok(vec![(None, rows(ids)?)]),
        }
    }
}

//! Text generation in one call: a directory's model, tokenizer and settings.
//!
//! Defines [`TextGenerator`], the counterpart of the `text-generation` pipeline of transformers. A program that chooses
//! devices, ranks or settings of its own uses [`Generator`].

use super::{BeamOptions, GenerateOptions, GenerationDefaults, Generator, Method, Penalty, Sampling};
use crate::model::{OpenOptions, Registry, TextHead, TextModel};
use crate::tokenizer::{AutoTokenizer, Tokenizer};
use crate::{Error, Result};
use bmtrain_core::{Ctx, DType, Device};
use std::path::Path;
use std::sync::Arc;

/// A model with its tokenizer, ready to generate.
///
/// ```no_run
/// use model_center::generate::TextGenerator;
///
/// # fn main() -> model_center::Result<()> {
/// let mut generator = TextGenerator::open("models/SmolLM2-135M")?;
/// generator.options.max_new_tokens = 40;
/// println!("{}", generator.generate("The sea was calm that morning, and")?);
/// # Ok(())
/// # }
/// ```
pub struct TextGenerator {
    /// How tokens are chosen and when a text ends; first as the model's directory states.
    pub options: GenerateOptions,
    model: Box<dyn TextModel>,
    tokenizer: Arc<dyn Tokenizer>,
    device: Device,
}

impl std::fmt::Debug for TextGenerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextGenerator").field("options", &self.options).finish_non_exhaustive()
    }
}

impl TextGenerator {
    /// Open a model directory on the processors of this machine, with the families of this crate.
    ///
    /// # Errors
    /// A directory without a model that generates, or without a tokenizer.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        Self::open_on(directory, &Device::cpu(crate::run::available_cpus())?, Registry::default())
    }

    /// The same on another device, or with other families.
    ///
    /// # Errors
    /// As [`TextGenerator::open`].
    pub fn open_on(directory: impl AsRef<Path>, device: &Device, registry: Registry<'_>) -> Result<Self> {
        let directory = directory.as_ref();
        let tokenizer = AutoTokenizer::open(directory)?;
        let options = OpenOptions {
            head: Some(TextHead::CausalLm),
            dtype: DType::F32,
            keep_dtype: true,
            ..OpenOptions::new(device)
        };
        let opened = registry.open(directory, &options)?;
        if let Some(name) = opened.initialized.first() {
            let place = directory.display().to_string();
            return Err(Error::model(
                place,
                format!("its weights have no {name}"),
                "use a model with a head for tokens",
            ));
        }
        tokenizer.require_rows(opened.model.info().vocab_size)?;
        let defaults = GenerationDefaults::from_directory(directory, opened.model.info().vocab_size)?;
        let mut options = defaults.options(opened.model.info().generates_targets);
        if options.ends.is_empty() {
            options.ends = tokenizer.special_ids().eos.into_iter().collect();
        }
        Ok(TextGenerator { options, model: opened.model, tokenizer, device: device.clone() })
    }

    /// The text that follows a prompt, or the decoder's text of an encoder-decoder. Prompts become token ids as the
    /// tokenizer's own template has them, without a chat template.
    ///
    /// # Errors
    /// Options out of their range; a prompt that leaves no room for a token; a failing device.
    pub fn generate(&self, prompt: &str) -> Result<String> {
        let tokens = self.tokenizer.tokenize(&[prompt])?.concat();
        let has_source = self.model.info().generates_targets;
        let ids = self.tokenizer.template(has_source).assemble(&tokens, &[], None)?.input_ids;
        let generator = Generator::new(&*self.model, Some(&*self.tokenizer), self.options.clone())?;
        let texts = generator.generate(&[ids], 0, &mut Ctx::inference(&self.device), &mut |_| Ok(()))?;
        Ok(texts.into_iter().flatten().next().map(|text| text.text).unwrap_or_default())
    }
}

impl GenerationDefaults {
    /// The settings of a directory as options, with those of this crate where it states nothing. `generates_targets`: an
    /// encoder-decoder, whose lengths include the decoder's start token.
    pub fn options(&self, generates_targets: bool) -> GenerateOptions {
        let defaults = GenerateOptions::default();
        let target_length = self.max_length.as_ref().filter(|_| generates_targets);
        let target_length = target_length.map(|most| most.value.saturating_sub(1)).filter(|most| *most > 0);
        let stated = |value: &Option<super::Stated<usize>>| value.as_ref().map(|stated| stated.value);
        let max_new_tokens = stated(&self.max_new_tokens).or(target_length).unwrap_or(defaults.max_new_tokens);
        let ends: Vec<u32> = self.ends.iter().flat_map(|ends| ends.value.iter().copied()).collect();
        let least = if ends.is_empty() { 0 } else { max_new_tokens };
        GenerateOptions {
            method: self.method(),
            max_new_tokens,
            min_new_tokens: stated(&self.min_new_tokens).unwrap_or(0).min(least),
            penalty: Penalty {
                factor: self.repetition_penalty.as_ref().map_or(1.0, |factor| factor.value),
                window: None,
            },
            ends,
            stops: self.stops.iter().flat_map(|stops| stops.value.iter().cloned()).collect(),
            forbidden: self.forbidden.iter().flat_map(|ids| ids.value.iter().copied()).collect(),
            no_repeat: stated(&self.no_repeat).filter(|size| *size > 0),
            forced_first: self.forced_first.as_ref().filter(|_| generates_targets).map(|id| id.value),
            forced_last: self.forced_last.as_ref().map(|id| id.value),
            first_word: self.first_word.as_ref().filter(|_| generates_targets).map(|id| id.value),
            ..defaults
        }
    }

    /// Sampling, beam search or greedy decoding.
    fn method(&self) -> Method {
        if self.do_sample.as_ref().is_some_and(|sample| sample.value) {
            let sampling = Sampling {
                temperature: self.temperature.as_ref().map_or(1.0, |stated| stated.value),
                top_k: self.top_k.as_ref().map(|stated| stated.value).filter(|k| *k > 0),
                top_p: self.top_p.as_ref().map_or(1.0, |stated| stated.value),
                min_p: self.min_p.as_ref().map_or(0.0, |stated| stated.value),
            };
            return Method::Sampling { sampling, seed: 0, texts: 1 };
        }
        let Some(beams) = &self.num_beams else { return Method::Greedy };
        Method::Beams(BeamOptions {
            beams: beams.value,
            length_penalty: self.length_penalty.as_ref().map_or(1.0, |stated| stated.value),
            patience: self.patience.as_ref().map(|stated| stated.value).unwrap_or_default(),
            best: 1,
            renormalizes: self.renormalizes.is_some(),
        })
    }
}

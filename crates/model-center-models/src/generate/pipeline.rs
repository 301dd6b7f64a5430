//! [`TextGenerator`], text generation in one call.

use super::{GenerateOptions, Generated, GenerationOverrides, GenerationSetup, Generator, OnText, Prompt, TextChunk};
use crate::model::{Registry, TextModel};
use crate::{Error, Result};
use bmtrain_core::cpu::Processors;
use bmtrain_core::{Ctx, Device};
use model_center_formats::tokenizer::ChatMessage;
use std::path::Path;

/// A model with its tokenizer and generation settings, like the text-generation pipeline of transformers.
///
/// ```no_run
/// use model_center_models::generate::TextGenerator;
///
/// # fn main() -> model_center_models::Result<()> {
/// let mut generator = TextGenerator::open("models/SmolLM2-135M")?;
/// generator.options.max_new_tokens = 40;
/// println!("{}", generator.generate("The sea was calm that morning, and")?);
/// generator.stream("The wind", &mut |text| {
///     print!("{text}");
///     Ok(())
/// })?;
/// # Ok(())
/// # }
/// ```
pub struct TextGenerator {
    /// How tokens are chosen and when a text ends; initially the settings of the model directory.
    pub options: GenerateOptions,
    /// How prompts are encoded.
    pub setup: GenerationSetup,
    model: Box<dyn TextModel>,
    device: Device,
}

impl std::fmt::Debug for TextGenerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextGenerator").field("options", &self.options).finish_non_exhaustive()
    }
}

impl TextGenerator {
    /// Open a Hugging Face directory on the CPU.
    ///
    /// # Errors
    /// [`Error::Model`] for a directory without a tokenizer or a model that generates.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let device = Device::cpu(Processors::of_this_process().default_threads())?;
        Self::open_on(directory, &device, Registry::default(), &GenerationOverrides::default())
    }

    /// Open a directory on a device, with the model families of `registry`; `overrides` take precedence over the
    /// settings of the directory.
    pub fn open_on(
        directory: impl AsRef<Path>,
        device: &Device,
        registry: Registry<'_>,
        overrides: &GenerationOverrides,
    ) -> Result<Self> {
        let directory = directory.as_ref();
        let model = GenerationSetup::open_model(directory, registry, &GenerationSetup::open_options(device))?.model;
        let setup = GenerationSetup::with_tokenizer(directory, model.info())?;
        let options = setup.settings(overrides)?.options;
        Ok(TextGenerator { options, setup, model, device: device.clone() })
    }

    /// Generate the text that follows a prompt, or for an encoder-decoder the decoder's text.
    ///
    /// # Errors
    /// [`Error::Data`] for a prompt that the model cannot read, [`Error::Argument`] for options out of range.
    pub fn generate(&self, prompt: &str) -> Result<String> {
        self.first_text(Prompt::Text(prompt.to_owned()), &mut |_| Ok(()))
    }

    /// Like [`TextGenerator::generate`], with a call of `on_text` for every further piece of the text.
    pub fn stream(&self, prompt: &str, on_text: &mut dyn FnMut(&str) -> Result<()>) -> Result<String> {
        let mut on_chunk = |chunk: TextChunk<'_>| if chunk.sequence == 0 { on_text(chunk.text) } else { Ok(()) };
        self.first_text(Prompt::Text(prompt.to_owned()), &mut on_chunk)
    }

    /// Generate the next message of a conversation, formatted by the model's chat template.
    pub fn chat(&self, messages: &[ChatMessage]) -> Result<String> {
        self.first_text(Prompt::Messages(messages.to_vec()), &mut |_| Ok(()))
    }

    /// Generate for several prompts in one batch: the sequences of each, the best first.
    pub fn generate_batch(&self, prompts: &[&str]) -> Result<Vec<Vec<Generated>>> {
        self.run(prompts.iter().map(|prompt| Prompt::Text((*prompt).to_owned())), &mut |_| Ok(()))
    }

    fn first_text(&self, prompt: Prompt, on_text: OnText<'_>) -> Result<String> {
        let texts = self.run([prompt].into_iter(), on_text)?;
        let first = texts.into_iter().flatten().next();
        first.map(|text| text.text).ok_or_else(|| Error::data("prompt 0", "it has no text", "check the options"))
    }

    fn run(&self, prompts: impl Iterator<Item = Prompt>, on_text: OnText<'_>) -> Result<Vec<Vec<Generated>>> {
        let ids = self.setup.encode_prompts(prompts)?;
        let generator = Generator::new(&*self.model, self.setup.tokenizer.as_deref(), self.options.clone())?;
        generator.generate(&ids, 0, &mut Ctx::inference(&self.device), on_text)
    }
}

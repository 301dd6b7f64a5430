//! Sample texts of a run: completions of the recipe's prompts before, between and after training.
//!
//! Defines [`TextSamples`]; `run.rs` writes what comes out.

use super::evaluate::EvalContext;
use crate::{Error, Result};
use bmtrain_core::Ctx;
use model_center_base::batch::LabelSpace;
use model_center_formats::tokenizer::Tokenizer;
use model_center_models::OpenedModel;
use model_center_models::generate::{
    GenerateOptions, GenerationOverrides, GenerationSetup, Generator, PROMPT, Prompt, PromptRow,
};
use model_center_recipe::{ModelStart, Resolved};
use std::sync::Arc;

/// The key of the prompts.
const KEY: &str = "log.samples";

/// The prompts of a run and how they are completed.
#[derive(Debug, Clone)]
pub struct TextSamples {
    prompts: Vec<String>,
    ids: Vec<Vec<u32>>,
    tokenizer: Arc<dyn Tokenizer>,
    options: GenerateOptions,
}

impl TextSamples {
    /// Prompts that the recipe asks for; `None` for nothing.
    ///
    /// # Errors
    /// A task whose model generates no text, a prompt that the model cannot read.
    pub(super) fn of(
        resolved: &Resolved,
        start: &ModelStart,
        opened: &OpenedModel,
        labels: &LabelSpace,
    ) -> Result<Option<Self>> {
        let Some(prompts) = resolved.log.samples.clone() else { return Ok(None) };
        let refuse = |reason: String, fix: &str| Err(Error::recipe(resolved.place(KEY), reason, fix));
        if !matches!(labels, LabelSpace::NextTokens | LabelSpace::Target) {
            let reason = format!("a model for {} generates no text", resolved.data.source.task().name());
            return refuse(reason, "remove it, or choose a task of a language model");
        }
        let mut setup = GenerationSetup::new(&start.directory, opened.model.info());
        let tokenizer = start.open_tokenizer()?;
        setup.tokenizer = Some(Arc::clone(&tokenizer));
        match resolved.data.source.task().text_formats().as_deref() {
            Some([one]) if !one.is_plain() => setup.template = Some(one.input(PROMPT)),
            _ => {
                setup.chat = if resolved.data.source.task().has_conversations() {
                    start.chat_template(resolved.data.chat_template.as_deref())?
                } else {
                    None
                };
                setup.is_chat = setup.chat.is_some();
            }
        }
        let options = match start.config {
            None => {
                let asked = GenerationOverrides {
                    origin: "the recipe",
                    greedy: true,
                    max_new_tokens: Some(resolved.log.sample_tokens),
                    ..GenerationOverrides::default()
                };
                setup.settings(&asked)?.options
            }
            // A model that begins without a directory of its own.
            Some(_) => GenerateOptions {
                max_new_tokens: resolved.log.sample_tokens,
                end_tokens: tokenizer.special_ids().eos.into_iter().collect(),
                ..GenerateOptions::default()
            },
        };
        let encode = |(index, text): (usize, &String)| {
            let place = format!("{}, number {}", resolved.place(KEY), index + 1);
            let prompt = Prompt::Text(text.clone());
            setup.encode_row(&PromptRow { place, fields: serde_json::Map::new(), prompt })
        };
        let ids = prompts.iter().enumerate().map(encode).collect::<Result<Vec<_>>>()?;
        if let Err(error) = Generator::new(&*opened.model, Some(&*tokenizer), options.clone()) {
            return refuse(error.to_string(), "remove it, or train a model that generates text");
        }
        Ok(Some(TextSamples { prompts, ids, tokenizer, options }))
    }

    /// The prompts.
    pub(super) fn prompts(&self) -> &[String] {
        &self.prompts
    }

    /// A completion of each prompt by greedy decoding. On all ranks; those that see the first rank's samples have the
    /// texts, others none.
    pub(super) fn generate(&self, context: EvalContext<'_>) -> Result<Vec<String>> {
        let EvalContext { model, device, ranks, .. } = context;
        let generator = Generator::new(model, Some(&*self.tokenizer), self.options.clone())?;
        let generator = generator.on_ranks(Arc::clone(ranks.ranks()));
        let ids = if ranks.data_rank() == 0 { self.ids.as_slice() } else { &[] };
        let texts = generator.generate(ids, 0, &mut Ctx::inference(device), &mut |_| Ok(()))?;
        Ok(texts.into_iter().map(|texts| texts.into_iter().next().map(|text| text.text).unwrap_or_default()).collect())
    }
}

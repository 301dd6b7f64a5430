//! The model of a recipe: its family, sizes, positions, tokenizer and chat template, from its directory's small files.

use super::{DataKind, Preset, Starter, StarterOptions};
use crate::{Error, Result};
use model_center_data::TaskModel;
use model_center_formats::Pretrained;
use model_center_formats::config::{ConfigOverrides, ConfigSource, TextHead, directory_fields};
use model_center_formats::tokenizer::{AutoTokenizer, ChatTemplate, Tokenizer};
use model_center_models::architecture::Architecture;
use model_center_models::{Description, FamilyFacts, Registry};
use model_center_recipe::key;
use model_center_train::formula::{TransformerSizes, families::sizes_of};
use model_center_train::plan::device::smallest_memory;
use std::sync::Arc;

/// Fields that state the longest sequence, by the families' names of it.
const POSITIONS: [&str; 4] = ["max_position_embeddings", "n_positions", "n_ctx", "position_size"];
/// Characters of a token, for texts without a tokenizer.
const CHARACTERS: usize = 4;

/// Findings about a model.
pub(super) struct FoundModel {
    /// As the recipe names it.
    pub(super) name: String,
    /// The family; empty where nothing states it.
    pub(super) family: String,
    /// Facts about it.
    facts: Option<FamilyFacts>,
    /// Sizes, of the families that have formulas.
    pub(super) sizes: Option<TransformerSizes>,
    /// The longest sequence; `None` for one without limit, or unknown.
    pub(super) positions: Option<usize>,
    /// `None` where the model is not on this machine.
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Its chat template, if it has one.
    pub(super) chat: Option<ChatTemplate>,
    /// Memory of the smallest CUDA device that can be used, in bytes.
    pub(super) device_memory: Option<u64>,
    /// Whether there is a CUDA device that the training cannot use.
    needs_cpu: bool,
    /// Whether the model begins without weights.
    is_random: bool,
}

impl FoundModel {
    /// Looks at a model. The preset's own model need not be on this machine.
    ///
    /// # Errors
    /// A model that is named and cannot be found or read; one that the preset is not for.
    pub(super) fn of(preset: &Preset, options: &StarterOptions, registry: &Registry<'_>) -> Result<FoundModel> {
        let name = options.model.clone().unwrap_or_else(|| preset.model.to_owned());
        let is_random = preset.data == DataKind::Tokens;
        let (memory, needs_cpu) = (smallest_memory(), preset.trained.needs_cpu());
        let mut found = FoundModel {
            name,
            family: String::new(),
            facts: None,
            sizes: None,
            positions: None,
            tokenizer: None,
            chat: None,
            device_memory: memory.filter(|_| !needs_cpu),
            needs_cpu: needs_cpu && memory.is_some(),
            is_random,
        };
        let directory = match Pretrained::resolve(&found.name, None, &options.places) {
            Ok(directory) => directory,
            Err(error) if options.model.is_some() => return Err(error),
            Err(_) => return Ok(found),
        };
        if !directory.join("config.json").exists() && AutoTokenizer::open(&directory).is_ok() {
            let reason = "there is a tokenizer, and no config.json with a model's sizes";
            let fix = "name the directory of a model, or write a recipe with model.tokenizer and sizes as in \
                       docs/pretraining.md";
            return Err(Error::model(directory.display().to_string(), reason, fix));
        }
        let fields = directory_fields(&directory)?;
        let entry = registry.find(&directory)?;
        (found.family, found.facts) = (entry.model_type.to_owned(), Some(entry.facts));
        for name in POSITIONS {
            found.positions = found.positions.or(fields.peek_size(name)?);
        }
        let described =
            ConfigSource::open(&directory, ConfigOverrides::default()).and_then(|c| (entry.facts.describe)(&c));
        let described = described.ok();
        if let (Architecture::Encoder, Some(Description { spec, .. })) = (entry.facts.architecture, &described) {
            // Some count positions from the one after the padding token.
            found.positions = found.positions.map(|positions| positions.min(spec.max_length));
        }
        found.sizes = sizes_of(&directory).ok();
        found.tokenizer = Some(AutoTokenizer::open(&directory)?);
        found.chat = ChatTemplate::from_directory(&directory)?;
        let has_spans = described.is_some_and(|described| described.spec.has_spans);
        found.check((preset, entry.facts), has_spans, fields.place())?;
        Ok(found)
    }

    /// Refuses a family that the preset is not for.
    fn check(&self, (preset, facts): (&Preset, FamilyFacts), has_spans: bool, place: &str) -> Result<()> {
        let family = self.family.as_str();
        let is_encoder = facts.architecture == Architecture::Encoder;
        let is_encoder_decoder = facts.architecture == Architecture::EncoderDecoder;
        let (reason, fix) = match preset.data {
            DataKind::Labelled if is_encoder_decoder && !facts.has(TextHead::Classification { outputs: 0 }) => (
                "has no head for classes",
                "name an encoder such as google-bert/bert-base-uncased, or learn label words: docs/tasks.md",
            ),
            DataKind::Matches if is_encoder_decoder => (
                "is an encoder-decoder, and embeddings are of models with one stack",
                "name an encoder such as sentence-transformers/all-MiniLM-L6-v2, or a decoder",
            ),
            DataKind::Conversations | DataKind::Pairs if is_encoder => (
                "is an encoder, which predicts no next token",
                "name a language model such as HuggingFaceTB/SmolLM2-135M-Instruct",
            ),
            DataKind::Tokens if is_encoder || is_encoder_decoder => (
                "is not a decoder, and this preset predicts next tokens",
                "name a decoder, or begin with a recipe of examples/recipes/pretrain_*.toml",
            ),
            DataKind::Tokens if has_spans => (
                "is pretrained by infilling, and this preset predicts next tokens",
                "name another decoder, or begin with examples/recipes/pretrain_cpm1.toml",
            ),
            _ => return Ok(()),
        };
        Err(Error::model(place, format!("the family \"{family}\" {reason}"), fix))
    }

    /// Refuses a model without a chat template, for conversations in `place`.
    pub(super) fn needs_template(&self, place: &str) -> Result<()> {
        if self.tokenizer.is_none() || self.chat.is_some() {
            return Ok(());
        }
        let reason = format!("{place} has conversations, and the model has no chat template");
        let fix = "name a model with one, such as HuggingFaceTB/SmolLM2-135M-Instruct, or put chat_template.jinja into \
                   the model's directory";
        Err(Error::model(self.name.clone(), reason, fix))
    }

    /// The lines of `[model]`.
    pub(super) fn write(&self, made: &mut Starter) {
        let found = match (&self.tokenizer, self.sizes) {
            (None, _) => "not on this machine yet".to_owned(),
            (Some(_), None) => format!("family {}", self.family),
            (Some(_), Some(sizes)) => format!(
                "family {}, {} blocks, hidden size {}, {:.1} million parameters",
                self.family,
                sizes.layers,
                sizes.width,
                sizes.parameters() / 1e6
            ),
        };
        if self.is_random {
            made.sheet.text(key!(model.init), "random", "pretraining begins without weights");
        }
        made.sheet.text(key!(model.path), &self.name, found);
        if self.tokenizer.is_none() {
            let why = format!("`bmtrain fetch {}` gets it, before the run and its dry run", self.name);
            made.remark("model.path", why);
        }
        if self.needs_cpu {
            made.sheet.text(key!(device.name), "cpu", "matrices in 4 bits are multiplied on the CPU alone");
        }
        if let Some(bytes) = self.device_memory {
            let gib = bytes as f64 / f64::from(1 << 30);
            made.sheet.text(
                key!(model.dtype),
                "bf16",
                format!("there is a CUDA device, of {gib:.0} GiB; masters are f32"),
            );
        }
    }

    /// Parameters by formula; where nothing is known, the number that BERT-base has.
    pub(super) fn parameters(&self) -> f64 {
        self.sizes.map_or(1.1e8, |sizes| sizes.parameters())
    }

    /// Bytes of a value of the parameters.
    pub(super) fn value_bytes(&self) -> usize {
        if self.device_memory.is_some() { 2 } else { 4 }
    }

    /// Tokens of a text or a pair, special tokens included.
    ///
    /// # Errors
    /// What the tokenizer refuses.
    pub(super) fn count(&self, first: &str, second: Option<&str>) -> Result<usize> {
        match &self.tokenizer {
            Some(tokenizer) => Ok(tokenizer.encode(first, second, None)?.input_ids.len()),
            None => {
                let characters = first.chars().count() + second.map_or(0, |text| text.chars().count());
                Ok(characters.div_ceil(CHARACTERS) + 3)
            }
        }
    }

    /// Properties of the model that conversations and completions depend on.
    pub(super) fn sft(&self) -> TaskModel<'_> {
        let generates_targets = self.facts.is_some_and(|facts| facts.architecture == Architecture::EncoderDecoder);
        TaskModel { chat: self.chat.as_ref(), generates_targets, place: None }
    }

    /// Why lengths are what they are.
    pub(super) fn counted(&self) -> &'static str {
        match self.tokenizer {
            Some(_) => "",
            None => " (estimated: 4 characters a token)",
        }
    }
}

/// The smallest multiple of 8 that has room for 99 of 100 lengths, at most `positions`; the longest of all.
pub(super) fn limit(lengths: &mut [usize], positions: Option<usize>) -> (usize, usize) {
    lengths.sort_unstable();
    let at = (lengths.len() * 99).div_ceil(100).saturating_sub(1);
    let usual = lengths.get(at).copied().unwrap_or(8);
    let longest = lengths.last().copied().unwrap_or(usual);
    let most = positions.unwrap_or(usize::MAX).min(1 << 20);
    (usual.next_multiple_of(8).max(8).min(most), longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_center_models::MODELS;

    #[test]
    fn facts_of_families_are_those_of_their_lines_in_listings() {
        for entry in MODELS {
            let (family, facts) = (entry.model_type, entry.facts);
            let is_encoder_decoder = entry.doc.contains("decoder's next token");
            let is_decoder = entry.doc.contains("for the next token");
            let has_classes = entry.doc.contains("for classification");
            let classifies = facts.has(TextHead::Classification { outputs: 2 });
            match facts.architecture {
                Architecture::EncoderDecoder => assert!(is_encoder_decoder && classifies == has_classes, "{family}"),
                Architecture::Decoder => assert!(is_decoder && !is_encoder_decoder, "{family}"),
                Architecture::Encoder => assert!(!is_encoder_decoder && !is_decoder && classifies, "{family}"),
            }
        }
    }

    #[test]
    fn the_limit_has_room_for_99_of_100_texts_and_for_no_more_than_the_positions() {
        let mut lengths: Vec<usize> = (1..=200).rev().collect();
        assert_eq!(limit(&mut lengths, None), (200, 200));
        lengths.extend([5000]);
        assert_eq!(limit(&mut lengths, None), (200, 5000));
        assert_eq!(limit(&mut lengths, Some(130)), (130, 5000));
        assert_eq!(limit(&mut [], Some(512)), (8, 8));
    }
}

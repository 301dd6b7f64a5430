//! Data for supervised fine-tuning: conversations, prompts with completions, instructions, texts.
//!
//! ```text
//! file or directory ─▶ class ─▶ Sample ─▶ SampleEncoder ─▶ ids and loss mask ─▶ Dataset
//! several data sets ─▶ Dataset of all of them with a EpochMixture, their order
//! ```
//!
//! Defines [`SftTask`] and its [`DataSet`]s. Called by training and by `bmtrain data preview`.

mod class;
mod classes;
mod encoder;
mod files;
mod keys;
mod lengths;
mod messages;
mod preference;
mod record;
mod sample;
mod text_formats;
mod texts;
mod unpaired;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::parallelism::MaybeParallelRefIterator;

pub use class::{ClassSource, DataClass, SampleSink};
pub use classes::DATA_CLASSES;
pub use lengths::SampleLength;
pub use messages::TURN_MARKS;
pub use record::each_record;
pub use record::{RecordForm, SftColumns};
pub use sample::Sample;
pub use text_formats::{FORMATS_FILE, INPUT, OUTPUT, TextFormats, read_formats, write_formats};

use self::encoder::{EncodedSample, SampleEncoder};
use self::keys::Unused;
use self::record::{OF_MESSAGES, RecordReading};
use self::unpaired::Mismatch;
use super::dataset::Dataset;
use super::read::{Builder, ReadOptions, RowForm};
use super::{Format, Split, SplitSource, Task, TaskModel};
use crate::metrics::LabelKind;
use crate::{Error, Result};
use model_center_base::batch::LabelSpace;
use model_center_formats::tokenizer::{KeepSide, start_threads};

/// Samples are encoded in parallel, this number of them at a time.
const CHUNK: usize = 256;

/// Which tokens of a sample have a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossOn {
    /// All turns of the assistant; of a prompt with a completion, the completion.
    #[default]
    Assistant,
    /// The same of the last turn alone.
    Last,
    /// All.
    All,
}

/// Labels by which completions are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairLabels {
    /// The log-probabilities of their learned tokens, as in DPO.
    LogProbs,
    /// The same of single completions, which are judged as good or bad, and of their prompts with other completions, as
    /// in KTO. A pair is two of them.
    Unpaired,
    /// The output of a classification head for each whole sequence: the loss is the cross-entropy over the two, the
    /// negative log-likelihood of the Bradley-Terry model.
    Rewards,
}

/// A data set of the task.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSet {
    /// A file of training samples, or a directory with the directories `train` and `val`.
    pub path: PathBuf,
    /// A file of evaluation samples; of a directory, `None` for `val`.
    pub eval: Option<PathBuf>,
    /// Class that reads it; `None` for records of any form.
    pub class: Option<&'static DataClass>,
    /// Settings of the class.
    pub config: Map<String, Value>,
    /// Its share of the samples of an epoch, compared with others.
    pub proportion: f64,
    /// The form of its records; `None` for the one that the first record has.
    pub form: Option<RecordForm>,
    /// Formats around inputs and outputs.
    pub formats: TextFormats,
    /// Most tokens of an input.
    pub max_input_tokens: Option<usize>,
    /// Most tokens of an output, with EOS.
    pub max_output_tokens: Option<usize>,
}

/// Supervised fine-tuning, or learning from pairs of completions.
#[derive(Debug, Clone, PartialEq)]
pub struct SftTask {
    /// Labels of samples that are pairs. `None` learns single samples.
    pub pairs: Option<PairLabels>,
    /// At least one.
    pub sets: Vec<DataSet>,
    /// The columns of records.
    pub columns: SftColumns,
    /// The format of files; `None` derives it from their names.
    pub format: Option<Format>,
    /// Which tokens have a loss.
    pub loss_on: LossOn,
    /// Which side of a long sample stays.
    pub keep: KeepSide,
    /// Whether prompts and completions become messages.
    pub as_chat: bool,
}

impl SftTask {
    /// Reads a split of all data sets. `None` if none of them has that split.
    ///
    /// A record without a token to learn, such as one whose answer is truncated, is bad, as is a conversation that the
    /// chat template refuses: [`ReadOptions::on_bad_record`] decides what becomes of it.
    ///
    /// # Errors
    /// What a file, a record, the chat template or the tokenizer is at fault for; conversations for a model without a
    /// chat template; texts for an encoder-decoder.
    pub fn read(&self, split: Split, options: &ReadOptions<'_>, model: TaskModel<'_>) -> Result<Option<Dataset>> {
        options.check()?;
        let (mut parts, mut rest) = (Vec::new(), options.limit);
        for set in &self.sets {
            if rest == Some(0) {
                break;
            }
            let options = ReadOptions { limit: rest, ..*options };
            if let Some(part) = self.read_set(set, split, &options, model)? {
                rest = rest.map(|rest| rest.saturating_sub(part.len() as u64));
                parts.push((part, set.proportion));
            }
        }
        match (parts.len(), split) {
            (0, _) => Ok(None),
            (1, _) => Ok(parts.pop().map(|(part, _)| part)),
            (_, Split::Train) => Dataset::mixed(parts).map(Some),
            // Of an evaluation every sample counts once.
            (_, Split::Validation) => Dataset::joined(parts.into_iter().map(|(part, _)| part).collect()).map(Some),
        }
    }

    /// How the records of a data set are read.
    fn record_reading<'a>(&'a self, set: &DataSet, unused: &'a Unused) -> RecordReading<'a> {
        let form = set.form.or(self.pairs.map(|labels| match labels {
            PairLabels::Unpaired => RecordForm::Unpaired,
            PairLabels::LogProbs | PairLabels::Rewards => RecordForm::Preference,
        }));
        let has_rewards = self.pairs == Some(PairLabels::Rewards);
        RecordReading { form, columns: &self.columns, format: self.format, as_chat: self.as_chat, has_rewards, unused }
    }

    fn read_set(
        &self,
        set: &DataSet,
        split: Split,
        options: &ReadOptions<'_>,
        model: TaskModel<'_>,
    ) -> Result<Option<Dataset>> {
        let Some(path) = files::path_of(set, split) else { return Ok(None) };
        let labels = match (self.pairs, model.generates_targets) {
            (Some(PairLabels::LogProbs | PairLabels::Unpaired), true) => {
                let reason = "completions of an encoder-decoder are not compared";
                return Err(Error::argument("data.task", reason, "take a model with one stack"));
            }
            (Some(PairLabels::LogProbs), false) => LabelSpace::Pairs,
            (Some(PairLabels::Unpaired), false) => LabelSpace::Unpaired,
            (Some(PairLabels::Rewards), _) => LabelSpace::Choices(2),
            (None, true) => LabelSpace::Target,
            (None, false) => LabelSpace::NextTokens,
        };
        let encoder = SampleEncoder { task: self, set, options, model };
        let mut builder = Builder::new(&path, options, labels, RowForm::Plain);
        let mut reading = Reading { encoder, mismatch: Mismatch::default(), waiting: Vec::new(), learned: Vec::new() };
        let mut take = |place: String, sample: Result<Sample>| reading.take(place, sample, &mut builder);
        let unused = Unused::default();
        let source = ClassSource {
            path: &path,
            split,
            config: &set.config,
            tokenizer: options.tokenizer,
            max_input_tokens: set.max_input_tokens,
            max_output_tokens: set.max_output_tokens,
            max_line_bytes: options.max_line_bytes,
            as_chat: self.as_chat,
            unused: &unused,
        };
        let mut sink = SampleSink::new(&mut take);
        match set.class {
            Some(class) => (class.read)(&source, &mut sink)?,
            None => record::read(&source, &self.record_reading(set, &unused), &mut sink)?,
        }
        reading.finish(&mut builder)?;
        let learned = reading.learned;
        let mut dataset = builder.finish()?;
        dataset.learned = learned;
        // A template reads the fields of messages that it names.
        let source = model.chat.and_then(|chat| chat.source(false)).unwrap_or_default();
        let is_unused = |name: &String| name.strip_prefix(OF_MESSAGES).is_none_or(|field| !source.contains(field));
        dataset.report.unused_columns = unused.into_inner().into_iter().filter(is_unused).collect();
        dataset.seal();
        Ok(Some(dataset))
    }
}

impl Task for SftTask {
    fn name(&self) -> &'static str {
        match self.pairs {
            None => "sft",
            Some(PairLabels::LogProbs | PairLabels::Unpaired) => "preference",
            Some(PairLabels::Rewards) => "reward",
        }
    }

    fn label_kind(&self) -> LabelKind {
        match self.pairs {
            None => LabelKind::Tokens,
            Some(PairLabels::LogProbs | PairLabels::Unpaired) => LabelKind::Pairs,
            Some(PairLabels::Rewards) => LabelKind::Classes,
        }
    }

    fn paths(&self) -> Vec<&Path> {
        self.sets.iter().flat_map(|set| [Some(&*set.path), set.eval.as_deref()]).flatten().collect()
    }

    /// Of a directory that is looked at.
    fn has_split(&self, split: Split) -> bool {
        self.sets.iter().any(|set| files::path_of(set, split).is_some())
    }

    fn has_targets(&self) -> bool {
        self.pairs.is_none()
    }

    fn has_teachable_labels(&self) -> bool {
        self.pairs.is_none()
    }

    fn can_be_packed(&self) -> bool {
        self.pairs.is_none()
    }

    fn has_conversations(&self) -> bool {
        true
    }

    /// Of the data sets, each once.
    fn text_formats(&self) -> Option<Vec<TextFormats>> {
        let mut found: Vec<TextFormats> = Vec::new();
        for set in &self.sets {
            if !found.contains(&set.formats) {
                found.push(set.formats.clone());
            }
        }
        Some(found)
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        self.read(source.split, &source.options, source.model)?.ok_or_else(|| {
            let fix = "name a file of records, or a directory with the directory train";
            Error::argument("data.train", "there is no data of this split", fix)
        })
    }
}

/// Samples on their way into a data set.
struct Reading<'a> {
    encoder: SampleEncoder<'a>,
    /// Rated completions whose mismatch is not known yet.
    mismatch: Mismatch,
    waiting: Vec<(String, Sample)>,
    /// The loss mask of all rows.
    learned: Vec<u8>,
}

impl Reading<'_> {
    /// Takes a sample; whether more are wanted.
    fn take(&mut self, place: String, sample: Result<Sample>, builder: &mut Builder<'_>) -> Result<bool> {
        builder.count();
        match sample {
            Ok(sample) if self.encoder.task.pairs == Some(PairLabels::Unpaired) => {
                self.waiting.extend(self.mismatch.add(place, sample));
            }
            Ok(sample) => self.waiting.push((place, sample)),
            Err(flaw @ Error::Data { .. }) => builder.skip(flaw)?,
            Err(error) => return Err(error),
        }
        // Which samples are usable is known once they are encoded.
        if self.waiting.len() >= CHUNK || builder.has_reached_limit() {
            self.flush(builder)?;
        }
        Ok(!builder.has_reached_limit())
    }

    /// Encodes what is left.
    fn finish(&mut self, builder: &mut Builder<'_>) -> Result<()> {
        self.waiting.extend(std::mem::take(&mut self.mismatch).finish());
        self.flush(builder)
    }

    fn flush(&mut self, builder: &mut Builder<'_>) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        start_threads();
        let encoded: Vec<Result<EncodedSample>> =
            waiting.maybe_par_iter().map(|(place, sample)| self.encoder.encode(place, sample)).collect();
        for sample in encoded {
            match sample {
                Ok(EncodedSample { rows, label, learned }) => {
                    builder.push_sample(&rows, label);
                    self.learned.extend(learned);
                }
                Err(flaw @ Error::Data { .. }) => builder.skip(flaw)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

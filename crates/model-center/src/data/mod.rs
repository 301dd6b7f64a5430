//! Datasets: text files with labels, or for language modelling, as padded batches.
//!
//! ```text
//! lines ─▶ record ─▶ task ─▶ Example ─▶ dataset (tokenised, flat) ─▶ order ─▶ loader ─▶ Batch
//! plain text ─▶ chunks ─▶ packed sequences ─▲
//! ```
//!
//! A [`Dataset`] is read once, tokenised as it is read, and shared by all ranks of a process. A [`Loader`] turns
//! a [`Position`] into a [`Batch`]: which samples it holds is a pure function of seed, epoch and index, so two
//! integers resume a run exactly and any number of ranks sees the same batches. The finetune program is the caller.

mod answers;
mod batch;
mod dataset;
mod fingerprint;
mod joined;
mod loader;
mod mixture;
mod packing;
mod read;
mod sft;
mod task;

pub use crate::io::flaws::OnBadRecord;
pub use crate::io::record::{Format, Record, Scalar};
pub use crate::io::texts::{TextSource, read_texts};
pub use answers::{Verbalizer, VerbalizerPosition};
pub use batch::{Batch, Labels, VerbalizerBatch};
pub use bmtrain_dist::order::Permutation;
pub use dataset::{Dataset, LabelSpace, ReadReport, RowRef};
pub use loader::{Loader, LoaderOptions, Order, Position};
pub use mixture::Mixture;
pub(crate) use read::padding;
pub use read::{ReadOptions, TooLong};
pub use sft::{
    ClassSource, DATA_CLASSES, DataClass, DataSet, FORMATS_FILE, INPUT, LossOn, OUTPUT, PairLabels, RecordForm, Sample,
    SampleSink, SftColumns, SftModel, SftTask, TextFormats, read_formats, write_formats,
};
pub(crate) use sft::{SampleLength, TURN_MARKS, each_record};
pub(crate) use task::columns::LabelReader;
pub use task::columns::{ColumnTask, LabelSpec};
pub use task::embedding::{EmbeddingTask, RETRIEVAL_METRICS};
pub use task::language_modeling::{LanguageModelingColumns, LanguageModelingTask};
pub use task::multi_label::{LabelColumns, MULTI_LABEL_METRICS, MultiLabelTask};
pub use task::prompts::{PROMPTS, ParseContext, Prompt, PromptEntry, TaskFiles};
pub use task::published::PublishedTask;
pub(crate) use task::spans::{QuestionRows, SpanWindows, windows};
pub use task::spans::{SPAN_METRICS, SpanTask, SpanWindow};
pub(crate) use task::squad::read_squad;
pub use task::squad::{SQUAD_METRICS, Squad};
pub use task::superglue::{SUPERGLUE, Split, TaskEntry, TaskLabels, find_task};
pub use task::tags::{TAG_METRICS, TagTask};
pub(crate) use task::tags::{WordTokenizer, next_sentence};
pub use task::template::{Template, TemplateTask};

/// The label of tokens without a loss, as in `transformers`.
pub const IGNORED: i64 = -100;

/// One input of a model before tokenisation, with the label of its sample.
///
/// A sample of a multiple-choice task is several consecutive examples, one per choice, that share the label; one with a
/// target is two, what is read and what is to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The text, or the first of a pair.
    pub first: String,
    /// The second of a pair; after a prompt, the text.
    pub second: Option<String>,
    /// What the model shall answer.
    pub label: Label,
}

/// The answer to a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Label {
    /// The index of a class, or of the right choice.
    Class(usize),
    /// A number to predict, finite.
    Value(f32),
    /// The number of a set of labels, which the dataset has beside them.
    Set(usize),
    /// The tokens of the sequence itself, or of its target, from this one on; the preceding ones are the prompt.
    TokensFrom(usize),
    /// The first and the last token of an answer in the row.
    Span([u32; 2]),
    /// Classes of the tokens of the row, which the dataset has beside them.
    Tags,
    /// Those tokens of the row that the dataset marks as learned.
    Learned,
}

/// What a sample is part of, where several samples are judged together: the answers of one question, the candidates of
/// one gap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Member {
    /// The number of the question, from 0.
    pub question: u32,
    /// What choosing this sample is worth: exact match and token F1 of its text. `None` where each sample is decided by
    /// itself.
    pub credit: Option<[f32; 2]>,
}

//! Datasets: text files with labels, or for language modelling, as padded batches.
//!
//! ```text
//! lines ─▶ record ─▶ task ─▶ Example ─▶ dataset (tokenised, flat) ─▶ order ─▶ loader ─▶ Batch
//! plain text ─▶ chunks ─▶ packed sequences ─▲
//! ```
//!
//! A [`Dataset`] is read once, tokenised as it is read, and shared by all ranks of a process. A [`Loader`] turns
//! a [`Position`] into a [`Batch`]: which samples it holds is a pure function of seed, epoch and index, so two
//! integers resume a run exactly and any number of ranks sees the same batches. Training is the caller.

mod answers;
mod dataset;
mod fingerprint;
mod joined;
mod loader;
mod mixture;
mod own_data;
mod packing;
mod read;
mod sft;
mod task;

pub use crate::metrics::{MULTI_LABEL_METRICS, RETRIEVAL_METRICS, SPAN_METRICS, TAG_METRICS};
pub use bmtrain_dist::order::Permutation;
pub use dataset::{Dataset, ReadReport, RowRef};
pub use loader::{Loader, LoaderOptions, Order};
pub use mixture::EpochMixture;
pub use model_center_base::batch::{
    Batch, IGNORED, Label, LabelSpace, Labels, Member, Position, Verbalizer, VerbalizerBatch, VerbalizerPosition,
};
pub use model_center_formats::io::flaws::OnBadRecord;
pub use model_center_formats::io::record::{Format, Record, Scalar};
pub use model_center_formats::io::texts::{TextLayout, read_texts};
pub use own_data::OwnData;
pub use read::padding;
pub use read::{ReadOptions, TooLong};
pub use sft::SampleLength;
pub use sft::TURN_MARKS;
pub use sft::each_record;
pub use sft::{
    ClassSource, DATA_CLASSES, DataClass, DataSet, FORMATS_FILE, INPUT, LossOn, OUTPUT, PairLabels, RecordForm, Sample,
    SampleSink, SftColumns, SftTask, TextFormats, read_formats, write_formats,
};
pub use task::columns::LabelReader;
pub use task::columns::{ColumnTask, LabelSpec};
pub use task::embedding::EmbeddingTask;
pub use task::language_modeling::{LanguageModelingColumns, LanguageModelingTask};
pub use task::multi_label::{LabelColumns, MultiLabelTask};
pub use task::prompts::{PROMPTS, ParseContext, Prompt, PromptEntry, TaskFiles};
pub use task::published::PublishedTask;
pub use task::spans::QuestionRows;
pub use task::spans::SpanWindows;
pub use task::spans::windows;
pub use task::spans::{SpanTask, SpanWindow};
pub use task::squad::read_squad;
pub use task::squad::{SQUAD_METRICS, Squad};
pub use task::superglue::{SUPERGLUE, TaskEntry, TaskLabels, find_task};
pub use task::tags::TagTask;
pub use task::tags::WordTokenizer;
pub use task::tags::next_sentence;
pub use task::template::{Template, TemplateTask};
pub use task::{Split, SplitSource, Task, TaskModel, TaskObject};

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
    /// Label that the model is to predict.
    pub label: Label,
}

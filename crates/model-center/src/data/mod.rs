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

pub use crate::batch::{
    Batch, IGNORED, Label, LabelSpace, Labels, Member, Position, Verbalizer, VerbalizerBatch, VerbalizerPosition,
};
pub use crate::io::flaws::OnBadRecord;
pub use crate::io::record::{Format, Record, Scalar};
pub use crate::io::texts::{TextSource, read_texts};
pub use crate::metrics::{MULTI_LABEL_METRICS, RETRIEVAL_METRICS, SPAN_METRICS, TAG_METRICS};
pub use bmtrain_dist::order::Permutation;
pub use dataset::{Dataset, ReadReport, RowRef};
pub use loader::{Loader, LoaderOptions, Order};
pub use mixture::Mixture;
pub use own_data::OwnData;
pub(crate) use read::padding;
pub use read::{ReadOptions, TooLong};
pub use sft::{
    ClassSource, DATA_CLASSES, DataClass, DataSet, FORMATS_FILE, INPUT, LossOn, OUTPUT, PairLabels, RecordForm, Sample,
    SampleSink, SftColumns, SftModel, SftTask, TextFormats, read_formats, write_formats,
};
pub(crate) use sft::{SampleLength, TURN_MARKS, each_record};
pub(crate) use task::columns::LabelReader;
pub use task::columns::{ColumnTask, LabelSpec};
pub use task::embedding::EmbeddingTask;
pub use task::language_modeling::{LanguageModelingColumns, LanguageModelingTask};
pub use task::multi_label::{LabelColumns, MultiLabelTask};
pub use task::prompts::{PROMPTS, ParseContext, Prompt, PromptEntry, TaskFiles};
pub use task::published::PublishedTask;
pub(crate) use task::spans::{QuestionRows, SpanWindows, windows};
pub use task::spans::{SpanTask, SpanWindow};
pub(crate) use task::squad::read_squad;
pub use task::squad::{SQUAD_METRICS, Squad};
pub use task::superglue::{SUPERGLUE, Split, TaskEntry, TaskLabels, find_task};
pub use task::tags::TagTask;
pub(crate) use task::tags::{WordTokenizer, next_sentence};
pub use task::template::{Template, TemplateTask};

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

//! Report of a model that a program opens: tensors that are not used, and what `config.json` does not state.

use crate::cli::{places::model_places, terminal};
use crate::{Error, Result};
use bmtrain_core::DType;
use clap::ValueEnum;
use model_center_base::file::printable;
use model_center_formats::config::TextHead;
use model_center_formats::directory::left_out;
use model_center_formats::{Pretrained, gguf::has_gguf_name, shortened};
use model_center_models::adapter::{ADAPTER_CONFIG, Adapter, base_and_adapter, trained_head};
use model_center_models::{
    OpenedModel, WeightForm,
    load::infer::classifier_outputs,
    load::registry::{architectures, is_named_by_model_center},
};
use std::path::{Path, PathBuf};

/// Heads by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Head {
    /// Tokens at masked positions.
    Mlm,
    /// Whether the second sequence follows the first.
    Nsp,
    /// Classes of a sequence.
    Cls,
    /// Classes of each token.
    Tokens,
    /// The span that answers a question.
    Qa,
    /// The next token, for decoders.
    Lm,
    /// Hidden states alone.
    None,
}

/// How a model's files are found and read.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ModelSource {
    /// Branch, tag or commit of a model of the hub; by default main.
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// Family of a model whose config.json does not name it, as ModelCenter's do not.
    #[arg(long, value_name = "FAMILY")]
    pub family: Option<String>,
    /// Ignore tensors that the model has no use for, by a pattern in which * matches any text; may be repeated. Tensors
    /// of heads for other tasks need no pattern.
    #[arg(long, value_name = "PATTERN")]
    pub leave: Vec<String>,
    /// PEFT directory of an adapter that the model is opened with. Of LoRA there may be several, whose updates are
    /// added up: repeat the option. A PEFT directory may also be given in place of the model, which its
    /// adapter_config.json names.
    #[arg(long, value_name = "DIR")]
    pub adapter: Vec<PathBuf>,
    /// Factor of the updates of an adapter of LoRA, one for each --adapter in their order; by default 1.
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    pub adapter_weight: Vec<f32>,
}

/// Dtypes of stored weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stored {
    /// 32 bits.
    F32,
    /// 16 bits, 5 of them exponent. Values beyond its range are an error.
    F16,
    /// 16 bits, 8 of them exponent.
    Bf16,
}

impl Stored {
    /// The dtype.
    pub fn dtype(self) -> DType {
        match self {
            Stored::F32 => DType::F32,
            Stored::F16 => DType::F16,
            Stored::Bf16 => DType::BF16,
        }
    }
}

/// Form in memory of matrices in quantised blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Form {
    /// As numbers of --dtype, by default f32.
    #[default]
    Dequantised,
    /// In their blocks, which products dequantise on the way: the memory of the file. On the CPU.
    AsStored,
}

impl Form {
    /// The option of the library.
    pub fn option(self) -> WeightForm {
        match self {
            Form::Dequantised => WeightForm::Dequantised,
            Form::AsStored => WeightForm::AsStored,
        }
    }
}

/// Lines for standard error: what was taken from the weights, and tensors of heads that the model does not have.
pub fn remarks(notes: &[String], unused: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = notes.iter().map(|note| format!("note: {note}")).collect();
    if !unused.is_empty() {
        lines.push(format!("warning: tensors of other heads are not used: {}", shortened(unused)));
    }
    lines
}

/// Remarks on an opened model.
pub fn remarks_of(opened: &OpenedModel) -> Vec<String> {
    remarks(&opened.notes, &opened.unused)
}

/// Print what is to be known of a model that is opened: remarks, and what of a GGUF file is left out.
///
/// # Errors
/// A file that cannot be read.
pub fn note_opened(opened: &OpenedModel, directory: &Path) -> Result<()> {
    remarks_of(opened).iter().for_each(|line| terminal::note(line));
    for (what, reason) in left_out(directory)? {
        terminal::note(&format!("note: left out {}: {reason}", printable(&what, 200)));
    }
    Ok(())
}

/// The model to open and the adapters to open it with. A PEFT directory in place of a model is the adapter of the model
/// that it names.
///
/// # Errors
/// A PEFT directory that cannot be read, names no model, or one that is not there; other than one weight for each
/// adapter.
pub fn adapted(model: &str, source: &ModelSource) -> Result<(String, Option<Adapter>)> {
    let given = Adapter::of_directories(&source.adapter, &source.adapter_weight, "--adapter-weight")?;
    let (base, adapter) = base_and_adapter(model, given, "--adapter")?;
    if base != model
        && !Path::new(&base).exists()
        && let Err(error) = Pretrained::resolve(&base, source.revision.as_deref(), &model_places())
    {
        return Err(missing_base(Path::new(model), &base, error));
    }
    Ok((base, adapter))
}

/// The base model that a PEFT directory names cannot be found; a relative path is of where the adapter was trained.
fn missing_base(directory: &Path, base: &str, error: Error) -> Error {
    let Error::Model { reason, fix, .. } = error else { return error };
    let place = directory.join(ADAPTER_CONFIG).display().to_string();
    let base = printable(base, 200);
    let reason = format!("base_model_name_or_path in it names \"{base}\": {reason}");
    let here = directory.display();
    Error::model(
        place,
        reason,
        format!("give the base model's directory and this one: BASE --adapter {here}; or {fix}"),
    )
}

/// The head to open a directory and its adapter with; `None` for their own. With `has_sentences` a head for masked
/// tokens predicts next sentences too.
///
/// # Errors
/// A classifier is asked for, and neither directory nor adapter has one.
pub fn head(
    head: Option<Head>,
    (directory, adapter): (&Path, Option<&Adapter>),
    has_sentences: bool,
) -> Result<Option<TextHead>> {
    if let (Some(asked), Some(Adapter::Saved(adapter))) = (head, adapter) {
        let trained = trained_head(adapter)?;
        let is_trained = match trained {
            Some(TextHead::Classification { .. }) => asked == Head::Cls,
            Some(TextHead::TokenClassification { .. }) => asked == Head::Tokens,
            Some(TextHead::QuestionAnswering) => asked == Head::Qa,
            _ => false,
        };
        if is_trained {
            return Ok(trained);
        }
    }
    Ok(match head {
        None => None,
        Some(Head::Mlm) if has_sentences => Some(TextHead::Pretraining),
        Some(Head::Mlm) => Some(TextHead::MaskedLm),
        Some(Head::Nsp) => Some(TextHead::NextSentence),
        Some(Head::Cls) => classifier(directory)?,
        Some(Head::Tokens) => token_classifier(directory)?,
        Some(Head::Qa) => Some(TextHead::QuestionAnswering),
        Some(Head::Lm) => Some(TextHead::CausalLm),
        Some(Head::None) => Some(TextHead::None),
    })
}

/// A directory's classifier of tokens, which states its number of outputs.
fn token_classifier(directory: &Path) -> Result<Option<TextHead>> {
    let classes = architectures(directory)?;
    if classes.iter().any(|class| class.ends_with("ForTokenClassification")) {
        return Ok(None);
    }
    let place = directory.join("config.json").display().to_string();
    let reason = format!("the directory's class is {classes:?}, which has no classes of tokens");
    Err(Error::model(place, reason, "use a fine-tuned token classifier, or another --head"))
}

/// Classification head with the number of outputs that the directory states.
fn classifier(directory: &Path) -> Result<Option<TextHead>> {
    let classes = architectures(directory)?;
    // ModelCenter's files name no class; their weights tell.
    if is_named_by_model_center(directory)? || classes.iter().any(|class| class.ends_with("ForSequenceClassification"))
    {
        return Ok(None);
    }
    let outputs = if classes.is_empty() { classifier_outputs(directory)? } else { None };
    outputs.map(|outputs| Some(TextHead::Classification { outputs })).ok_or_else(|| {
        let place = directory.join("config.json").display().to_string();
        let reason = match classes.is_empty() {
            true => "config.json names no class, and the weights have no classifier".to_owned(),
            false => format!("the directory's class is {classes:?}, which has no classifier"),
        };
        Error::model(place, reason, "use a fine-tuned classifier, or another --head")
    })
}

/// The directory or GGUF file of a model that the command line names.
///
/// # Errors
/// Neither is there; options without effect for it.
pub fn resolve(model: &str, revision: Option<&str>, weights: Option<Form>) -> Result<PathBuf> {
    let path = Path::new(model);
    // A directory may have such a name too.
    if has_gguf_name(path) && !path.is_dir() {
        return match revision {
            None if path.is_file() => Ok(path.to_owned()),
            None => Err(Error::model(model, "there is no such file", "check the path of the GGUF file")),
            Some(_) => Err(Error::without_effect("--revision", "the model is a file of this machine")),
        };
    }
    if weights.is_some() {
        let reason = "it has no effect: nothing is stored in quantised blocks but in a GGUF file";
        return Err(Error::argument("--weights", reason, "leave it out, or give a .gguf file"));
    }
    Pretrained::resolve(model, revision, &model_places())
}

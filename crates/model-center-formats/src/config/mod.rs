//! Configurations of models: sizes and options, read from `config.json` in either of two dialects.
//!
//! Hugging Face writes `hidden_size`, ModelCenter `dim_model`: a family's configuration has ModelCenter's field names
//! and defaults and reads both. A required field that is missing is an error that names it, as are two
//! names of one field with different values. Unknown fields are kept and written back.
//!
//! Defines [`Config`], [`HfHeader`] and [`ProblemType`]. A family declares its configuration in its file of
//! the models with [`model_config!`](crate::model_config), from rows and the parts that several families share:
//! [`TextConfig`], [`RotaryFields`], [`WindowFields`], [`EncoderDecoderFields`].

pub mod activations;
mod declare;
pub mod dialect;
pub mod encoder_decoder;
pub(crate) mod fields;
pub(crate) mod labels;
mod layer_rotary;
pub mod model_center;
mod overrides;
pub mod ranges;
mod rotary;
mod rotary_parameters;
pub mod rows;
mod sharing;
pub mod take;
pub mod text;
mod text_head;
mod token_pooling;
mod variants;
mod windows;

pub use dialect::Dialect;
pub use encoder_decoder::{EncoderDecoderFields, HasStacks};
pub use fields::Fields;
pub use labels::{are_default, classes_are_assumed};
pub use layer_rotary::LayerRotary;
pub use model_center::ClassFields;
pub use overrides::{ConfigOverrides, ConfigSource};
pub use rotary::RotaryFields;
pub use sharing::{LayerSharing, SharingStyle};
pub use text::TextConfig;
pub use text_head::TextHead;
pub use token_pooling::TokenPooling;
pub use windows::{FullLayer, LayerWindows, WindowFields};

use std::path::Path;

use bmtrain_core::dtype::DType;
use serde_json::{Map, Value};

use crate::formats::gguf::{Decoder, GgufFile, is_gguf};
use crate::{Error, Result};
use dialect::Spoken;
use model_center_base::file::{read_text, resolve_inside};
use model_center_base::json::{self, to_text};
use rows::RowConfig;

/// The longest `config.json` that is read, in bytes. The largest real ones list tens of thousands of labels.
pub(crate) const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// The configuration of a family of models: what follows from the [`RowConfig`] that the family implements.
pub trait Config: RowConfig {
    /// The family's name in Hugging Face's `model_type`.
    const MODEL_TYPE: &'static str = Self::DIALECT.model_type;

    /// Build from the fields of a JSON object in either dialect. Fields that are not the family's are kept by the
    /// configuration.
    ///
    /// # Errors
    /// [`Error::Model`] naming file and field: missing, of another type, out of range, contradictory, unsupported.
    fn from_fields(mut fields: Fields) -> Result<Self> {
        let place = fields.place().to_string();
        let mut config = Self::read(&mut fields)?;
        config.dialect().finish(fields, config.text_mut());
        config.validate(&place)?;
        Ok(config)
    }

    /// The fields under ModelCenter's names.
    fn to_dict(&self) -> Map<String, Value> {
        let mut map = self.dialect().to_dict(self.text());
        rows::write(Self::ROWS, self, self.text(), Spoken::ModelCenter, &mut map);
        self.adjust_dict(&mut map);
        map
    }

    /// The content of a `config.json` that `transformers` opens.
    ///
    /// # Errors
    /// [`Error::Model`] if the configuration has no Hugging Face form.
    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        if Self::DIALECT.dim_model.is_empty() {
            return rows::with_header(self.text(), self.to_dict(), header);
        }
        let mut map = self.dialect().to_hf_json(self.text(), header)?;
        rows::write(Self::ROWS, self, self.text(), Spoken::HuggingFace, &mut map);
        self.adjust_hf(&mut map)?;
        map.sort_keys();
        Ok(map)
    }

    /// The content of a `config.json` that ModelCenter opens: the fields that its class takes and no others.
    ///
    /// # Errors
    /// [`Error::Model`] if it has no class for the family, or none that computes what this model does.
    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        self.to_class(header)
    }

    /// Read from JSON text; `place` names it in errors.
    fn from_json(text: &str, place: &str) -> Result<Self> {
        Self::from_fields(Fields::parse(text, place)?)
    }

    /// Read a JSON file.
    fn from_json_file(path: &Path) -> Result<Self> {
        Self::from_json(&read_text(path, MAX_CONFIG_BYTES)?, &path.display().to_string())
    }

    /// Read `config.json` of a model directory.
    ///
    /// # Errors
    /// Also for a link that leaves the directory.
    fn from_pretrained(directory: &Path) -> Result<Self> {
        Self::from_pretrained_as(directory, None)
    }

    /// As [`Config::from_pretrained`], of this family where the file does not name one.
    fn from_pretrained_as(directory: &Path, family: Option<&str>) -> Result<Self> {
        Self::from_fields(directory_fields(directory)?.of_family(family))
    }

    /// [`Config::to_dict`] as indented JSON text, keys sorted.
    fn to_json_string(&self) -> String {
        json::to_text(&self.to_dict())
    }
}

impl<C: RowConfig> Config for C {}

/// The fields of a directory's `config.json`; of a GGUF file those that its metadata amount to.
///
/// # Errors
/// [`Error::Model`] for no JSON object, and for a link that leaves the directory.
pub fn directory_fields(directory: &Path) -> Result<Fields> {
    if is_gguf(directory) {
        let config = Decoder::read(&GgufFile::open(directory)?)?.to_json();
        return Fields::parse(&to_text(&config), &directory.display().to_string());
    }
    fields_of(directory, "config.json")
}

/// The fields of a JSON file in a directory.
pub fn fields_of(directory: &Path, name: &str) -> Result<Fields> {
    resolve_inside(directory, name)?;
    let path = directory.join(name);
    Fields::parse(&read_text(&path, MAX_CONFIG_BYTES)?, &path.display().to_string())
}

/// Fields of a written `config.json` beyond the configuration: the class and the dtype of the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HfHeader {
    /// The class name for `architectures`, e.g. `BertForSequenceClassification`.
    pub architecture: String,
    /// Type of the weights beside it.
    pub dtype: DType,
}

impl HfHeader {
    /// PyTorch's name of the type.
    ///
    /// # Errors
    /// [`Error::Model`] for a type that weights are not stored in.
    pub fn torch_dtype(&self) -> Result<&'static str> {
        match self.dtype {
            DType::F32 => Ok("float32"),
            DType::F16 => Ok("float16"),
            DType::BF16 => Ok("bfloat16"),
            other => Err(Error::model(
                "config.json, field torch_dtype",
                format!("weights are not stored as {other}"),
                "write the weights as f32, f16 or bf16",
            )),
        }
    }
}

/// Meaning of a classification head's labels, as in Hugging Face's `problem_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemType {
    /// Real values, mean squared error.
    Regression,
    /// One class out of several, cross-entropy.
    SingleLabel,
    /// Any number of classes, a logistic loss for each.
    MultiLabel,
}

impl ProblemType {
    /// Hugging Face's name.
    pub const fn name(self) -> &'static str {
        match self {
            ProblemType::Regression => "regression",
            ProblemType::SingleLabel => "single_label_classification",
            ProblemType::MultiLabel => "multi_label_classification",
        }
    }

    /// The type of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Regression, Self::SingleLabel, Self::MultiLabel].into_iter().find(|p| p.name() == name)
    }
}

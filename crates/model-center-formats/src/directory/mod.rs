//! A complete model directory: weights, `config.json` and the tokenizer's files, as `transformers` expects them.
//!
//! Defines [`ModelDirectory`]; called by the programs that save a model.

mod gguf;
pub(crate) mod ranked;

pub use gguf::left_out;
pub use gguf::{Report as GgufReport, gguf_to_directory};
pub use ranked::{RankedReport, ranked_to_directory};

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use bmtrain_core::dtype::DType;
use serde_json::{Map, Value};

use self::gguf::write_companions;
use crate::config::{Config, HfHeader};
use crate::formats::Fill;
use crate::formats::{
    gguf::is_gguf,
    model_center::{self, WEIGHTS_FILE},
    names::{NameTable, ParamShape, export},
    shards::SHARD_BYTES,
};
use crate::tokenizer::further_templates;
use crate::{Error, Result};
use model_center_base::file::{AtomicFile, open_regular, resolve_inside, sync_directory, unreadable, write_atomic};
use model_center_base::json;

/// The configuration of a model; the last file of a directory.
pub const CONFIG_FILE: &str = "config.json";

/// Files beside the weights that are copied unchanged from the directory a model came from: tokenizer, chat template,
/// generation settings, pre-processing. The chat templates in `additional_chat_templates` are copied too.
pub const COMPANION_FILES: &[&str] = &[
    "tokenizer.json",
    "tekken.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "vocab.model",
    "characters.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    FORMATS_FILE,
];

/// The file with the text formats of the data that a model was trained on: a list of objects.
pub const FORMATS_FILE: &str = "text_formats.json";

/// The longest companion file that is copied. The largest real ones, tokenizers of 260,000 tokens, have about 35 MB.
const MAX_COMPANION_BYTES: u64 = 256 << 20;

/// Names and files of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DirectoryLayout {
    /// The layout that `transformers` opens.
    #[default]
    HuggingFace,
    /// ModelCenter's names: its own fields in `config.json`, and [`WEIGHTS_FILE`]. Read here; not tried in ModelCenter
    /// itself.
    ModelCenter,
}

/// Options of saving a model.
#[derive(Debug, Clone, Copy)]
pub struct SaveOptions<'a> {
    /// Dtype of the weights.
    pub dtype: DType,
    /// Directory to copy the tokenizer's files from.
    pub companions: Option<&'a Path>,
    /// Names and files of the directory.
    pub layout: DirectoryLayout,
}

/// Contents of a written directory.
#[derive(Debug)]
pub struct ModelDirectory<'a, C: Config> {
    /// The configuration.
    pub config: &'a C,
    /// Class and type of the weights.
    pub header: HfHeader,
    /// Names of their tensors for our parameters.
    pub names: &'a NameTable,
    /// Whether tensors carry the table's prefix: as in every class with a head, not as in the bare model.
    pub prefixed: bool,
    /// The directory to copy the tokenizer's files from, if any; may be the one that is written.
    pub companions: Option<&'a Path>,
    /// The largest shard in bytes; [`SHARD_BYTES`] unless there is a reason.
    pub shard_bytes: u64,
    /// Names and files of the directory; `names` has the same layout.
    pub layout: DirectoryLayout,
}

impl<'a, C: Config> ModelDirectory<'a, C> {
    /// A directory for class `architecture`, weights in f32, with the prefix unless the class is a bare model.
    ///
    /// The bare model's class is the one whose name ends in `Model`, such as `BertModel`, but not in `HeadModel`, as
    /// does `GPT2LMHeadModel`.
    pub fn new(config: &'a C, names: &'a NameTable, architecture: &str) -> Self {
        let header = HfHeader { architecture: architecture.to_string(), dtype: DType::F32 };
        let prefixed = !architecture.ends_with("Model") || architecture.ends_with("HeadModel");
        Self {
            config,
            header,
            names,
            prefixed,
            companions: None,
            shard_bytes: SHARD_BYTES,
            layout: DirectoryLayout::HuggingFace,
        }
    }

    /// With what a program asks for.
    pub fn with(self, options: &SaveOptions<'a>) -> Self {
        let header = HfHeader { dtype: options.dtype, ..self.header };
        ModelDirectory { header, companions: options.companions, layout: options.layout, ..self }
    }

    /// Whether [`ModelDirectory::write`] would refuse the configuration, a parameter's name or a tokenizer file: all
    /// that can be known long before there are values to write.
    pub fn check(&self, params: &[ParamShape]) -> Result<()> {
        self.config()?;
        for param in params {
            self.names.pieces(&param.name, &param.shape, self.prefixed)?;
        }
        self.companions.map_or(Ok(()), |from| companions(from).map(drop))
    }

    /// Write into `directory`, which is created if need be; files of the same names are replaced one by one, each
    /// whole.
    ///
    /// `fill` puts the values of the named parameter into a vector of the right length; it is called once for each.
    /// Memory: one parameter at a time. The weights come first, so that nothing is left of a directory whose weights
    /// cannot be written, and `config.json` last.
    pub fn write(
        &self,
        directory: &Path,
        params: &[ParamShape],
        mut fill: impl FnMut(&str, &mut Vec<f32>) -> Result<()>,
    ) -> Result<()> {
        // The writers below are compiled once, whatever fills.
        let fill: Fill<'_> = &mut fill;
        let config = self.config()?;
        std::fs::create_dir_all(directory)
            .map_err(|e| Error::file("create", directory, e, "choose a directory that you may write"))?;
        match self.layout {
            DirectoryLayout::HuggingFace => {
                export(self.names, params, directory, self.header.dtype, self.prefixed, self.shard_bytes, fill)?;
            }
            DirectoryLayout::ModelCenter => {
                model_center::write_weights(
                    self.names,
                    params,
                    &directory.join(WEIGHTS_FILE),
                    self.header.dtype,
                    fill,
                )?;
            }
        }
        if let Some(from) = self.companions {
            copy_companions(from, directory)?;
        }
        write_config(directory, &config)
    }

    /// Names of configuration fields that `config.json` cannot express.
    pub fn left_out(&self) -> Result<Vec<String>> {
        match self.layout {
            DirectoryLayout::HuggingFace => Ok(Vec::new()),
            DirectoryLayout::ModelCenter => self.config.to_model_center(&self.header).map(|written| written.left_out),
        }
    }

    fn config(&self) -> Result<Map<String, Value>> {
        match self.layout {
            DirectoryLayout::HuggingFace => self.config.to_hf_json(&self.header),
            DirectoryLayout::ModelCenter => self.config.to_model_center(&self.header).map(|written| written.map),
        }
    }
}

/// The hub's name of a model, such as `org/name`, if its directory is in a hub cache,
/// `models--org--name/snapshots/REVISION`; `None` for any other path.
pub fn hub_name(directory: &Path) -> Option<String> {
    let directory = std::fs::canonicalize(directory).ok()?;
    let snapshots = directory.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"))?;
    let name = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?.replacen("--", "/", 1);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain)).then_some(name)
}

/// Write `config.json`.
pub fn write_config(directory: &Path, config: &Map<String, Value>) -> Result<()> {
    write_atomic(&directory.join(CONFIG_FILE), json::to_text(config).as_bytes())
}

/// Copies the [`COMPANION_FILES`] that `from` has, and the `.jinja` files of its `additional_chat_templates`, into
/// `to`, and returns their names. A GGUF file has the tokenizer's in itself.
///
/// # Errors
/// [`Error::Model`] if one of them is not a regular file, leads out of its directory or is longer than 256 MiB, or if
/// there are more than 32 chat templates.
pub fn copy_companions(from: &Path, to: &Path) -> Result<Vec<String>> {
    if is_gguf(from) {
        return write_companions(from, to);
    }
    let real = |path: &Path| std::fs::canonicalize(path).map_err(|e| unreadable(path, e));
    let same = real(from)? == real(to)?;
    let found = companions(from)?;
    if !same {
        for name in &found {
            // Files in a subdirectory.
            if let Some((inner, _)) = name.split_once('/') {
                let inner = to.join(inner);
                std::fs::create_dir_all(&inner)
                    .map_err(|e| Error::file("create", &inner, e, "choose a directory that you may write"))?;
            }
            copy(&from.join(name), &to.join(name))?;
        }
    }
    sync_directory(Some(to))?;
    Ok(found)
}

/// Whether a file, by its path in a directory, is one of those that are copied beside weights.
pub fn is_companion(name: &str) -> bool {
    COMPANION_FILES.contains(&name) || name.starts_with("additional_chat_templates/")
}

/// The companion files that a directory has, each checked to be copyable.
pub fn companions(from: &Path) -> Result<Vec<String>> {
    let has = |name: &&&str| from.join(name).symlink_metadata().is_ok();
    let mut found: Vec<String> = COMPANION_FILES.iter().filter(has).map(|name| (*name).to_owned()).collect();
    found.extend(further_templates(from)?.into_iter().map(|(_, path)| path));
    for name in &found {
        resolve_inside(from, name)?;
        open_companion(&from.join(name))?;
    }
    Ok(found)
}

fn open_companion(path: &Path) -> Result<File> {
    let (file, length) = open_regular(path)?;
    if length > MAX_COMPANION_BYTES {
        let reason = format!("the file has {length} bytes, more than any tokenizer");
        return Err(Error::model(path.display().to_string(), reason, "check that this is the file you meant"));
    }
    Ok(file)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let source = open_companion(from)?;
    let target = AtomicFile::create(to)?;
    // Read and write fail for different reasons and are told apart, which `std::io::copy` does not.
    let (mut source, mut buffer) = (source.take(MAX_COMPANION_BYTES), vec![0u8; 1 << 20]);
    loop {
        let read = source.read(&mut buffer).map_err(|e| unreadable(from, e))?;
        if read == 0 {
            return target.commit();
        }
        target.file().write_all(&buffer[..read]).map_err(|e| target.refused(e))?;
    }
}

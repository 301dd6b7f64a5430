//! A GGUF file as a Hugging Face directory: weights, `config.json` and the tokenizer's files.
//!
//! Defines [`gguf_to_directory`] and [`Report`]; called by programs that convert a model.

use std::fmt;
use std::fs;
use std::path::Path;

use bmtrain_core::dtype::DType;
use bmtrain_core::limits::make_room;
use serde_json::json;

use super::{CONFIG_FILE, write_config};
use crate::config::HfHeader;
use crate::formats::{
    gguf::{Family, GgufAsHuggingFace, GgufFile, Mapped, Metadata, keys, rope},
    names::{NotFinite, finite, finite::CheckedTensor},
    safetensors::{TensorEntry, TensorSource, stored},
    shards::{SHARD_BYTES, ShardedWriter},
};
use crate::tokenizer::{
    HfTokenizer,
    gguf::{self as tokenizer, tokenizer_files},
};
use crate::{Error, Result};
use model_center_base::file::{StagedDirectory, printable, write_atomic};
use model_center_base::json::to_text;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Unused parts of a GGUF file, each with the reason; nothing for another path.
pub fn left_out(path: &Path) -> Result<Vec<(String, String)>> {
    match crate::formats::gguf::is_gguf(path) {
        true => Ok(skipped(&GgufAsHuggingFace::new(GgufFile::open(path)?)?)),
        false => Ok(Vec::new()),
    }
}

/// Report on a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The kind of model.
    pub family: Family,
    /// The type that the weights were written in.
    pub dtype: DType,
    /// The tensors that were written, with where they come from.
    pub mapped: Vec<Mapped>,
    /// Tensors and keys that were left out, each with the reason.
    pub skipped: Vec<(String, String)>,
    /// Files that could not be made, each with the reason.
    pub not_made: Vec<(String, String)>,
    /// Tensors with values that are not finite, under their new names. They were written as they are.
    pub not_finite: Vec<NotFinite>,
    /// Values of an output projection that the file has beside its token embedding; 0 where the two are tied.
    pub untied_values: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantised = self.mapped.iter().filter(|mapped| !mapped.stored.is_plain()).count();
        write!(
            f,
            "{}: {} tensors written as {}, {quantised} of them from quantised blocks",
            self.family.architecture(),
            self.mapped.len(),
            self.dtype,
        )?;
        if self.untied_values > 0 {
            write!(
                f,
                "\n  note: the output projection is not tied to the token embedding (tie_word_embeddings = false): \
                 {} more parameters are kept, and trained",
                self.untied_values
            )?;
        }
        for (what, reason) in &self.skipped {
            write!(f, "\n  skipped {}: {reason}", printable(what, 200))?;
        }
        for (file, reason) in &self.not_made {
            write!(f, "\n  not made {file}: {reason}")?;
        }
        Ok(())
    }
}

/// Write a GGUF file as the Hugging Face directory `out`, which is made if need be and must be empty.
///
/// Numerics: quantised weights are decoded to f32, then rounded to `dtype`. Memory: one tensor at a time. An
/// unsupported vocabulary leaves the directory without a tokenizer, as the [`Report`] states. The directory appears
/// whole or not at all.
pub fn gguf_to_directory(gguf: &Path, out: &Path, dtype: DType) -> Result<Report> {
    let source = GgufAsHuggingFace::new(GgufFile::open(gguf)?)?;
    let header = HfHeader { architecture: source.decoder().family.architecture().to_string(), dtype };
    header.torch_dtype()?;
    let staged = StagedDirectory::for_result_anywhere(out, CONFIG_FILE)?;
    let out = staged.path();
    let mut report = Report {
        family: source.decoder().family,
        dtype,
        mapped: source.mapped().to_vec(),
        skipped: skipped(&source),
        not_made: Vec::new(),
        not_finite: Vec::new(),
        untied_values: untied_values(&source),
    };
    if let Err(reason) = write_tokenizer(source.file().metadata(), source.decoder().max_positions, out)? {
        report.not_made.extend([TOKENIZER, TOKENIZER_CONFIG].map(|file| (file.to_string(), reason.clone())));
    }
    report.not_finite = write_weights(&source, out, dtype)?;
    let mut config = source.config();
    for key in ["torch_dtype", "dtype"] {
        config.insert(key.into(), json!(header.torch_dtype()?));
    }
    write_config(out, &config)?;
    staged.commit()?;
    Ok(report)
}

fn untied_values(source: &GgufAsHuggingFace) -> usize {
    let output = source.mapped().iter().find(|mapped| mapped.theirs == "output.weight");
    output.and_then(|mapped| mapped.entry.elements()).unwrap_or(0)
}

/// Write the tokenizer's files that a GGUF file holds into a directory, and return their names.
///
/// # Errors
/// A vocabulary that is not supported; what the disk refuses.
pub(crate) fn write_companions(gguf: &Path, out: &Path) -> Result<Vec<String>> {
    let source = GgufAsHuggingFace::new(GgufFile::open(gguf)?)?;
    match write_tokenizer(source.file().metadata(), source.decoder().max_positions, out)? {
        Ok(()) => Ok([TOKENIZER, TOKENIZER_CONFIG].map(str::to_owned).to_vec()),
        Err(reason) => {
            let fix = "write a model directory with bmtrain convert FILE.gguf DIR, and put its tokenizer's files there";
            Err(Error::model(gguf.display().to_string(), reason, fix))
        }
    }
}

/// Writes the tokenizer's files and checks that they open; the inner error is the reason why there are none.
fn write_tokenizer(metadata: &Metadata, max_positions: usize, out: &Path) -> Result<Result<(), String>> {
    let files = match tokenizer_files(metadata, max_positions) {
        Ok(files) => files,
        Err(Error::Model { place, reason, .. }) => return Ok(Err(format!("{reason} ({place})"))),
        Err(other) => return Err(other),
    };
    let (path, config) = (out.join(TOKENIZER), out.join(TOKENIZER_CONFIG));
    write_atomic(&path, files.tokenizer.to_string().as_bytes())?;
    write_atomic(&config, to_text(&files.config).as_bytes())?;
    let Err(error) = HfTokenizer::from_directory(out) else { return Ok(Ok(())) };
    for path in [path, config] {
        fs::remove_file(&path).map_err(|e| Error::file("remove", &path, e, "remove the file by hand"))?;
    }
    match error {
        Error::Model { reason, .. } => Ok(Err(reason)),
        other => Err(other),
    }
}

fn write_weights(source: &GgufAsHuggingFace, out: &Path, dtype: DType) -> Result<Vec<NotFinite>> {
    let stored = stored(dtype)?;
    let entries: Vec<TensorEntry> = source
        .entries()
        .into_iter()
        .map(|entry| TensorEntry::new(entry.name.as_str(), stored, entry.shape.as_slice()))
        .collect();
    let mut writer = ShardedWriter::create(out, &entries, SHARD_BYTES)?;
    let (mut values, mut found): (Vec<f32>, Vec<NotFinite>) = (Vec::new(), Vec::new());
    for entry in &entries {
        let count = entry.elements().unwrap_or(0);
        values.clear();
        make_room(&mut values, count, format_args!("tensor {} of {}", entry.name, source.place()))?;
        values.resize(count, 0.0);
        finite::read(source, CheckedTensor { name: &entry.name, shape: &entry.shape }, 0, &mut values, &mut found)?;
        writer.write_f32(&entry.name, &values)?;
    }
    writer.finish()?;
    Ok(found)
}

/// Parts of the file that have no place in a model here.
pub(super) fn skipped(source: &GgufAsHuggingFace) -> Vec<(String, String)> {
    let mut skipped = Vec::new();
    if source.file().entry(rope::FACTORS).is_some() {
        let reason = match source.decoder().rope_scaling {
            Some(_) => "its factors are rope_scaling in config.json",
            None => "all its factors are 1",
        };
        skipped.push((rope::FACTORS.to_string(), reason.to_string()));
    }
    for name in rope::LONG.into_iter().filter(|name| source.file().entry(name).is_some()) {
        skipped.push((name.to_string(), "its factors are rope_scaling in config.json".to_string()));
    }
    let own = source.decoder().family;
    skipped.extend(own.undeclared().map(|(what, reason)| (what.to_string(), reason.to_string())));
    // Files of Mistral are files of a Llama and differ in their name alone.
    let metadata = source.file().metadata();
    let named = ["general.name", "general.basename"].map(|key| metadata.text(key).ok().flatten().unwrap_or_default());
    if named.iter().any(|name| name.to_ascii_lowercase().contains("mistral")) {
        let reason = "the file does not declare a sliding window, and the first Mistral has one of 4096 tokens: \
            none is used";
        skipped.push(("sliding window".to_string(), reason.to_string()));
    }
    let family = format!("{}.", own.name());
    for (key, _) in metadata.entries() {
        let is_known = match key.strip_prefix(&family) {
            Some(name) => [keys::KEYS, keys::FOREIGN, own.own_keys()].iter().any(|known| known.contains(&name)),
            // What a model is called, who made it, and how the file was made.
            None => tokenizer::knows(key) || ["general.", "split.", "quantize."].iter().any(|p| key.starts_with(p)),
        };
        if !is_known {
            skipped.push((format!("key {key}"), "it has no equivalent here".to_string()));
        }
    }
    skipped
}

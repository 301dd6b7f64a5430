//! Report on every tensor of a converted model, one JSON object a line.

use model_center_base::{Error, Result};
use model_center_formats::directory::GgufReport;
use model_center_formats::{
    NameTable, RankedReport, StoredDtype, TensorEntry, TensorPart, TensorSource, Weights, gguf,
};
use model_center_models::OpenedModel;
use serde_json::json;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Report on one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The tensor in the source.
    pub entry: TensorEntry,
    /// Type as it is stored there, where safetensors has no name for it.
    pub stored: Option<String>,
    /// Operation on it.
    pub action: &'static str,
    /// The tensors written from it.
    pub to: Vec<TensorEntry>,
}

impl Line {
    fn new(entry: &TensorEntry, action: &'static str) -> Self {
        Line { entry: entry.clone(), stored: None, action, to: Vec::new() }
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        let to = self.to.iter().map(|to| json!({"tensor": to.name, "dtype": name_of(to.dtype), "shape": to.shape}));
        let stored = self.stored.clone().unwrap_or_else(|| name_of(self.entry.dtype));
        json!({
            "tensor": self.entry.name,
            "dtype": stored,
            "shape": self.entry.shape,
            "action": self.action,
            "to": to.collect::<Vec<_>>(),
        })
        .to_string()
    }

    /// Whether a tensor is written from it in fewer bits than it is stored in.
    fn is_narrowed(&self) -> bool {
        let is_plain = self.stored.as_ref().is_none_or(|stored| *stored == name_of(self.entry.dtype));
        let bits = self.entry.dtype.bitsize();
        is_plain && self.entry.is_float() && self.to.iter().any(|to| to.dtype.bitsize() < bits)
    }
}

fn name_of(dtype: StoredDtype) -> String {
    format!("{dtype:?}").to_lowercase()
}

/// Warnings that name the dtypes of tensors that are written in fewer bits than they are stored in.
pub fn narrowed(lines: &[Line]) -> Vec<String> {
    let warning = |(stored, fix): (StoredDtype, &str)| {
        let of_dtype = |line: &&Line| line.entry.dtype == stored && line.is_narrowed();
        let found: Vec<&Line> = lines.iter().filter(of_dtype).collect();
        let written = name_of(found.first()?.to.first()?.dtype);
        let counted = match found.len() {
            1 => "1 tensor is".to_owned(),
            count => format!("{count} tensors are"),
        };
        Some(format!("warning: {counted} stored in {} and written as {written}{fix}", name_of(stored)))
    };
    // No --dtype keeps f64.
    [(StoredDtype::F32, "; --dtype f32 keeps them"), (StoredDtype::F64, "")].into_iter().filter_map(warning).collect()
}

/// Number of tensors that each action was applied to, such as `12 copied, 3 merged`, and of those that lost bits.
pub fn summary(lines: &[Line]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines {
        *counts.entry(line.action).or_default() += 1;
    }
    let actions = counts.iter().map(|(action, count)| format!("{count} {action}")).collect::<Vec<_>>().join(", ");
    match lines.iter().filter(|line| line.is_narrowed()).count() {
        0 => actions,
        narrowed => format!("{actions}; {narrowed} narrowed"),
    }
}

/// The tensors of a GGUF file.
pub fn of_gguf(report: &GgufReport) -> Result<Vec<Line>> {
    let dtype = model_center_formats::safetensors::stored(report.dtype)?;
    let of_mapped = |mapped: &gguf::Mapped| {
        let action = match (mapped.stored.is_plain(), mapped.is_reordered()) {
            (true, false) => "copied",
            (true, true) => "reordered",
            (false, false) => "dequantised",
            (false, true) => "dequantised and reordered",
        };
        let to = TensorEntry::new(mapped.entry.name.clone(), dtype, mapped.entry.shape.clone());
        let entry = TensorEntry { name: mapped.theirs.clone(), ..mapped.entry.clone() };
        Line { entry, stored: Some(mapped.stored.to_string().to_lowercase()), action, to: vec![to] }
    };
    Ok(report.mapped.iter().map(of_mapped).collect())
}

/// The tensors of a checkpoint of ranks; each line is of the pieces of one name on all ranks.
pub fn of_ranks(report: &RankedReport) -> Result<Vec<Line>> {
    let dtype = model_center_formats::safetensors::stored(report.dtype)?;
    let mut lines: Vec<Line> = Vec::new();
    for tensor in &report.written {
        let to = TensorEntry::new(tensor.entry.name.clone(), dtype, tensor.entry.shape.clone());
        // A tensor that is split has a line with all it became.
        if let Some(line) = lines.iter_mut().find(|line| line.entry.name == tensor.theirs) {
            line.to.push(to);
            continue;
        }
        let entry = TensorEntry::new(tensor.theirs.clone(), tensor.stored, tensor.piece.clone());
        lines.push(Line { to: vec![to], ..Line::new(&entry, tensor.action(report.ranks)) });
    }
    Ok(lines)
}

/// The tensors of a directory that was written to `to`, whose tensors are named by `names`.
pub fn of_directory(opened: &OpenedModel, source: &Weights, names: &NameTable, to: &Path) -> Result<Vec<Line>> {
    let written = Weights::open(to)?;
    let written: HashMap<&str, &TensorEntry> =
        written.entries().into_iter().map(|entry| (entry.name.as_str(), entry)).collect();
    let mut found: HashMap<&str, (&'static str, Vec<TensorEntry>)> = HashMap::new();
    for (ours, pieces) in opened.plan.sources() {
        let Some(param) = opened.model.parameters().get(ours) else { continue };
        let targets = names.pieces(ours, param.spec().shape.dims(), true)?;
        for piece in pieces {
            let of_piece: Vec<&TensorPart> =
                targets.iter().filter(|target| overlap(&target.rows, &piece.rows)).collect();
            let to = of_piece.iter().flat_map(|target| named(target, names, &written)).collect();
            found.insert(&piece.name, (action(piece, pieces.len(), &of_piece), to));
        }
    }
    for (name, twin) in opened.plan.tied() {
        let to = found.get(name).map(|(_, to)| to.clone()).unwrap_or_default();
        found.insert(twin, ("tied", to));
    }
    let left: HashSet<&str> = opened.plan.left().iter().map(String::as_str).collect();
    let unused: HashSet<&str> = opened.plan.unused().iter().map(String::as_str).collect();
    let lines = source.entries().into_iter().map(|entry| match found.remove(entry.name.as_str()) {
        Some((action, to)) => Line { to, ..Line::new(entry, action) },
        None if left.contains(entry.name.as_str()) => Line::new(entry, "left out"),
        None if unused.contains(entry.name.as_str()) => Line::new(entry, "left out, of another head"),
        None => Line::new(entry, "left out, nothing learned"),
    });
    Ok(lines.collect())
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The written tensors of a piece: with or without the base model's prefix, and second names where those are written
/// too.
fn named(target: &TensorPart, names: &NameTable, written: &HashMap<&str, &TensorEntry>) -> Vec<TensorEntry> {
    let bare = target.name.strip_prefix(names.base_prefix).unwrap_or(&target.name);
    let twins = names.aliases.iter().filter(|alias| alias.of() == target.name).map(|alias| alias.name());
    let first = written.get(target.name.as_str()).or_else(|| written.get(bare));
    first.into_iter().chain(twins.filter_map(|twin| written.get(twin))).map(|entry| (*entry).clone()).collect()
}

/// Operation on a piece of a parameter that has `pieces` of them in the source.
fn action(piece: &TensorPart, parts: usize, targets: &[&TensorPart]) -> &'static str {
    match targets {
        [] => "left out",
        [target] if target.rows == piece.rows => match (piece.transposed != target.transposed, piece, target) {
            (true, ..) => "transposed",
            (false, piece, target) if piece.interleaved != target.interleaved => "reordered",
            _ => "copied",
        },
        [_] if parts > 1 => "merged",
        _ => "split",
    }
}

/// Write the lines to a file, or to standard output for `-`.
pub fn write(lines: &[Line], to: &Path) -> Result<()> {
    let text: Vec<String> = lines.iter().map(Line::to_json).collect();
    if to.as_os_str() == "-" {
        return crate::cli::terminal::print(&text.join("\n"));
    }
    refuse_existing(to)?;
    model_center_base::file::write_atomic(to, format!("{}\n", text.join("\n")).as_bytes())
}

/// Whether a report can be written there once the model is in `directory`: nothing is overwritten.
pub fn check(to: &Path, directory: &Path) -> Result<()> {
    if to.as_os_str() == "-" {
        return Ok(());
    }
    refuse_existing(to)?;
    let model = resolved(directory);
    if resolved(to) == model {
        return Err(refused(format!("{} is the directory of the model", to.display())));
    }
    // The directory of the model, and those around it, are made on the way.
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir());
    match parent.filter(|parent| !model.starts_with(resolved(parent))) {
        Some(parent) => Err(refused(format!("there is no directory {}", parent.display()))),
        None => Ok(()),
    }
}

fn refuse_existing(to: &Path) -> Result<()> {
    if to.symlink_metadata().is_ok() {
        return Err(refused(format!("{} exists, and nothing is overwritten", to.display())));
    }
    Ok(())
}

fn refused(reason: String) -> Error {
    Error::argument("--report", reason, "name another file, or - for standard output")
}

/// A path that need not exist, without links and dots where what is around it does.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path,
    }
}

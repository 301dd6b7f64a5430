//! What became of every tensor of a converted model, one JSON object a line.
//!
//! Defines [`Line`], [`of_directory`] and [`of_gguf`], called by the convert program.

use model_center::hf::{NameTable, Piece, StoredDtype, TensorEntry, TensorSource, Weights, gguf};
use model_center::model::OpenedModel;
use model_center::{Error, Result};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

/// What became of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The tensor in the source.
    pub entry: TensorEntry,
    /// How it is stored there, where safetensors has no name for it.
    pub stored: Option<String>,
    /// What was done with it.
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
        let dtype = |dtype: StoredDtype| format!("{dtype:?}").to_lowercase();
        let to = self.to.iter().map(|to| json!({"tensor": to.name, "dtype": dtype(to.dtype), "shape": to.shape}));
        let stored = self.stored.clone().unwrap_or_else(|| dtype(self.entry.dtype));
        json!({
            "tensor": self.entry.name,
            "dtype": stored,
            "shape": self.entry.shape,
            "action": self.action,
            "to": to.collect::<Vec<_>>(),
        })
        .to_string()
    }
}

/// How many tensors each action was applied to, such as `12 copied, 3 merged`.
pub fn summary(lines: &[Line]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines {
        *counts.entry(line.action).or_default() += 1;
    }
    counts.iter().map(|(action, count)| format!("{count} {action}")).collect::<Vec<_>>().join(", ")
}

/// The tensors of a GGUF file.
pub fn of_gguf(report: &gguf::Report) -> Result<Vec<Line>> {
    let dtype = model_center::hf::safetensors::stored(report.dtype)?;
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

/// The tensors of a directory that was written to `to`, whose tensors are named by `names`.
///
/// # Errors
/// What was written cannot be opened.
pub fn of_directory(opened: &OpenedModel, source: &Weights, names: &NameTable, to: &Path) -> Result<Vec<Line>> {
    let written = Weights::open(to)?;
    let written: HashMap<&str, &TensorEntry> =
        written.entries().into_iter().map(|entry| (entry.name.as_str(), entry)).collect();
    let mut found: HashMap<&str, (&'static str, Vec<TensorEntry>)> = HashMap::new();
    for (ours, pieces) in opened.plan.sources() {
        let Some(param) = opened.model.parameters().get(ours) else { continue };
        let targets = names.pieces(ours, param.spec().shape.dims(), true)?;
        for piece in pieces {
            let of_piece: Vec<&Piece> = targets.iter().filter(|target| overlap(&target.rows, &piece.rows)).collect();
            let to = of_piece.iter().flat_map(|target| named(target, names, &written)).collect();
            found.insert(&piece.name, (action(piece, pieces.len(), &of_piece), to));
        }
    }
    for (name, twin) in opened.plan.tied() {
        let to = found.get(name).map(|(_, to)| to.clone()).unwrap_or_default();
        found.insert(twin, ("tied", to));
    }
    let left = |names: &[String], name: &str| names.iter().any(|known| known == name);
    let lines = source.entries().into_iter().map(|entry| match found.remove(entry.name.as_str()) {
        Some((action, to)) => Line { to, ..Line::new(entry, action) },
        None if left(opened.plan.left(), &entry.name) => Line::new(entry, "left out"),
        None if left(opened.plan.unused(), &entry.name) => Line::new(entry, "left out, of another head"),
        None => Line::new(entry, "left out, nothing learned"),
    });
    Ok(lines.collect())
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The written tensors of a piece: with or without the base model's prefix, and second names where those are written too.
fn named(target: &Piece, names: &NameTable, written: &HashMap<&str, &TensorEntry>) -> Vec<TensorEntry> {
    let bare = target.name.strip_prefix(names.base_prefix).unwrap_or(&target.name);
    let twins = names.aliases.iter().filter(|alias| alias.of() == target.name).map(|alias| alias.name());
    let first = written.get(target.name.as_str()).or_else(|| written.get(bare));
    first.into_iter().chain(twins.filter_map(|twin| written.get(twin))).map(|entry| (*entry).clone()).collect()
}

/// What is done with a piece of a parameter that has so many of them in the source.
fn action(piece: &Piece, parts: usize, targets: &[&Piece]) -> &'static str {
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
///
/// # Errors
/// The disk refuses.
pub fn write(lines: &[Line], to: &Path) -> Result<()> {
    let text: Vec<String> = lines.iter().map(Line::to_json).collect();
    if to.as_os_str() == "-" {
        return crate::terminal::print(&text.join("\n"));
    }
    model_center::file::write_atomic(to, format!("{}\n", text.join("\n")).as_bytes())
}

/// Whether a report can be written there: nothing is overwritten.
///
/// # Errors
/// Something is there.
pub fn check(to: &Path) -> Result<()> {
    if to.as_os_str() != "-" && to.symlink_metadata().is_ok() {
        let reason = format!("{} exists, and nothing is overwritten", to.display());
        return Err(Error::recipe("--report", reason, "name another file, or - for standard output"));
    }
    Ok(())
}

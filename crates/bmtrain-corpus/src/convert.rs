//! A tokenised corpus in another format.
//!
//! Defines [`convert`] and, for the check of any format, [`verify_documents`]. Called by the program `corpus`.

use std::path::{Path, PathBuf};

use super::formats::{
    CorpusFormat, DocumentPart, Example, ReadOptions, TfRecordReader, TfRecordWriter, WriteOptions, create_documents,
    open_documents,
};
use super::verify::{FileReport, beyond, foreign_id};
use crate::{Error, Result};

/// Options of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConvertOptions {
    /// Each sequence becomes a document.
    pub by_sequence: bool,
    /// Documents, or sequences that become documents, are cut off after this many ids; 0 for never.
    pub max_tokens: usize,
}

/// Report of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConvertReport {
    /// Documents that were written.
    pub documents: u64,
    /// Token ids that were written.
    pub tokens: u64,
    /// Token ids that were cut off.
    pub cut: u64,
}

/// Reads corpora, one after the other, and writes their documents to `out`.
///
/// Memory: a sequence, and for formats without sequences a document. Where both formats are TensorFlow's records, all
/// features are kept. `show` is called with the bytes read and those in all.
///
/// # Errors
/// As [`open_documents`] and [`create_documents`]; [`Error::Data`] for damaged corpora; [`Error::Argument`] for ids
/// that the format cannot hold.
pub fn convert(
    paths: &[PathBuf],
    read: &ReadOptions,
    (out, format): (&Path, CorpusFormat),
    write: &WriteOptions,
    options: ConvertOptions,
    show: &mut dyn FnMut(u64, u64),
) -> Result<ConvertReport> {
    if format == CorpusFormat::Tfrecord && options == ConvertOptions::default() {
        let records = |path: &PathBuf| Ok(read.format.map_or_else(|| CorpusFormat::detect(path), Ok)? == format);
        if paths.iter().map(records).collect::<Result<Vec<_>>>()?.iter().all(|is_record| *is_record) {
            return copy_records(paths, out, show);
        }
    }
    let mut sources = paths.iter().map(|path| open_documents(path, read)).collect::<Result<Vec<_>>>()?;
    if sources.is_empty() {
        return Err(Error::argument("files", "no corpora", "name at least one"));
    }
    let all = sources.iter().map(|source| source.total_bytes()).sum();
    let mut writer = create_documents(out, format, write)?;
    let most = if options.max_tokens == 0 { usize::MAX } else { options.max_tokens };
    let (mut report, mut before, mut ids) = (ConvertReport::default(), 0, Vec::new());
    for source in &mut sources {
        let mut in_document = 0;
        while let Some(part) = source.advance(&mut ids)? {
            let ends = match part {
                DocumentPart::Sequence => {
                    let kept = ids.len().min(most - in_document);
                    report.cut += (ids.len() - kept) as u64;
                    report.tokens += kept as u64;
                    in_document += kept;
                    writer.add_sequence(&ids[..kept])?;
                    options.by_sequence
                }
                DocumentPart::End => !options.by_sequence,
            };
            if ends {
                writer.end_document()?;
                report.documents += 1;
                in_document = 0;
                show(before + source.read_bytes(), all);
            }
        }
        before += source.total_bytes();
    }
    writer.finish()?;
    Ok(report)
}

/// Writes records anew, with their features in the same order.
fn copy_records(paths: &[PathBuf], out: &Path, show: &mut dyn FnMut(u64, u64)) -> Result<ConvertReport> {
    if out.symlink_metadata().is_ok() {
        let reason = format!("{} is there already", out.display());
        return Err(Error::argument("out", reason, "choose another path, or remove it"));
    }
    let length = |path: &PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
    let all = paths.iter().map(length).sum();
    let mut writer = TfRecordWriter::create(out)?;
    let (mut report, mut before) = (ConvertReport::default(), 0);
    for path in paths {
        let mut reader = TfRecordReader::open(path)?;
        while let Some(record) = reader.advance()? {
            let example = Example::read(record);
            let example = example.map_err(|reason| reader.wrong(&reason))?;
            report.tokens += example.integers("input_ids").map_or(0, |ids| ids.len() as u64);
            report.documents += 1;
            writer.add(&example.write())?;
            show(before + reader.read_bytes(), all);
        }
        before += length(path);
    }
    writer.finish()?;
    Ok(report)
}

/// Reads a corpus of any format whole and checks every id. [`verify_showing`](super::verify_showing) checks the index
/// of a token file, too.
///
/// # Errors
/// As [`open_documents`]; [`Error::Data`] for damage and for an id that is not below `vocabulary`.
pub fn verify_documents(
    path: &Path,
    read: &ReadOptions,
    vocabulary: Option<u64>,
    show: &mut dyn FnMut(u64, u64),
) -> Result<FileReport> {
    let mut source = open_documents(path, read)?;
    let (mut report, mut ids) = (FileReport::default(), Vec::new());
    while let Some(part) = source.advance(&mut ids)? {
        if part == DocumentPart::End {
            report.documents += 1;
            continue;
        }
        if let Some(reason) = beyond(&ids, report.tokens, vocabulary) {
            return Err(foreign_id(path, reason));
        }
        report.sequences += 1;
        report.tokens += ids.len() as u64;
        report.empty += u64::from(ids.is_empty());
        report.longest = report.longest.max(ids.len() as u64);
        report.largest_id = report.largest_id.max(ids.iter().copied().max());
        show(source.read_bytes(), source.total_bytes());
    }
    Ok(report)
}

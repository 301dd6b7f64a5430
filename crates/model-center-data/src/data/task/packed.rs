//! Plain text packed into sequences of equal length for language modelling.
//!
//! Defines [`read`], called by [`super::language_modeling`] for plain text files and directories. A file is one
//! document, followed by EOS. The tokens of all documents are concatenated and split every
//! `max_length` tokens: no token is lost, none is in two rows, and only the last row can be shorter. It has two tokens
//! at least, because of one there is nothing to predict; where one would be left over, the row before gives it its
//! last.

use std::path::{Path, PathBuf};

use crate::data::{
    dataset::{Dataset, ReadReport},
    read::{ReadOptions, around_text, padding},
};
use crate::{Error, Result};
use model_center_base::batch::{Label, LabelSpace};
use model_center_formats::io::{chunks::ChunkReader, flaws::Flaws};

/// Text is tokenised in chunks of this number of bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Reads a file, or the files of a directory whose names end in `.txt`, in the order of their names.
///
/// Errors: an invalid file, with the place; no text; sequences that are too short.
pub(crate) fn read(path: &Path, options: &ReadOptions<'_>) -> Result<Dataset> {
    options.check()?;
    if options.max_length < 3 {
        let reason = format!("rows of {} tokens are too short for text that is cut into rows", options.max_length);
        return Err(Error::argument("data.max_length", reason, "set it to 3 or more"));
    }
    let mut packer = Packer {
        options,
        // Reading ends with the last row that is wanted.
        wanted: options.limit.map_or(usize::MAX, |rows| (rows as usize).saturating_mul(options.max_length)),
        ids: Vec::new(),
        documents: 0,
        flaws: Flaws::default(),
    };
    for document in documents(path)? {
        packer.add(&document)?;
    }
    packer.finish(path)
}

/// The files that are read.
fn documents(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = |error| Error::file("read", path, error, "check the directory");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (name, file) = (entry.file_name(), entry.path());
        let is_text = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("txt"));
        // File managers leave files whose names start with a dot.
        if is_text && !name.as_encoded_bytes().starts_with(b".") && !file.is_dir() {
            files.push(file);
        }
    }
    if files.is_empty() {
        let place = path.display().to_string();
        return Err(Error::data(
            place,
            "the directory has no file whose name ends in .txt",
            "name a directory of texts",
        ));
    }
    files.sort();
    Ok(files)
}

/// Tokens in one line, while documents are added.
struct Packer<'a> {
    options: &'a ReadOptions<'a>,
    /// Tokens that are enough.
    wanted: usize,
    ids: Vec<u32>,
    documents: u64,
    flaws: Flaws,
}

impl Packer<'_> {
    fn add(&mut self, path: &Path) -> Result<()> {
        if self.ids.len() >= self.wanted {
            return Ok(());
        }
        self.documents += 1;
        let start = self.ids.len();
        if let Err(flaw) = self.append(path) {
            self.ids.truncate(start);
            self.flaws.add(self.options.on_bad_record, flaw)?;
        }
        Ok(())
    }

    fn append(&mut self, path: &Path) -> Result<()> {
        let mut pieces = ChunkReader::open(path, CHUNK_BYTES)?;
        let start = self.ids.len();
        while let Some(piece) = pieces.advance()? {
            let ids = self.options.tokenizer.tokenize(&[&piece]).map_err(|error| {
                let reason = format!("the tokenizer fails on this text: {error}");
                Error::data(path.display().to_string(), reason, "remove the file, or check the tokenizer files")
            })?;
            let ids = ids.concat();
            if self.ids.len() == start && !ids.is_empty() {
                self.ids.extend(around_text(self.options, &ids, &[]).0);
            }
            self.ids.extend(ids);
            if self.ids.len() >= self.wanted {
                return Ok(());
            }
        }
        if self.ids.len() == start {
            let fix = "give it some text, or remove it";
            return Err(Error::data(path.display().to_string(), "the file has no token to predict", fix));
        }
        let after = around_text(self.options, &[], self.ids.get(start..).unwrap_or_default()).1;
        self.ids.extend(after);
        Ok(())
    }

    fn finish(mut self, path: &Path) -> Result<Dataset> {
        let Packer { options, documents, .. } = self;
        self.flaws.check(path, options.on_bad_record, documents)?;
        self.ids.truncate(self.wanted);
        self.ids.shrink_to_fit();
        let ends = ends(self.ids.len(), options.max_length);
        if ends.is_empty() {
            let place = path.display().to_string();
            return Err(Error::data(
                place,
                "there is less than two tokens of text",
                "check that this is the right file",
            ));
        }
        if u32::try_from(ends.len()).is_err() {
            let place = path.display().to_string();
            return Err(Error::data(
                place,
                "the text makes more than 4 billion rows",
                "raise data.max_length, or split it",
            ));
        }
        let report = ReadReport {
            records: documents,
            skipped: self.flaws.count,
            first_skipped: self.flaws.first,
            rows: ends.len() as u64,
            tokens: self.ids.len() as u64,
            longest: ends[0],
            ..ReadReport::default()
        };
        let mut dataset = Dataset {
            types: vec![0; self.ids.len()],
            ids: self.ids,
            targets: vec![Label::TokensFrom(0); ends.len()],
            ends,
            report,
            ..Dataset::new(LabelSpace::NextTokens, padding(options.tokenizer), options.max_length)
        };
        dataset.seal();
        Ok(dataset)
    }
}

/// Ends of the sequences that a number of tokens is split into; none where there is nothing to predict.
fn ends(tokens: usize, length: usize) -> Vec<usize> {
    if tokens < 2 {
        return Vec::new();
    }
    let mut ends: Vec<usize> = (1..=tokens / length).map(|row| row * length).collect();
    let rest = tokens % length;
    if rest == 1
        && let Some(last) = ends.last_mut()
    {
        *last -= 1;
    }
    if rest > 0 {
        ends.push(tokens);
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::ends;

    #[test]
    fn every_token_is_in_one_row_and_no_row_has_a_single_one() {
        for (tokens, length) in (0..40).flat_map(|tokens| (3..7).map(move |length| (tokens, length))) {
            let ends = ends(tokens, length);
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let rows: Vec<usize> = starts.zip(&ends).map(|(start, end)| end - start).collect();
            assert_eq!(rows.iter().sum::<usize>(), if tokens < 2 { 0 } else { tokens });
            assert!(rows.iter().all(|row| (2..=length).contains(row)), "{tokens} in rows of {length}: {rows:?}");
            let full = (tokens / length).saturating_sub(usize::from(tokens % length == 1));
            assert!(tokens < 2 || rows.iter().take(full).all(|row| *row == length));
        }
    }
}

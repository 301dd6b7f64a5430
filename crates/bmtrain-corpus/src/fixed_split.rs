//! Fixed splits: the lines of files, dealt to three files once.
//!
//! Defines [`split_lines`]. Each part has its lines in their order, byte for byte, and beside it a `.map` with the file
//! and the line that each came from. The program `corpus` is the caller.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Error, Result};
use model_center_base::file::{AtomicFile, commit_together};
use model_center_data::corpus::split::{DocumentSet, SplitShares};
use model_center_formats::io::{
    input::{TextEncoding, open_corpus_text},
    lines::LineReader,
};

/// The names of the parts.
pub const PARTS: [&str; 3] = ["train", "valid", "test"];

/// Lines of each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedSplit {
    /// Lines of training, validation and test.
    pub lines: [u64; 3],
}

/// Deals the lines of text files, as of JSONL, to `train`, `valid` and `test` in `directory`, with the ending of the
/// first file. Empty lines are left out, and parts without a share are not written. Which line is in which part depends
/// on the number of lines, the shares and the seed alone. The files get their names together.
///
/// # Errors
/// [`Error::Argument`] if a file of a part is there or the directory is not; [`Error::Data`] for lines above
/// `max_line_bytes` or that are not UTF-8; [`Error::File`] if reading or writing fails.
pub fn split_lines(
    files: &[PathBuf],
    directory: &Path,
    shares: SplitShares,
    seed: u64,
    max_line_bytes: usize,
) -> Result<FixedSplit> {
    let mut count = 0;
    each_line(files, max_line_bytes, &mut |_, _, _| {
        count += 1;
        Ok(())
    })?;
    let ending = files.first().and_then(|file| plain_ending(file)).unwrap_or_else(|| "txt".into());
    let ranges = shares.ranges(count);
    let mut parts = Vec::new();
    for (name, range) in PARTS.iter().zip(&ranges) {
        parts.push(if range.is_empty() { None } else { Some(Part::create(directory, name, &ending)?) });
    }
    // The place of a line in a random order of all decides, so that parts have their exact numbers.
    let order = DocumentSet::permuted(0..count, count, seed);
    let (mut at, mut lines) = (0, [0; 3]);
    each_line(files, max_line_bytes, &mut |file, number, line| {
        let place = if at < count { order.at(at) } else { return Err(changed(file)) };
        at += 1;
        let Some(part) = ranges.iter().position(|range| range.contains(&place)) else { return Ok(()) };
        lines[part] += 1;
        parts[part].as_mut().map_or(Ok(()), |part| part.add(file, number, line))
    })?;
    if at != count {
        return Err(changed(directory));
    }
    let written = parts.into_iter().flatten().map(Part::written).collect::<Result<Vec<_>>>()?;
    commit_together(written.into_iter().flatten().collect())?;
    Ok(FixedSplit { lines })
}

fn changed(path: &Path) -> Error {
    Error::data(path.display().to_string(), "the files changed while they were split", "split them again")
}

/// `jsonl` of `a.jsonl.gz`.
fn plain_ending(path: &Path) -> Option<String> {
    let ending = path.extension()?.to_str()?;
    match ending {
        "gz" | "zst" | "zstd" => Path::new(path.file_stem()?).extension()?.to_str().map(str::to_owned),
        _ => Some(ending.to_owned()),
    }
}

fn each_line(files: &[PathBuf], most: usize, each: &mut dyn FnMut(&Path, u64, &str) -> Result<()>) -> Result<()> {
    for file in files {
        let mut lines = LineReader::over(file, open_corpus_text(file, TextEncoding::Utf8, &Arc::default())?, most);
        while let Some(read) = lines.advance()? {
            read?;
            let line = lines.line();
            if !line.text.trim().is_empty() {
                each(file, line.number, line.text)?;
            }
        }
    }
    Ok(())
}

/// The two files of a part.
struct Part {
    lines: Output,
    map: Output,
}

struct Output {
    file: AtomicFile,
    buffer: BufWriter<File>,
}

impl Part {
    fn create(directory: &Path, name: &str, ending: &str) -> Result<Part> {
        let output = |ending: &str| Output::create(&directory.join(format!("{name}.{ending}")));
        Ok(Part { lines: output(ending)?, map: output("map")? })
    }

    fn add(&mut self, file: &Path, number: u64, line: &str) -> Result<()> {
        self.lines.write(line)?;
        self.map.write(&format!("{}\t{number}", file.display()))
    }

    /// Its files, which are not under their names yet.
    fn written(self) -> Result<[AtomicFile; 2]> {
        Ok([self.map.written()?, self.lines.written()?])
    }
}

impl Output {
    fn create(path: &Path) -> Result<Output> {
        if path.symlink_metadata().is_ok() {
            let reason = format!("{} is there already", path.display());
            return Err(Error::argument("directory", reason, "choose another directory, or remove the file"));
        }
        let file = AtomicFile::create(path)?;
        let buffer = BufWriter::with_capacity(1 << 20, file.file().try_clone().map_err(|e| file.refused(e))?);
        Ok(Output { file, buffer })
    }

    fn write(&mut self, line: &str) -> Result<()> {
        let written = self.buffer.write_all(line.as_bytes()).and_then(|()| self.buffer.write_all(b"\n"));
        written.map_err(|e| self.file.refused(e))
    }

    fn written(mut self) -> Result<AtomicFile> {
        self.buffer.flush().map_err(|e| self.file.refused(e))?;
        Ok(self.file)
    }
}

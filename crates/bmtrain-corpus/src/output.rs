//! Lines of text in a file that gzip or zstd compresses by its name.
//!
//! Defines [`LineWriter`]. The file gets its name when it is whole. Called by [`super::clean`] and
//! [`super::sentences`].

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::{Error, Result};
use model_center_base::file::AtomicFile;
use model_center_data::corpus::spool::BUFFER;

/// The level of both, as their programs have it.
const GZIP_LEVEL: u32 = 6;
const ZSTD_LEVEL: i32 = 3;

/// Writes lines.
pub(super) struct LineWriter {
    file: AtomicFile,
    encoder: Encoder,
}

enum Encoder {
    Plain(BufWriter<File>),
    Gzip(flate2::write::GzEncoder<BufWriter<File>>),
    Zstd(Box<zstd::Encoder<'static, BufWriter<File>>>),
}

impl LineWriter {
    /// Begins a file: `.gz` and `.zst` or `.zstd` are compressed.
    ///
    /// Errors: the file cannot be made.
    pub(super) fn create(path: &Path) -> Result<LineWriter> {
        let file = AtomicFile::create(path)?;
        let refused = |e| file.refused(e);
        let buffer = BufWriter::with_capacity(BUFFER, file.file().try_clone().map_err(refused)?);
        let encoder = match path.extension().and_then(|ending| ending.to_str()) {
            Some("gz") => Encoder::Gzip(flate2::write::GzEncoder::new(buffer, flate2::Compression::new(GZIP_LEVEL))),
            Some("zst" | "zstd") => Encoder::Zstd(Box::new(zstd::Encoder::new(buffer, ZSTD_LEVEL).map_err(refused)?)),
            _ => Encoder::Plain(buffer),
        };
        Ok(LineWriter { file, encoder })
    }

    /// The error if something has the name of a result already.
    pub(super) fn require_free(path: &Path) -> Result<()> {
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        let reason = format!("{} is there already", path.display());
        Err(Error::argument("--out", reason, "choose another name, or remove it"))
    }

    pub(super) fn add(&mut self, line: &str) -> Result<()> {
        self.write(line.as_bytes())?;
        self.write(b"\n")
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.encoder {
            Encoder::Plain(file) => file.write_all(bytes),
            Encoder::Gzip(file) => file.write_all(bytes),
            Encoder::Zstd(file) => file.write_all(bytes),
        };
        written.map_err(|e| self.file.refused(e))
    }

    /// Completes the file and gives it its name.
    pub(super) fn commit(self) -> Result<()> {
        let buffer = match self.encoder {
            Encoder::Plain(buffer) => Ok(buffer),
            Encoder::Gzip(encoder) => encoder.finish(),
            Encoder::Zstd(encoder) => encoder.finish(),
        };
        let flushed = buffer.and_then(|mut buffer| buffer.flush());
        flushed.map_err(|e| self.file.refused(e))?;
        self.file.commit()
    }
}

//! Several token files as one.
//!
//! Defines [`merge`]. Called by the program `corpus`.

use std::path::{Path, PathBuf};

use crate::{Error, Result};
use model_center_data::corpus::token_file::TokenFile;
use model_center_data::corpus::token_type::TokenType;
use model_center_data::corpus::writer::{TokenFileWriter, WriterPosition};

/// Joins token files, one after the other, to `PREFIX.bin` and `PREFIX.idx`, byte for byte as Megatron-LM does. Memory
/// does not depend on their size. `show` is called with the bytes read and those in all.
///
/// # Errors
/// [`Error::Argument`] for files of different types of ids, for no files, and if the result is there;
/// [`Error::Data`] for a file that contradicts itself; [`Error::File`] if reading or writing fails.
pub fn merge(files: &[PathBuf], prefix: &Path, show: &mut dyn FnMut(u64, u64)) -> Result<WriterPosition> {
    let files = files.iter().map(TokenFile::open).collect::<Result<Vec<_>>>()?;
    let token = common_type(&files)?;
    let all = files.iter().map(TokenFile::bytes).sum();
    let mut writer = TokenFileWriter::create(prefix, token)?;
    let mut read = 0;
    for file in &files {
        writer.append(file, &mut |bytes| {
            read += bytes;
            show(read, all);
        })?;
    }
    writer.finish()
}

/// Storage type of ids that all files share.
fn common_type(files: &[TokenFile]) -> Result<TokenType> {
    let Some(first) = files.first() else {
        return Err(Error::argument("files", "no token files", "name at least one"));
    };
    match files.iter().find(|file| file.token_type() != first.token_type()) {
        None => Ok(first.token_type()),
        Some(other) => {
            let stored = |file: &TokenFile| format!("{} has {}", file.prefix().display(), file.token_type().name());
            let reason = format!("{} ids, and {}", stored(first), stored(other));
            Err(Error::argument("files", reason, "give them one type with bmtrain corpus convert --dtype"))
        }
    }
}

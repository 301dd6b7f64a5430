//! Pretraining corpora: token files and index maps against golden data and against damage.

mod build;
mod clean;
mod damaged;
mod formats;
mod maps;
mod split;
mod text;
mod token_files;

use std::path::{Path, PathBuf};

use model_center::corpus::{TokenFile, TokenFileWriter, TokenType};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/corpus").join(name)
}

/// Writes documents of sequences.
pub(crate) fn write(prefix: &Path, token: TokenType, documents: &[Vec<Vec<u32>>]) {
    let mut writer = TokenFileWriter::create(prefix, token).unwrap();
    for document in documents {
        for sequence in document {
            writer.add_sequence(sequence).unwrap();
        }
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
}

/// Reads them all.
fn read(prefix: &Path) -> model_center::Result<Vec<Vec<Vec<u32>>>> {
    let file = TokenFile::open(prefix)?;
    let sequence = |number| {
        let range = file.sequence(number)?;
        let mut ids = vec![0; (range.end - range.start) as usize];
        file.read(number, 0, &mut ids)?;
        Ok(ids)
    };
    (0..file.documents()).map(|document| file.document(document)?.map(sequence).collect()).collect()
}

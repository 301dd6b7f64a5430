//! Depends on model-center-data alone: a token file is written and read.

use model_center_data::Result;
use model_center_data::corpus::{TokenFile, TokenFileWriter, TokenType};

#[test]
fn a_token_file_is_written_and_read() -> Result<()> {
    let prefix = std::env::temp_dir().join(format!("use-model-center-data-{}", std::process::id()));
    let mut writer = TokenFileWriter::create(&prefix, TokenType::U16)?;
    writer.add_sequence(&[5, 6, 7])?;
    writer.end_document()?;
    writer.finish()?;
    let mut ids = [0; 2];
    let file = TokenFile::open(&prefix)?;
    file.read(0, 1, &mut ids)?;
    assert_eq!((file.tokens(), ids), (3, [6, 7]));
    for ending in ["bin", "idx"] {
        std::fs::remove_file(prefix.with_extension(ending)).expect("removed");
    }
    Ok(())
}

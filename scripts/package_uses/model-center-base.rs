//! Depends on model-center-base alone: a file appears whole, and an error has an exit code.

use model_center_base::{Error, Result, file};

#[test]
fn a_file_is_written_whole_and_read_within_a_limit() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("use-model-center-base-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("text");
    file::write_atomic(&path, b"ten bytes.")?;
    assert_eq!(file::read_text(&path, 10)?, "ten bytes.");
    let refused = file::read_text(&path, 9).expect_err("a limit");
    assert!(matches!(refused, Error::Model { .. }), "{refused}");
    std::fs::remove_dir_all(&directory).expect("removed");
    Ok(())
}

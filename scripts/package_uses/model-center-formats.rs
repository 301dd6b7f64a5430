//! Depends on model-center-formats alone: a tensor is written and read.

use model_center_formats::{Result, SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry};

#[test]
fn a_tensor_is_written_and_read() -> Result<()> {
    let path = std::env::temp_dir().join(format!("use-model-center-formats-{}.safetensors", std::process::id()));
    let mut writer = SafetensorsWriter::create(&path, &[TensorEntry::new("w", StoredDtype::F32, vec![2])])?;
    writer.write_f32("w", &[1.0, -2.0])?;
    writer.finish()?;
    let read = SafetensorsFile::open(&path)?.read_raw("w")?;
    assert_eq!(read, [1.0f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat());
    std::fs::remove_file(&path).expect("removed");
    Ok(())
}

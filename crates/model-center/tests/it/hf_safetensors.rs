//! One safetensors file: round trips of every dtype, and errors of invalid files.

use std::fs;
use std::path::Path;

use half::{bf16, f16};
use model_center::Error;
use model_center::formats::{SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, TensorSource};

fn write_raw(path: &Path, header: &str, data: &[u8]) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    fs::write(path, bytes).unwrap();
}

fn reason(path: &Path) -> String {
    match SafetensorsFile::open(path).unwrap_err() {
        Error::Model { place, reason, fix } => {
            assert!(place.starts_with(&path.display().to_string()) && !fix.is_empty());
            format!("{place}: {reason}")
        }
        other => panic!("{other}"),
    }
}

/// Values whose rounding to 16 bits goes up, down, to even and over the edge of the subnormals.
fn values() -> Vec<f32> {
    let mut values =
        vec![0.0, -0.0, 1.0, -1.5, 65504.0, 1e-8, 6e-8, 1.000_976_6, 1.003_906_3, 2.345_6, f32::INFINITY, -2e-40];
    values.extend((0..300_000u32).map(|i| (i as f32 * 0.37).sin() * 1e-3 + i as f32 * 0.05));
    values
}

#[test]
fn every_float_type_reads_back_as_written_with_correct_rounding() {
    let dir = tempfile::tempdir().unwrap();
    let values = values();
    for (dtype, round) in [
        (StoredDtype::F32, (|v| v) as fn(f32) -> f32),
        (StoredDtype::F16, |v| f16::from_f32(v).to_f32()),
        (StoredDtype::BF16, |v| bf16::from_f32(v).to_f32()),
        (StoredDtype::F64, |v| v),
    ] {
        let path = dir.path().join(format!("{dtype:?}.safetensors"));
        let entries = [TensorEntry::new("b", dtype, [values.len()]), TensorEntry::new("a", dtype, [])];
        let mut writer = SafetensorsWriter::create(&path, &entries).unwrap();
        writer.write_f32("b", &values).unwrap();
        writer.write_f32("a", &[2.5]).unwrap();
        assert!(!path.exists());
        writer.finish().unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        assert_eq!(file.metadata("format"), Some("pt"));
        let mut got = vec![0.0; values.len()];
        file.read_f32("b", &mut got).unwrap();
        for (got, value) in got.iter().zip(&values) {
            assert_eq!(got.to_bits(), round(*value).to_bits(), "{dtype:?} {value}");
        }
        let mut scalar = [0.0];
        file.read_f32("a", &mut scalar).unwrap();
        assert_eq!(scalar, [2.5]);
    }
}

#[test]
fn our_file_is_byte_for_byte_that_of_the_reference_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let ids: Vec<u8> = [7i64, -1].iter().flat_map(|v| v.to_le_bytes()).collect();
    let weight: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let half: Vec<u8> = [1.0f32].iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
    let entries = [
        TensorEntry::new("weight", StoredDtype::F32, [3]),
        TensorEntry::new("half", StoredDtype::F16, [1]),
        TensorEntry::new("ids", StoredDtype::I64, [2, 1]),
        TensorEntry::new("another", StoredDtype::F32, [3]),
    ];
    let mut writer = SafetensorsWriter::create(&path, &entries).unwrap();
    for name in ["another", "weight"] {
        writer.write_f32(name, &[1.0, 2.0, 3.0]).unwrap();
    }
    writer.write_raw("ids", &ids).unwrap();
    writer.write_f32("half", &[1.0]).unwrap();
    writer.finish().unwrap();
    let view = |entry: &TensorEntry| {
        let data = match entry.dtype {
            StoredDtype::I64 => &ids,
            StoredDtype::F16 => &half,
            _ => &weight,
        };
        (entry.name.clone(), safetensors::tensor::TensorView::new(entry.dtype, entry.shape.clone(), data).unwrap())
    };
    let note = [("format".to_string(), "pt".to_string())].into_iter().collect();
    let reference = safetensors::serialize(entries.iter().map(view), Some(note)).unwrap();
    assert_eq!(fs::read(&path).unwrap(), reference);
    let file = SafetensorsFile::open(&path).unwrap();
    assert_eq!(file.read_i64("ids").unwrap(), [7, -1]);
    assert!(file.read_i64("weight").unwrap_err().to_string().contains("stored as F32"));
}

#[test]
fn each_lie_of_a_header_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let tensor = |name: &str, shape: &str, begin: u64, end: u64| {
        format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}")
    };
    let one = |inside: String| format!("{{{inside}}}");
    let cases = [
        (one(tensor("a", "[2]", 0, 8)), 7, "truncated: 7 of 8"),
        (one(tensor("a", "[2]", 0, 8)), 9, "1 bytes follow"),
        (one(tensor("a", "[3]", 0, 8)), 8, "tensor a: offsets 0..8 do not fit"),
        (one(tensor("a", "[2]", 8, 0)), 8, "tensor a: offsets 8..0"),
        (one(tensor("a", "[4611686018427387904,4]", 0, 8)), 8, "too large for memory"),
        (one(tensor("a", "[2]", 4, 12)), 12, "begins at 4"),
        (one(format!("{},{}", tensor("a", "[2]", 0, 8), tensor("b", "[2]", 4, 12))), 12, "tensor b: data begins at 4"),
        (
            one(format!("{},{}", tensor("a", "[2]", 0, 8), tensor("a", "[2]", 8, 16))),
            16,
            "tensor a: the name appears twice",
        ),
        (one(tensor("", "[2]", 0, 8)), 8, "name is empty"),
        (one(tensor("a\\u001b[31m", "[2]", 0, 8)), 8, "control characters"),
        (one(tensor(&"x".repeat(2000), "[2]", 0, 8)), 8, "too long"),
        (one(tensor("a", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", 0, 8)), 8, "16 dimensions"),
        (one(tensor("a", "[-2]", 0, 8)), 8, "not valid"),
        (one(tensor("a", "[2]", 0, 8)).replace("F32", "F31"), 8, "not valid"),
        (" ".to_string() + &one(tensor("a", "[2]", 0, 8)), 8, "does not start with {"),
        (one(tensor("a", "[2]", 0, 8)) + "x", 8, "not valid"),
        (String::new(), 0, "does not start with {"),
    ];
    for (header, data, want) in cases {
        write_raw(&path, &header, &vec![0; data]);
        let got = reason(&path);
        assert!(got.contains(want), "{header}: {got}");
    }
    fs::write(&path, [1, 2, 3]).unwrap();
    assert!(reason(&path).contains("3 bytes"));
    fs::write(&path, [&u64::MAX.to_le_bytes()[..], b"{}"].concat()).unwrap();
    assert!(reason(&path).contains("18446744073709551615 bytes"));
    fs::write(&path, [&1000u64.to_le_bytes()[..], b"{}"].concat()).unwrap();
    assert!(reason(&path).contains("the file ends before that"));
    assert!(reason(&dir.path().join("absent")).contains("no such file"));
}

#[test]
fn a_file_that_shrinks_after_opening_is_an_error_and_not_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    write_raw(&path, r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, &[0; 8]);
    let file = SafetensorsFile::open(&path).unwrap();
    let length = fs::metadata(&path).unwrap().len();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 4).unwrap();
    assert!(file.read_f32("a", &mut [0.0; 2]).unwrap_err().to_string().contains("became shorter"));
}

#[test]
fn reading_asks_for_the_right_name_length_and_type() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    write_raw(&path, r#"{"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#, &[1, 0, 0, 0, 255, 255, 255, 255]);
    let file = SafetensorsFile::open(&path).unwrap();
    assert_eq!(file.read_i64("a").unwrap(), [1, -1]);
    assert!(file.read_f32("a", &mut [0.0; 2]).unwrap_err().to_string().contains("stored as I32"));
    assert!(file.read_f32("a", &mut [0.0; 3]).unwrap_err().to_string().contains("asked for 3"));
    assert!(file.read_f32("b", &mut [0.0; 2]).unwrap_err().to_string().contains("no tensor of this name"));
    assert!(file.read_raw_at("a", 4, &mut [0; 5]).is_err());
    assert!(file.read_raw_at("a", u64::MAX, &mut [0; 5]).is_err());
}

#[test]
fn a_writer_takes_each_announced_tensor_once_and_leaves_nothing_when_it_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let entries = [TensorEntry::new("a", StoredDtype::F16, [2]), TensorEntry::new("b", StoredDtype::F16, [1])];
    let mut writer = SafetensorsWriter::create(&path, &entries).unwrap();
    assert!(writer.write_f32("c", &[1.0]).unwrap_err().to_string().contains("not announced"));
    assert!(writer.write_f32("a", &[1.0]).unwrap_err().to_string().contains("announced 4"));
    writer.write_f32("a", &[1.0, 2.0]).unwrap();
    assert!(writer.write_f32("a", &[1.0, 2.0]).unwrap_err().to_string().contains("written before"));
    assert!(writer.finish().unwrap_err().to_string().contains("were not written"));
    let mut writer = SafetensorsWriter::create(&path, &entries[..1]).unwrap();
    assert!(writer.write_f32("a", &[1.0, 1e5]).unwrap_err().to_string().contains("does not fit f16"));
    drop(writer);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let twice = [entries[0].clone(), entries[0].clone()];
    assert!(SafetensorsWriter::create(&path, &twice).is_err());
    assert!(matches!(SafetensorsWriter::create(&dir.path().join("no/m"), &entries), Err(Error::File { .. })));
}

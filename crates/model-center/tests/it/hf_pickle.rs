//! PyTorch's own files: what torch.save wrote is read without running it, what is written here reads back.

use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use model_center::Error;
use model_center::formats::{
    PickleFile, SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, TensorSource, Weights, write_pickle,
};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pickles").join(name)
}

fn refusal(path: &Path) -> String {
    match PickleFile::open(path).unwrap_err() {
        Error::Model { place, reason, fix } => {
            assert!(place.starts_with(&path.display().to_string()) && !fix.is_empty());
            reason
        }
        other => panic!("{other}"),
    }
}

/// The file has exactly the tensors that `expected.safetensors` has under `prefix`, bit for bit, however they are asked
/// for.
fn agrees(name: &str, prefix: &str) -> PickleFile {
    let (file, all) = (PickleFile::open(&golden(name)).unwrap(), golden("expected.safetensors"));
    let expected = SafetensorsFile::open(&all).unwrap();
    let names: Vec<&str> =
        expected.tensors().iter().filter_map(|e| e.name.strip_prefix(prefix)?.strip_prefix('/')).collect();
    assert!(!names.is_empty());
    assert_eq!(file.tensors().iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), names, "{name}");
    for entry in file.tensors() {
        let full = format!("{prefix}/{}", entry.name);
        let (what, want) = (format!("{name}: {}", entry.name), expected.read_raw(&full).unwrap());
        let theirs = expected.entry(&full).unwrap();
        assert_eq!((entry.dtype, &entry.shape), (theirs.dtype, &theirs.shape), "{what}");
        for step in [1, 3, 7, 16, want.len().max(1)] {
            let mut got = vec![0; want.len()];
            for (i, part) in got.chunks_mut(step).enumerate() {
                file.read_raw_at(&entry.name, (i * step) as u64, part).unwrap();
            }
            assert_eq!(got, want, "{what} in pieces of {step}");
        }
        assert!(file.read_raw_at(&entry.name, 1, &mut vec![0; want.len()]).is_err(), "{what}");
        let (mut got, mut wanted) = (vec![0.0; entry.elements().unwrap()], vec![0.0; entry.elements().unwrap()]);
        assert_eq!(file.read_f32(&entry.name, &mut got).is_ok(), entry.is_float(), "{what}");
        if entry.is_float() {
            expected.read_f32(&full, &mut wanted).unwrap();
            assert_eq!(got, wanted, "{what}");
        }
    }
    file
}

#[test]
fn every_type_is_read_from_both_containers_and_protocols() {
    for name in ["types.zip.pt", "types.legacy.pt", "types.protocol4.pt"] {
        let file = agrees(name, "types");
        let error = file.read_f32("i64", &mut [0.0; 3]).unwrap_err().to_string();
        assert!(error.contains("expected a float"), "{error}");
        assert!(file.read_f32("scalar", &mut [0.0; 2]).unwrap_err().to_string().contains("asked for 2"));
        assert!(file.read_f32("none", &mut [0.0; 2]).unwrap_err().to_string().contains("no tensor of this name"));
    }
}

#[test]
fn views_are_gathered_and_tied_tensors_known() {
    for name in ["views.zip.pt", "views.legacy.pt"] {
        let file = agrees(name, "views");
        assert!(file.are_tied("embedding", "decoder") && file.are_tied("rows", "rows"));
        for (first, second) in [("embedding", "rows"), ("embedding", "transposed"), ("permuted", "permuted.view")] {
            assert!(!file.are_tied(first, second), "{first} {second}");
        }
        assert!(!file.are_tied("embedding", "gone"));
    }
}

#[test]
fn the_dictionary_of_tensors_is_found_below_the_top() {
    agrees("parameters.pt", "parameters");
    agrees("checkpoint.pt", "checkpoint");
    for name in ["namespace.zip.pt", "namespace.legacy.pt"] {
        agrees(name, "checkpoint");
    }
    let several = refusal(&golden("ambiguous.pt"));
    assert!(several.contains("several dictionaries of tensors: model, module"), "{several}");
    let whole = refusal(&golden("module.pt"));
    assert!(whole.contains("an object of the class torch.nn.modules.linear.Linear"), "{whole}");
}

#[test]
fn calls_that_have_no_place_among_weights_are_refused_by_instruction_byte_and_name() {
    for (name, instruction, global) in [
        ("hostile.system.pt", "GLOBAL of the global", "posix.system"),
        ("hostile.eval.pt", "GLOBAL of the global", "__builtin__.eval"),
        ("hostile.quiet.pt", "REDUCE calls the global", "torch.nn.init.zeros_"),
    ] {
        let got = refusal(&golden(name));
        assert!(got.contains("byte ") && got.contains(&format!("{instruction} {global}")), "{got}");
    }
}

#[test]
fn a_file_of_another_format_is_refused_by_its_likely_format() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pytorch_model.bin");
    for (content, want) in [
        (&b""[..], "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs"),
        (b"<!doctype html>", "a page of the web"),
        (b"PK\x05\x06\0\0", "without entries"),
        (b"\x93NUMPY", "neither as a zip file nor as a pickle"),
        (b"\x80\x02K\x01.", "no magic number"),
        (b"PK\x03\x04", "truncated"),
    ] {
        fs::write(&path, content).unwrap();
        let got = refusal(&path);
        assert!(got.contains(want), "{got}");
    }
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37).sin() * 3.0).collect()
}

/// Tensors of every type that is written, and of shapes that are easily got wrong.
fn entries() -> Vec<TensorEntry> {
    use StoredDtype::{BF16, F16, F32};
    let mut entries = vec![
        TensorEntry::new("z.weight", F32, [300, 700]),
        TensorEntry::new("half", F16, [5, 7, 3]),
        TensorEntry::new("brain", BF16, [70_001]),
        TensorEntry::new("scalar", F32, []),
        TensorEntry::new("none", F16, [0, 7]),
        TensorEntry::new("Größe.权重", F32, [2]),
    ];
    // More than are put into a dictionary at a time.
    entries.extend((0..1005).map(|i| TensorEntry::new(format!("many.{i}"), BF16, [1])));
    entries
}

fn fill(entries: &[TensorEntry]) -> impl FnMut(&str, &mut Vec<f32>) -> Result<(), Error> {
    |name, out| {
        let entry = entries.iter().find(|entry| entry.name == name).unwrap();
        out.extend(values(entry.elements().unwrap()));
        Ok(())
    }
}

#[test]
fn what_is_written_reads_back_with_correct_rounding() {
    let scratch = tempfile::tempdir().unwrap();
    // `scripts/claims/opens_pickle.py` reads the pair with PyTorch where this names a directory.
    let directory = std::env::var_os("BMTRAIN_PICKLE_EXPORTS").map_or(scratch.path().to_owned(), PathBuf::from);
    let (path, entries) = (directory.join("pytorch_model.bin"), entries());
    write_pickle(&path, &entries, fill(&entries)).unwrap();
    let mut same = SafetensorsWriter::create(&directory.join("same.safetensors"), &entries).unwrap();
    let file = PickleFile::open(&path).unwrap();
    assert_eq!(file.tensors().len(), entries.len());
    for entry in &entries {
        let wanted = values(entry.elements().unwrap());
        same.write_f32(&entry.name, &wanted).unwrap();
        let mut got = vec![0.0; wanted.len()];
        file.read_f32(&entry.name, &mut got).unwrap();
        for (got, value) in got.iter().zip(wanted) {
            let want = match entry.dtype {
                StoredDtype::F16 => f16::from_f32(value).to_f32(),
                StoredDtype::BF16 => bf16::from_f32(value).to_f32(),
                _ => value,
            };
            assert_eq!(got.to_bits(), want.to_bits(), "{}", entry.name);
        }
    }
    same.finish().unwrap();
    let first = fs::read(&path).unwrap();
    write_pickle(&path, &entries, fill(&entries)).unwrap();
    assert!(fs::read(&path).unwrap() == first, "equal tensors should give equal bytes");
}

#[test]
fn writing_refuses_what_it_cannot_keep_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pytorch_model.pt");
    let one = |name: &str, dtype, shape: &[usize]| vec![TensorEntry::new(name, dtype, shape)];
    let twice = [one("a", StoredDtype::F32, &[1]), one("a", StoredDtype::F32, &[1])].concat();
    for (entries, want) in [
        (twice, "appears twice"),
        (one("a\n", StoredDtype::F32, &[1]), "control characters"),
        (one("a", StoredDtype::I64, &[1]), "I64 is not written"),
        (one("a", StoredDtype::F32, &[usize::MAX, 2]), "overflows"),
        (one("a", StoredDtype::F32, &[0, usize::MAX]), "overflows"),
        (one("a", StoredDtype::F32, &[2]), "got 1 values"),
        (one("a", StoredDtype::F16, &[1]), "does not fit f16"),
    ] {
        let got = write_pickle(&path, &entries, |_, out| {
            out.push(1e6);
            Ok(())
        });
        let got = got.unwrap_err().to_string();
        assert!(got.contains(want), "{got}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{want}");
    }
}

#[test]
fn directories_of_pytorch_files_are_opened_and_safetensors_come_first() {
    let dir = tempfile::tempdir().unwrap();
    let first = |value: f32| {
        let entries = [TensorEntry::new("a", StoredDtype::F32, [1])];
        move |path: &Path| {
            write_pickle(path, &entries, |_, out| {
                out.push(value);
                Ok(())
            })
            .unwrap();
        }
    };
    let read = || {
        let mut got = [0.0];
        Weights::open(dir.path()).unwrap().read_f32("a", &mut got).unwrap();
        got[0]
    };
    for (name, value) in [("pytorch_model.bin", 1.0), ("pytorch_model.pt", 2.0)] {
        first(value)(&dir.path().join(name));
        assert_eq!(read(), value);
        assert_eq!(Weights::open(&dir.path().join(name)).unwrap().entries().len(), 1);
        if value == 1.0 {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
    }
    first(3.0)(&dir.path().join("pytorch_model.bin"));
    let both = Weights::open(dir.path()).unwrap_err().to_string();
    assert!(both.contains("both pytorch_model.bin and pytorch_model.pt"), "{both}");
    let entries = [TensorEntry::new("a", StoredDtype::F32, [1])];
    let mut writer = SafetensorsWriter::create(&dir.path().join("model.safetensors"), &entries).unwrap();
    writer.write_f32("a", &[4.0]).unwrap();
    writer.finish().unwrap();
    assert_eq!(read(), 4.0);
}

#[test]
fn shards_of_pytorch_files_have_to_agree_with_their_index() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        let file = format!("pytorch_model-0000{}-of-00002.bin", if name == "a" { 1 } else { 2 });
        let entries = [TensorEntry::new(name, StoredDtype::BF16, [2])];
        write_pickle(&dir.path().join(file), &entries, |_, out| {
            out.extend([1.0, 2.0]);
            Ok(())
        })
        .unwrap();
    }
    let index = r#"{"weight_map":{"a":"pytorch_model-00001-of-00002.bin","b":"pytorch_model-00002-of-00002.bin"}}"#;
    let path = dir.path().join("pytorch_model.bin.index.json");
    fs::write(&path, index).unwrap();
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!((weights.shards(), weights.bytes()), (2, 8));
    let mut got = [0.0; 2];
    weights.read_f32("b", &mut got).unwrap();
    assert_eq!(got, [1.0, 2.0]);
    for (from, to, want) in [
        ("-00001-of-00002.bin", "-00001-of-00002.safetensors", "another kind"),
        ("pytorch_model-00001-of-00002.bin", "../a.bin", "leads out of the directory"),
        (r#""a":"#, r#""c":"#, "the index does not list it there"),
    ] {
        fs::write(&path, index.replace(from, to)).unwrap();
        let got = Weights::open(dir.path()).unwrap_err().to_string();
        assert!(got.contains(want), "{got}");
    }
}

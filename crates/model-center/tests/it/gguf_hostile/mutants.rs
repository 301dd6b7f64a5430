//! Files that are cut off or have a wrong bit, byte or number.

use super::{Parts, Place};
use model_center::formats::{GgufAsHuggingFace, GgufFile, TensorSource};
use model_center::tokenizer::gguf::tokenizer_files;
use std::fs;
use std::path::Path;

/// Do all that can be done with a file; whether it could be opened.
fn use_up(path: &Path) -> bool {
    let Ok(file) = GgufFile::open(path) else { return false };
    let length = fs::metadata(path).unwrap().len();
    for entry in file.entries() {
        let count = entry.elements().unwrap();
        // The tightest blocks have 4.5 bits for an element.
        assert!(count as u64 <= 2 * length, "{count} elements in {length} bytes");
        let mut values = vec![0.0; count];
        file.read_f32(&entry.name, &mut values).unwrap();
        let mut raw = vec![0; entry.bytes().unwrap().min(100)];
        file.read_raw_at(&entry.name, 0, &mut raw).unwrap();
    }
    let _ = tokenizer_files(file.metadata(), 100);
    if let Ok(model) = GgufAsHuggingFace::new(file) {
        for mapped in model.mapped() {
            model.read_f32(&mapped.entry.name, &mut vec![0.0; mapped.entry.elements().unwrap()]).unwrap();
        }
        serde_json::to_string(&model.config()).unwrap();
    }
    true
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let (place, good) = (Place::new(), Parts::good().bytes());
    assert!(use_up(&place.write(&good)));
    for length in 0..good.len() {
        place.refusal(&good[..length]);
    }
    // Bytes after the last tensor are ignored.
    assert!(use_up(&place.write(&[&good[..], &[0; 28]].concat())));
}

#[test]
fn every_bit_and_every_byte_may_be_wrong() {
    let (place, good) = (Place::new(), Parts::good().bytes());
    let (mut read, mut refused) = (0, 0);
    for at in 0..good.len() {
        for change in (0..8).map(|bit| 1u8 << bit).chain([0xff, good[at]]) {
            let mut bytes = good.clone();
            bytes[at] ^= change;
            if use_up(&place.write(&bytes)) { read += 1 } else { refused += 1 }
        }
    }
    assert!(read > 500 && refused > 500, "{read} read, {refused} refused");
}

#[test]
fn mutants_of_whole_models_are_refused_or_read() {
    let place = Place::new();
    for name in ["llama.gguf", "qwen2.gguf", "qwen3.gguf"] {
        let good = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf").join(name)).unwrap();
        let front = good.windows(4).position(|bytes| bytes == b"norm").unwrap() + 800;
        let (mut state, mut read) = (1u64, 0);
        for _ in 0..3000 {
            let mut bytes = good.clone();
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bytes[(state >> 33) as usize % front] ^= 1 << (state >> 29 & 7);
            }
            read += usize::from(use_up(&place.write(&bytes)));
        }
        assert!((100..2900).contains(&read), "{name}: {read} of 3000 were read");
    }
}

#[test]
fn mutants_of_every_family_are_refused_or_read() {
    let place = Place::new();
    for name in ["granite", "olmo2", "olmo3", "smollm3", "phi3", "glm4", "gpt_neox", "gemma3"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf").join(format!("{name}.gguf"));
        let good = fs::read(file).unwrap();
        let front = good.windows(10).position(|bytes| bytes == b"token_embd").unwrap();
        let (mut state, mut refused) = (1u64, 0);
        for _ in 0..1000 {
            let mut bytes = good.clone();
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes[(state >> 33) as usize % front] ^= 1 << (state >> 29 & 7);
            refused += usize::from(!use_up(&place.write(&bytes)));
        }
        assert!(refused < 1000, "{name}: no mutant was read");
    }
}

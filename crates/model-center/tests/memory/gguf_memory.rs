//! Memory cost of false declarations in GGUF files. Alone in its process: it measures the process's own peak.

use std::fs::File;
use std::io::Write;

use model_center::formats::GgufFile;

use crate::peak;

const MIB: u64 = 1 << 20;

#[test]
fn a_huge_file_of_nothing_costs_nothing() {
    if !crate::is_alone("gguf_memory::a_huge_file_of_nothing_costs_nothing") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let before = peak();
    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    // A text; arrays of texts, of bytes, of truth values and of arrays: the file is long enough for each.
    let claims = [
        (8u32, (5u64 << 30).to_le_bytes().to_vec()),
        (9, array(8, 1 << 30)),
        (9, array(0, 5 << 30)),
        (9, array(7, 5 << 30)),
        (9, array(9, 1 << 28)),
    ];
    for (kind, claim) in claims {
        let mut file = File::create(&path).unwrap();
        // Version 3, no tensors, one key of one letter.
        for part in [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 8], &1u64.to_le_bytes(), &1u64.to_le_bytes(), b"x"] {
            file.write_all(part).unwrap();
        }
        file.write_all(&kind.to_le_bytes()).unwrap();
        file.write_all(&claim).unwrap();
        file.set_len(10 << 30).unwrap();
        let error = GgufFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("of the 128 MiB allowed before the tensors"), "{error}");
    }
    assert!(peak() - before < 4 * MIB, "{} bytes", peak() - before);
}

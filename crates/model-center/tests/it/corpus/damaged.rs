//! Token files that are cut off, swapped, foreign or contradict themselves: one error that names what is wrong, or
//! correct data; never a panic.

use std::fs;
use std::path::Path;

use model_center::corpus::{
    DocumentSet, SampleOptions, SampleOrder, Samples, TokenFile, index_path, token_path, verify,
};
use tempfile::{TempDir, tempdir};

use super::{golden, read};
use crate::mutants::{Random, replace};

fn copy(name: &str) -> (TempDir, std::path::PathBuf) {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    for path in [token_path, index_path] {
        fs::copy(path(&golden(name)), path(&prefix)).unwrap();
    }
    (directory, prefix)
}

/// The error of a corpus whose index has these bytes at an offset.
fn with_index(name: &str, offset: usize, bytes: &[u8]) -> String {
    let (_directory, prefix) = copy(name);
    let mut index = fs::read(index_path(&prefix)).unwrap();
    index[offset..offset + bytes.len()].copy_from_slice(bytes);
    fs::write(index_path(&prefix), index).unwrap();
    verify(&prefix, None).unwrap_err().to_string()
}

fn open_error(prefix: &Path) -> String {
    TokenFile::open(prefix).unwrap_err().to_string()
}

#[test]
fn what_is_wrong_with_an_index_is_named() {
    let far = (u64::MAX / 2).to_le_bytes();
    let cases: &[(usize, &[u8], &str)] = &[
        (0, b"PK", "does not begin with MMIDIDX"),
        (9, &2_u64.to_le_bytes(), "version 2"),
        (9, &1_u64.to_be_bytes(), "most significant byte first"),
        (17, &[7], "floating-point"),
        (17, &[0], "unknown dtype code 0"),
        (17, &[4], "sequence 7 starts at byte 34, between ids of 4 bytes"),
        (18, &far, "the header does not fit the file"),
        (26, &far, "the header does not fit the file"),
        (18, &9_u64.to_le_bytes(), "the file is cut off: 9 sequences"),
        // Lengths: negative, and one too long.
        (34, &(-1_i32).to_le_bytes(), "sequence 0 has -1 ids"),
        (34, &4_i32.to_le_bytes(), "sequence 1 starts with id 3, and the one before ends at 4"),
        (34 + 28, &3_i32.to_le_bytes(), "the file has 38 bytes, and its index describes 40"),
        // Starts: between ids, out of the file, overlapping.
        (34 + 32, &1_u64.to_le_bytes(), "sequence 0 starts at byte 1, between ids"),
        (34 + 32, &(u64::MAX - 1).to_le_bytes(), "sequence 0 is ids"),
        (34 + 40, &0_u64.to_le_bytes(), "sequence 1 starts with id 0"),
        // Documents: the first, the last, one out of order.
        (34 + 96, &1_u64.to_le_bytes(), "the documents are sequences 1 to 8"),
        (34 + 96 + 8, &6_u64.to_le_bytes(), "document 1 is sequences 6 to 3"),
        (34 + 96 + 48, &7_u64.to_le_bytes(), "the documents are sequences 0 to 7"),
    ];
    for (offset, bytes, found) in cases {
        let error = with_index("uint16", *offset, bytes);
        assert!(error.contains(found) && error.contains("/c."), "{found}: {error}");
    }
}

#[test]
fn what_is_wrong_with_an_index_of_the_format_before_is_named() {
    let far = (u64::MAX / 2).to_le_bytes();
    let cases: &[(usize, &[u8], &str)] = &[
        (8, &3_u64.to_le_bytes(), "version 3"),
        (16, &6_u64.to_le_bytes(), "floating-point"),
        (24, &4_u64.to_le_bytes(), "ids of 4 bytes with dtype code 8"),
        (32, &far, "with 8 sizes"),
        (48, &far, "the header does not fit the file"),
        (56 + 72 + 8, &far, "sequence 0 is ids"),
        (56 + 72 + 64, &far, "its index describes"),
    ];
    for (offset, bytes, found) in cases {
        let error = with_index("legacy", *offset, bytes);
        assert!(error.contains(found) && error.contains("/c."), "{found}: {error}");
    }
}

#[test]
fn truncated_and_swapped_files_are_named() {
    let (directory, prefix) = copy("uint16");
    let (data, index) = (fs::read(token_path(&prefix)).unwrap(), fs::read(index_path(&prefix)).unwrap());
    for end in 0..index.len() {
        replace(&index_path(&prefix), &index[..end]);
        let error = open_error(&prefix);
        assert!(error.contains("c.idx"), "{end}: {error}");
    }
    replace(&index_path(&prefix), &index);
    for end in 0..data.len() {
        replace(&token_path(&prefix), &data[..end]);
        assert!(open_error(&prefix).contains("c.bin: the file has"), "{end}");
    }
    // The two files, each under the other's name.
    replace(&token_path(&prefix), &index);
    replace(&index_path(&prefix), &data);
    assert!(open_error(&prefix).contains("not an index of a token file"));
    // The index of another corpus.
    replace(&token_path(&prefix), &data);
    fs::copy(index_path(&golden("mapped")), index_path(&prefix)).unwrap();
    assert!(open_error(&prefix).contains("its index describes"));
    fs::remove_file(index_path(&prefix)).unwrap();
    assert!(open_error(&prefix).contains("there is no such file"));
    assert!(open_error(directory.path()).contains("no such file"));
}

#[test]
fn lengths_that_the_file_has_no_ids_for_are_named_before_maps_are_made_by_them() {
    let (directory, prefix) = copy("uint16");
    let index = fs::read(index_path(&prefix)).unwrap();
    let error = |lengths: &[(usize, i32)]| {
        let mut index = index.clone();
        for (sequence, length) in lengths {
            index[34 + 4 * sequence..38 + 4 * sequence].copy_from_slice(&length.to_le_bytes());
        }
        fs::write(index_path(&prefix), &index).unwrap();
        let file = TokenFile::open(&prefix).unwrap();
        let documents = DocumentSet::range(0..file.sequences());
        let options = SampleOptions {
            sequence_length: 4,
            samples: 10,
            seed: 1,
            order: SampleOrder::Addressed,
            part: "train".into(),
            cache: None,
            threads: 1,
        };
        Samples::open(file.into(), &documents, &options).unwrap_err().to_string()
    };
    let tokens = TokenFile::open(&prefix).unwrap().tokens();
    assert!(error(&[(1, 3 + (1 << 24))]).contains("sequence 1 has 16777219 ids, and "));
    assert!(error(&[(1, i32::MAX)]).contains(&format!("c.bin has {tokens}")));
    // None of them alone is too long.
    let found = error(&[(0, 15), (1, 15)]);
    assert!(found.contains("sequences 0 to 8 have ") && found.contains("c.idx"), "{found}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no map is made");
}

#[test]
fn a_file_that_is_cut_off_while_it_is_open_is_an_error() {
    let (_directory, prefix) = copy("int64");
    let file = TokenFile::open(&prefix).unwrap();
    fs::OpenOptions::new().write(true).open(token_path(&prefix)).unwrap().set_len(8).unwrap();
    let error = file.read(3, 0, &mut [0; 7]).unwrap_err().to_string();
    assert!(error.contains("cut off after it was opened with 152 bytes"), "{error}");
}

#[test]
fn ids_beyond_the_vocabulary_and_negative_ones_are_named() {
    let error = verify(&golden("uint16"), Some(127)).unwrap_err().to_string();
    assert!(error.contains("id 12 of the file is 127, and the vocabulary has 127 tokens"), "{error}");
    assert_eq!(verify(&golden("uint16"), Some(128)).unwrap().documents, 6);
    let (_directory, prefix) = copy("int32");
    let mut data = fs::read(token_path(&prefix)).unwrap();
    data[4..8].copy_from_slice(&(-5_i32).to_le_bytes());
    fs::write(token_path(&prefix), data).unwrap();
    let error = verify(&prefix, None).unwrap_err().to_string();
    assert!(error.contains("id 1 of the file is -5, no token id"), "{error}");
}

#[test]
fn thousands_of_damaged_indexes_end_in_an_error_or_in_ids_of_the_file() {
    let mut random = Random(11);
    for name in ["uint16", "legacy", "mapped"] {
        let (_directory, prefix) = copy(name);
        let index = fs::read(index_path(&prefix)).unwrap();
        for _ in 0..1500 {
            let mut mutant = index.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(mutant.len());
                mutant[at] = match random.below(3) {
                    0 => random.next() as u8,
                    1 => mutant[at].wrapping_add(1),
                    _ => 0xFF,
                };
            }
            if random.below(4) == 0 {
                mutant.truncate(random.below(mutant.len()));
            }
            replace(&index_path(&prefix), &mutant);
            let _ = read(&prefix);
            let _ = verify(&prefix, Some(1000));
            if let Ok(file) = TokenFile::open(&prefix) {
                let _ = file.lengths(0, &mut vec![0; file.sequences() as usize]);
            }
        }
    }
}

/// A document of 10^8 tokens, whose ids are a hole in the file: samples of it come in constant memory.
#[test]
fn a_document_of_a_hundred_million_tokens_has_samples() {
    const TOKENS: u64 = 100_000_000;
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let mut index = b"MMIDIDX\0\0".to_vec();
    index.extend(1_u64.to_le_bytes());
    index.push(8);
    index.extend([1_u64, 2].map(u64::to_le_bytes).concat());
    index.extend((TOKENS as u32).to_le_bytes());
    index.extend([0_u64, 0, 1].map(u64::to_le_bytes).concat());
    fs::write(index_path(&prefix), index).unwrap();
    let data = fs::File::create(token_path(&prefix)).unwrap();
    data.set_len(2 * TOKENS).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&data, &[7, 0], 2 * TOKENS - 2).unwrap();
    let file = std::sync::Arc::new(TokenFile::open(&prefix).unwrap());
    let options = SampleOptions {
        sequence_length: 65_536,
        samples: 1,
        seed: 1,
        order: SampleOrder::Addressed,
        part: "train".into(),
        cache: None,
        threads: 1,
    };
    let samples = Samples::open(file, &DocumentSet::range(0..1), &options).unwrap();
    assert_eq!((samples.len(), samples.tokens_per_epoch()), ((TOKENS - 1) / 65_536, TOKENS));
    let file = TokenFile::open(&prefix).unwrap();
    let mut end = [1; 3];
    file.read(0, TOKENS - 3, &mut end).unwrap();
    assert_eq!(end, [0, 0, 7]);
}

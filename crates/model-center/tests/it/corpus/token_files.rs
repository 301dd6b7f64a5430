//! Token files: the bytes of both formats, what comes back, what interrupted writers leave.

use std::fs;

use model_center::corpus::{IndexFormat, TokenFile, TokenFileWriter, TokenType, index_path, token_path, verify};
use tempfile::tempdir;

use super::{golden, read, write};
use crate::mutants::Random;

fn documents() -> Vec<Vec<Vec<u32>>> {
    serde_json::from_str(&fs::read_to_string(golden("documents.json")).unwrap()).unwrap()
}

#[test]
fn files_of_every_dtype_are_written_byte_for_byte_and_read() {
    let directory = tempdir().unwrap();
    for token in TokenType::ALL {
        let prefix = directory.path().join(token.name());
        write(&prefix, token, &documents());
        for path in [token_path, index_path] {
            assert_eq!(fs::read(path(&prefix)).unwrap(), fs::read(path(&golden(token.name()))).unwrap(), "{token:?}");
        }
        assert_eq!(read(&golden(token.name())).unwrap(), documents(), "{token:?}");
        let file = TokenFile::open(golden(token.name())).unwrap();
        assert_eq!((file.format(), file.token_type()), (IndexFormat::Mmap, token));
    }
    let empty = directory.path().join("empty");
    write(&empty, TokenType::I32, &[]);
    assert_eq!(fs::read(index_path(&empty)).unwrap(), fs::read(index_path(&golden("empty"))).unwrap());
    assert_eq!(read(&golden("empty")).unwrap(), Vec::<Vec<Vec<u32>>>::new());
    assert_eq!(verify(&golden("empty"), Some(0)).unwrap().largest_id, None);
}

#[test]
fn the_format_before_is_read() {
    assert_eq!(read(&golden("legacy")).unwrap(), documents());
    let file = TokenFile::open(golden("legacy.idx")).unwrap();
    assert_eq!((file.format(), file.token_type(), file.tokens()), (IndexFormat::Legacy, TokenType::U16, 19));
    let mut lengths = [0; 9];
    file.lengths(0, &mut lengths[..file.sequences() as usize]).unwrap();
    assert_eq!(lengths[..8], [3, 1, 0, 7, 3, 2, 1, 2]);
    assert_eq!(verify(&golden("legacy"), Some(128)).unwrap().largest_id, Some(127));
}

#[test]
fn a_corpus_is_opened_by_its_prefix_or_by_either_file() {
    for name in ["uint16", "uint16.bin", "uint16.idx"] {
        assert_eq!(TokenFile::open(golden(name)).unwrap().sequences(), 8, "{name}");
    }
}

#[test]
fn random_documents_come_back_in_any_part() {
    let directory = tempdir().unwrap();
    let mut random = Random(5);
    for round in 0..20 {
        let token = TokenType::ALL[random.below(6)];
        let document = |random: &mut Random| {
            let sequence = |random: &mut Random| {
                (0..random.below(50)).map(|_| random.next() as u32 % (token.max_id() / 2 + 1)).collect()
            };
            (0..random.below(4)).map(|_| sequence(random)).collect::<Vec<Vec<u32>>>()
        };
        let documents: Vec<_> = (0..random.below(30)).map(|_| document(&mut random)).collect();
        let prefix = directory.path().join(format!("c{round}"));
        write(&prefix, token, &documents);
        assert_eq!(read(&prefix).unwrap(), documents);
        let file = TokenFile::open(&prefix).unwrap();
        let sequences = documents.concat();
        for (number, sequence) in sequences.iter().enumerate() {
            let from = random.below(sequence.len() + 1);
            let mut part = vec![0; random.below(sequence.len() - from + 1)];
            file.read(number as u64, from as u64, &mut part).unwrap();
            assert_eq!(part, sequence[from..from + part.len()]);
            let mut more = vec![0; sequence.len() - from + 1];
            assert!(file.read(number as u64, from as u64, &mut more).is_err());
        }
        let report = verify(&prefix, None).unwrap();
        assert_eq!(report.tokens, sequences.concat().len() as u64);
        assert_eq!(report.longest, sequences.iter().map(Vec::len).max().unwrap_or(0) as u64);
        assert!(file.sequence(file.sequences()).is_err() && file.document(file.documents()).is_err());
    }
}

#[test]
fn a_writer_continues_where_an_earlier_one_was_killed() {
    let directory = tempdir().unwrap();
    let (whole, prefix) = (directory.path().join("whole"), directory.path().join("parts"));
    let documents = documents();
    write(&whole, TokenType::U16, &documents);
    for stop in 1..documents.len() {
        let mut writer = TokenFileWriter::create(&prefix, TokenType::U16).unwrap();
        let add = |writer: &mut TokenFileWriter, document: &Vec<Vec<u32>>| {
            document.iter().for_each(|sequence| writer.add_sequence(sequence).unwrap());
            writer.end_document().unwrap();
        };
        documents[..stop].iter().for_each(|document| add(&mut writer, document));
        let position = writer.sync().unwrap();
        // What follows the last sync is written anew.
        documents[stop..].iter().for_each(|document| add(&mut writer, document));
        assert!(!index_path(&prefix).exists() && !token_path(&prefix).exists());
        drop(writer);
        let mut writer = TokenFileWriter::resume(&prefix, TokenType::U16, position).unwrap().unwrap();
        documents[stop..].iter().for_each(|document| add(&mut writer, document));
        writer.finish().unwrap();
        for path in [token_path, index_path] {
            assert_eq!(fs::read(path(&prefix)).unwrap(), fs::read(path(&whole)).unwrap(), "{stop}");
            fs::remove_file(path(&prefix)).unwrap();
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "hidden files are gone");
        assert!(TokenFileWriter::resume(&prefix, TokenType::U16, position).unwrap().is_none());
    }
}

#[test]
fn one_writer_at_a_time_and_none_over_a_corpus() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let writer = TokenFileWriter::create(&prefix, TokenType::U8).unwrap();
    let error = TokenFileWriter::create(&prefix, TokenType::U8).unwrap_err().to_string();
    assert!(error.contains("another process is writing"), "{error}");
    writer.finish().unwrap();
    let error = TokenFileWriter::create(&prefix, TokenType::U8).unwrap_err().to_string();
    assert!(error.contains("c.idx is there already"), "{error}");
    let mut writer = TokenFileWriter::create(&directory.path().join("d"), TokenType::U8).unwrap();
    let error = writer.add_sequence(&[255, 256]).unwrap_err().to_string();
    assert!(error.contains("token id 256 does not fit uint8"), "{error}");
}

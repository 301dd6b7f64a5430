//! Elements of random arrays, and thousands of damaged files.

use super::{loose, read, read_source, source};
use crate::mutants::{Random, replace};
use model_center::data::OnBadRecord;
use tempfile::tempdir;

#[test]
fn elements_of_random_arrays_come_back() {
    let mut random = Random(3);
    let pieces = ["\\", "\"", "]", "}", "{", "[", ",", "\n", "\u{E9}", "a", " ", "\u{1F600}"];
    for _ in 0..200 {
        let texts: Vec<String> =
            (0..random.below(8)).map(|_| (0..random.below(9)).map(|_| random.pick(&pieces)).collect()).collect();
        let expected: Vec<&String> = texts.iter().filter(|text| !text.trim().is_empty()).collect();
        let objects: Vec<_> = texts.iter().map(|text| serde_json::json!({"a": [text], "text": text})).collect();
        for array in [serde_json::json!(texts), serde_json::json!(objects)] {
            for content in [array.to_string(), serde_json::to_string_pretty(&array).unwrap()] {
                assert_eq!(read("a.json", &content).unwrap().iter().collect::<Vec<_>>(), expected, "{content}");
            }
        }
    }
}

#[test]
fn thousands_of_damaged_files_end_in_an_error_or_in_documents() {
    let mut random = Random(17);
    let directory = tempdir().unwrap();
    let gzip = {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(loose().as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let wiki = b"<doc id=\"1\">\na\n</doc>\n<doc id=\"2\">\nb &lt;\n</doc>\n".to_vec();
    for (name, content) in [
        ("a.json", serde_json::json!([{"text": "a"}, {"text": "b"}, "c"]).to_string().into_bytes()),
        ("a.jsonl", loose().into_bytes()),
        ("a.csv", b"text,n\n\"a \"\"b\"\"\",1\nc,2\n".to_vec()),
        ("a.jsonl.gz", gzip),
        ("a.jsonl.zst", zstd::encode_all(loose().as_bytes(), 1).unwrap()),
        ("wiki_00", wiki),
    ] {
        let path = directory.path().join(name);
        for _ in 0..300 {
            let mut mutant = content.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(mutant.len());
                mutant[at] = random.next() as u8;
            }
            if random.below(4) == 0 {
                mutant.truncate(random.below(mutant.len()));
            }
            replace(&path, &mutant);
            let _ = read_source(source(&path), OnBadRecord::Error);
            let _ = read_source(source(&path), OnBadRecord::Skip { max_share: 1.0 });
        }
    }
}

//! Documents of raw text: every format, compressed or not, and what is wrong with files from outside.

mod damage;

use model_center::corpus::text::{DocumentCounts, Documents, TextEncoding, TextFormat, TextSource, read_table};
use model_center::data::OnBadRecord;
use std::fs;
use std::path::Path;
use tempfile::tempdir;

fn source(path: &Path) -> TextSource {
    TextSource { max_document_bytes: 10_000, ..TextSource::new(vec![path.to_owned()]) }
}

fn read_source(source: TextSource, on_bad: OnBadRecord) -> Result<(Vec<String>, DocumentCounts), String> {
    let text = |error: model_center::Error| error.to_string();
    let mut documents = Documents::open(source, on_bad).map_err(text)?;
    let mut texts = Vec::new();
    while let Some(text) = documents.advance().map_err(text)? {
        texts.push(text);
    }
    assert!(documents.is_at_end() && documents.read_bytes() <= documents.total_bytes());
    Ok((texts, documents.counts()))
}

fn read_with(
    name: &str,
    content: impl AsRef<[u8]>,
    change: impl FnOnce(TextSource) -> TextSource,
) -> Result<Vec<String>, String> {
    let directory = tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, content).unwrap();
    read_source(change(source(&path)), OnBadRecord::Error).map(|(texts, _)| texts)
}

fn read(name: &str, content: impl AsRef<[u8]>) -> Result<Vec<String>, String> {
    read_with(name, content, |source| source)
}

const THREE: [&str; 3] = ["one, \"quoted\"", "two caf\u{E9}\nsecond line", "three \u{4E2D}\u{6587}"];

fn loose() -> String {
    THREE.iter().map(|text| format!("{}\n", serde_json::json!({"url": "a", "text": text}))).collect()
}

#[test]
fn every_format_gives_the_same_documents() {
    let objects: Vec<_> = THREE.iter().map(|text| serde_json::json!({"text": text, "n": [1, {"a": "]"}]})).collect();
    let array = serde_json::json!(objects);
    let wiki = |text: &str| format!("<doc id=\"1\" url=\"u\" title=\"t\">\n{text}\n\n</doc>\n");
    for (name, content) in [
        ("a.jsonl", loose()),
        ("a.json", loose()),
        ("a.json", array.to_string()),
        ("a.json", format!("\n {} \n", serde_json::to_string_pretty(&array).unwrap())),
        ("a.json", serde_json::json!(THREE).to_string()),
        ("a.csv", format!("n,text\n1,\"{}\"\n2,\"{}\"\n3,{}\n", THREE[0].replace('"', "\"\""), THREE[1], THREE[2])),
        ("wiki_07", THREE.map(wiki).concat()),
    ] {
        assert_eq!(read(name, &content).unwrap(), THREE, "{name}: {content}");
    }
    assert_eq!(read("a.tsv", "id\ttext\n1\ta \"b\n2\tc\n").unwrap(), ["a \"b", "c"]);
    assert_eq!(read("a.txt", THREE.join("\n\n")).unwrap(), [THREE.join("\n\n")]);
    let format = |format| move |source| TextSource { format: Some(format), ..source };
    assert_eq!(read_with("a", "\na\nb\r\n\n \n\nc", format(TextFormat::Paragraphs)).unwrap(), ["a\nb", "c"]);
    assert_eq!(read_with("a", "a\n\nb\n", format(TextFormat::Lines)).unwrap(), ["a", "b"]);
}

#[test]
fn keys_delimiters_and_encodings_are_options() {
    let key = |source| TextSource { key: "body.raw".into(), ..source };
    assert_eq!(read_with("a.jsonl", "{\"body\": {\"raw\": \"x\"}}\n", key).unwrap(), ["x"]);
    let semicolon = |source| TextSource { delimiter: ';', ..source };
    assert_eq!(read_with("a.csv", "n;text\n1;a, b\n", semicolon).unwrap(), ["a, b"]);
    let latin = |source| TextSource { encoding: TextEncoding::Latin1, ..source };
    assert_eq!(read_with("a.csv", b"text\ncaf\xE9\n", latin).unwrap(), ["caf\u{E9}"]);
    let error = read("a.csv", b"text\ncaf\xE9\n").unwrap_err();
    assert!(error.contains("a.csv:2:4: byte 0xE9 is not UTF-8"), "{error}");
}

#[test]
fn compressed_files_are_read_by_what_they_are() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(loose().as_bytes()).unwrap();
    let gzip = encoder.finish().unwrap();
    let zstd = zstd::encode_all(loose().as_bytes(), 1).unwrap();
    for (name, content) in [("a.jsonl.gz", &gzip), ("a.jsonl.zst", &zstd), ("a.jsonl", &gzip)] {
        assert_eq!(read(name, content).unwrap(), THREE, "{name}");
        let error = read(name, &content[..content.len() - 3]).unwrap_err();
        assert!(error.contains("damaged or cut off"), "{name}: {error}");
    }
}

#[test]
fn tight_and_loose_json_rows_of_any_delimiter_and_latin_1_can_be_compressed() {
    use std::io::Write;
    let gzip = |content: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |content: &[u8]| zstd::encode_all(content, 1).unwrap();
    let array = serde_json::json!(THREE.map(|text| serde_json::json!({"text": text}))).to_string();
    assert_eq!(read("a.json.gz", gzip(array.as_bytes())).unwrap(), THREE);
    assert_eq!(read("a.json.zst", zstd(array.as_bytes())).unwrap(), THREE);
    let wiki = "<doc id=\"1\" url=\"u\" title=\"t\">\nt\n\nbody\n</doc>\n";
    assert_eq!(read("wiki_12.gz", gzip(wiki.as_bytes())).unwrap(), ["t\n\nbody"]);
    for delimiter in [';', '|', '\t', '\u{1}', '\u{A7}'] {
        let rows = format!("n{delimiter}text\n1{delimiter}\"caf\u{E9}, {delimiter} \"\"b\"\"\"\n2{delimiter}\n");
        let latin: Vec<u8> = rows.chars().map(|character| u8::try_from(u32::from(character)).unwrap()).collect();
        let source = |source| TextSource { delimiter, encoding: TextEncoding::Latin1, ..source };
        // A row without a text is an empty document.
        let expected = [format!("caf\u{E9}, {delimiter} \"b\"")];
        assert_eq!(read_with("a.csv", &latin, source).unwrap(), expected, "{delimiter:?}");
        assert_eq!(read_with("a.csv.gz", gzip(&latin), source).unwrap(), expected, "{delimiter:?}");
    }
    let latin = |source| TextSource { encoding: TextEncoding::Latin1, ..source };
    assert_eq!(read_with("a.txt", b"caf\xE9", latin).unwrap(), ["caf\u{E9}"]);
    assert_eq!(read_with("a.tsv", b"text\ncaf\xE9\n", latin).unwrap(), ["caf\u{E9}"]);
}

#[test]
fn sources_with_options_of_their_own_follow_each_other() {
    let directory = tempdir().unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        source(&path)
    };
    let sources = vec![
        write("a.jsonl", b"{\"text\": \"first\"}\n"),
        TextSource {
            key: "body".into(),
            delimiter: ';',
            encoding: TextEncoding::Latin1,
            ..write("a.csv", b"n;body\n1;caf\xE9\n")
        },
        write("a.txt", b"third"),
    ];
    let mut documents = Documents::open_all(sources, OnBadRecord::Error).unwrap();
    for text in ["first", "caf\u{E9}", "third"] {
        assert!(!documents.is_at_end());
        assert_eq!(documents.advance().unwrap().unwrap(), text);
    }
    assert_eq!(documents.advance().unwrap(), None);
    assert!(documents.is_at_end() && documents.counts().documents == 3);
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_parquet_says_so() {
    let error = read("a.parquet", "PAR1").unwrap_err();
    assert!(error.contains("built without the feature parquet") && error.contains("a.parquet"), "{error}");
}

#[test]
fn directories_are_read_in_the_order_of_names() {
    let directory = tempdir().unwrap();
    for (name, text) in [("AB/wiki_00", "third"), ("AA/wiki_01", "second"), ("AA/wiki_00", "first"), (".git/x", "no")] {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("<doc id=\"1\">\n{text} &amp;lt; &lt;b&gt;\n</doc>\n")).unwrap();
    }
    let (texts, counts) = read_source(source(directory.path()), OnBadRecord::Error).unwrap();
    assert_eq!(texts, ["first", "second", "third"].map(|text| format!("{text} &lt; <b>")));
    assert_eq!(counts.documents, 3);
    let empty = tempdir().unwrap();
    assert!(read_source(source(empty.path()), OnBadRecord::Error).unwrap_err().contains("has no files"));
    assert!(read_source(source(&empty.path().join("no")), OnBadRecord::Error).unwrap_err().contains("no such file"));
    assert!(read("a.bin", "").unwrap_err().contains("does not determine the format"));
}

#[test]
fn empty_documents_and_bad_records_are_counted() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("a.jsonl");
    fs::write(&path, "{\"text\": \"a\"}\n{\"text\": \" \\n\"}\nbroken\n{\"texts\": 1}\n\n{\"text\": \"b\"}\n").unwrap();
    let error = read_source(source(&path), OnBadRecord::Error).unwrap_err();
    assert!(error.contains("a.jsonl:3:") && error.contains("broken JSON"), "{error}");
    let skip = |max_share| read_source(source(&path), OnBadRecord::Skip { max_share });
    let (texts, counts) = skip(0.5).unwrap();
    assert_eq!(texts, ["a", "b"]);
    assert_eq!(counts, DocumentCounts { documents: 2, bytes: 2, empty: 1, unusable: 2 });
    let error = skip(0.1).unwrap_err();
    assert!(error.contains("2 of 5 records are unusable") && error.contains("no column \"text\""), "{error}");
    assert!(!error.contains("data.bad_record_limit"), "{error}");
}

#[test]
fn what_is_wrong_with_a_file_is_named_by_line() {
    let text = "x".repeat(10_001);
    let long = format!("[\n\"{text}\"]");
    for (name, content, found) in [
        ("a.json", "[{\"text\": \"a\"},\n{\"text\": \"b\"", "a.json:2: the array is not closed"),
        ("a.json", "[{\"text\": \"a\"}", "the array is not closed"),
        ("a.json", "[{\"text\": \"a\"} {}]", "no comma between elements"),
        ("a.json", "[{\"text\": \"a\"},,{}]", "a character between elements"),
        ("a.json", "[{\"text\": \"a\"}]\nx", "a.json:2: text follows the array"),
        ("a.json", "[{\"text\": }]", "broken JSON"),
        ("a.json", "[7]", "neither an object nor a text"),
        ("a.json", "[a}]", "brackets do not match"),
        ("a.json", long.as_str(), "a.json:2: the element is longer than 10000 bytes"),
        ("wiki_00", "text\n", "wiki_00:1: text outside of documents"),
        ("wiki_00", "<doc id=\"1\">\ntext\n", "wiki_00:2: the last document is not closed"),
        ("a.txt", text.as_str(), "one document of more than 10000 bytes"),
        ("a.csv", "", "the file is empty"),
    ] {
        let error = read(name, content).unwrap_err();
        assert!(error.contains(found), "{found}: {error}");
    }
    let error = read("a.txt", b"a\nb\xE9").unwrap_err();
    assert!(error.contains("a.txt:2: byte 0xE9"), "{error}");
    let many = |text: &str| text.repeat(400);
    let paragraphs = |source| TextSource { format: Some(TextFormat::Paragraphs), ..source };
    let error = read_with("a", many("0123456789 0123456789 0123456789\n"), paragraphs).unwrap_err();
    assert!(error.contains("the document is longer than 10000 bytes"), "{error}");
    let error = read("wiki_1", many("<doc id=\"1\">\n0123456789\n")).unwrap_err();
    assert!(error.contains("not closed") || error.contains("longer than"), "{error}");
}

#[test]
fn a_table_names_corpora() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("corpora.toml");
    let table = "[wikipedia]\npaths = [\"wiki\"]\nformat = \"wiki\"\n\n[webtext]\npaths = [\"/a.csv\", \"b.csv\"]\n\
                 key = \"content\"\ndelimiter = \"|\"\nencoding = \"latin-1\"\nmax_document_bytes = 5\n";
    fs::write(&path, table).unwrap();
    let corpora = read_table(&path).unwrap();
    let wikipedia = &corpora["wikipedia"];
    assert_eq!(wikipedia.paths, [directory.path().join("wiki")]);
    assert_eq!((wikipedia.format, &*wikipedia.key), (Some(TextFormat::Wiki), "text"));
    let webtext = &corpora["webtext"];
    assert_eq!(webtext.paths, [Path::new("/a.csv").to_owned(), directory.path().join("b.csv")]);
    assert_eq!((webtext.delimiter, webtext.encoding, webtext.max_document_bytes), ('|', TextEncoding::Latin1, 5));
    for (text, found) in [
        ("[a]\npath = 3\n", "corpora.toml:"),
        ("[a]\nformat = \"wiki\"\n", "missing field `paths`"),
        ("[a]\npaths = []\nformat = \"pdf\"\n", "corpora.toml:3: unknown variant `pdf`"),
        ("[a\n", "corpora.toml:1:"),
    ] {
        fs::write(&path, text).unwrap();
        let error = read_table(&path).unwrap_err().to_string();
        assert!(error.contains(found), "{found}: {error}");
    }
}

//! Parquet files: documents and datasets from them, and what is wrong with files from outside.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model_center::corpus::text::{DocumentCounts, Documents, TextEncoding, TextRecord, TextSource};
use model_center::data::{ColumnTask, Dataset, OnBadRecord};
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{ByteArrayType, Int64Type};
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;
use tempfile::{TempDir, tempdir};

use crate::data::words::{Words, options};
use crate::mutants::{Random, replace};

const SCHEMA: &str = "message rows { required int64 id; optional binary text (UTF8); }";
const TEXTS: [Option<&str>; 7] = [
    Some("one"),
    None,
    Some("two caf\u{E9}\nsecond line"),
    Some(""),
    Some("\u{4E2D}\u{6587}"),
    Some("one"),
    Some("on"),
];
const MAX_BYTES: usize = 10_000;

/// Writes rows with a number and a text in groups.
pub fn write<T: AsRef<[u8]>>(
    path: &Path,
    groups: &[&[Option<T>]],
    change: impl FnOnce(WriterPropertiesBuilder) -> WriterPropertiesBuilder,
) {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = Arc::new(change(WriterProperties::builder()).build());
    let _ = fs::remove_file(path);
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let ids: Vec<i64> = (0..rows.len() as i64).collect();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
        let values: Vec<_> = rows.iter().flatten().map(|text| text.as_ref().to_vec().into()).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// A directory, and a file in it with [`TEXTS`] in two groups.
fn with_texts() -> (TempDir, PathBuf) {
    let directory = tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    write(&path, &[&TEXTS[..3], &TEXTS[3..]], |properties| properties);
    (directory, path)
}

fn source(path: &Path) -> TextSource {
    TextSource { max_document_bytes: MAX_BYTES, ..TextSource::new(vec![path.to_owned()]) }
}

fn read_source(source: TextSource, on_bad: OnBadRecord) -> Result<(Vec<String>, DocumentCounts), String> {
    let text = |error: model_center::Error| error.to_string();
    let mut documents = Documents::open(source, on_bad).map_err(text)?;
    let mut texts = Vec::new();
    while let Some(text) = documents.advance().map_err(text)? {
        texts.push(text);
    }
    assert_eq!(documents.read_bytes(), documents.total_bytes());
    Ok((texts, documents.counts()))
}

fn read(path: &Path) -> Result<Vec<String>, String> {
    read_source(source(path), OnBadRecord::Error).map(|(texts, _)| texts)
}

fn records(path: &Path, key: &str) -> Result<Vec<TextRecord>, String> {
    let text = |error: model_center::Error| error.to_string();
    let source = TextSource { key: key.into(), ..source(path) };
    let mut documents = Documents::open(source, OnBadRecord::Error).map_err(text)?;
    std::iter::from_fn(|| documents.advance_record().map_err(text).transpose()).collect()
}

/// [`TEXTS`] without empty ones.
fn expected() -> Vec<&'static str> {
    TEXTS.into_iter().flatten().filter(|text| !text.is_empty()).collect()
}

#[test]
fn every_compression_and_encoding_gives_the_same_documents() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    let counts =
        DocumentCounts { documents: 5, bytes: expected().iter().map(|t| t.len() as u64).sum(), empty: 2, unusable: 0 };
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::ZSTD(Default::default()),
    ];
    let encodings =
        [None, Some(Encoding::PLAIN), Some(Encoding::DELTA_LENGTH_BYTE_ARRAY), Some(Encoding::DELTA_BYTE_ARRAY)];
    for codec in codecs {
        for encoding in encodings {
            for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                write(&path, &[&TEXTS[..1], &[], &TEXTS[1..5], &TEXTS[5..]], |properties| {
                    let properties = properties.set_compression(codec).set_writer_version(version);
                    let properties = properties.set_data_page_row_count_limit(2).set_write_batch_size(1);
                    match encoding {
                        None => properties,
                        Some(encoding) => {
                            properties.set_dictionary_enabled(false).set_column_encoding("text".into(), encoding)
                        }
                    }
                });
                let found = read_source(source(&path), OnBadRecord::Error).unwrap();
                assert_eq!(found.0, expected(), "{codec:?} {encoding:?} {version:?}");
                assert_eq!(found.1, counts);
            }
        }
    }
}

#[test]
fn thousands_of_pages_and_groups_are_read_in_their_order() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    let texts: Vec<Option<String>> =
        (0..20_000).map(|at| (at % 7 != 0).then(|| format!("{at} {}", "x".repeat(at % 50)))).collect();
    let groups: Vec<&[Option<String>]> = texts.chunks(3_001).collect();
    write(&path, &groups, |properties| properties.set_data_page_row_count_limit(5).set_write_batch_size(5));
    assert!(read(&path).unwrap().iter().eq(texts.iter().flatten()));
}

#[test]
fn a_file_of_pyarrow_has_its_rows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet/texts.parquet");
    let six = "six ".repeat(40);
    let texts = ["one", "two caf\u{E9}\nsecond line", "\u{4E2D}\u{6587} \u{1F600}", "one", &six];
    assert_eq!(read(&path).unwrap(), texts);
    let large = TextSource { key: "large".into(), ..source(&path) };
    let (large, _) = read_source(large, OnBadRecord::Error).unwrap();
    assert!(large.iter().enumerate().all(|(at, text)| *text == format!("large {at}")) && large.len() == 7);
    let rows = records(&path, "label").unwrap();
    assert_eq!(rows.iter().map(|row| &*row.text).collect::<Vec<_>>(), ["yes", "no", "no", "yes", "no", "yes", "yes"]);
    let row = |at: usize| serde_json::Value::from(rows[at].fields.clone());
    assert_eq!(
        row(0),
        serde_json::json!({
            "text": "one", "large": "large 0", "label": "yes",
            "id": -3, "unsigned": u64::MAX, "score": f64::from(0.1_f32), "flag": true,
            "tags": ["a"], "meta": {"url": "u0"},
        })
    );
    assert_eq!((&row(2)["score"], &row(2)["flag"], &row(1)["text"]), (&().into(), &().into(), &().into()));
}

#[test]
fn a_column_that_is_no_text_is_named_with_those_that_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet/texts.parquet");
    for (key, found) in [
        ("txt", "no column \"txt\"; columns: text, large, label, id, unsigned, score, flag, tags, meta"),
        ("id", "the column \"id\" is of type INT64, not text"),
        ("tags", "the column \"tags\" is nested: a list, a map or a structure"),
        ("meta", "the column \"meta\" is nested"),
        (
            "meta.url",
            "\"meta.url\" names a part of the column \"meta\", and documents are read from a column of single texts",
        ),
    ] {
        let error = read_source(TextSource { key: key.into(), ..source(&path) }, OnBadRecord::Error).unwrap_err();
        assert!(error.contains(found) && error.contains("texts.parquet"), "{key}: {error}");
        assert!(error.contains("name a column of text; there are: text, large, label"), "{key}: {error}");
    }
}

#[test]
fn texts_that_cannot_be_used_are_named_by_row() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    let long = vec![b'x'; MAX_BYTES + 1];
    write(&path, &[&[Some(&b"a"[..]), Some(b"caf\xE9")], &[Some(&long), Some(b"b")]], |properties| properties);
    let error = read(&path).unwrap_err();
    assert!(error.contains("a.parquet, row 2") && error.contains("\"text\" has the byte 0xE9"), "{error}");
    let (texts, counts) = read_source(source(&path), OnBadRecord::Skip { max_share: 0.5 }).unwrap();
    assert_eq!((texts, counts.unusable), (vec!["a".to_owned(), "b".to_owned()], 2));
    let error = read_source(source(&path), OnBadRecord::Skip { max_share: 0.4 }).unwrap_err();
    assert!(error.contains("row 3: the text in column \"text\" makes the row longer than 10000 bytes"), "{error}");
    let latin = TextSource { encoding: TextEncoding::Latin1, ..source(&path) };
    let (texts, _) = read_source(latin, OnBadRecord::Skip { max_share: 0.5 }).unwrap();
    assert_eq!(texts, ["a", "caf\u{E9}", "b"]);
}

#[test]
fn a_file_without_rows_has_no_documents() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    for groups in [&[][..], &[&[][..]]] {
        write::<&str>(&path, groups, |properties| properties);
        assert_eq!(read(&path).unwrap(), [""; 0]);
    }
}

#[test]
fn a_file_cut_off_anywhere_is_an_error() {
    let (_directory, path) = with_texts();
    let whole = fs::read(&path).unwrap();
    for end in 0..whole.len() {
        replace(&path, &whole[..end]);
        let error = read(&path).unwrap_err();
        let expected = if end < 12 { "too short to be a Parquet file" } else { "cut off: it has no footer" };
        assert!(error.contains(expected), "{end}: {error}");
    }
    replace(&path, b"{\"text\": \"JSON lines\"}\n");
    assert!(read(&path).unwrap_err().contains("this is not a Parquet file"));
    let encrypted = [&whole[..whole.len() - 4], b"PARE"].concat();
    replace(&path, &encrypted);
    assert!(read(&path).unwrap_err().contains("encrypted"));
}

/// The file with its footer changed.
fn with_footer(whole: &[u8], change: impl FnOnce(ParquetMetaData) -> ParquetMetaData) -> Vec<u8> {
    let tail = whole.len() - 8;
    let size = u32::from_le_bytes(whole[tail..tail + 4].try_into().unwrap()) as usize;
    let metadata = ParquetMetaDataReader::decode_metadata(&whole[tail - size..tail]).unwrap();
    let mut bytes = whole[..tail - size].to_vec();
    ParquetMetaDataWriter::new(&mut bytes, &change(metadata)).finish().unwrap();
    bytes
}

/// The footer with the first row group changed, and as many rows as the groups have.
fn with_group(metadata: ParquetMetaData, change: impl FnOnce(RowGroupMetaData) -> RowGroupMetaData) -> ParquetMetaData {
    let mut groups = metadata.row_groups().to_vec();
    groups[0] = change(groups[0].clone());
    let rows = groups.iter().map(RowGroupMetaData::num_rows).sum();
    let schema = metadata.file_metadata().schema_descr_ptr();
    ParquetMetaData::new(FileMetaData::new(2, rows, None, None, schema, None), groups)
}

fn with_text(
    group: RowGroupMetaData,
    change: impl FnOnce(ColumnChunkMetaData) -> ColumnChunkMetaData,
) -> RowGroupMetaData {
    let columns = vec![group.column(0).clone(), change(group.column(1).clone())];
    group.into_builder().set_column_metadata(columns).build().unwrap()
}

#[test]
fn a_footer_with_wrong_offsets_is_found_out() {
    let (_directory, path) = with_texts();
    let whole = fs::read(&path).unwrap();
    let rows = |rows: i64| move |group: RowGroupMetaData| group.into_builder().set_num_rows(rows).build().unwrap();
    let group = |change: &dyn Fn(RowGroupMetaData) -> RowGroupMetaData| with_footer(&whole, |m| with_group(m, change));
    let text = |change: &dyn Fn(ColumnChunkMetaData) -> ColumnChunkMetaData| group(&|group| with_text(group, change));
    // The number of all rows, 7, before a list of two groups.
    let mut file_rows = whole.clone();
    let at = whole.windows(4).rposition(|bytes| bytes == [0x16, 14, 0x19, 0x2C]).unwrap();
    file_rows[at + 1] = 12;
    let sized = |size: u32| [&whole[..whole.len() - 8], &size.to_le_bytes(), b"PAR1"].concat();
    let huge = i64::MAX / 4;
    for (content, found) in [
        (file_rows, "do not add up to the rows of the file"),
        (group(&rows(-1)), "do not add up to the rows of the file"),
        (group(&rows(4)), "the column \"text\" has fewer rows than the footer states: it ends before row 4"),
        (group(&rows(huge)), "fewer rows"),
        (group(&rows(2)), "the column \"text\" has more rows than the footer states"),
        (text(&|c| c.into_builder().set_total_compressed_size(huge).build().unwrap()), "outside of the file"),
        (text(&|c| c.into_builder().set_total_compressed_size(-5).build().unwrap()), "outside of the file"),
        (
            text(&|c| c.into_builder().set_dictionary_page_offset(None).set_data_page_offset(-5).build().unwrap()),
            "outside of the file",
        ),
        (text(&|c| c.into_builder().set_total_compressed_size(9).build().unwrap()), "damaged"),
        (text(&|c| c.into_builder().set_compression(Compression::LZ4_RAW).build().unwrap()), "compressed with LZ4_RAW"),
        (text(&|c| c.into_builder().set_file_path("b".into()).build().unwrap()), "is in another file"),
        (sized(u32::MAX), "its footer has 4294967295 bytes"),
        (sized(20), "the Parquet file is damaged"),
    ] {
        replace(&path, &content);
        let error = read(&path).expect_err(found);
        assert!(error.contains(found) && error.contains("a.parquet"), "{found}: {error}");
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A structure of numbers that begin with the first field.
fn structure(numbers: &[i32]) -> Vec<u8> {
    let field = |number: &i32| [vec![0x15], varint(u64::from((number << 1 ^ number >> 31).cast_unsigned()))].concat();
    numbers.iter().flat_map(field).chain([0]).collect()
}

/// Its kind, its bytes without compression, the field of the numbers of its kind, the numbers, and what is stored.
type Page<'a> = (i32, i32, u8, &'a [i32], &'a [u8]);

/// A file with one required column of text whose pages are given.
fn hand_made(path: &Path, codec: Compression, rows: i64, pages: &[Page<'_>]) {
    let mut bytes = b"PAR1".to_vec();
    for (kind, plain, field, numbers, page) in pages {
        let mut header = structure(&[*kind, *plain, page.len() as i32]);
        header.pop();
        header.push((field - 3) << 4 | 0x0C);
        bytes.extend([header, structure(numbers), vec![0], page.to_vec()].concat());
    }
    let schema =
        Arc::new(SchemaDescriptor::new(Arc::new(parse_message_type("message m { required binary text; }").unwrap())));
    let column = ColumnChunkMetaData::builder(schema.column(0)).set_compression(codec).set_num_values(rows);
    let column = column.set_data_page_offset(4).set_total_compressed_size(bytes.len() as i64 - 4).build().unwrap();
    let group = RowGroupMetaData::builder(Arc::clone(&schema)).set_num_rows(rows).set_column_metadata(vec![column]);
    let file = FileMetaData::new(2, rows, None, None, schema, None);
    ParquetMetaDataWriter::new(&mut bytes, &ParquetMetaData::new(file, vec![group.build().unwrap()])).finish().unwrap();
    replace(path, &bytes);
}

#[test]
fn no_page_takes_more_memory_than_it_has_bytes() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    let plain = [&[3, 0, 0, 0][..], b"one"].concat();
    let made = |codec, pages: &[Page<'_>]| {
        hand_made(&path, codec, 1, pages);
        read(&path)
    };
    let (none, gzip) = (Compression::UNCOMPRESSED, Compression::GZIP(Default::default()));
    let data = |values, encoding| [values, encoding, 3, 3];
    assert_eq!(made(none, &[(0, 7, 5, &data(1, 0), &plain)]).unwrap(), ["one"]);
    // Empty pages and pages of other kinds are passed.
    let pages: [Page<'_>; 3] = [(0, 0, 5, &data(0, 0), b""), (1, 3, 6, &[], b"abc"), (0, 7, 5, &data(1, 0), &plain)];
    assert_eq!(made(none, &pages).unwrap(), ["one"]);
    let bomb = {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&vec![0; 1 << 20]).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = zstd::encode_all(&vec![0; 1 << 20][..], 1).unwrap();
    // Lengths of 2^40 texts, and of 2^26 that take no bit.
    let endless = [vec![0x80, 1, 1], varint(1 << 40), vec![0, 0, 0]].concat();
    let many = [varint(1 << 26), vec![1], varint(1 << 26), vec![0, 0, 0]].concat();
    let most = 1 << 26;
    for (codec, pages, found) in [
        (none, (0, i32::MAX, 5, &data(1, 0)[..], &plain[..]), "a page has 2147483647 bytes, more than 67108864"),
        (none, (0, -7, 5, &data(1, 0), &plain), "the header of a page is broken"),
        (none, (0, 7, 5, &data(-1, 0), &plain), "the header of a page is broken"),
        (none, (0, 7, 5, &data(1, 77), &plain), "a page has an unknown encoding"),
        (none, (0, 7, 5, &data(2, 0), &plain), "damaged"),
        (gzip, (0, 100, 5, &data(1, 0), &bomb), "a page has not the length that its header states"),
        (Compression::ZSTD(Default::default()), (0, 100, 5, &data(1, 0), &zstd), "a page has not the length"),
        (Compression::SNAPPY, (0, most, 5, &data(1, 0), &plain), "a page has not the length"),
        (gzip, (0, 100, 5, &data(1, 0), &plain), "a page cannot be decompressed"),
        (none, (2, 7, 7, &[i32::MAX, 0], &plain), "the header of a page contradicts its contents"),
        (none, (0, 10, 5, &data(1, 6), &endless), "lengths of texts contradict the header"),
        (none, (0, 14, 5, &data(i32::MAX, 6), &many), "lengths of texts contradict the header"),
        (none, (0, 14, 5, &data(i32::MAX, 7), &many), "lengths of texts contradict the header"),
        (none, (0, 7, 5, &data(1, 8), &plain), "damaged"),
    ] {
        let error = made(codec, &[pages]).unwrap_err();
        assert!(error.contains(found), "{found}: {error}");
    }
}

#[test]
fn thousands_of_damaged_files_end_in_an_error_or_in_documents() {
    let (_directory, path) = with_texts();
    let mut random = Random(39);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet/texts.parquet");
    let mut wholes = vec![fs::read(golden).unwrap()];
    for (encoding, version) in [
        (Encoding::PLAIN, WriterVersion::PARQUET_1_0),
        (Encoding::DELTA_LENGTH_BYTE_ARRAY, WriterVersion::PARQUET_2_0),
        (Encoding::DELTA_BYTE_ARRAY, WriterVersion::PARQUET_1_0),
    ] {
        write(&path, &[&TEXTS[..3], &TEXTS[3..]], |properties| {
            properties
                .set_dictionary_enabled(false)
                .set_column_encoding("text".into(), encoding)
                .set_writer_version(version)
        });
        wholes.push(fs::read(&path).unwrap());
    }
    for whole in wholes {
        for _ in 0..1_500 {
            let mut mutant = whole.clone();
            for _ in 0..=random.below(3) {
                // Half of the damage is in the footer.
                let from = if random.below(2) == 0 { 0 } else { whole.len() / 2 };
                let at = from + random.below(whole.len() - from);
                mutant[at] = random.next() as u8;
            }
            replace(&path, &mutant);
            let text = |error: model_center::Error| error.to_string();
            let mut documents = match Documents::open(source(&path), OnBadRecord::Skip { max_share: 1.0 }) {
                Ok(documents) => documents,
                Err(error) => panic!("{}", text(error)),
            };
            // Footers may promise any number of rows, and pages repeat a value as often.
            let _ = (0..1_000).try_for_each(|_| documents.advance_record().map_err(text).map(|_| ()));
        }
    }
}

#[test]
fn datasets_are_read_by_column() {
    let words = Words::new();
    let directory = tempdir().unwrap();
    let read = |name: &str, task: &ColumnTask| -> Result<Dataset, String> {
        task.read(&directory.path().join(name), &options(&words)).map_err(|error| error.to_string())
    };
    let rows = [Some("a b"), Some("c"), Some("d")];
    write(&directory.path().join("a.parquet"), &[&rows[..2], &rows[2..]], |properties| properties);
    fs::write(
        directory.path().join("a.jsonl"),
        "{\"text\": \"a b\", \"id\": 0}\n{\"text\": \"c\", \"id\": 1}\n{\"text\": \"d\", \"id\": 0}\n",
    )
    .unwrap();
    let task = ColumnTask { label: "id".into(), ..ColumnTask::default() };
    assert_eq!(read("a.parquet", &task).unwrap().fingerprint(), read("a.jsonl", &task).unwrap().fingerprint());
    let error = read("a.parquet", &ColumnTask { label: "label".into(), ..task.clone() }).unwrap_err();
    assert!(error.contains("a.parquet, row 1") && error.contains("no column \"label\"; columns: id, text"), "{error}");
    write(&directory.path().join("a.parquet"), &[&[Some("a"), None]], |properties| properties);
    let error = read("a.parquet", &task).unwrap_err();
    assert!(error.contains("a.parquet, row 2") && error.contains("\"text\" is null"), "{error}");
}

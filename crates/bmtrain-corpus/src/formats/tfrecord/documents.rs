//! Files of records as documents: each record is one, of the ids before masking where it has masked ones.

use std::path::Path;

use super::super::{DocumentPart, DocumentWriter, TokenDocuments, require_free, sized};
use super::bert::{BertRecord, POSITIONS};
use super::{Example, Feature, TfRecordReader, TfRecordWriter};
use crate::{Error, Result};

/// The documents of a file.
#[derive(Debug)]
pub(in super::super) struct RecordDocuments {
    reader: TfRecordReader,
    key: String,
    total: u64,
    in_document: bool,
}

impl RecordDocuments {
    pub(in super::super) fn open(path: &Path, key: &str) -> Result<RecordDocuments> {
        let total = sized(vec![path.to_owned()])?.iter().map(|(_, bytes)| bytes).sum();
        let reader = TfRecordReader::open(path)?;
        Ok(RecordDocuments { reader, key: key.to_owned(), total, in_document: false })
    }
}

impl TokenDocuments for RecordDocuments {
    fn advance(&mut self, ids: &mut Vec<u32>) -> Result<Option<DocumentPart>> {
        if std::mem::take(&mut self.in_document) {
            return Ok(Some(DocumentPart::End));
        }
        let Some(record) = self.reader.advance()? else { return Ok(None) };
        let read = ids_of(record, &self.key, ids);
        read.map_err(|reason| match self.reader.wrong(&reason) {
            Error::Data { place, reason, .. } => Error::data(place, reason, "name the feature of the ids with --key"),
            other => other,
        })?;
        self.in_document = true;
        Ok(Some(DocumentPart::Sequence))
    }

    fn total_bytes(&self) -> u64 {
        self.total
    }

    fn read_bytes(&self) -> u64 {
        self.reader.read_bytes()
    }
}

/// The ids of a record.
fn ids_of(record: &[u8], key: &str, ids: &mut Vec<u32>) -> std::result::Result<(), String> {
    let example = Example::read(record)?;
    ids.clear();
    if example.get(POSITIONS).is_some() {
        *ids = BertRecord::read(&example)?.restored();
        return Ok(());
    }
    for value in example.integers(key)? {
        ids.push(u32::try_from(*value).map_err(|_| format!("{value} in the feature {key:?} is not a token id"))?);
    }
    Ok(())
}

/// Writes each document as a record with one feature, its ids.
#[derive(Debug)]
pub(in super::super) struct DocumentRecords {
    writer: TfRecordWriter,
    key: String,
    document: Vec<i64>,
}

impl DocumentRecords {
    pub(in super::super) fn create(path: &Path, key: &str) -> Result<DocumentRecords> {
        require_free(path)?;
        Ok(DocumentRecords { writer: TfRecordWriter::create(path)?, key: key.to_owned(), document: Vec::new() })
    }
}

impl DocumentWriter for DocumentRecords {
    fn add_sequence(&mut self, ids: &[u32]) -> Result<()> {
        self.document.extend(ids.iter().map(|id| i64::from(*id)));
        Ok(())
    }

    fn end_document(&mut self) -> Result<()> {
        let ids = Feature::Integers(std::mem::take(&mut self.document));
        self.writer.add(&Example { features: vec![(self.key.clone(), ids)] }.write())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.writer.finish()
    }
}

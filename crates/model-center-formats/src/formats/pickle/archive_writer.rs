//! The zip container being written: entries as they are, each on a round place of the file.

use std::os::unix::fs::FileExt;

use crc32fast::Hasher;

use super::archive::MAGIC;
use crate::Result;
use model_center_base::file::AtomicFile;

/// The one directory of the archive, as PyTorch names it where it has no file name.
const DIRECTORY: &str = "archive";
/// Data begin on a multiple of this, so that a mapped file can be used in place.
const ALIGNMENT: u64 = 64;
/// The extra field that fills up to there; its number is the one PyTorch uses.
const PADDING: u16 = 0x4246;
/// From here on a size or an offset needs a field for large archives.
const LARGE: u64 = 0xffff_ffff;

#[derive(Debug)]
pub(super) struct ArchiveWriter<'a> {
    file: &'a AtomicFile,
    at: u64,
    list: Vec<u8>,
    count: u64,
}

/// An entry whose data are written next.
#[derive(Debug)]
pub(super) struct EntryWriter<'w, 'a> {
    archive: &'w mut ArchiveWriter<'a>,
    name: String,
    header: u64,
    bytes: u64,
    checksum: Hasher,
}

impl<'a> ArchiveWriter<'a> {
    pub(super) fn new(file: &'a AtomicFile) -> Self {
        Self { file, at: 0, list: Vec::new(), count: 0 }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.file().write_all_at(bytes, self.at).map_err(|e| self.file.refused(e))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn entry(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let mut entry = self.begin(name, data.len() as u64)?;
        entry.put(data)?;
        entry.end()
    }

    pub(super) fn begin(&mut self, name: &str, bytes: u64) -> Result<EntryWriter<'_, 'a>> {
        let name = format!("{DIRECTORY}/{name}");
        let mut extra = Vec::new();
        if bytes >= LARGE {
            extra.extend(1u16.to_le_bytes());
            extra.extend(16u16.to_le_bytes());
            extra.extend(bytes.to_le_bytes());
            extra.extend(bytes.to_le_bytes());
        }
        let before = self.at + (30 + name.len() + extra.len() + 4) as u64;
        let padding = before.next_multiple_of(ALIGNMENT) - before;
        extra.extend(PADDING.to_le_bytes());
        extra.extend((padding as u16).to_le_bytes());
        extra.resize(extra.len() + padding as usize, b'Z');
        let mut header = MAGIC.to_vec();
        header.extend(fixed(0, bytes, bytes));
        header.extend((name.len() as u16).to_le_bytes());
        header.extend((extra.len() as u16).to_le_bytes());
        header.extend(name.as_bytes());
        header.extend(extra);
        let at = self.at;
        self.put(&header)?;
        Ok(EntryWriter { archive: self, name, header: at, bytes, checksum: Hasher::new() })
    }

    pub(super) fn finish(mut self) -> Result<()> {
        let list = std::mem::take(&mut self.list);
        let (start, bytes) = (self.at, list.len() as u64);
        self.put(&list)?;
        if start >= LARGE || bytes >= LARGE || self.count >= 0xffff {
            let end64 = self.at;
            let mut record = b"PK\x06\x06".to_vec();
            record.extend(44u64.to_le_bytes());
            record.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            for number in [self.count, self.count, bytes, start] {
                record.extend(number.to_le_bytes());
            }
            record.extend(b"PK\x06\x07\0\0\0\0");
            record.extend(end64.to_le_bytes());
            record.extend(1u32.to_le_bytes());
            self.put(&record)?;
        }
        let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
        let count = u16::try_from(self.count).unwrap_or(u16::MAX);
        end.extend(count.to_le_bytes());
        end.extend(count.to_le_bytes());
        end.extend(short(bytes).to_le_bytes());
        end.extend(short(start).to_le_bytes());
        end.extend(0u16.to_le_bytes());
        self.put(&end)
    }
}

impl EntryWriter<'_, '_> {
    pub(super) fn put(&mut self, data: &[u8]) -> Result<()> {
        self.checksum.update(data);
        self.archive.put(data)
    }

    /// Put the checksum into the entry's header and the entry into the list.
    pub(super) fn end(self) -> Result<()> {
        let EntryWriter { archive, name, header, bytes, checksum } = self;
        let checksum = checksum.finalize();
        archive.file.file().write_all_at(&checksum.to_le_bytes(), header + 14).map_err(|e| archive.file.refused(e))?;
        let large: Vec<u8> =
            [bytes, bytes, header].into_iter().filter(|number| *number >= LARGE).flat_map(u64::to_le_bytes).collect();
        let list = &mut archive.list;
        list.extend(b"PK\x01\x02\x2d\0");
        list.extend(fixed(checksum, bytes, bytes));
        list.extend((name.len() as u16).to_le_bytes());
        list.extend((if large.is_empty() { 0 } else { large.len() as u16 + 4 }).to_le_bytes());
        // No comment, the first disk, no attributes.
        list.extend([0; 10]);
        list.extend(short(header).to_le_bytes());
        list.extend(name.as_bytes());
        if !large.is_empty() {
            list.extend(1u16.to_le_bytes());
            list.extend((large.len() as u16).to_le_bytes());
            list.extend(large);
        }
        archive.count += 1;
        Ok(())
    }
}

/// Common fields of an entry's own header and the list, from the version to the sizes. The date is the first that the
/// format knows, so that equal tensors give equal bytes.
fn fixed(checksum: u32, packed: u64, bytes: u64) -> Vec<u8> {
    let mut out = vec![45, 0, 0, 8, 0, 0, 0, 0, 0x21, 0];
    out.extend(checksum.to_le_bytes());
    out.extend(short(packed).to_le_bytes());
    out.extend(short(bytes).to_le_bytes());
    out
}

/// The short form of a size or offset; all ones if it is in a field for large archives.
fn short(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::archive::Archive;
    use super::super::state::tensors;
    use super::super::writer::pickle_of;
    use super::*;
    use crate::formats::safetensors::{StoredDtype, TensorEntry};
    use model_center_base::file::open_regular;

    /// Opens the written file and returns the offsets of its tensors.
    fn starts(path: &std::path::Path) -> Vec<u64> {
        let (file, length) = open_regular(path).unwrap();
        let (archive, object) = Archive::open(path, &file, 0..length).unwrap();
        let state = tensors(path, &object, &mut |storage| archive.locate(path, &file, storage)).unwrap();
        state.tensors.into_iter().map(|(_, view)| view.start).collect()
    }

    #[test]
    fn entries_beyond_four_gib_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large.pt");
        let large = 5u64 << 30;
        let entries = [("large", large as usize / 4), ("after", 3)]
            .map(|(name, n)| TensorEntry::new(name, StoredDtype::F32, [n]));
        let file = AtomicFile::create(&path).unwrap();
        let mut archive = ArchiveWriter::new(&file);
        archive.entry("data.pkl", &pickle_of(&entries)).unwrap();
        let data = archive.begin("data/0", large).unwrap();
        // A hole in place of the data: nothing looks at them.
        data.archive.at += large;
        data.end().unwrap();
        archive.entry("data/1", &[7; 12]).unwrap();
        archive.finish().unwrap();
        file.commit().unwrap();
        let starts = starts(&path);
        assert!(starts.iter().all(|start| start.is_multiple_of(ALIGNMENT)), "{starts:?}");
        assert!(starts[1] >= starts[0] + large, "{starts:?}");
        let mut got = [0; 12];
        std::fs::File::open(&path).unwrap().read_exact_at(&mut got, starts[1]).unwrap();
        assert_eq!(got, [7; 12]);
    }

    #[test]
    fn more_entries_than_the_short_list_can_count_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("many.pt");
        let file = AtomicFile::create(&path).unwrap();
        let mut archive = ArchiveWriter::new(&file);
        for i in 1..70_000 {
            archive.entry(&format!("data/{i}"), b"").unwrap();
        }
        archive.entry("data.pkl", &pickle_of(&[TensorEntry::new("a", StoredDtype::F32, [1])])).unwrap();
        archive.entry("data/0", &[0; 4]).unwrap();
        archive.finish().unwrap();
        file.commit().unwrap();
        assert_eq!(starts(&path).len(), 1);
    }
}

//! The list of block files of a dataset, `meta.bin`: a pickled list of BMTrain's class `FileInfo`.
//!
//! Defines [`BlockFiles`]. Each entry is a call of that class with version 1 and file name, first block, end, bytes of
//! all pickles, records and whether the file is masked. Blocks are numbered through all files.

use std::ops::Range;
use std::path::Path;

use super::blocks::META;
use super::numpy::{global, integer, read_pickle, text};
use crate::{Error, Result};
use model_center_base::file::{check_name, write_atomic};
use model_center_data::corpus::positioned::PositionedFile;
use model_center_formats::pickle::{Id, PlainPickle, Value, opcode};

/// The module of the class in ModelCenter; others have copies of it.
const MODULE: &str = "model_center.dataset.distributed_dataset";
/// Block numbers beyond are no real ones.
const MAX_BLOCKS: u64 = 1 << 40;

/// A file of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockFile {
    /// Its name in the directory.
    pub name: String,
    /// Its blocks, numbered through all files.
    pub blocks: Range<u64>,
    /// Bytes of the pickles of its records.
    pub bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Whether it is left out when the dataset is read.
    pub is_masked: bool,
}

/// The files of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockFiles {
    /// The module of the class, as in the file that was read.
    module: String,
    /// In the order of their blocks.
    pub files: Vec<BlockFile>,
}

impl Default for BlockFiles {
    fn default() -> Self {
        BlockFiles { module: MODULE.into(), files: Vec::new() }
    }
}

impl BlockFiles {
    /// Reads the list of a directory.
    ///
    /// # Errors
    /// [`Error::Data`] for anything but a list of files whose blocks follow each other.
    pub fn read(directory: &Path) -> Result<BlockFiles> {
        let file = PositionedFile::open(&directory.join(META))?;
        let (pickle, _) = read_pickle(&file, 0, file.length())?;
        let wrong = |what: String| file.corrupt(format!("{what} in the list of block files"));
        let entries = pickle.members(pickle.root());
        let entries = entries.ok_or_else(|| wrong(format!("{} as the whole", pickle.describe(pickle.root()))))?;
        let mut read = BlockFiles::default();
        let mut next = 0;
        for (at, id) in entries.iter().enumerate() {
            let (module, entry) = entry(&pickle, *id).ok_or_else(|| wrong(format!("entry {at} is not a FileInfo")))?;
            check_name(directory, &entry.name).map_err(model_center_formats::io::input::of_data)?;
            if entry.blocks.start != next || entry.blocks.is_empty() || entry.blocks.end > MAX_BLOCKS {
                let Range { start, end } = entry.blocks;
                return Err(wrong(format!("{} has the blocks {start} to {end} after {next}", entry.name)));
            }
            next = entry.blocks.end;
            read.module = module;
            read.files.push(entry);
        }
        Ok(read)
    }

    /// The files that are read: not masked, and there.
    pub(super) fn readable<'a>(&'a self, directory: &'a Path) -> impl Iterator<Item = &'a BlockFile> {
        self.files.iter().filter(|file| !file.is_masked && directory.join(&file.name).exists())
    }

    /// Appends a file after the last block.
    pub(super) fn append(&mut self, name: String, blocks: u64, records: u64, bytes: u64) {
        let start = self.files.last().map_or(0, |file| file.blocks.end);
        self.files.push(BlockFile { name, blocks: start..start + blocks, bytes, records, is_masked: false });
    }

    /// Writes the list, which replaces one that is there.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let mut out = vec![opcode::PROTO, 4, opcode::EMPTY_LIST, opcode::MARK];
        for BlockFile { name, blocks, bytes, records, is_masked } in &self.files {
            // A method of a class is found by a call that looks its name up in the class.
            global("builtins", "getattr", &mut out);
            global(&self.module, "FileInfo", &mut out);
            text("_load_from_state", &mut out);
            out.extend([opcode::TUPLE2, opcode::REDUCE, opcode::BININT1, 1, opcode::MARK]);
            text(name, &mut out);
            for number in [blocks.start, blocks.end, *bytes, *records] {
                integer(number, &mut out);
            }
            out.push(if *is_masked { opcode::NEWTRUE } else { opcode::NEWFALSE });
            out.extend([opcode::TUPLE, opcode::TUPLE2, opcode::REDUCE]);
        }
        out.extend([opcode::APPENDS, opcode::STOP]);
        write_atomic(&directory.join(META), &out)
    }

    /// The entry of a file.
    pub(super) fn get_mut(&mut self, directory: &Path, name: &str) -> Result<&mut BlockFile> {
        let known: Vec<&str> = self.files.iter().map(|file| &*file.name).collect();
        let reason = format!("unknown file {name:?}; {} has {}", directory.display(), known.join(", "));
        let found = self.files.iter_mut().find(|file| file.name == name);
        found.ok_or_else(|| Error::argument("name", reason, "name one of these"))
    }
}

/// The module of the class, and what an entry states.
fn entry(pickle: &PlainPickle, id: Id) -> Option<(String, BlockFile)> {
    let Value::Call(call) = pickle.value(id)? else { return None };
    let (_, "getattr", method) = pickle.call(call.callee)? else { return None };
    let [class, method] = pickle.members(method.arguments)? else { return None };
    let Value::Global(class) = pickle.value(*class)? else { return None };
    let [version, fields] = pickle.members(call.arguments)? else { return None };
    if class.name != "FileInfo" || pickle.text(*method)? != "_load_from_state" || pickle.integer(*version)? != 1 {
        return None;
    }
    let [name, start, end, bytes, records, mask] = pickle.members(*fields)? else { return None };
    let number = |id: &Id| u64::try_from(pickle.integer(*id)?).ok();
    let Value::Truth(is_masked) = pickle.value(*mask)? else { return None };
    let file = BlockFile {
        name: pickle.text(*name)?.to_owned(),
        blocks: number(start)?..number(end)?,
        bytes: number(bytes)?,
        records: number(records)?,
        is_masked: *is_masked,
    };
    Some((class.module.clone(), file))
}

//! Operations on whole datasets of block files: shuffle, compact, mask.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use bmtrain_core::philox::Key;

use super::block_files::{BlockFile, BlockFiles};
use super::blocks::{BlockWriter, Records};
use crate::{Error, Result};
use bmtrain_dist::order::Permutation;

/// Writes the records of a dataset in a random order to a new one, and returns their number.
///
/// The order is a function of `seed` and the number of records alone. Records are dealt to temporary files of about
/// `bucket_bytes`, and each file is then put in order in memory. Blocks are as large as in the first file.
///
/// # Errors
/// [`Error::Argument`] if the result is there; [`Error::Data`] for damaged files; [`Error::File`] if reading or writing
/// fails.
pub fn shuffle_blocks(from: &Path, to: &Path, seed: u64, bucket_bytes: u64) -> Result<u64> {
    let files = BlockFiles::read(from)?;
    let files: Vec<&BlockFile> = files.readable(from).collect();
    let Some(first) = files.first() else {
        let fix = "unmask files, or restore those that are missing";
        return Err(Error::data(from.display().to_string(), "there is no file to read in the dataset", fix));
    };
    let (records, bytes) =
        files.iter().fold((0, 0), |(records, bytes), file| (records + file.records, bytes + file.bytes));
    let mut writer = BlockWriter::create(to, Records::open(from, first)?.block_bytes())?;
    let buckets = bytes.div_ceil(bucket_bytes.max(1)).clamp(1, 512);
    let mut dealt = (0..buckets).map(|_| Bucket::create(writer.directory())).collect::<Result<Vec<_>>>()?;
    let order = Permutation::new(Key::new(seed, "corpus blocks"), [0; 3], records);
    let (mut number, mut pickle) = (0, Vec::new());
    for file in files {
        let mut walk = Records::open(from, file)?;
        while let Some((_, range)) = walk.advance()? {
            pickle.resize((range.end - range.start) as usize, 0);
            walk.file.read_at(range.start, &mut pickle)?;
            // Each place of the result once, so that buckets have places that follow each other.
            let place = order.at(number).unwrap_or(number);
            let bucket = (u128::from(place) * u128::from(buckets) / u128::from(records.max(1))) as usize;
            dealt[bucket].put(place, &pickle)?;
            number += 1;
        }
    }
    for bucket in dealt {
        let mut records = bucket.take()?;
        records.sort_unstable_by_key(|(place, _)| *place);
        records.iter().try_for_each(|(_, pickle)| writer.add_record(pickle))?;
    }
    writer.complete()?;
    Ok(number)
}

/// Records of some places of the result, in a file without a name.
struct Bucket {
    directory: std::path::PathBuf,
    file: BufWriter<File>,
}

impl Bucket {
    fn create(directory: &Path) -> Result<Bucket> {
        let path = model_center_base::file::temporary_name(&directory.join("bucket"));
        let made = File::options().read(true).write(true).create_new(true).open(&path).and_then(|file| {
            std::fs::remove_file(&path)?;
            Ok(file)
        });
        let file = made.map_err(|error| refused(directory, error))?;
        Ok(Bucket { directory: directory.to_owned(), file: BufWriter::with_capacity(1 << 16, file) })
    }

    fn put(&mut self, place: u64, pickle: &[u8]) -> Result<()> {
        let file = &mut self.file;
        let written = file.write_all(&place.to_le_bytes());
        let written = written.and_then(|()| file.write_all(&(pickle.len() as u64).to_le_bytes()));
        written.and_then(|()| file.write_all(pickle)).map_err(|error| refused(&self.directory, error))
    }

    fn take(self) -> Result<Vec<(u64, Vec<u8>)>> {
        let Bucket { directory, file } = self;
        let read = || -> std::io::Result<Vec<(u64, Vec<u8>)>> {
            let mut file = file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
            std::io::Seek::rewind(&mut file)?;
            let mut left = file.metadata()?.len();
            let mut reader = BufReader::with_capacity(1 << 20, file);
            let mut records = Vec::new();
            while left > 0 {
                let mut numbers = [[0; 8]; 2];
                reader.read_exact(numbers.as_flattened_mut())?;
                let [place, bytes] = numbers.map(u64::from_le_bytes);
                let mut pickle = vec![0; bytes as usize];
                reader.read_exact(&mut pickle)?;
                left = left.saturating_sub(16 + bytes);
                records.push((place, pickle));
            }
            Ok(records)
        };
        read().map_err(|error| refused(&directory, error))
    }
}

fn refused(directory: &Path, error: std::io::Error) -> Error {
    Error::file(
        "write",
        directory,
        error,
        "check that the disk has room for the dataset twice and that you may write there",
    )
}

/// Drops files that are missing from the list of a dataset, and numbers the blocks of the others anew; how many were
/// dropped. States of readers that were saved before do not fit the dataset afterwards.
///
/// # Errors
/// As [`BlockFiles::read`]; [`Error::File`] if writing fails.
pub fn compact_blocks(directory: &Path) -> Result<u64> {
    let mut list = BlockFiles::read(directory)?;
    let before = list.files.len();
    list.files.retain(|file| directory.join(&file.name).exists());
    let mut next = 0;
    for file in &mut list.files {
        let blocks = file.blocks.end - file.blocks.start;
        file.blocks = next..next + blocks;
        next += blocks;
    }
    list.write(directory)?;
    Ok((before - list.files.len()) as u64)
}

/// Leaves a file of a dataset out of reading, or takes it in again.
///
/// # Errors
/// As [`BlockFiles::read`]; [`Error::Argument`] for an unknown file; [`Error::File`] if writing fails.
pub fn mask_blocks(directory: &Path, name: &str, is_masked: bool) -> Result<()> {
    let mut list = BlockFiles::read(directory)?;
    list.get_mut(directory, name)?.is_masked = is_masked;
    list.write(directory)
}

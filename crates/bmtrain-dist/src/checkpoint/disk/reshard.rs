//! Write a checkpoint again with another number of files. Resuming does not need it, as any number of ranks in any
//! layout reads any checkpoint: it is for storage where few or many files are better, and it proves that contents do
//! not depend on files.
//!
//! Everything is read in order, a fraction of a megabyte at a time; what tensor-parallel ranks saved by columns is read
//! twice, to verify it and to bring its runs into order.

use super::coverage::LogicalTensor;
use super::fault::request;
use super::manifest::Facts;
use super::opened::Checkpoint;
use super::piece::PieceSpec;
use super::shard::ShardWriter;
use super::store::Store;
use super::writer::{Committed, Writer};
use crate::error::Result;
use serde_json::json;

/// Write what `from` holds as a checkpoint of `world` files into `to`; `id` as for [`Writer::begin`]. Step, recipe,
/// state and layout stay; the layout gets a note of where this came from.
///
/// All tensors are laid end to end and cut into `world` runs of nearly the same number of bytes. On damage found on the
/// way nothing is committed.
pub fn reshard(from: &Checkpoint, to: &Store, world: usize, id: &str) -> Result<Committed> {
    if !(1..=1 << 16).contains(&world) {
        let fix = "give a number of ranks from 1 to 65536";
        return Err(request(to.place(), format!("cannot write {world} files"), fix));
    }
    let manifest = from.manifest();
    let writer = Writer::begin(to, manifest.step, id)?;
    match copy(from, &writer, world) {
        Ok(records) => {
            let mut layout = manifest.facts.layout.clone();
            layout.insert("resharded_from".into(), json!(from.name().to_string()));
            let facts = Facts { world: world as u64, layout, ..manifest.facts.clone() };
            writer.commit(records, facts)
        }
        Err(error) => {
            writer.abandon();
            Err(error)
        }
    }
}

fn copy(from: &Checkpoint, writer: &Writer, world: usize) -> Result<Vec<super::FileRecord>> {
    // The order within a file, larger numbers first, so that one pass over the tensors fills file after file.
    let mut order: Vec<&LogicalTensor> = from.tensors().iter().collect();
    order.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.size()));
    let mut records = Vec::new();
    let mut files = cut(&order, world).into_iter().enumerate();
    let mut current: Option<(ShardWriter, u64)> = None;
    let mut next_file = |records: &mut Vec<_>, done: Option<ShardWriter>| -> Result<Option<(ShardWriter, u64)>> {
        if let Some(done) = done {
            records.push(done.finish()?);
        }
        let Some((rank, specs)) = files.next() else { return Ok(None) };
        let bytes = specs.iter().filter_map(PieceSpec::bytes).sum();
        Ok(Some((writer.shard(rank, specs)?, bytes)))
    };
    for tensor in &order {
        from.stream(tensor, &mut |mut bytes| {
            while !bytes.is_empty() {
                let (mut shard, left) = match current.take() {
                    Some((shard, left)) if left > 0 => (shard, left),
                    done => match next_file(&mut records, done.map(|(shard, _)| shard))? {
                        Some(next) => next,
                        None => return Err(request(from.name().to_string(), "more bytes than files", "report this")),
                    },
                };
                let count = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let (now, later) = bytes.split_at(count);
                shard.write(now)?;
                current = Some((shard, left - count as u64));
                bytes = later;
            }
            Ok(())
        })?;
    }
    // The last file, and empty ones after it.
    let mut done = current.map(|(shard, _)| shard);
    while let Some((shard, _)) = next_file(&mut records, done.take())? {
        done = Some(shard);
    }
    Ok(records)
}

/// The pieces of each file: all tensors end to end, cut at equal numbers of bytes, rounded down to whole elements.
fn cut(order: &[&LogicalTensor], world: usize) -> Vec<Vec<PieceSpec>> {
    let total: u128 = order.iter().map(|tensor| u128::from(tensor.bytes())).sum();
    let mut files = vec![Vec::new(); world];
    let mut offset = 0u128;
    let mut rank = 0;
    let end_of = |rank: usize| total * (rank as u128 + 1) / world as u128;
    for tensor in order {
        let whole = PieceSpec::whole(tensor.name.clone(), tensor.kind.clone(), tensor.dtype, &tensor.shape);
        let size = tensor.dtype.size() as u128;
        let mut start = 0;
        loop {
            let until = ((end_of(rank).saturating_sub(offset)) / size).min(u128::from(tensor.elements)) as u64;
            let last = rank + 1 == world;
            let end = if last { tensor.elements } else { until.max(start) };
            if end > start || (tensor.elements == 0 && start == 0) {
                files[rank].push(whole.part(start, end - start));
            }
            if end == tensor.elements {
                break;
            }
            start = end;
            rank += 1;
        }
        offset += u128::from(tensor.bytes());
    }
    files
}

#[cfg(test)]
mod tests {
    use super::super::piece::Kind;
    use super::*;
    use bmtrain_core::DType;

    fn tensor(name: &str, dtype: DType, elements: u64) -> LogicalTensor {
        let shape = vec![elements];
        LogicalTensor { name: name.into(), kind: Kind::Parameter, dtype, shape, elements, parts: Vec::new() }
    }

    #[test]
    fn the_cut_is_even_and_leaves_nothing_out() {
        let tensors = [
            tensor("a", DType::I64, 5),
            tensor("b", DType::F32, 333),
            tensor("empty", DType::F32, 0),
            tensor("c", DType::BF16, 1001),
            tensor("d", DType::U8, 7),
        ];
        let order: Vec<&LogicalTensor> = tensors.iter().collect();
        let total: u64 = tensors.iter().map(LogicalTensor::bytes).sum();
        for world in [1, 2, 3, 4, 7, 64, 5000] {
            let files = cut(&order, world);
            for tensor in &tensors {
                let pieces = || files.iter().flatten().filter(|piece| piece.name == tensor.name);
                let mut next = 0;
                for piece in pieces() {
                    assert_eq!(piece.start, next, "{world} files, {}", tensor.name);
                    next += piece.length;
                }
                assert_eq!(next, tensor.elements);
                assert!(pieces().count() > 0);
            }
            for pieces in &files {
                let bytes: u64 = pieces.iter().filter_map(PieceSpec::bytes).sum();
                // A cut is rounded down to an element, of 8 bytes at most.
                assert!(bytes.abs_diff(total / world as u64) <= 9, "{world} files: one has {bytes} of {total}");
            }
        }
    }
}

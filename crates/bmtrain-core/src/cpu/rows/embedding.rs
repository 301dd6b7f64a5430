//! Table rows by id, and the gradient of the table.

use super::{add, rows_at_once};
use crate::cpu::access::read;
use crate::cpu::floats::{Floats, FloatsMut, RowsMut, Spare, tiles};
use crate::error::{Error, Result};
use crate::kernel::{EmbeddingBackward, EmbeddingForward};
use crate::threads::Threads;

pub(in crate::cpu) fn embedding_forward(threads: &Threads, a: EmbeddingForward<'_>) -> Result<()> {
    const NAME: &str = "embedding_forward";
    let (columns, adds) = (a.columns, a.out.add);
    let ids = checked_ids(NAME, read(NAME, a.ids)?, a.entries)?;
    let (table, out) = (Floats::of(NAME, a.table)?, FloatsMut::of(NAME, a.out.view)?);
    threads.for_each_part(out.rows(columns), ids.len(), rows_at_once(columns), |first, rows, mut out| {
        let (mut x_spare, mut out_spare) = (Spare::new(), Spare::new());
        for (row, id) in ids[first..first + rows].iter().enumerate() {
            for (start, len) in tiles(columns) {
                let x = table.tile(*id as usize * columns + start, len, &mut x_spare);
                out.data.update(row * columns + start, len, adds, &mut out_spare, |out| {
                    if adds { add(x, out) } else { out.copy_from_slice(x) }
                });
            }
        }
    });
    Ok(())
}

/// Every id, seen to be inside the table before anything is written.
pub(in crate::cpu) fn checked_ids<'a>(op: &'static str, ids: &'a [i64], entries: usize) -> Result<&'a [i64]> {
    match ids.iter().position(|id| *id < 0 || *id as u64 >= entries as u64) {
        Some(position) => Err(Error::Index { op, position, index: ids[position], bound: entries }),
        None => Ok(ids),
    }
}

/// Table rows of a piece of work. Few enough that frequent tokens, whose ids are close together, are shared among
/// threads.
const ENTRIES_AT_ONCE: usize = 64;

pub(in crate::cpu) fn embedding_backward(threads: &Threads, a: EmbeddingBackward<'_>) -> Result<()> {
    const NAME: &str = "embedding_backward";
    let (entries, columns, padding_index, adds) = (a.entries, a.columns, a.padding_index, a.dtable.add);
    let ids = checked_ids(NAME, read(NAME, a.ids)?, entries)?;
    let (dy, dtable) = (Floats::of(NAME, a.dy)?, FloatsMut::of(NAME, a.dtable.view)?);
    if u32::try_from(ids.len()).is_err() {
        return Err(Error::shape(NAME, "ids", "fewer than 2^32", ids.len()));
    }
    threads.with_partials(ids.len(), |room| {
        // Rows by id; rows of one id stay in their order, which is the order of the sum.
        let order: &mut [u32] = bytemuck::cast_slice_mut(room);
        let mut count = 0;
        for row in (0..ids.len()).filter(|row| padding_index != Some(ids[*row])) {
            order[count] = row as u32;
            count += 1;
        }
        let order = &mut order[..count];
        order.sort_unstable_by_key(|row| (ids[*row as usize], *row));
        let order = &*order;
        threads.for_each_part(dtable.rows(columns), entries, ENTRIES_AT_ONCE, |first, count, mut part| {
            let mine = |bound: usize| order.partition_point(|row| ids[*row as usize] < bound as i64);
            let mut order = &order[mine(first)..mine(first + count)];
            if !adds {
                part.data.zero();
            }
            let mut room = [const { Spare::new() }; 2];
            while let Some(id) = order.first().map(|row| ids[*row as usize]) {
                let len = order.iter().take_while(|row| ids[**row as usize] == id).count();
                let (same, others) = order.split_at(len);
                add_to_entry(&mut part, id as usize - first, columns, dy, same, &mut room);
                order = others;
            }
        });
    });
    Ok(())
}

/// Add rows of `dy` to one entry: in f32, rounded once, so that a 16-bit table does not lose frequent tokens.
fn add_to_entry(
    table: &mut RowsMut<'_>,
    entry: usize,
    columns: usize,
    dy: Floats<'_>,
    rows: &[u32],
    [dy_spare, table_spare]: &mut [Spare; 2],
) {
    for (start, len) in tiles(columns) {
        table.data.update(entry * columns + start, len, true, table_spare, |entry| {
            for row in rows {
                add(dy.tile(*row as usize * columns + start, len, dy_spare), entry);
            }
        });
    }
}

//! Rotary positions: the kernel `rotary`, row by row.

use super::access::read;
use super::floats::{Floats, FloatsMut, Spare, TILE, tiles};
use crate::error::{Error, Result};
use crate::kernel::{Arguments as _, RotaryApply, RotaryLayout};
use crate::simd::vectorised;
use crate::threads::Threads;

/// Elements of a piece of work.
const PIECE: usize = 1 << 15;

pub(super) fn rotary(threads: &Threads, a: RotaryApply<'_>) -> Result<()> {
    const NAME: &str = RotaryApply::NAME;
    let RotaryApply { rows, length, columns, heads, head_size, dims, layout, inverse, entries, .. } = a;
    let positions = a.positions.map(|view| checked(read(NAME, view)?, entries)).transpose()?;
    let table: &[f32] = read(NAME, a.table)?;
    let x = Floats::maybe(NAME, a.x)?;
    let (add, y) = (a.y.add, FloatsMut::of(NAME, a.y.view)?);
    let sign = if inverse { -1.0 } else { 1.0 };
    let at_once = (PIECE / columns.max(1)).max(1);
    threads.for_each_part(y.rows(columns), rows, at_once, |first, rows, y| {
        let mut part = RotaryPart { x, skip: first * columns, y: y.data, add, spare: [const { Spare::new() }; 3] };
        for row in 0..rows {
            let position = positions.map_or((first + row) % length.max(1), |positions| positions[first + row] as usize);
            let (cosines, sines) = table[position * dims..][..dims].split_at(dims / 2);
            let start = row * columns;
            for head in 0..heads {
                let at = start + head * head_size;
                match layout {
                    RotaryLayout::Halves => part.turn_halves(at, cosines, sines, sign),
                    RotaryLayout::Pairs => part.turn_pairs(at, cosines, sines, sign),
                }
                part.pass(at + dims, head_size - dims);
            }
            part.pass(start + heads * head_size, columns - heads * head_size);
        }
    });
    Ok(())
}

/// Every position, seen to be inside the table before anything is written.
fn checked(positions: &[i64], entries: usize) -> Result<&[i64]> {
    match positions.iter().position(|at| *at < 0 || *at as u64 >= entries as u64) {
        Some(position) => {
            Err(Error::Index { op: RotaryApply::NAME, position, index: positions[position], bound: entries })
        }
        None => Ok(positions),
    }
}

struct RotaryPart<'a> {
    /// The input of all rows; none in place.
    x: Option<Floats<'a>>,
    /// Elements of the input before the elements of `y`.
    skip: usize,
    y: FloatsMut<'a>,
    add: bool,
    spare: [Spare; 3],
}

impl RotaryPart<'_> {
    /// Turn elements `i` and `i + n` from `at` on, `n` being the number of angles.
    fn turn_halves(&mut self, at: usize, cosines: &[f32], sines: &[f32], sign: f32) {
        let half = cosines.len();
        let RotaryPart { x, skip, y, add, spare: [first, second, room] } = self;
        for (start, len) in tiles(half) {
            let (low, high) = (at + start, at + half + start);
            let (first, second) = (&mut first.0[..len], &mut second.0[..len]);
            load(*x, *skip, y, low, first);
            load(*x, *skip, y, high, second);
            halves(first, second, &cosines[start..start + len], &sines[start..start + len], sign);
            store(y, low, first, *add, room);
            store(y, high, second, *add, room);
        }
    }

    /// Turn elements `2i` and `2i + 1` from `at` on.
    fn turn_pairs(&mut self, at: usize, cosines: &[f32], sines: &[f32], sign: f32) {
        let RotaryPart { x, skip, y, add, spare: [both, _, room] } = self;
        let angles = cosines.chunks(TILE / 2).zip(sines.chunks(TILE / 2));
        for (index, (cosines, sines)) in angles.enumerate() {
            let at = at + index * TILE;
            let both = &mut both.0[..2 * cosines.len()];
            load(*x, *skip, y, at, both);
            pairs(both, cosines, sines, sign);
            store(y, at, both, *add, room);
        }
    }

    fn pass(&mut self, at: usize, len: usize) {
        let RotaryPart { x: Some(x), skip, y, add, spare: [from, _, room] } = self else { return };
        for (start, len) in tiles(len) {
            let x = x.tile(*skip + at + start, len, from);
            store(y, at + start, x, *add, room);
        }
    }
}

fn load(x: Option<Floats<'_>>, skip: usize, y: &FloatsMut<'_>, at: usize, to: &mut [f32]) {
    match x {
        Some(x) => x.widen(skip + at, to),
        None => y.read().widen(at, to),
    }
}

fn store(y: &mut FloatsMut<'_>, at: usize, values: &[f32], add: bool, room: &mut Spare) {
    if !add {
        return y.narrow(at, values);
    }
    y.update(at, values.len(), true, room, |y| y.iter_mut().zip(values).for_each(|(y, value)| *y += value));
}

vectorised! {
    fn halves<I>(first: &mut [f32], second: &mut [f32], cosines: &[f32], sines: &[f32], sign: f32) {
        for (((first, second), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            let (a, b, sine) = (*first, *second, sign * sine);
            *first = I::mul_add(a, *cosine, -(b * sine));
            *second = I::mul_add(b, *cosine, a * sine);
        }
    }

    fn pairs<I>(both: &mut [f32], cosines: &[f32], sines: &[f32], sign: f32) {
        for ((pair, cosine), sine) in both.as_chunks_mut::<2>().0.iter_mut().zip(cosines).zip(sines) {
            let ([a, b], sine) = (*pair, sign * sine);
            *pair = [I::mul_add(a, *cosine, -(b * sine)), I::mul_add(b, *cosine, a * sine)];
        }
    }
}

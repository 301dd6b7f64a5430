//! Reads non-contiguous tensors, such as a transposed matrix.

use std::fs::File;
use std::path::Path;

use super::super::stored::read_at;
use crate::Result;

const WINDOW: u64 = 256 * 1024;
/// Strides in bytes from which on each element is read by itself: reading the bytes between them would cost more.
const FAR: u64 = 4096;

/// An axis: its length, the elements from one to the next in the file, and in row-major order.
#[derive(Debug, Clone, Copy)]
struct Axis {
    size: u64,
    stride: u64,
    step: u64,
}

/// A view, and the range of it that is read.
#[derive(Debug)]
pub(super) struct Elements<'a> {
    /// The tensor's shape, not empty, and of at least one element.
    pub(super) shape: &'a [usize],
    /// Distance in elements along each axis. All elements were checked to be in the file.
    pub(super) strides: &'a [u64],
    /// The byte of the file at which the first element begins.
    pub(super) start: u64,
    /// Bytes of an element.
    pub(super) width: u64,
    /// The first element that is read, in row-major order.
    pub(super) first: u64,
}

/// Fill `out` with elements in row-major order. The file is walked in its own order, so that runs, and those near each
/// other together, are read at once.
pub(super) fn read(path: &Path, file: &File, from: &Elements<'_>, out: &mut [u8]) -> Result<()> {
    let width = from.width;
    let (first, last) = (from.first, from.first + out.len() as u64 / width);
    let (mut axes, mut step) = (Vec::new(), 1);
    for (&size, &stride) in from.shape.iter().zip(from.strides).rev().filter(|(size, _)| **size != 1) {
        axes.push(Axis { size: size as u64, stride, step });
        step *= size as u64;
    }
    // Of the outermost axis only what the wanted elements touch.
    let (mut source, mut target) = (0, 0);
    if let Some(outer) = axes.last_mut() {
        let rows = first / outer.step..last.div_ceil(outer.step);
        (source, target) = (rows.start * outer.stride, rows.start * outer.step);
        outer.size = rows.end - rows.start;
    }
    axes.sort_by_key(|axis| axis.stride);
    let (inner, outer) = match axes.split_first() {
        Some((inner, outer)) => (*inner, outer),
        None => (Axis { size: 1, stride: 0, step: 1 }, &[][..]),
    };
    let apart = inner.stride * width;
    let most = match apart {
        0 => u64::MAX,
        apart if apart > FAR => 1,
        apart => WINDOW / apart,
    };
    let mut window = Window { file: (path, file), from, inner, runs: Vec::new(), bytes: Vec::new(), out };
    let mut at = vec![0; outer.len()];
    loop {
        // The part of this run that is wanted.
        let begin = first.saturating_sub(target).div_ceil(inner.step);
        let end = last.saturating_sub(target).div_ceil(inner.step).min(inner.size);
        let mut next = begin;
        while next < end {
            let count = most.min(end - next);
            let target = target + next * inner.step - first;
            window.add(Run { source: source + next * inner.stride, target, count })?;
            next += count;
        }
        // The next run, the axis of the smallest stride first.
        let Some(k) = (0..outer.len()).find(|&k| at[k] + 1 < outer[k].size) else { return window.empty() };
        for (axis, at) in outer[..k].iter().zip(&mut at) {
            source -= *at * axis.stride;
            target -= *at * axis.step;
            *at = 0;
        }
        at[k] += 1;
        source += outer[k].stride;
        target += outer[k].step;
    }
}

/// Elements at equal distances in the file: the first one's place there, its place in what is filled, and how many they
/// are.
#[derive(Debug, Clone, Copy)]
struct Run {
    source: u64,
    target: u64,
    count: u64,
}

/// Runs that are near each other and are read at once.
struct Window<'a, 'o> {
    file: (&'a Path, &'a File),
    from: &'a Elements<'a>,
    inner: Axis,
    runs: Vec<Run>,
    bytes: Vec<u8>,
    out: &'o mut [u8],
}

impl Window<'_, '_> {
    /// The element after the last one of a run.
    fn end(&self, run: &Run) -> u64 {
        run.source + (run.count - 1) * self.inner.stride + 1
    }

    /// Adds a run, and first reads the earlier ones if it is too far from them.
    fn add(&mut self, run: Run) -> Result<()> {
        if let (Some(first), Some(last)) = (self.runs.first(), self.runs.last()) {
            let (end, width) = (self.end(last), self.from.width);
            let follows = run.source >= end && (run.source - end) * width <= FAR;
            if !follows || (self.end(&run) - first.source) * width > WINDOW {
                self.empty()?;
            }
        }
        self.runs.push(run);
        Ok(())
    }

    /// Fetch the runs and put their elements where they belong.
    fn empty(&mut self) -> Result<()> {
        match self.from.width {
            2 => self.fetch::<2>(),
            4 => self.fetch::<4>(),
            8 => self.fetch::<8>(),
            _ => self.fetch::<1>(),
        }
    }

    /// As [`Window::empty`], for elements of a whole number of `N` bytes.
    fn fetch<const N: usize>(&mut self) -> Result<()> {
        let (Some(first), Some(last)) = (self.runs.first(), self.runs.last()) else { return Ok(()) };
        let width = self.from.width;
        self.bytes.resize(((self.end(last) - first.source) * width) as usize, 0);
        read_at(self.file.0, self.file.1, self.from.start + first.source * width, &mut self.bytes, None)?;
        let (start, longest) = (first.source, self.runs.iter().map(|run| run.count).max().unwrap_or(0));
        // Runs side by side commonly fill places side by side.
        for i in 0..longest {
            for run in self.runs.iter().filter(|run| i < run.count) {
                let taken = ((run.source - start + i * self.inner.stride) * width) as usize;
                let to = ((run.target + i * self.inner.step) * width) as usize;
                for part in (0..width as usize).step_by(N) {
                    self.out[to + part..to + part + N].copy_from_slice(&self.bytes[taken + part..taken + part + N]);
                }
            }
        }
        self.runs.clear();
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_transposed_matrix_is_read_from_any_element_on_in_its_own_order() {
        let mut file = tempfile::tempfile().unwrap();
        for (width, [rows, columns]) in [(2, [700, 300]), (4, [3, 70_000]), (8, [2000, 5]), (1, [90, 41])] {
            // In the file each column is a row; the first byte of an element tells it from its neighbours.
            let bytes: Vec<u8> =
                (0..rows * columns * width).map(|i| (i / width * 31 + i / width / 256 * 7 + i) as u8).collect();
            file.set_len(0).unwrap();
            std::io::Seek::rewind(&mut file).unwrap();
            file.write_all(&bytes).unwrap();
            let element = |at: usize| {
                let place = (at % columns * rows + at / columns) * width;
                bytes[place..place + width].to_vec()
            };
            let all = rows * columns;
            for (first, end) in [(0, all), (1, 2), (columns - 1, all - 3), (all / 2, all / 2 + 2 * columns + 1)] {
                let strides = [1, rows as u64];
                let from = Elements {
                    shape: &[rows, columns],
                    strides: &strides,
                    start: 0,
                    width: width as u64,
                    first: first as u64,
                };
                let mut out = vec![0; (end - first) * width];
                read(Path::new("x"), &file, &from, &mut out).unwrap();
                assert!(
                    out == (first..end).flat_map(element).collect::<Vec<_>>(),
                    "{rows} x {columns}, {first}..{end}"
                );
            }
        }
    }
}

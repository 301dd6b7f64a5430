//! Elements that do not lie one after another, such as those of a transposed matrix.
//!
//! Defines [`read`]; called by [`super::reader`].

use std::fs::File;
use std::path::Path;

use super::input::read_at;
use crate::Result;

/// Bytes fetched at a time.
const WINDOW: u64 = 256 * 1024;
/// Bytes from one element to the next from which on each is fetched by itself: what lies between would be read in vain.
const FAR: u64 = 4096;

/// An axis: its length, the elements from one to the next in the file, and in row-major order.
#[derive(Debug, Clone, Copy)]
struct Axis {
    size: u64,
    stride: u64,
    step: u64,
}

/// What is read of which view.
#[derive(Debug)]
pub(super) struct Elements<'a> {
    /// The tensor's shape, not empty, and of at least one element.
    pub(super) shape: &'a [usize],
    /// Elements from one to the next along each axis. All were checked to lie in the file.
    pub(super) strides: &'a [u64],
    /// The byte of the file at which the first element begins.
    pub(super) start: u64,
    /// Bytes of an element.
    pub(super) width: u64,
    /// The first element that is read, in row-major order.
    pub(super) first: u64,
}

/// Fill `out` with elements in row-major order. The file is walked in its own order, so that runs are read at once.
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
    let mut window = Vec::new();
    let mut at = vec![0; outer.len()];
    loop {
        // The part of this run that is wanted.
        let begin = first.saturating_sub(target).div_ceil(inner.step);
        let end = last.saturating_sub(target).div_ceil(inner.step).min(inner.size);
        let most = match inner.stride * width {
            0 => u64::MAX,
            apart if apart > FAR => 1,
            apart => WINDOW / apart,
        };
        let mut next = begin;
        while next < end {
            let count = most.min(end - next);
            let span = ((count - 1) * inner.stride + 1) * width;
            window.resize(span as usize, 0);
            read_at(path, file, from.start + (source + next * inner.stride) * width, &mut window)?;
            for i in 0..count {
                let to = ((target + (next + i) * inner.step - first) * width) as usize;
                let taken = (i * inner.stride * width) as usize;
                out[to..to + width as usize].copy_from_slice(&window[taken..taken + width as usize]);
            }
            next += count;
        }
        // The next run, the axis of the smallest stride first.
        let Some(k) = (0..outer.len()).find(|&k| at[k] + 1 < outer[k].size) else { return Ok(()) };
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

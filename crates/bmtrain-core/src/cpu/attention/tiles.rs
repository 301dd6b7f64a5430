//! Tiling of the scores for the caches.
//!
//! Used by `forward.rs` and `backward.rs`.

use super::product::PANEL;
use crate::kernel::AttentionShape;
use std::ops::Range;

/// Largest tiles of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    pub(super) queries: usize,
    /// Keys of a tile, a multiple of 16.
    pub(super) keys: usize,
    /// The head size, filled up to a multiple of 16.
    pub(super) head: usize,
}

impl Tiles {
    /// Numbers in a tile of keys or values once transposed.
    pub(super) fn panels(&self) -> usize {
        self.keys.next_multiple_of(PANEL) * self.head
    }
}

/// Distribution of the gradients over threads, see `backward.rs`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Whatever is faster.
    #[default]
    Best,
    /// Every gradient of a key head in one piece of work.
    #[cfg_attr(not(test), expect(dead_code, reason = "chosen by tests alone"))]
    Whole,
    /// Queries and keys in turn, each block a piece of work.
    #[cfg_attr(not(test), expect(dead_code, reason = "chosen by tests alone"))]
    Split,
}

/// Settings that do not change the meaning of a call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Settings {
    /// Queries and keys of a tile instead of the usual ones.
    pub(super) sizes: Option<(usize, usize)>,
    pub(super) scheme: Scheme,
}

impl Settings {
    /// The tiles for a call. They depend on its sizes alone, so that bits do not depend on threads.
    pub(super) fn tiles_for(&self, shape: &AttentionShape) -> Tiles {
        let head = shape.head_size.next_multiple_of(16);
        let (queries, keys) = self.sizes.unwrap_or(match head {
            // All tiles of the backward pass together stay below 0.5 MiB up to here, half of a usual second-level
            // cache.
            0..=64 => (128, 128),
            65..=128 => (64, 128),
            _ => (64, 64),
        });
        Tiles { queries, keys: keys.next_multiple_of(16), head }
    }
}

/// Cut a range into blocks of nearly equal length, at most `most` each, that start at multiples of `unit` from the
/// first.
pub(super) fn blocks(range: Range<usize>, most: usize, unit: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let count = range.len().div_ceil(most).max(1);
    let length = range.len().div_ceil(count).next_multiple_of(unit).min(most).max(1);
    (range.start..range.end).step_by(length).map(move |start| start..(start + length).min(range.end))
}

#[cfg(test)]
mod tests {
    use super::blocks;

    #[test]
    fn blocks_cover_the_range_once_in_order() {
        for (start, end, most, unit) in
            [(0, 0, 128, 16), (0, 1, 128, 16), (16, 300, 128, 16), (0, 257, 48, 1), (5, 133, 128, 1)]
        {
            let mut next = start;
            for block in blocks(start..end, most, unit) {
                assert_eq!(block.start, next);
                assert!(block.len() <= most && !block.is_empty());
                assert!((block.start - start).is_multiple_of(unit));
                next = block.end;
            }
            assert_eq!(next, end);
        }
    }
}

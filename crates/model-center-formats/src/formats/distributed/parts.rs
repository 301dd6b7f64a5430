//! Parts of a tensor: boxes of its elements, each in a stretch of a file.
//!
//! Defines [`Part`], [`check_tiling`] and [`read_range`].

use std::path::Path;

use super::super::pickle::read_elements;
use crate::Result;
use model_center_base::file::open_regular;

/// Bytes that are read at a time where a part's rows are scattered over the tensor.
const BLOCK: usize = 4 << 20;
/// The most parts of one tensor that are compared each with each other: a mesh of 1,024 ranks has this number.
const COMPARED: usize = 1024;

/// A box of a tensor's elements.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// Its first element along each axis, and its size.
    pub(super) offsets: Vec<usize>,
    pub(super) sizes: Vec<usize>,
    /// The number of its file.
    pub(super) file: usize,
    /// The byte of the file at which its first element is.
    pub(super) start: u64,
    /// Distance in elements along each axis in the file; `None` if they are one after the other.
    pub(super) strides: Option<Box<[u64]>>,
}

impl Part {
    fn elements(&self) -> Option<usize> {
        self.sizes.iter().try_fold(1usize, |n, &size| n.checked_mul(size))
    }

    fn is_inside(&self, shape: &[usize]) -> bool {
        let fits = |((&offset, &size), &whole): ((&usize, &usize), &usize)| {
            offset.checked_add(size).is_some_and(|end| end <= whole)
        };
        self.offsets.len() == shape.len()
            && self.sizes.len() == shape.len()
            && self.offsets.iter().zip(&self.sizes).zip(shape).all(fits)
    }

    fn overlaps(&self, other: &Part) -> bool {
        let ours = self.offsets.iter().zip(&self.sizes);
        let mut axes = ours.zip(other.offsets.iter().zip(&other.sizes));
        axes.all(|((a, n), (b, m))| *a < *b + *m && *b < *a + *n)
    }
}

/// Whether the parts make the tensor, each element once; if not, why.
pub(super) fn check_tiling(shape: &[usize], parts: &[Part]) -> Result<(), String> {
    if let Some(part) = parts.iter().find(|part| !part.is_inside(shape)) {
        return Err(format!("the part {:?} at {:?} is not inside of {shape:?}", part.sizes, part.offsets));
    }
    let whole = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size)).ok_or("its size overflows")?;
    // A rank may have an empty part.
    let mut filled: Vec<&Part> = parts.iter().filter(|part| part.elements() != Some(0)).collect();
    let held = filled.iter().try_fold(0usize, |n, part| n.checked_add(part.elements()?)).ok_or("its size overflows")?;
    if held != whole {
        return Err(format!("its {} parts have {held} of {whole} elements", parts.len()));
    }
    filled.sort_by(|a, b| a.offsets.cmp(&b.offsets));
    let overlap = || Err("two of its parts overlap".to_owned());
    // In order along one axis, neighbours tell; of a grid, each is compared with each other.
    let along = |axis: usize| {
        let same =
            |part: &&Part| (0..shape.len()).all(|k| k == axis || (part.offsets[k] == 0 && part.sizes[k] == shape[k]));
        filled.iter().all(same)
    };
    if let Some(axis) = (0..shape.len()).find(|axis| along(*axis)) {
        let is_apart = |pair: &[&Part]| pair[0].offsets[axis] + pair[0].sizes[axis] <= pair[1].offsets[axis];
        return if filled.windows(2).all(is_apart) { Ok(()) } else { overlap() };
    }
    if filled.len() > COMPARED {
        return Err(format!("it has {} parts along several axes, the limit is {COMPARED}", filled.len()));
    }
    let mut rest = filled.as_slice();
    while let Some((first, others)) = rest.split_first() {
        if others.iter().any(|other| first.overlaps(other)) {
            return overlap();
        }
        rest = others;
    }
    Ok(())
}

/// The rows of a part: its elements that are neighbours in the tensor.
struct Rows<'a> {
    shape: &'a [usize],
    part: &'a Part,
    /// Axes before this one count rows; later ones are whole.
    axis: usize,
    /// Elements of a row, and how many rows there are.
    length: usize,
    count: usize,
}

impl<'a> Rows<'a> {
    fn of(shape: &'a [usize], part: &'a Part) -> Self {
        let is_whole = |axis: &usize| part.sizes[*axis] == shape[*axis];
        let whole = (0..shape.len()).rev().take_while(is_whole).count();
        let axis = (shape.len() - whole).saturating_sub(1);
        let length = part.sizes[axis.min(part.sizes.len())..].iter().product();
        let count = part.sizes[..axis].iter().product();
        Rows { shape, part, axis, length, count }
    }

    /// The element of the tensor that is a row's first.
    fn start(&self, row: usize) -> usize {
        let (mut rest, mut step, mut start) = (row, 1, 0);
        for axis in (0..self.shape.len()).rev() {
            let mut at = self.part.offsets[axis];
            if axis < self.axis {
                at += rest % self.part.sizes[axis];
                rest /= self.part.sizes[axis];
            }
            start += at * step;
            step *= self.shape[axis];
        }
        start
    }
}

/// Fills `out` with the elements of a tensor from `first` on, as they are stored: what of them is in this part, of
/// elements of `width` bytes.
pub(super) fn read_range(
    path: &Path,
    (shape, part): (&[usize], &Part),
    (first, width): (usize, usize),
    out: &mut [u8],
) -> Result<()> {
    let last = first + out.len() / width;
    if part.elements() == Some(0) || out.is_empty() {
        return Ok(());
    }
    let rows = Rows::of(shape, part);
    // Rows come in the order of the tensor's elements.
    let mut row = partition(rows.count, |row| rows.start(row) + rows.length <= first);
    if row == rows.count || rows.start(row) >= last {
        return Ok(());
    }
    let file = open_regular(path)?.0;
    let read = |from: usize, bytes: &mut [u8]| {
        read_elements(
            path,
            &file,
            (&part.sizes, part.strides.as_deref()),
            (part.start, width as u64),
            from as u64,
            bytes,
        )
    };
    // The elements of a row that are wanted, as places in it.
    let wanted = |row: usize| {
        let start = rows.start(row);
        (first.saturating_sub(start).min(rows.length), last.saturating_sub(start).min(rows.length))
    };
    let together = (BLOCK / width / rows.length.max(1)).max(1);
    let mut block = Vec::new();
    while row < rows.count && rows.start(row) < last {
        let end = (row + together).min(rows.count);
        let end = row + partition(end - row, |at| rows.start(row + at) < last);
        let place = |row: usize, at: usize| (rows.start(row) + at - first) * width;
        if end - row == 1 {
            let (from, to) = wanted(row);
            read(row * rows.length + from, &mut out[place(row, from)..place(row, from) + (to - from) * width])?;
        } else {
            block.resize((end - row) * rows.length * width, 0);
            read(row * rows.length, &mut block)?;
            for (at, row) in (row..end).enumerate() {
                let (from, to) = wanted(row);
                let bytes = &block[(at * rows.length + from) * width..(at * rows.length + to) * width];
                out[place(row, from)..place(row, from) + bytes.len()].copy_from_slice(bytes);
            }
        }
        row = end;
    }
    Ok(())
}

/// The first number below `count` for which `is_before` is false; it is true for all smaller ones.
fn partition(count: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    fn part(offsets: &[usize], sizes: &[usize]) -> Part {
        Part { offsets: offsets.to_vec(), sizes: sizes.to_vec(), file: 0, start: 0, strides: None }
    }

    #[test]
    fn parts_that_leave_gaps_or_overlap_make_no_tensor() {
        let shape = [4, 6];
        let grid = [part(&[0, 0], &[3, 2]), part(&[0, 2], &[3, 4]), part(&[3, 0], &[1, 6]), part(&[4, 0], &[0, 6])];
        assert_eq!(check_tiling(&shape, &grid), Ok(()));
        assert_eq!(check_tiling(&[], &[part(&[], &[])]), Ok(()));
        assert_eq!(check_tiling(&shape, &[part(&[0, 0], &[4, 3]), part(&[0, 3], &[4, 3])]), Ok(()));
        for (parts, reason) in [
            (vec![part(&[0, 0], &[3, 6])], "18 of 24 elements"),
            (vec![part(&[0, 0], &[4, 6]), part(&[0, 0], &[1, 1])], "25 of 24"),
            (vec![part(&[0, 0], &[2, 6]), part(&[1, 0], &[2, 6])], "overlap"),
            (vec![part(&[0, 0], &[4, 3]), part(&[2, 1], &[2, 5]), part(&[0, 4], &[1, 2])], "overlap"),
            (vec![part(&[0, 0], &[5, 6])], "not inside"),
            (vec![part(&[0], &[24])], "not inside"),
            (vec![part(&[usize::MAX, 0], &[1, 6])], "not inside"),
        ] {
            let error = check_tiling(&shape, &parts).unwrap_err();
            assert!(error.contains(reason), "{parts:?}: {error}");
        }
    }

    #[test]
    fn any_range_comes_from_the_parts_that_have_it() {
        let directory = tempfile::tempdir().unwrap();
        let (shape, width) = ([5, 4, 6], 2);
        // One part after the other in one file, each row-major.
        let boxes: [([usize; 3], [usize; 3]); 4] =
            [([0, 0, 0], [5, 1, 6]), ([0, 1, 0], [5, 3, 2]), ([0, 1, 2], [2, 3, 4]), ([2, 1, 2], [3, 3, 4])];
        let (mut bytes, mut parts) = (vec![7u8; 3], Vec::new());
        for (offsets, sizes) in boxes {
            parts.push(Part { start: bytes.len() as u64, ..part(&offsets, &sizes) });
            for index in 0..sizes.iter().product::<usize>() {
                let at = [index / (sizes[1] * sizes[2]), index / sizes[2] % sizes[1], index % sizes[2]];
                let at = [0, 1, 2].map(|axis| at[axis] + offsets[axis]);
                bytes.extend((((at[0] * 4 + at[1]) * 6 + at[2]) as u16).to_le_bytes());
            }
        }
        let path = directory.path().join("parts");
        std::fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
        assert_eq!(check_tiling(&shape, &parts), Ok(()));
        for first in 0..120 {
            for last in [first + 1, first + 7, first + 50, 120] {
                let mut out = vec![0; (last.min(120) - first) * width];
                for part in &parts {
                    read_range(&path, (&shape, part), (first, width), &mut out).unwrap();
                }
                let expected: Vec<u8> = (first..last.min(120)).flat_map(|n| (n as u16).to_le_bytes()).collect();
                assert_eq!(out, expected, "{first}..{last}");
            }
        }
    }
}

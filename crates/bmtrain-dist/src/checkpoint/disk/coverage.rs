//! From pieces to logical tensors: every element exactly once, no gap, no overlap, over the files of all ranks.

use super::piece::{FileRecord, Kind, PieceRecord};
use super::tiling::{Flaw, check_tiling};
use bmtrain_core::DType;
use std::ops::Range;

/// A tensor of the model or the optimizer, put together from its pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalTensor {
    /// Full name.
    pub name: String,
    /// Kind of the tensor.
    pub kind: Kind,
    /// Dtype.
    pub dtype: DType,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Number of elements.
    pub elements: u64,
    /// The pieces that hold them, in the order of their first elements; of identical copies the first.
    pub(super) parts: Vec<TensorRuns>,
}

impl LogicalTensor {
    /// Bytes of all elements. Cannot overflow: checked when the checkpoint was opened.
    pub fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.dtype.size() as u64)
    }

    /// Whether a piece of several runs is among its pieces, which then alternate in the order of the elements.
    pub(super) fn is_strided(&self) -> bool {
        self.parts.iter().any(|part| part.runs > 1)
    }

    /// Its name in messages.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }
}

/// Runs of elements and the piece that holds them, which was checked: none of the sums below overflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TensorRuns {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) runs: u64,
    pub(super) stride: u64,
    /// Number of the file in the manifest, and of the piece in the file.
    pub(super) file: usize,
    pub(super) piece: usize,
}

impl TensorRuns {
    /// The element of the tensor where run `number` begins.
    pub(super) fn begin(&self, number: u64) -> u64 {
        self.start + number * self.stride
    }

    /// The first of the elements after the last run.
    pub(super) fn end(&self) -> u64 {
        self.begin(self.runs - 1) + self.length
    }

    /// The elements of the piece from the first to the last one that is among the elements `wanted` of the tensor;
    /// `None` if there is none.
    pub(super) fn meet(&self, wanted: &Range<u64>) -> Option<Range<u64>> {
        if wanted.start >= self.end() || wanted.end <= self.start || wanted.is_empty() {
            return None;
        }
        // The first run that ends after the first element, and the last one that begins before the last element.
        let first = match wanted.start.checked_sub(self.start + self.length) {
            Some(past) => past.checked_div(self.stride).unwrap_or(0) + 1,
            None => 0,
        };
        let last = (wanted.end - 1 - self.start).checked_div(self.stride).unwrap_or(0).min(self.runs - 1);
        let from = first * self.length + wanted.start.saturating_sub(self.begin(first));
        let until = last * self.length + (wanted.end - self.begin(last)).min(self.length);
        (first <= last && from < until).then_some(from..until)
    }
}

/// All tensors of these files, sorted by name and kind, or which of them is not covered exactly once.
pub(super) fn logical_tensors(files: &[FileRecord]) -> Result<Vec<LogicalTensor>, String> {
    let mut pieces: Vec<(&PieceRecord, usize, usize)> = Vec::new();
    for (number, file) in files.iter().enumerate() {
        pieces.extend(file.pieces.iter().enumerate().map(|(place, piece)| (piece, number, place)));
    }
    pieces.sort_by(|(a, ..), (b, ..)| {
        (&a.spec.name, &a.spec.kind, elements(a)).cmp(&(&b.spec.name, &b.spec.kind, elements(b)))
    });
    pieces.chunk_by(|(a, ..), (b, ..)| a.spec.name == b.spec.name && a.spec.kind == b.spec.kind).map(tensor).collect()
}

/// Key that tells pieces of a tensor apart.
fn elements(piece: &PieceRecord) -> (u64, u64, u64, u64) {
    (piece.spec.start, piece.spec.length, piece.spec.runs, piece.spec.stride)
}

fn tensor(pieces: &[(&PieceRecord, usize, usize)]) -> Result<LogicalTensor, String> {
    let Some((first, ..)) = pieces.first() else { return Err("a tensor without pieces".into()) };
    let spec = &first.spec;
    let Some(count) = spec.elements() else { return Err(format!("tensor {}: its size overflows", spec.name)) };
    let mut whole = LogicalTensor {
        name: spec.name.clone(),
        kind: spec.kind.clone(),
        dtype: spec.dtype,
        shape: spec.shape.clone(),
        elements: count,
        parts: Vec::new(),
    };
    let wrong = |reason: String| format!("{} {}: {reason}", spec.kind, spec.name);
    let mut before: Option<&PieceRecord> = None;
    for &(piece, file, place) in pieces {
        let (here, (start, length, runs, stride)) = (&piece.spec, elements(piece));
        if (here.dtype, &here.shape) != (spec.dtype, &spec.shape) {
            return Err(wrong(format!(
                "one piece is of a tensor {} {:?}, another of {} {:?}",
                spec.dtype, spec.shape, here.dtype, here.shape
            )));
        }
        if let Some(copy) = before.filter(|copy| elements(copy) == elements(piece)) {
            if copy.hash != piece.hash {
                return Err(wrong(format!("two pieces of {length} elements from {start} differ")));
            }
            continue;
        }
        whole.parts.push(TensorRuns { start, length, runs, stride, file, piece: place });
        before = Some(piece);
    }
    check_tiling(&whole.parts, count).map_err(|flaw| {
        wrong(match flaw {
            Flaw::Overlap(at) => format!("the pieces overlap at element {at} of {count}"),
            Flaw::Gap(at) => format!("the pieces leave a gap at element {at} of {count}"),
            Flaw::Missing(held) => format!("the pieces leave a gap: they hold {held} of {count} elements"),
            Flaw::Strides(a, b) => format!("one piece has rows of {a} elements, another of {b}"),
        })
    })?;
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::super::hash::ContentHash;
    use super::super::piece::PieceSpec;
    use super::*;

    fn piece(name: &str, start: u64, length: u64, content: &[u8]) -> PieceRecord {
        let spec = PieceSpec::whole(name, Kind::Parameter, DType::F32, &[2, 5]).part(start, length);
        PieceRecord { spec, offset: 8, hash: ContentHash::of(content) }
    }

    fn of(files: Vec<Vec<PieceRecord>>) -> Result<Vec<LogicalTensor>, String> {
        let record = |pieces| FileRecord { name: "a".into(), bytes: 0, hash: ContentHash::of(b""), pieces };
        logical_tensors(&files.into_iter().map(record).collect::<Vec<_>>())
    }

    #[test]
    fn pieces_from_any_files_make_tensors_sorted_by_name() {
        let files = vec![vec![piece("b", 4, 6, b"x"), piece("a", 0, 10, b"")], vec![piece("b", 0, 4, b"y")]];
        let tensors = of(files).unwrap();
        assert_eq!(tensors.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let places: Vec<_> = tensors[1].parts.iter().map(|p| (p.start, p.length, p.file, p.piece)).collect();
        assert_eq!(places, [(0, 4, 1, 0), (4, 6, 0, 0)]);
        assert_eq!((tensors[0].elements, tensors[0].bytes()), (10, 40));
    }

    #[test]
    fn gaps_overlaps_and_ends_are_named() {
        for (spans, reason) in [
            (vec![(0, 4), (5, 5)], "leave a gap at element 4 of 10"),
            (vec![(1, 9)], "leave a gap at element 0 of 10"),
            (vec![(0, 4), (3, 7)], "overlap at element 3 of 10"),
            (vec![(0, 10), (3, 2)], "overlap at element 3 of 10"),
            (vec![(0, 4), (4, 5)], "leave a gap at element 9 of 10"),
            (vec![(0, 10), (0, 4)], "overlap"),
        ] {
            let error = of(vec![spans.iter().map(|&(s, l)| piece("t", s, l, b"")).collect()]).unwrap_err();
            assert!(error.contains(reason) && error.contains("parameter t"), "{spans:?}: {error}");
        }
    }

    #[test]
    fn copies_count_once_and_must_be_equal() {
        let halves = |content: &[u8]| vec![piece("t", 0, 5, b"left"), piece("t", 5, 5, content)];
        assert_eq!(of(vec![halves(b"right"), halves(b"right")]).unwrap()[0].parts.len(), 2);
        assert!(of(vec![halves(b"right"), halves(b"wrong")]).unwrap_err().contains("differ"));
        let mut other = piece("t", 5, 5, b"right");
        other.spec.dtype = DType::I32;
        assert!(of(vec![vec![piece("t", 0, 5, b"left"), other]]).unwrap_err().contains("one piece is of a tensor f32"));
    }

    #[test]
    fn pieces_of_runs_meet_exactly_the_elements_they_hold() {
        for (start, length, runs, stride) in [(0, 10, 1, 0), (3, 4, 1, 0), (1, 2, 4, 5), (0, 4, 3, 5), (4, 1, 4, 5)] {
            let part = TensorRuns { start, length, runs, stride, file: 0, piece: 0 };
            let held: Vec<u64> = (0..runs).flat_map(|run| part.begin(run)..part.begin(run) + length).collect();
            for from in 0..21 {
                for until in from..22 {
                    let within = |at: &u64| (from..until).contains(at);
                    let first = held.iter().position(within);
                    let expected = first.zip(held.iter().rposition(within)).map(|(a, b)| a as u64..b as u64 + 1);
                    assert_eq!(part.meet(&(from..until)), expected, "{part:?}, {from}..{until}");
                }
            }
        }
    }
}

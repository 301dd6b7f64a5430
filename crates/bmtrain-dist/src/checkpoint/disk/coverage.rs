//! From pieces to logical tensors: every element exactly once, no gap, no overlap.

use super::piece::{FileRecord, Kind, PieceRecord};
use bmtrain_core::DType;

/// A tensor of the model or the optimizer, put together from its pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalTensor {
    /// Full name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Dtype.
    pub dtype: DType,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Number of elements.
    pub elements: u64,
    /// Their runs, in order; of identical copies the first.
    pub(super) parts: Vec<TensorRun>,
}

impl LogicalTensor {
    /// Bytes of all elements. Cannot overflow: checked when the checkpoint was opened.
    pub fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.dtype.size() as u64)
    }

    /// Its name in messages.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }
}

/// A run of elements and the piece that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TensorRun {
    pub(super) start: u64,
    pub(super) length: u64,
    /// Number of the file in the manifest, and of the piece in the file.
    pub(super) file: usize,
    pub(super) piece: usize,
}

/// All tensors of these files, sorted by name and kind, or which of them is not covered exactly once.
pub(super) fn logical_tensors(files: &[FileRecord]) -> Result<Vec<LogicalTensor>, String> {
    let mut pieces: Vec<(&PieceRecord, usize, usize)> = Vec::new();
    for (number, file) in files.iter().enumerate() {
        pieces.extend(file.pieces.iter().enumerate().map(|(place, piece)| (piece, number, place)));
    }
    pieces.sort_by(|(a, ..), (b, ..)| {
        let key = |piece: &PieceRecord| (piece.spec.start, piece.spec.length);
        (&a.spec.name, &a.spec.kind, key(a)).cmp(&(&b.spec.name, &b.spec.kind, key(b)))
    });
    pieces.chunk_by(|(a, ..), (b, ..)| a.spec.name == b.spec.name && a.spec.kind == b.spec.kind).map(tensor).collect()
}

fn tensor(pieces: &[(&PieceRecord, usize, usize)]) -> Result<LogicalTensor, String> {
    let Some((first, ..)) = pieces.first() else { return Err("a tensor without pieces".into()) };
    let spec = &first.spec;
    let Some(elements) = spec.elements() else { return Err(format!("tensor {}: its size overflows", spec.name)) };
    let mut whole = LogicalTensor {
        name: spec.name.clone(),
        kind: spec.kind.clone(),
        dtype: spec.dtype,
        shape: spec.shape.clone(),
        elements,
        parts: Vec::new(),
    };
    let wrong = |reason: String| Err(format!("{} {}: {reason}", spec.kind, spec.name));
    let mut next = 0;
    let mut before: Option<&PieceRecord> = None;
    for &(piece, file, place) in pieces {
        let (here, start, length) = (&piece.spec, piece.spec.start, piece.spec.length);
        if (here.dtype, &here.shape) != (spec.dtype, &spec.shape) {
            return wrong(format!(
                "one piece is of a tensor {} {:?}, another of {} {:?}",
                spec.dtype, spec.shape, here.dtype, here.shape
            ));
        }
        if let Some(copy) = before.filter(|copy| (copy.spec.start, copy.spec.length) == (start, length)) {
            if copy.hash != piece.hash {
                return wrong(format!("two pieces of {length} elements from {start} differ"));
            }
            continue;
        }
        if start != next {
            let what = if start < next { "overlap" } else { "leave a gap" };
            return wrong(format!("the pieces {what}: expected the next at element {next}, got {start}"));
        }
        next = start.saturating_add(length);
        whole.parts.push(TensorRun { start, length, file, piece: place });
        before = Some(piece);
    }
    if next != elements {
        return wrong(format!("the pieces end at element {next} of {elements}"));
    }
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
            (vec![(0, 4), (5, 5)], "leave a gap"),
            (vec![(1, 9)], "leave a gap"),
            (vec![(0, 4), (3, 7)], "overlap"),
            (vec![(0, 10), (3, 2)], "overlap"),
            (vec![(0, 4), (4, 5)], "end at element 9 of 10"),
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
}

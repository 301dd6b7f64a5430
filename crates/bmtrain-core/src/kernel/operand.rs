//! Operands of kernels: views, each read or written, and the bytes that they cover.

use crate::view::{Range, View, ViewMut};

/// Destination of a gradient: overwrite what is there, or add to it.
#[derive(Debug)]
pub struct Dest<'a> {
    /// The range written.
    pub view: ViewMut<'a>,
    /// Add to the present content instead of replacing it. Without it the old content is not read.
    pub add: bool,
}

/// One view of a kernel's arguments, as listed by [`Arguments::visit`](super::Arguments::visit).
#[derive(Debug, Clone, Copy)]
pub enum Access<'v> {
    /// Read only.
    Read(&'v View<'v>),
    /// Written, and read too where the kernel works in place.
    Write(&'v ViewMut<'v>),
    /// Written in rows: of every `stride` elements only the first `width` belong to the argument. Heads of a fused
    /// projection are interleaved in this way.
    WriteRows {
        /// From the first element to the last.
        view: &'v ViewMut<'v>,
        /// Elements from one row to the next.
        stride: usize,
        /// Elements of a row that are written.
        width: usize,
    },
}

/// The bytes an argument covers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Footprint {
    pub(super) range: Range,
    writes: bool,
    /// Stride and width of rows, in bytes.
    rows: Option<(u64, u64)>,
}

impl Footprint {
    pub(super) fn collides(&self, other: &Footprint) -> bool {
        if !(self.writes || other.writes) || !self.range.overlaps(&other.range) {
            return false;
        }
        match (self.rows, other.rows) {
            // Rows of one pitch are disjoint if their columns are.
            (Some((stride, width)), Some((other_stride, other_width))) if stride == other_stride && stride > 0 => {
                let start = self.range.address % stride;
                let other_start = other.range.address % stride;
                let ahead = (other_start + stride - start) % stride;
                let behind = (start + stride - other_start) % stride;
                ahead < width || behind < other_width
            }
            _ => true,
        }
    }
}

/// Whether a written range overlaps another one. Rows count as everything from the first to the last: for long lists,
/// in whose order of addresses each range is held against those that came before it.
pub(super) fn any_collides(mut all: Vec<Footprint>) -> bool {
    all.retain(|footprint| footprint.range.bytes() > 0);
    all.sort_unstable_by_key(|footprint| footprint.range.address);
    let (mut read_until, mut written_until) = (0, 0);
    all.iter().any(|footprint| {
        let Range { address, .. } = footprint.range;
        let end = address + footprint.range.bytes() as u64;
        let collides = address < written_until || footprint.writes && address < read_until;
        let until = if footprint.writes { &mut written_until } else { &mut read_until };
        *until = end.max(*until);
        collides
    })
}

impl Access<'_> {
    pub(super) fn footprint(&self) -> Footprint {
        match self {
            Access::Read(view) => Footprint { range: view.range, writes: false, rows: None },
            Access::Write(view) => Footprint { range: view.range, writes: true, rows: None },
            Access::WriteRows { view, stride, width } => {
                let size = view.dtype().size() as u64;
                let rows = Some((*stride as u64 * size, *width as u64 * size));
                Footprint { range: view.range, writes: true, rows }
            }
        }
    }
}

/// A field of a kernel's arguments that holds views.
pub(crate) trait Operand {
    /// Every view, written or read.
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>));

    /// The only range of the operand, if there is one.
    fn range(&self) -> Option<&Range> {
        None
    }
}

impl Operand for View<'_> {
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        visit(Access::Read(self));
    }

    fn range(&self) -> Option<&Range> {
        Some(&self.range)
    }
}

impl Operand for ViewMut<'_> {
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        visit(Access::Write(self));
    }

    fn range(&self) -> Option<&Range> {
        Some(&self.range)
    }
}

impl Operand for Dest<'_> {
    visits!(view);

    fn range(&self) -> Option<&Range> {
        Some(&self.view.range)
    }
}

/// A list has no single range: its elements are checked by the kernel.
impl<T: Operand> Operand for Vec<T> {
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        self.iter().for_each(|operand| operand.visit(visit));
    }
}

impl<T: Operand> Operand for Option<T> {
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        self.iter().for_each(|operand| operand.visit(visit));
    }

    fn range(&self) -> Option<&Range> {
        self.as_ref().and_then(Operand::range)
    }
}

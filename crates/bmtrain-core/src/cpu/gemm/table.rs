//! The table of the routines of `tile.rs` for one instruction set, as macros: each file of vectors makes its own.

macro_rules! strips {
    ($step:literal, [$($rows:literal),+], $vectors:tt) => { &[$(table::strips!(of $rows, $step, $vectors)),+] };
    (of $rows:literal, $step:literal, [$($vectors:literal),+]) => {
        &[$(strip::<$rows, $vectors, $step> as StripRoutine),+] as &[StripRoutine]
    };
}
pub(super) use strips;

macro_rules! row_strips {
    ($type:ty, $step:literal, [$($rows:literal: $vectors:tt),+]) => {
        &[$(table::row_strips!(of $type, $step, $rows, $vectors)),+]
    };
    (of $type:ty, $step:literal, $rows:literal, [$($vectors:literal),+]) => {
        &[$(($vectors as usize, row_strip::<$type, $rows, $vectors, $step> as RowStripRoutine)),+]
            as &[(usize, RowStripRoutine)]
    };
}
pub(super) use row_strips;

/// The table of an instruction set, whose routines are compiled with the attributes.
///
/// `height` is the last number of `rows`, and `tall` the last one of `in_place`: a macro cannot tell the length of a
/// list where one of its functions needs it.
macro_rules! table {
    (
        $(#[$attribute:meta])*
        $table:ident: $vector:ty, lanes $lanes:literal, stretch $stretch:literal, rows $rows:tt, height $height:literal,
        vectors $vectors:tt, in_place $in_place:tt, tall $tall:literal,
        dots [$($dots:literal),+] by $dot_columns:literal
    ) => {
        pub(super) static $table: Kernel = {
            const COLUMNS: usize = $vectors.len() * $lanes;

            $(#[$attribute])*
            unsafe fn strip<const ROWS: usize, const VECTORS: usize, const STEP: usize>(t: &Strip) {
                // SAFETY: by the caller, as everywhere below.
                unsafe { tile::strip::<$vector, $lanes, ROWS, VECTORS, STEP>(t) }
            }

            $(#[$attribute])*
            unsafe fn row_strip<T: tile::Stored, const ROWS: usize, const VECTORS: usize, const STEP: usize>(
                t: &RowStrip,
            ) {
                // SAFETY: as above.
                unsafe { tile::row_strip::<$vector, T, $lanes, ROWS, VECTORS, STEP>(t) }
            }

            $(#[$attribute])*
            unsafe fn transpose(from: *const f32, stride: usize, k: usize, to: *mut f32, width: usize) {
                // SAFETY: as above.
                unsafe { tile::transpose::<$vector, $lanes>(from, stride, k, to, width) }
            }

            $(#[$attribute])*
            unsafe fn copy(from: *const f32, stride: usize, k: usize, to: *mut f32, panels: usize) {
                // SAFETY: as above.
                unsafe { tile::copy::<$vector, COLUMNS>(from, stride, k, to, panels) }
            }

            $(#[$attribute])*
            unsafe fn dots<T: tile::Stored, const ROWS: usize, const COLUMNS: usize>(d: &Dots) {
                // SAFETY: as above.
                unsafe { tile::dots::<$vector, T, $lanes, ROWS, COLUMNS>(d) }
            }

            $(#[$attribute])*
            unsafe fn spin(rounds: usize) -> f32 {
                // SAFETY: as above.
                unsafe { tile::spin::<$vector, $lanes>(rounds) }
            }

            const fn dots_of<T: tile::Stored>() -> DotRoutines {
                DotRoutines {
                    several: &[$(dots::<T, $dots, $dot_columns>),+],
                    single: &[$(dots::<T, $dots, 1>),+],
                    alone: dots::<T, 1, ALONE>,
                }
            }

            Kernel {
                lanes: $lanes,
                stretch: $stretch,
                strips: table::strips!(0, $rows, $vectors),
                packed_strips: table::strips!($height, $rows, $vectors),
                row_strips_f32: table::row_strips!(f32, $tall, $in_place),
                row_strips_f16: table::row_strips!(half::f16, $tall, $in_place),
                row_strips_bf16: table::row_strips!(half::bf16, $tall, $in_place),
                pack_left: left::pack::<$height>,
                pack_left_in_place: left::pack::<$tall>,
                transpose,
                copy,
                dots_f32: dots_of::<f32>(),
                dots_f16: dots_of::<half::f16>(),
                dots_bf16: dots_of::<half::bf16>(),
                dot_columns: $dot_columns,
                spin,
                spin_operations: tile::SPIN_VECTORS * $lanes * 2,
            }
        };
    };
}
pub(super) use table;

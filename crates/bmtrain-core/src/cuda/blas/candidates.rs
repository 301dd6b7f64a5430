//! The candidates for a product: ways to ask the library for it, the best first.
//!
//! The library takes factors of one dtype and gives a result of the same or of f32. Of epilogues it does a bias of the
//! result's type, and with it ReLU or the tanh approximation of GELU, whose argument it can keep; the derivative
//! of that; or, alone, sums of the rows of a factor, in the result's type. What it refuses all the
//! same is known only when it is asked: then the next candidate is tried.

use super::epilogue::{Matrices, Numbers};
use super::fp8::{self, Written};
use super::plan_cache::{Function, Fused};
use super::{Factor, Work};
use crate::dtype::DType;
use crate::kernel::elementwise::library_has_derivative;
use crate::kernel::{Activation, Batch};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Factors that the library multiplies.
    pub(super) factors: Factors,
    pub(super) into: Destination,
    /// Epilogue that the library applies.
    pub(super) fused: Fused,
}

/// Form in which factors are brought to the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Factors {
    /// As they are stored.
    Stored,
    /// Widened to f32 in scratch memory, without gaps.
    Widened,
    /// As codes of 8 bits in scratch memory, each sum along rows of both: the one layout that every library has.
    Rounded,
    /// The values of the codes, as [`Factors::Widened`].
    RoundedAndWidened,
}

impl Factors {
    /// The library's factors where it takes no others: codes of 8 bits or of the factors' dtype, and widened values.
    fn of(work: &Work) -> [Factors; 2] {
        match work.fp8 {
            Some(_) => [Factors::Rounded, Factors::RoundedAndWidened],
            None => [Factors::Stored, Factors::Widened],
        }
    }

    pub(super) fn are_widened(self) -> bool {
        matches!(self, Factors::Widened | Factors::RoundedAndWidened)
    }

    pub(super) fn are_rounded(self) -> bool {
        matches!(self, Factors::Rounded | Factors::RoundedAndWidened)
    }

    /// Layout in which the codes of factor `index` are written.
    pub(super) fn written(self, index: usize, is_transposed: bool) -> Written {
        // Rows of the left factor, columns of the right one.
        match (self, (index == 0) == is_transposed) {
            (Factors::Rounded, true) => Written::Columns,
            (Factors::Rounded, false) => Written::Rows,
            _ => Written::Wide,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// To where the result belongs; the old content is taken into account.
    Result,
    /// To the copy of the activation's argument.
    Copy(Numbers),
    /// To scratch memory, in f32.
    Scratch,
}

impl Candidate {
    /// The library's factors, a and b. Scratch memory has no address yet.
    pub(super) fn factors(&self, work: &Work) -> [Factor; 2] {
        match self.factors {
            Factors::Stored => [work.a, work.b],
            Factors::Widened | Factors::RoundedAndWidened => {
                [work.a, work.b].map(|factor| factor.widened(work.batch).0)
            }
            Factors::Rounded => {
                let columns = fp8::length(work.k);
                let numbers = Numbers { address: 0, dtype: DType::U8 };
                let stored = Matrices { numbers, ld: columns, batch: [0, 0] };
                let codes = |rows, transposed| Factor { stored, rows, columns, transposed };
                [codes(work.m, false), codes(work.n, true)]
            }
        }
    }

    /// The library's destination. Scratch memory has no address yet.
    pub(super) fn result(&self, work: &Work) -> Matrices {
        match self.into {
            Destination::Result => work.c,
            Destination::Copy(numbers) => Matrices { numbers, ld: work.n, batch: [0, 0] },
            Destination::Scratch => work.in_scratch(),
        }
    }

    pub(super) fn way(&self, work: &Work) -> Way {
        match (self.factors.are_widened(), self.into) {
            (true, Destination::Scratch) => Way::WidenedScratch,
            (true, _) => Way::Widened,
            (false, Destination::Scratch) => Way::Scratch,
            (false, _) if self.finishes(work) => Way::InPlace,
            (false, _) => Way::Library,
        }
    }

    pub(super) fn finishes(&self, work: &Work) -> bool {
        self.into != Destination::Result
            || (work.bias.is_some() && !self.fused.bias)
            || (work.activation.is_some() && self.fused.function.is_none())
            || (work.derivative.is_some() && !self.fused.derivative)
    }
}

/// Way in which a product was made, for counts of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Library,
    InPlace,
    Scratch,
    Widened,
    WidenedScratch,
}

impl Way {
    pub(super) const ALL: [Way; 5] = [Way::Library, Way::InPlace, Way::Scratch, Way::Widened, Way::WidenedScratch];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Library => "by cuBLASLt alone",
            Way::InPlace => "by cuBLASLt, then a kernel on the result",
            Way::Scratch => "by cuBLASLt into f32 scratch memory, then a kernel",
            Way::Widened => "of factors widened to f32",
            Way::WidenedScratch => "of factors widened to f32 into scratch memory, then a kernel",
        }
    }
}

/// All candidates for a product; only what precedes the first that works is needed.
pub(super) fn candidates(work: &Work) -> impl Iterator<Item = Candidate> + use<> {
    let bias = Fused { bias: work.bias.is_some(), ..Fused::default() };
    let plain = work.activation.is_none() && work.copy.is_none() && work.derivative.is_none();
    let ([factors, wide], c) = (Factors::of(work), work.c.numbers.dtype);
    let gives = |result| work.gives(result);
    let candidate = |into, fused| Candidate { factors, into, fused };

    let sums = sums(work).filter(|_| gives(c)).map(|fused| candidate(Destination::Result, fused));
    let whole = whole(work).filter(|_| gives(c)).map(|fused| candidate(Destination::Result, fused));
    // The product with its bias is the activation's argument.
    let parted = match work.copy {
        _ if plain || work.beta != 0.0 => None,
        Some(copy) => gives(copy.dtype).then(|| candidate(Destination::Copy(copy), bias)),
        None => gives(c).then(|| candidate(Destination::Result, bias)),
    };
    // The same where the library refuses the bias: a kernel adds it to what is written.
    let keeps_type = work.copy.is_none_or(|copy| copy.dtype == c);
    let apart = bias.bias && gives(c) && keeps_type && (plain || work.beta == 0.0);
    let apart = apart.then(|| candidate(Destination::Result, Fused::default()));
    let unfused = gives(DType::F32).then(|| candidate(Destination::Scratch, Fused::default()));
    let widened =
        (plain && c == DType::F32).then(|| Candidate { factors: wide, ..candidate(Destination::Result, bias) });
    let last = Candidate { factors: wide, ..candidate(Destination::Scratch, Fused::default()) };
    [sums, whole, parted, apart, unfused, widened, Some(last)].into_iter().flatten()
}

/// A product to which the library adds the residual, and the bias, if it gives a result of that type.
pub(super) fn with_residual(work: &Work) -> Option<Candidate> {
    let fits = work.residual.is_some() && [work.m, work.n, work.k].iter().all(|size| *size > 0);
    let fused = Fused { bias: work.bias.is_some(), residual: true, ..Fused::default() };
    let [factors, _] = Factors::of(work);
    (fits && work.gives(work.c.numbers.dtype)).then_some(Candidate { factors, into: Destination::Result, fused })
}

impl Work {
    /// Whether the library gives a result of this dtype without widened factors: from codes of 8 bits any, else from
    /// factors of one dtype that or f32.
    fn gives(&self, result: DType) -> bool {
        let [a, b] = [self.a, self.b].map(|factor| factor.stored.numbers.dtype);
        self.fp8.is_some() || (a == b && (result == a || result == DType::F32))
    }
}

fn whole(work: &Work) -> Option<Fused> {
    let bias = work.bias.is_some();
    if let Some((activation, points)) = work.derivative {
        let fits = library_has_derivative(activation, work.c.numbers.dtype) && fits(work, points);
        return (fits && !bias && work.copy.is_none()).then(|| Fused { derivative: true, ..Fused::default() });
    }
    let function = match (work.activation, work.copy) {
        (None, None) => return Some(Fused { bias, ..Fused::default() }),
        (Some(Activation::Relu), None) => Function::Relu,
        // The library's accuracy here is not documented: well enough for 16 bits.
        (Some(Activation::GeluTanh), None) if work.c.numbers.dtype != DType::F32 => Function::GeluTanh,
        (Some(Activation::GeluTanh), Some(copy)) if work.c.numbers.dtype != DType::F32 && fits(work, copy) => {
            Function::GeluTanh
        }
        _ => return None,
    };
    Some(Fused { bias, function: Some(function), copy: work.copy.is_some(), ..Fused::default() })
}

/// The product with its sums, if the library can make them as exactly as a kernel does: it gives them in the result's
/// type. How it adds up f32 is not documented.
fn sums(work: &Work) -> Option<Fused> {
    let sums = work.sums.as_ref()?;
    // Of codes it sums none.
    let alone = work.fp8.is_none()
        && work.bias.is_none()
        && work.activation.is_none()
        && work.copy.is_none()
        && work.derivative.is_none();
    let exact = work.c.numbers.dtype == DType::F32 || sums.is_direct(work.c.numbers.dtype);
    let fits = alone && exact && work.batch == Batch::ONE && work.a.stored.numbers.dtype != DType::F32;
    fits.then(|| Fused { sums: true, ..Fused::default() })
}

/// Whether the library can write this copy, or read these points.
fn fits(work: &Work, copy: Numbers) -> bool {
    let aligned = work.n.is_multiple_of(8) && copy.address.is_multiple_of(16);
    aligned && copy.dtype == work.c.numbers.dtype && work.batch == Batch::ONE
}

#[cfg(test)]
mod tests {
    use super::super::super::launch::Out;
    use super::super::epilogue::Matrices;
    use super::super::{Factor, Sums, Work};
    use super::*;
    use crate::fp8::Fp8Factors;

    fn numbers(dtype: DType) -> Numbers {
        Numbers { address: 0x1000, dtype }
    }

    fn work(a: DType, b: DType, c: DType) -> Work {
        let matrices = |dtype| Matrices { numbers: numbers(dtype), ld: 16, batch: [0, 0] };
        let factor = |dtype| Factor { stored: matrices(dtype), rows: 16, columns: 16, transposed: false };
        Work {
            m: 16,
            n: 16,
            k: 16,
            alpha: 1.0,
            beta: 0.0,
            a: factor(a),
            b: factor(b),
            c: matrices(c),
            batch: Batch::ONE,
            bias: Some(numbers(c)),
            activation: None,
            copy: None,
            derivative: None,
            sums: None,
            residual: None,
            fp8: None,
        }
    }

    fn first(work: &Work) -> Candidate {
        candidates(work).next().unwrap()
    }

    const BIAS: Fused =
        Fused { bias: true, function: None, copy: false, derivative: false, sums: false, residual: false };

    #[test]
    fn factors_of_one_type_are_multiplied_as_they_are_into_that_type_or_f32() {
        use DType::{BF16, F16, F32};
        for (a, c) in [(F32, F32), (F16, F16), (BF16, BF16), (F16, F32), (BF16, F32)] {
            assert_eq!(
                first(&work(a, a, c)),
                Candidate { factors: Factors::Stored, into: Destination::Result, fused: BIAS },
                "{a} to {c}"
            );
        }
        let scratch = |factors| Candidate { factors, into: Destination::Scratch, fused: Fused::default() };
        for (a, c) in [(F32, BF16), (F16, BF16), (BF16, F16)] {
            assert_eq!(first(&work(a, a, c)), scratch(Factors::Stored), "{a} to {c}");
        }
        assert_eq!(first(&work(F16, BF16, BF16)), scratch(Factors::Widened));
        assert_eq!(
            first(&work(F32, BF16, F32)),
            Candidate { factors: Factors::Widened, into: Destination::Result, fused: BIAS }
        );
    }

    #[test]
    fn factors_in_8_bits_are_multiplied_as_codes_into_any_type_and_widened_where_the_library_refuses_them() {
        use DType::{BF16, F32};
        for (a, b, c) in [(BF16, BF16, BF16), (BF16, BF16, F32), (BF16, F32, F32)] {
            let rounded = Work { fp8: Some(Fp8Factors::FORWARD), ..work(a, b, c) };
            let all: Vec<Candidate> = candidates(&rounded).collect();
            assert_eq!(
                all.first(),
                Some(&Candidate { factors: Factors::Rounded, into: Destination::Result, fused: BIAS })
            );
            assert!(all.iter().all(|candidate| candidate.factors.are_rounded() && !candidate.fused.sums));
            assert!(all.last().is_some_and(|last| last.factors == Factors::RoundedAndWidened));
        }
        // Left rows of codes are rows of the left factor; right ones are columns of the right factor.
        let written = |index, transposed| Factors::Rounded.written(index, transposed);
        assert_eq!([written(0, false), written(0, true)], [Written::Rows, Written::Columns]);
        assert_eq!([written(1, false), written(1, true)], [Written::Columns, Written::Rows]);
    }

    #[test]
    fn the_library_applies_what_it_knows_where_its_rules_allow() {
        use DType::{BF16, F32};
        let gelu = |dtype, activation, copy| Work { activation: Some(activation), copy, ..work(dtype, dtype, dtype) };
        let fused = |work: &Work| first(work).fused.function;
        assert_eq!(fused(&gelu(BF16, Activation::GeluTanh, None)), Some(Function::GeluTanh));
        assert_eq!(fused(&gelu(F32, Activation::GeluTanh, None)), None);
        assert_eq!(fused(&gelu(F32, Activation::Relu, None)), Some(Function::Relu));
        assert_eq!(fused(&gelu(BF16, Activation::Gelu, None)), None);

        let with_copy = gelu(BF16, Activation::GeluTanh, Some(numbers(BF16)));
        assert!(first(&with_copy).fused.copy && !first(&with_copy).finishes(&with_copy));
        for refused in [
            Work { n: 12, ..with_copy },
            Work { copy: Some(Numbers { address: 0x1008, dtype: BF16 }), ..with_copy },
            Work { copy: Some(numbers(F32)), ..with_copy },
        ] {
            let candidate = first(&refused);
            assert_eq!(candidate.into, Destination::Copy(refused.copy.unwrap()), "{refused:?}");
            assert!(candidate.finishes(&refused) && candidate.fused == BIAS);
        }
    }

    #[test]
    fn the_library_multiplies_by_the_derivative_that_it_knows() {
        use DType::{BF16, F32};
        let times = |dtype, activation, points| Work {
            bias: None,
            derivative: Some((activation, points)),
            ..work(dtype, dtype, dtype)
        };
        let known = times(BF16, Activation::GeluTanh, numbers(BF16));
        assert!(first(&known).fused.derivative && !first(&known).finishes(&known));
        for other in [
            times(BF16, Activation::Gelu, numbers(BF16)),
            times(F32, Activation::GeluTanh, numbers(F32)),
            times(BF16, Activation::GeluTanh, numbers(F32)),
            times(BF16, Activation::GeluTanh, Numbers { address: 0x1008, dtype: BF16 }),
            Work { n: 12, ..known },
            Work { bias: Some(numbers(BF16)), ..known },
        ] {
            let candidate = first(&other);
            assert!(
                candidate.into == Destination::Result && !candidate.fused.derivative && candidate.finishes(&other),
                "{other:?}"
            );
        }
    }

    #[test]
    fn the_library_sums_where_no_sum_is_rounded_more_than_once() {
        use DType::{BF16, F32};
        let into = |c, numbers, add| Work {
            bias: None,
            sums: Some(Sums { numbers, out: Out::NONE, add }),
            ..work(BF16, BF16, c)
        };
        for fused in [
            into(F32, numbers(F32), true),
            into(F32, numbers(BF16), true),
            into(BF16, numbers(BF16), false),
            into(F32, Numbers { address: 0x1004, dtype: F32 }, false),
        ] {
            assert!(first(&fused).fused.sums && !first(&fused).finishes(&fused), "{fused:?}");
        }
        let direct = into(BF16, numbers(BF16), false);
        for other in [
            into(BF16, numbers(BF16), true),
            into(BF16, numbers(F32), false),
            into(BF16, Numbers { address: 0x1002, dtype: BF16 }, false),
            Work { bias: Some(numbers(BF16)), ..direct },
            Work { batch: Batch { outer: 1, inner: 2 }, ..direct },
            Work { sums: direct.sums, bias: None, ..work(F32, F32, F32) },
        ] {
            assert!(!first(&other).fused.sums, "{other:?}");
        }
    }

    #[test]
    fn an_activation_of_a_sum_with_old_content_is_a_kernels_work_unless_the_library_does_it_all() {
        let work =
            Work { activation: Some(Activation::Silu), beta: 1.0, ..work(DType::BF16, DType::BF16, DType::BF16) };
        assert_eq!(first(&work).into, Destination::Scratch);
    }
}

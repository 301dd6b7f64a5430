//! The candidates for a product: ways to ask the library for it, the best first.
//!
//! The library takes factors of one dtype and gives a result of the same or of f32. Of epilogues it does a bias of the
//! result's type, and with it ReLU or the tanh approximation of GELU, whose argument it can keep; the derivative
//! of that; or, alone, sums of the rows of a factor, in the result's type. What it refuses all the
//! same is known only when it is asked: then the next candidate is tried.

use super::epilogue::{Matrices, Numbers};
use super::plan_cache::{Function, Fused};
use super::{Factor, Work};
use crate::dtype::DType;
use crate::kernel::elementwise::library_has_derivative;
use crate::kernel::{Activation, Batch};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The factors are first widened to f32, without gaps.
    pub(super) widened: bool,
    pub(super) into: Destination,
    /// What the library does to it.
    pub(super) fused: Fused,
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
    /// What the library multiplies, a and b, and where it writes c. Scratch memory has no address yet.
    pub(super) fn operands(&self, work: &Work) -> [Matrices; 3] {
        let factor = |factor: Factor| if self.widened { factor.widened(work.batch).0.stored } else { factor.stored };
        let c = match self.into {
            Destination::Result => work.c,
            Destination::Copy(numbers) => Matrices { numbers, ld: work.n, batch: [0, 0] },
            Destination::Scratch => work.in_scratch(),
        };
        [factor(work.a), factor(work.b), c]
    }

    pub(super) fn way(&self, work: &Work) -> Way {
        match (self.widened, self.into) {
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

/// How a product was made, for counts of them.
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
    let (a, b) = (work.a.stored.numbers.dtype, work.b.stored.numbers.dtype);
    let (c, gives) = (work.c.numbers.dtype, |result| a == b && (result == a || result == DType::F32));
    let candidate = |into, fused| Candidate { widened: false, into, fused };

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
    let unfused = (a == b).then(|| candidate(Destination::Scratch, Fused::default()));
    let widened =
        (plain && c == DType::F32).then(|| Candidate { widened: true, ..candidate(Destination::Result, bias) });
    let last = Candidate { widened: true, ..candidate(Destination::Scratch, Fused::default()) };
    [sums, whole, parted, apart, unfused, widened, Some(last)].into_iter().flatten()
}

/// A product to which the library adds the residual, and the bias, if it gives a result of that type.
pub(super) fn with_residual(work: &Work) -> Option<Candidate> {
    let (a, b, c) = (work.a.stored.numbers.dtype, work.b.stored.numbers.dtype, work.c.numbers.dtype);
    let fits = work.residual.is_some() && [work.m, work.n, work.k].iter().all(|size| *size > 0);
    let fused = Fused { bias: work.bias.is_some(), residual: true, ..Fused::default() };
    let candidate = Candidate { widened: false, into: Destination::Result, fused };
    (fits && a == b && (c == a || c == DType::F32)).then_some(candidate)
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
    let alone = work.bias.is_none() && work.activation.is_none() && work.copy.is_none() && work.derivative.is_none();
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
                Candidate { widened: false, into: Destination::Result, fused: BIAS },
                "{a} to {c}"
            );
        }
        let scratch = |widened| Candidate { widened, into: Destination::Scratch, fused: Fused::default() };
        for (a, c) in [(F32, BF16), (F16, BF16), (BF16, F16)] {
            assert_eq!(first(&work(a, a, c)), scratch(false), "{a} to {c}");
        }
        assert_eq!(first(&work(F16, BF16, BF16)), scratch(true));
        assert_eq!(first(&work(F32, BF16, F32)), Candidate { widened: true, into: Destination::Result, fused: BIAS });
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

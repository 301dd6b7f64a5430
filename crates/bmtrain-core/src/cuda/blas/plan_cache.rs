//! Products that are known: each is described and given an algorithm once, and found again by its key.
#![allow(unsafe_code)]

use super::super::CudaOptions;
use super::super::driver::Context;
use super::lt::{Algorithm, Code, Descriptor, GemmPlan, Lt, Number, signed, too_large};
use crate::dtype::DType;
use crate::error::Result;
use crate::fp8::Fp8Format;
use cudarc::cublaslt::sys;
use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

/// The most workspace of a product: what cuBLAS itself takes on Hopper, whose fastest algorithms for long sums need it.
/// Only as much is held as the algorithms in use ask for.
const MAX_WORKSPACE: u64 = 32 << 20;

/// Batches of many lengths make many products. Beyond this they are all forgotten, and asked for again.
const MAX_PLANS: usize = 4096;

/// Number of algorithms compared, where the fastest is to be found.
const MAX_ALGORITHMS: usize = 8;

/// No pointer is aligned to more as far as algorithms go.
const MAX_ALIGNMENT: u32 = 256;

/// A matrix of a product, stored in rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    pub(super) number: Number,
    /// Elements from one row to the next.
    pub(super) ld: usize,
    /// The product sees the transpose.
    pub(super) transposed: bool,
    pub(super) stride: usize,
    /// The power of two that the addresses of all entries are multiples of.
    pub(super) alignment: u32,
}

/// Epilogue that the library applies to a product before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Fused {
    pub(super) bias: bool,
    pub(super) function: Option<Function>,
    /// Keeps a copy of the function's argument, of the result's type, without gaps.
    pub(super) copy: bool,
    /// Multiplies by the derivative of the tanh approximation of GELU, at points of the result's type without gaps.
    pub(super) derivative: bool,
    /// Sums the rows of the left factor, in the result's type. Alone.
    pub(super) sums: bool,
    /// Adds a matrix of the result's type and layout, read from another place than the result's.
    pub(super) residual: bool,
}

impl Fused {
    fn has_vector(self) -> bool {
        self.bias || self.sums
    }

    /// Whether a kernel of this crate does the same after a product, or beside it, at about the cost of reading it.
    pub(super) fn is_a_kernels_too(self) -> bool {
        self.function.is_some() || self.derivative || self.sums
    }

    fn has_matrix(self) -> bool {
        self.copy || self.derivative
    }
}

/// A function that the library knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Function {
    Relu,
    GeluTanh,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Problem {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Stored,
    pub(super) b: Stored,
    pub(super) c: Stored,
    /// Entries of the batch.
    pub(super) count: usize,
    pub(super) fused: Fused,
}

impl Problem {
    /// From the first element of the result to the last.
    pub(super) fn result_elements(&self) -> usize {
        (self.count - 1) * self.c.stride + (self.m - 1) * self.c.ld + self.n
    }
}

/// Addresses that the library reads or writes beside the matrices; 0 for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FusedAddresses {
    /// The bias, or the sums.
    pub(super) vector: u64,
    /// The copy, or the points of the derivative.
    pub(super) matrix: u64,
}

#[derive(Debug, Default)]
pub(super) struct PlanCache {
    /// None for a product that the library does not do.
    known: HashMap<Problem, Option<Arc<Mutex<GemmPlan>>>>,
    /// Kernels that the library has loaded, or is about to.
    loaded: HashSet<LibraryKernels>,
}

/// The known dependencies of a product's kernels.
#[derive(Debug, PartialEq, Eq, Hash)]
struct LibraryKernels {
    code: Code,
    /// Factors and result: type, whether it is transposed, alignment.
    matrices: [(Number, bool, u32); 3],
    fused: Fused,
}

impl LibraryKernels {
    fn of(problem: &Problem, algorithm: &Algorithm) -> Self {
        let matrices = [problem.a, problem.b, problem.c];
        let matrices = matrices.map(|Stored { number, transposed, alignment, .. }| (number, transposed, alignment));
        LibraryKernels { code: algorithm.code(), matrices, fused: problem.fused }
    }
}

impl PlanCache {
    /// The plan of a product, made if this is the first of its kind; none if the library has no algorithm for it.
    pub(super) fn of(
        &mut self,
        (context, lt): (&Context, &Lt),
        problem: &Problem,
        options: &CudaOptions,
    ) -> Result<Option<Arc<Mutex<GemmPlan>>>> {
        if let Some(known) = self.known.get(problem) {
            return Ok(known.clone());
        }
        if self.known.len() >= MAX_PLANS {
            self.known.clear();
        }
        let Some(plan) = make(lt, problem, options)? else {
            self.refuse(problem);
            return Ok(None);
        };
        // The library loads kernels when it first uses them. Before algorithms are timed the lanes are drained anyway.
        let kernels = LibraryKernels::of(problem, &plan.algorithm);
        if plan.others.is_empty() && !self.loaded.contains(&kernels) {
            context.drain()?;
            self.loaded.insert(kernels);
        }
        let plan = Arc::new(Mutex::new(plan));
        self.known.insert(*problem, Some(Arc::clone(&plan)));
        Ok(Some(plan))
    }

    /// Remember that the library does not do a product, and report it, once.
    pub(super) fn refuse(&mut self, problem: &Problem) {
        let Problem { m, n, k, a, b, c, fused, .. } = problem;
        let types = [a, b, c].map(|stored| stored.number.name()).join(", ");
        tracing::warn!(
            product = %format!("{m} x {n} x {k} of {types}"),
            epilogue = ?fused,
            "cuBLASLt refuses a product, which is made in another way: slower, or with more scratch memory"
        );
        self.known.insert(*problem, None);
    }
}

/// The power of two, at most 256, that an address and everything at multiples of `stride` bytes from it are multiples
/// of.
pub(super) fn alignment(address: u64, strides: impl IntoIterator<Item = usize>) -> u32 {
    let all = strides.into_iter().fold(address, |all, stride| all | stride as u64);
    1 << all.trailing_zeros().min(MAX_ALIGNMENT.trailing_zeros())
}

fn make(lt: &Lt, problem: &Problem, options: &CudaOptions) -> Result<Option<GemmPlan>> {
    use sys::cublasComputeType_t as Compute;
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let Problem { m, n, k, a, b, c, .. } = *problem;
    let compute = if options.tf32 && a.number == Number::Plain(DType::F32) {
        Compute::CUBLAS_COMPUTE_32F_FAST_TF32
    } else {
        Compute::CUBLAS_COMPUTE_32F
    };
    let product = lt.product(compute)?;
    /// Multiples of all that the library requires, before the addresses are known.
    const ANY: FusedAddresses = FusedAddresses { vector: 256, matrix: 256 };
    // A matrix in rows is its transpose in columns, and (a b)^T = b^T a^T: the library's first factor is `b`.
    // CUBLAS_OP_N is 0 and CUBLAS_OP_T is 1.
    let transpose = |stored: &Stored| c_int::from(stored.transposed);
    lt.set(&product, Attribute::CUBLASLT_MATMUL_DESC_TRANSA as u32, transpose(&b))?;
    lt.set(&product, Attribute::CUBLASLT_MATMUL_DESC_TRANSB as u32, transpose(&a))?;
    lt.set(&product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE as u32, epilogue(problem.fused))?;
    if problem.fused.has_vector() {
        lt.set(&product, Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE as u32, c.number.code()?)?;
    }
    if problem.fused.has_matrix() {
        lt.set(&product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE as u32, c.number.code()?)?;
        lt.set(&product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD as u32, signed(n)?)?;
    }
    set_fused(lt, &product, problem.fused, ANY)?;
    if let (Number::Fp8(left), Number::Fp8(right)) = (a.number, b.number) {
        set_scales(lt, &product, [ANY.vector; 2])?;
        // Gradients get sums of more bits.
        let is_forward = left == Fp8Format::E4M3 && right == Fp8Format::E4M3;
        lt.set(&product, Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM as u32, i8::from(is_forward))?;
    }
    let stored = |matrix: &Stored, rows, columns| {
        let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
        layout(lt, matrix, (rows, columns), problem.count)
    };
    let (a_layout, b_layout, c_layout) = (stored(&a, m, k)?, stored(&b, k, n)?, stored(&c, m, n)?);
    let preference = preference(lt, [b.alignment, a.alignment, c.alignment])?;
    let most = if options.timed_products { MAX_ALGORITHMS } else { 1 };
    let mut found = lt.heuristic(&product, [&b_layout, &a_layout, &c_layout], &preference, most)?.into_iter();
    Ok(found.next().map(|algorithm| {
        // The library's order.
        GemmPlan { product, a: b_layout, b: a_layout, c: c_layout, algorithm, others: found.collect() }
    }))
}

fn layout(lt: &Lt, matrix: &Stored, (rows, columns): (usize, usize), count: usize) -> Result<Descriptor> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    let layout = lt.layout(matrix.number, columns, rows, matrix.ld)?;
    if count > 1 {
        let entries = c_int::try_from(count).map_err(|_| too_large(count))?;
        lt.set(&layout, Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as u32, entries)?;
        let stride = signed(matrix.stride)?;
        lt.set(&layout, Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as u32, stride)?;
    }
    Ok(layout)
}

fn preference(lt: &Lt, [a, b, c]: [u32; 3]) -> Result<Descriptor> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let preference = lt.preference()?;
    lt.set(&preference, Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as u32, MAX_WORKSPACE)?;
    // Sums that are made in parts are put together in f32, never in the result's type.
    let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    lt.set(&preference, Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK as u32, scheme)?;
    for (attribute, alignment) in [
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
    ] {
        lt.set(&preference, attribute as u32, alignment)?;
    }
    Ok(preference)
}

fn epilogue(fused: Fused) -> u32 {
    use sys::cublasLtEpilogue_t as Epilogue;
    if fused.derivative {
        return Epilogue::CUBLASLT_EPILOGUE_DGELU as u32;
    }
    if fused.sums {
        // Our left factor is the library's second.
        return Epilogue::CUBLASLT_EPILOGUE_BGRADB as u32;
    }
    let epilogue = match (fused.function, fused.copy, fused.bias) {
        (None, _, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (None, _, true) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        (Some(Function::Relu), _, false) => Epilogue::CUBLASLT_EPILOGUE_RELU,
        (Some(Function::Relu), _, true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        (Some(Function::GeluTanh), false, false) => Epilogue::CUBLASLT_EPILOGUE_GELU,
        (Some(Function::GeluTanh), false, true) => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
        (Some(Function::GeluTanh), true, false) => Epilogue::CUBLASLT_EPILOGUE_GELU_AUX,
        (Some(Function::GeluTanh), true, true) => Epilogue::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
    };
    epilogue as u32
}

pub(super) fn set_addresses(lt: &Lt, plan: &GemmPlan, fused: Fused, beside: FusedAddresses) -> Result<()> {
    set_fused(lt, &plan.product, fused, beside)
}

/// Sets the scales of a product of codes, in the order of our factors: one f32 at each address.
pub(super) fn set_scales(lt: &Lt, product: &Descriptor, [a, b]: [u64; 2]) -> Result<()> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    lt.set(product, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER as u32, b)?;
    lt.set(product, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER as u32, a)
}

fn set_fused(lt: &Lt, product: &Descriptor, fused: Fused, beside: FusedAddresses) -> Result<()> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    if fused.has_vector() {
        lt.set(product, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER as u32, beside.vector)?;
    }
    if fused.has_matrix() {
        lt.set(product, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER as u32, beside.matrix)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_that_of_every_entry() {
        assert_eq!(alignment(0x1000, []), 256);
        assert_eq!(alignment(0x1000, [64 * 4]), 256);
        assert_eq!(alignment(0x1000, [768 * 2, 48]), 16);
        assert_eq!(alignment(0x1002, [768 * 2]), 2);
        assert_eq!(alignment(0x1000, [0]), 256);
    }
}

//! The functions of cuBLASLt, a handle, and descriptors with owners.
//!
//! Functions return plain numbers here and not the enumerations of the bindings, because a newer library may have more
//! of them. The bindings give the values of what is passed in.
#![allow(unsafe_code)]

use super::super::CudaOptions;
use super::super::driver::{Context, failure};
use super::super::libraries::{CUBLASLT, Opened, open};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fp8::Fp8Format;
use cudarc::cublaslt::sys;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

type Status = c_int;
type Object = *mut c_void;
type Create = unsafe extern "C" fn(*mut Object) -> Status;
type Destroy = unsafe extern "C" fn(Object) -> Status;
type Set = unsafe extern "C" fn(Object, c_int, *const c_void, usize) -> Status;

const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 7;
const NOT_SUPPORTED: Status = 15;

#[derive(Debug)]
struct Functions {
    words: unsafe extern "C" fn(Status) -> *const c_char,
    create: Create,
    destroy: Destroy,
    product_create: unsafe extern "C" fn(*mut Object, c_int, c_int) -> Status,
    product_set: Set,
    product_destroy: Destroy,
    layout_create: unsafe extern "C" fn(*mut Object, c_int, u64, u64, i64) -> Status,
    layout_set: Set,
    layout_destroy: Destroy,
    preference_create: Create,
    preference_set: Set,
    preference_destroy: Destroy,
    heuristic: unsafe extern "C" fn(
        Object,
        Object,
        Object,
        Object,
        Object,
        Object,
        Object,
        c_int,
        *mut Found,
        *mut c_int,
    ) -> Status,
    matmul: unsafe extern "C" fn(
        Object,
        Object,
        *const f32,
        u64,
        Object,
        u64,
        Object,
        *const f32,
        u64,
        Object,
        u64,
        Object,
        *const sys::cublasLtMatmulAlgo_t,
        u64,
        usize,
        *mut c_void,
    ) -> Status,
}

/// As the library writes it: the bindings' structure with the state as a number.
#[repr(C)]
#[derive(Clone, Copy)]
struct Found {
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Found>() == size_of::<sys::cublasLtMatmulHeuristicResult_t>());

#[derive(Debug)]
pub(super) struct Lt {
    functions: Functions,
    handle: Object,
    version: [u32; 3],
    // Outlives the handle, which belongs to it.
    context: Arc<Context>,
    _library: Opened,
}

// SAFETY: the library's interface may be called from any thread, on a handle also from several at once.
unsafe impl Send for Lt {}
// SAFETY: as above.
unsafe impl Sync for Lt {}

pub(in crate::cuda) fn version(library: &Opened) -> Result<(PathBuf, [u32; 3])> {
    type GetVersion = unsafe extern "C" fn() -> usize;
    // SAFETY: the function has this type.
    let get: GetVersion = unsafe { library.function(c"cublasLtGetVersion") }?;
    // SAFETY: it takes nothing and works without a driver.
    let version = u32::try_from(unsafe { get() }).unwrap_or(0);
    // 120503 is 12.5.3, 130000 is 13.0.0.
    Ok((library.path_of(get as usize), [version / 10_000, version / 100 % 100, version % 100]))
}

impl Lt {
    /// Open the library, with the device's context current on this thread.
    pub(super) fn open(context: &Arc<Context>, options: &CudaOptions) -> Result<Self> {
        let library = open(&CUBLASLT, options)?;
        // SAFETY: each function has the type of its place, by the interface that all versions from 11 on share.
        let functions = unsafe {
            Functions {
                words: library.function(c"cublasLtGetStatusString")?,
                create: library.function(c"cublasLtCreate")?,
                destroy: library.function(c"cublasLtDestroy")?,
                product_create: library.function(c"cublasLtMatmulDescCreate")?,
                product_set: library.function(c"cublasLtMatmulDescSetAttribute")?,
                product_destroy: library.function(c"cublasLtMatmulDescDestroy")?,
                layout_create: library.function(c"cublasLtMatrixLayoutCreate")?,
                layout_set: library.function(c"cublasLtMatrixLayoutSetAttribute")?,
                layout_destroy: library.function(c"cublasLtMatrixLayoutDestroy")?,
                preference_create: library.function(c"cublasLtMatmulPreferenceCreate")?,
                preference_set: library.function(c"cublasLtMatmulPreferenceSetAttribute")?,
                preference_destroy: library.function(c"cublasLtMatmulPreferenceDestroy")?,
                heuristic: library.function(c"cublasLtMatmulAlgoGetHeuristic")?,
                matmul: library.function(c"cublasLtMatmul")?,
            }
        };
        context.bind()?;
        let mut handle = ptr::null_mut();
        // SAFETY: one pointer is written.
        let status = unsafe { (functions.create)(&mut handle) };
        let lt =
            Lt { functions, handle, version: version(&library)?.1, context: Arc::clone(context), _library: library };
        lt.answer("cublasLtCreate", status)?;
        Ok(lt)
    }

    /// Major, minor, patch.
    pub(super) fn version(&self) -> [u32; 3] {
        self.version
    }

    fn answer(&self, call: &'static str, status: Status) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any number and returns a text that lives as long as the library, or null.
        let words = unsafe { (self.functions.words)(status) };
        // SAFETY: as above; the text ends with a zero byte.
        let words = (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned());
        Err(failure(call, format!("error {status}: {}", words.unwrap_or_default())))
    }

    /// A product's description: what is multiplied how, without the matrices.
    pub(super) fn product(&self, compute: sys::cublasComputeType_t) -> Result<Descriptor> {
        let mut object = ptr::null_mut();
        let (compute, scale) = (compute as c_int, number_type(DType::F32)?);
        // SAFETY: one pointer is written.
        let status = unsafe { (self.functions.product_create)(&mut object, compute, scale) };
        self.answer("cublasLtMatmulDescCreate", status)?;
        Ok(Descriptor { object, set: self.functions.product_set, destroy: self.functions.product_destroy })
    }

    /// Position of a matrix, in columns.
    pub(super) fn layout(&self, number: Number, rows: usize, columns: usize, ld: usize) -> Result<Descriptor> {
        let mut object = ptr::null_mut();
        let ld = signed(ld)?;
        // SAFETY: one pointer is written.
        let status =
            unsafe { (self.functions.layout_create)(&mut object, number.code()?, rows as u64, columns as u64, ld) };
        self.answer("cublasLtMatrixLayoutCreate", status)?;
        Ok(Descriptor { object, set: self.functions.layout_set, destroy: self.functions.layout_destroy })
    }

    pub(super) fn preference(&self) -> Result<Descriptor> {
        let mut object = ptr::null_mut();
        // SAFETY: one pointer is written.
        let status = unsafe { (self.functions.preference_create)(&mut object) };
        self.answer("cublasLtMatmulPreferenceCreate", status)?;
        Ok(Descriptor { object, set: self.functions.preference_set, destroy: self.functions.preference_destroy })
    }

    pub(super) fn set<T: Copy>(&self, descriptor: &Descriptor, attribute: u32, value: T) -> Result<()> {
        let attribute = attribute as c_int;
        // SAFETY: the descriptor lives; as many bytes are read as the value has, and their number is checked by the
        // library.
        let status =
            unsafe { (descriptor.set)(descriptor.object, attribute, ptr::from_ref(&value).cast(), size_of::<T>()) };
        self.answer("cublasLt...SetAttribute", status)
    }

    /// At most `most` algorithms for a product of these matrices, the one first that the library expects to be fastest;
    /// none if it has none.
    pub(super) fn heuristic(
        &self,
        product: &Descriptor,
        [a, b, c]: [&Descriptor; 3],
        preference: &Descriptor,
        most: usize,
    ) -> Result<Vec<Algorithm>> {
        let mut count = 0;
        let code = sys::cublasLtMatmulAlgo_t { data: [0; 8] };
        let nothing = Found { algorithm: code, workspace: 0, state: NOT_SUPPORTED, waves: 0.0, reserved: [0; 4] };
        let mut found = vec![nothing; most];
        let (a, b, c, d) = (a.object, b.object, c.object, c.object);
        let (product, preference, places) = (product.object, preference.object, found.as_mut_ptr());
        // SAFETY: all descriptors live; there is a place for each answer that is asked for.
        let status = unsafe {
            (self.functions.heuristic)(self.handle, product, a, b, c, d, preference, most as c_int, places, &mut count)
        };
        // A combination that is not supported is reported as an invalid value, as unsupported, or by no
        // answer.
        if ![SUCCESS, INVALID_VALUE, NOT_SUPPORTED].contains(&status) {
            self.answer("cublasLtMatmulAlgoGetHeuristic", status)?;
        }
        let count = if status == SUCCESS { usize::try_from(count).unwrap_or(0) } else { 0 };
        let works = found.iter().take(count).filter(|found| found.state == SUCCESS);
        Ok(works.map(|found| Algorithm { code: found.algorithm, workspace: found.workspace }).collect())
    }

    /// Queue a product by an algorithm of its plan; false, with nothing queued, if the library refuses it only now:
    /// some of what it requires of addresses it checks here and not when it chooses an algorithm.
    ///
    /// # Safety
    /// The addresses are of this device, valid until the lane has run the product, as large as the layouts declare and
    /// aligned as the algorithm was chosen for; what is written overlaps nothing.
    pub(super) unsafe fn multiply(
        &self,
        plan: &GemmPlan,
        algorithm: &Algorithm,
        call: &Call,
        stream: *mut c_void,
    ) -> Result<bool> {
        let GemmPlan { product, a: a_layout, b: b_layout, c: c_layout, .. } = plan;
        let (a, b, c) = (a_layout.object, b_layout.object, c_layout.object);
        // SAFETY: descriptors live, the factors are read before the call returns; the rest is promised by the caller.
        let status = unsafe {
            (self.functions.matmul)(
                self.handle,
                product.object,
                &call.alpha,
                call.a,
                a,
                call.b,
                b,
                &call.beta,
                call.c,
                c,
                call.d,
                c,
                &algorithm.code,
                call.workspace,
                algorithm.workspace,
                stream,
            )
        };
        if [INVALID_VALUE, NOT_SUPPORTED].contains(&status) {
            return Ok(false);
        }
        self.answer("cublasLtMatmul", status).map(|()| true)
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        // SAFETY: made in `open`, destroyed once. What it had queued waits for nothing of it.
        let destroyed = self
            .context
            .bind()
            .and_then(|()| self.answer("cublasLtDestroy", unsafe { (self.functions.destroy)(self.handle) }));
        if let Err(error) = destroyed {
            tracing::warn!(%error, "a handle of cuBLASLt could not be returned");
        }
    }
}

/// A descriptor of the library, destroyed on drop. Memory of the host: its address means the same on every thread.
#[derive(Debug)]
pub(super) struct Descriptor {
    object: Object,
    set: Set,
    destroy: Destroy,
}

// SAFETY: plain memory that is changed by one thread at a time.
unsafe impl Send for Descriptor {}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once. A failure would be a descriptor that is none.
        let _ = unsafe { (self.destroy)(self.object) };
    }
}

/// A product that is known: described, and with an algorithm. The library's first factor, in columns, is our second in
/// rows.
#[derive(Debug)]
pub(super) struct GemmPlan {
    pub(super) product: Descriptor,
    pub(super) a: Descriptor,
    pub(super) b: Descriptor,
    pub(super) c: Descriptor,
    pub(super) algorithm: Algorithm,
    /// Those that it is not compared with yet, if the fastest is to be found.
    pub(super) others: Vec<Algorithm>,
}

impl GemmPlan {
    /// Bytes that any of its algorithms needs.
    pub(super) fn workspace(&self) -> usize {
        self.others.iter().chain([&self.algorithm]).map(|algorithm| algorithm.workspace).max().unwrap_or(0)
    }
}

/// The library's code of an algorithm: numbers that mean the same in every process with this version of it.
pub(super) type Code = [u64; 8];

/// An algorithm of the library for one product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Algorithm {
    code: sys::cublasLtMatmulAlgo_t,
    /// Bytes that it needs.
    pub(super) workspace: usize,
}

impl Algorithm {
    pub(super) fn code(&self) -> Code {
        self.code.data
    }
}

/// Arguments that differ between products of one plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) alpha: f32,
    pub(super) beta: f32,
    pub(super) a: u64,
    pub(super) b: u64,
    /// Added with factor `beta`; where it is written.
    pub(super) c: u64,
    pub(super) d: u64,
    pub(super) workspace: u64,
}

/// The type of a matrix's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Number {
    Plain(DType),
    Fp8(Fp8Format),
}

impl Number {
    pub(super) fn name(self) -> &'static str {
        match self {
            Number::Plain(dtype) => dtype.name(),
            Number::Fp8(format) => format.name(),
        }
    }

    pub(super) fn code(self) -> Result<c_int> {
        use sys::cudaDataType_t as Type;
        match self {
            Number::Plain(dtype) => number_type(dtype),
            Number::Fp8(Fp8Format::E4M3) => Ok(Type::CUDA_R_8F_E4M3 as c_int),
            Number::Fp8(Fp8Format::E5M2) => Ok(Type::CUDA_R_8F_E5M2 as c_int),
        }
    }
}

pub(super) fn number_type(dtype: DType) -> Result<c_int> {
    use sys::cudaDataType_t as Type;
    match dtype {
        DType::F32 => Ok(Type::CUDA_R_32F as c_int),
        DType::F16 => Ok(Type::CUDA_R_16F as c_int),
        DType::BF16 => Ok(Type::CUDA_R_16BF as c_int),
        other => Err(failure("multiply", format!("products of {other}"))),
    }
}

pub(super) fn signed(size: usize) -> Result<i64> {
    i64::try_from(size).map_err(|_| too_large(size))
}

pub(super) fn too_large(size: usize) -> Error {
    failure("multiply", format!("a size of {size} is more than the library takes"))
}

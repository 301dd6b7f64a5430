//! Options of a device.

use crate::threads::CpuOptions;
use std::path::PathBuf;

/// Options of the CUDA backend: files that it needs besides the driver, and switches.
#[derive(Debug, Clone, Default)]
pub struct CudaOptions {
    /// A directory of compiled kernels, `UNIT.cubin` each; nothing is compiled then. They are loaded as they are:
    /// the caller vouches for the directory.
    pub compiled: Option<PathBuf>,
    /// Directories in which NVIDIA's libraries are looked for before anywhere else.
    pub libraries: Vec<PathBuf>,
    /// Directories of CUDA toolkits, whose `lib64` and `lib` are looked at next; then it is the system's loader's turn.
    pub toolkits: Vec<PathBuf>,
    /// Directories of Python packages (`site-packages`), in which NVIDIA's packages keep their libraries; looked at
    /// last.
    pub packages: Vec<PathBuf>,
    /// A directory to keep compiled kernels and choices of algorithms in; without one they are made at every start. It
    /// must be the user's own.
    pub cache: Option<PathBuf>,
    /// Let products of f32 factors shorten these to 19 bits (TF32), which is several times as fast and as exact as f16.
    pub tf32: bool,
    /// Replay launches that repeat from step to step as CUDA graphs, which costs the host less time than launch after
    /// launch. What is computed, and in which order, stays the same. Needs a driver of CUDA 12.0 or later.
    pub graphs: bool,
    /// Time the first algorithms that cuBLASLt suggests for a product when it is made for the first time, and use the
    /// fastest. Algorithms differ in the order of sums, and so results in their last bits: choices are kept in `cache`,
    /// by device and version of the library, where later runs and the other ranks of a host find them. Scratch memory
    /// grows by the largest result, at most 256 MiB, that is added to what is there.
    pub timed_products: bool,
    /// Let kernels of this crate apply activations and their derivatives beside products, and sum the rows of a factor,
    /// although cuBLASLt could.
    pub kernel_epilogues: bool,
    /// Compute attention on products of warpgroups where there is a kernel for it: forward, causal or not, no mask,
    /// documents, bias or dropout, heads of 64 or 128 in a 16-bit type, compute capability 9.0, a driver of CUDA 12.0
    /// or later. Results differ in their last bits: sums are over tiles of other sizes.
    pub warpgroup_attention: bool,
    /// Give each warp 32 queries instead of 16 where attention on tensor cores makes gradients of queries, for heads of
    /// 64 without mask, documents, bias and dropout: fewer reads of shared memory a product, more registers. Results
    /// are the same.
    pub wide_queries: bool,
    /// Give each warp 32 keys instead of 16 where it makes gradients of keys and values.
    pub wide_keys: bool,
    /// Threads for work of the host beside the device, such as an offloaded optimizer.
    pub host: Option<CpuOptions>,
}

//! Graphs of the driver: captured from a stream of their own, changed kernel by kernel, launched.

use super::super::functions::Functions;
use super::super::{Context, answer, failure, warn_of};
use super::{Command, Given};
use crate::error::Result;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// Driver functions that older drivers lack in part: all are there since CUDA 12.0.
#[derive(Debug, Clone, Copy)]
struct Calls {
    begin: unsafe extern "C" fn(sys::CUstream, u32) -> i32,
    end: unsafe extern "C" fn(sys::CUstream, *mut sys::CUgraph) -> i32,
    place: unsafe extern "C" fn(
        sys::CUstream,
        *mut i32,
        *mut u64,
        *mut sys::CUgraph,
        *mut *const sys::CUgraphNode,
        *mut usize,
    ) -> i32,
    instantiate: unsafe extern "C" fn(*mut sys::CUgraphExec, sys::CUgraph, u64) -> i32,
    launch: unsafe extern "C" fn(sys::CUgraphExec, sys::CUstream) -> i32,
    set_kernel:
        unsafe extern "C" fn(sys::CUgraphExec, sys::CUgraphNode, *const sys::CUDA_KERNEL_NODE_PARAMS_v2_st) -> i32,
    destroy: unsafe extern "C" fn(sys::CUgraph) -> i32,
    destroy_exec: unsafe extern "C" fn(sys::CUgraphExec) -> i32,
}

impl Calls {
    fn of(driver: &Functions) -> Option<Self> {
        Some(Calls {
            begin: driver.capture_begin?,
            end: driver.capture_end?,
            place: driver.capture_info?,
            instantiate: driver.graph_instantiate?,
            launch: driver.graph_launch?,
            set_kernel: driver.graph_set_kernel?,
            destroy: driver.graph_destroy?,
            destroy_exec: driver.graph_exec_destroy?,
        })
    }
}

/// A graph that can be launched.
#[derive(Debug)]
pub(in crate::cuda) struct CapturedGraph {
    context: Arc<Context>,
    calls: Calls,
    // The nodes are its: it lives as long as they may be changed.
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    /// One for each command; null for other commands than kernels.
    nodes: Vec<sys::CUgraphNode>,
}

// SAFETY: the driver's interface may be called from any thread, with the context bound; one thread at a time uses a
// graph, under the lock of its recorder.
unsafe impl Send for CapturedGraph {}

impl CapturedGraph {
    /// Capture what `queue` gives to a stream for each of the commands. `stream` is one that nothing else uses.
    pub(in crate::cuda) fn new(
        context: &Arc<Context>,
        stream: sys::CUstream,
        commands: &[Command],
        queue: impl Fn(&Given<'_>, sys::CUstream) -> Result<bool>,
    ) -> Result<Self> {
        context.bind()?;
        let Some(calls) = Calls::of(context.driver) else {
            return Err(failure("cuGraphLaunch", "the driver is older than CUDA 12.0: update it"));
        };
        // Other threads go on with calls that a stricter mode forbids.
        const RELAXED: u32 = 2;
        // SAFETY: the stream lives and is not captured.
        answer("cuStreamBeginCapture", unsafe { (calls.begin)(stream, RELAXED) })?;
        let queued = commands.iter().map(|command| {
            if !queue(&command.given(), stream)? {
                return Err(failure("capture", "a library refuses a call that it took before"));
            }
            match command {
                Command::Kernel { .. } => last_node(calls, stream),
                _ => Ok(ptr::null_mut()),
            }
        });
        let nodes: Result<Vec<sys::CUgraphNode>> = queued.collect();
        let mut graph = ptr::null_mut();
        // SAFETY: the capture was begun above; one handle is written.
        let ended = answer("cuStreamEndCapture", unsafe { (calls.end)(stream, &mut graph) });
        // From here on it is destroyed on drop.
        let context = Arc::clone(context);
        let mut captured = CapturedGraph { context, calls, graph, exec: ptr::null_mut(), nodes: Vec::new() };
        captured.nodes = nodes?;
        ended?;
        const NO_FLAGS: u64 = 0;
        // SAFETY: the graph lives; one handle is written.
        let status = unsafe { (calls.instantiate)(&mut captured.exec, captured.graph, NO_FLAGS) };
        answer("cuGraphInstantiate", status)?;
        Ok(captured)
    }

    /// Queue the graph, with the arguments of these commands, for which it was captured.
    ///
    /// # Safety
    /// The stream lives. What the commands read and write is valid until it has run them, and large enough.
    pub(in crate::cuda) unsafe fn launch(&self, stream: sys::CUstream, commands: &[Command]) -> Result<()> {
        self.context.bind()?;
        for (node, command) in self.nodes.iter().zip(commands).filter(|(_, command)| command.is_changed()) {
            let Given::Kernel { function, grid, arguments } = command.given() else { continue };
            let mut slots: [*mut c_void; 1] = [arguments.as_ptr().cast_mut().cast()];
            let ([x, y, z], [threads_x, threads_y, threads_z]) = (grid.blocks, grid.threads);
            let parameters = sys::CUDA_KERNEL_NODE_PARAMS_v2_st {
                func: function.handle,
                gridDimX: x,
                gridDimY: y,
                gridDimZ: z,
                blockDimX: threads_x,
                blockDimY: threads_y,
                blockDimZ: threads_z,
                sharedMemBytes: grid.shared,
                kernelParams: slots.as_mut_ptr(),
                extra: ptr::null_mut(),
                kern: ptr::null_mut(),
                // The current one.
                ctx: ptr::null_mut(),
            };
            // SAFETY: the node is this graph's; the driver copies the arguments before it returns.
            let status = unsafe { (self.calls.set_kernel)(self.exec, *node, &parameters) };
            answer("cuGraphExecKernelNodeSetParams", status)?;
        }
        // SAFETY: the graph and the stream live; the rest is promised by the caller.
        answer("cuGraphLaunch", unsafe { (self.calls.launch)(self.exec, stream) })
    }
}

/// The node of what was just given to a stream that is captured.
fn last_node(calls: Calls, stream: sys::CUstream) -> Result<sys::CUgraphNode> {
    let (mut status, mut nodes, mut count) = (0, ptr::null(), 0);
    // SAFETY: the stream is captured; places that are null are not written. The nodes are the driver's and stay until
    // the stream is given something else.
    unsafe {
        let answered = (calls.place)(stream, &mut status, ptr::null_mut(), ptr::null_mut(), &mut nodes, &mut count);
        answer("cuStreamGetCaptureInfo", answered)?;
        if count != 1 || nodes.is_null() {
            return Err(failure("cuStreamGetCaptureInfo", format!("{count} nodes come before the next, not 1")));
        }
        Ok(*nodes)
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        let destroy = || {
            self.context.bind()?;
            // SAFETY: made in `new`, destroyed only here. The driver lets a graph that is running end first.
            unsafe {
                let exec = if self.exec.is_null() { 0 } else { (self.calls.destroy_exec)(self.exec) };
                let graph = if self.graph.is_null() { 0 } else { (self.calls.destroy)(self.graph) };
                answer("cuGraphExecDestroy", exec).and(answer("cuGraphDestroy", graph))
            }
        };
        warn_of(destroy());
    }
}

//! A trace of the CUDA backend's lanes, on an emulated driver: what is in it, and in which order. Its times are the
//! host's and prove nothing about a device.
#![cfg(feature = "cuda")]

use bmtrain_core::cuda::{CudaBackend, CudaOptions, Traced};
use bmtrain_core::kernel::{Softmax, SoftmaxBackward};
use bmtrain_core::{Backend, DType, Device, Lane, Segment, Storage, Tensor};
use cuda_emulator::{Driver, with_driver};
use std::sync::Arc;

#[test]
fn a_trace_holds_what_lanes_were_given_with_beginning_and_end() {
    let test = "a_trace_holds_what_lanes_were_given_with_beginning_and_end";
    with_driver(test, Driver::Emulated, &[], || {
        let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
        let backend = Arc::new(CudaBackend::open(0, &options).unwrap());
        let device = Device::new(backend.clone());
        let tensor = || Tensor::full_in(&device, [4, 8], DType::F32, 1.0, Segment::Workspace).unwrap();
        let (x, mut y, mut dx) = (tensor(), tensor(), tensor());
        assert_eq!(backend.take_trace().unwrap(), [], "no trace was requested");

        backend.trace_on().unwrap();
        let (rows, columns, log) = (4, 8, false);
        device.launch(Softmax { rows, columns, log, x: x.view().unwrap(), y: y.view_mut().unwrap() }).unwrap();
        let storage = Storage::empty_on(&device, 8, DType::F32, Segment::Data, Lane::Copy).unwrap();
        backend.upload(&[0; 32], storage.view_mut_on(0..8, Lane::Copy).unwrap(), Lane::Copy).unwrap();
        // The compute lane waits for the upload before its second kernel.
        backend.wait(Lane::Compute, backend.mark(Lane::Copy).unwrap()).unwrap();
        let dx = bmtrain_core::kernel::Dest { view: dx.view_mut().unwrap(), add: false };
        let (y, dy) = (y.view().unwrap(), x.view().unwrap());
        device.launch(SoftmaxBackward { rows, columns, log, y, dy, dx }).unwrap();
        let trace = backend.take_trace().unwrap();

        let what: Vec<(Lane, &str)> = trace.iter().map(|traced| (traced.lane, traced.name)).collect();
        assert_eq!(
            what,
            [(Lane::Compute, "softmax"), (Lane::Copy, "upload"), (Lane::Compute, "softmax_backward")],
            "{trace:?}"
        );
        assert!(trace.iter().all(|Traced { begin, end, .. }| 0.0 <= *begin && begin <= end), "{trace:?}");
        // What the trace tells of order is what was asked for: kernels after each other, the second after the upload.
        assert!(trace[0].end <= trace[2].begin && trace[1].end <= trace[2].end, "{trace:?}");
        assert_eq!(backend.take_trace().unwrap(), [], "a trace is given out once");
    });
}

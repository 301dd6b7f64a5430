//! Resolution of `auto` and `cuda` where something that CUDA needs is missing, on an emulated driver, which proves
//! nothing about a real one.
#![cfg(feature = "cuda")]

use bmtrain_core::cpu::CpuOptions;
use bmtrain_core::cuda::CudaOptions;
use bmtrain_core::device_spec::Opened;
use bmtrain_core::{DType, Device, DeviceChoice, DeviceRequest, Result, Segment, Tensor};
use cuda_emulator::{Driver, with_driver};
use std::path::PathBuf;

fn open(choice: DeviceChoice, ranks: usize, compiled: Option<PathBuf>) -> Result<Opened> {
    let cuda = CudaOptions { compiled, ..CudaOptions::default() };
    choice.open(&DeviceRequest { local_rank: 0, local_size: ranks, cpu: CpuOptions::new(1), cuda })
}

/// `auto` runs on the CPU and reports why; by name the device is refused for the same reason.
fn goes_to_the_cpu(ranks: usize, compiled: Option<PathBuf>, reasons: &[&str]) {
    let opened = open(DeviceChoice::Auto, ranks, compiled.clone()).unwrap();
    assert!(opened.cuda.is_none() && opened.device.is_none() && opened.backend.name().starts_with("cpu"));
    let note = opened.note.unwrap();
    assert!(note.starts_with("running on the CPU: ") && !note.contains('\n'), "{note}");
    let refused = open(DeviceChoice::Cuda, ranks, compiled).unwrap_err().to_string();
    for reason in reasons {
        assert!(note.contains(reason), "{reason} is not in the note: {note}");
        assert!(refused.contains(reason), "{reason} is not in the error: {refused}");
    }
}

#[test]
fn with_all_it_needs_a_device_is_taken() {
    with_driver("with_all_it_needs_a_device_is_taken", Driver::Emulated, &[], || {
        for choice in [DeviceChoice::Auto, DeviceChoice::Cuda, DeviceChoice::CudaDevice(0)] {
            let opened = open(choice, 1, Some(cuda_emulator::compiled_kernels())).unwrap();
            assert_eq!((opened.cuda, &opened.note), (Some(0), &None), "{choice}");
            let device = Device::new(opened.backend);
            let two = Tensor::full_in(&device, [3], DType::F32, 2.0, Segment::Data).unwrap();
            assert_eq!(two.to_vec::<f32>().unwrap(), [2.0; 3]);
        }
        // A wrong number is reported by what opens it.
        let error =
            open(DeviceChoice::CudaDevice(3), 1, Some(cuda_emulator::compiled_kernels())).unwrap_err().to_string();
        assert!(error.contains("no device has the number 3"), "{error}");
    });
}

#[test]
fn a_device_that_is_too_old_is_left_alone() {
    let settings = [("EMULATED_CUDA_CAPABILITY", "75"), ("EMULATED_CUDA_DEVICES", "2")];
    with_driver("a_device_that_is_too_old_is_left_alone", Driver::Emulated, &settings, || {
        for ranks in [1, 2] {
            goes_to_the_cpu(
                ranks,
                Some(cuda_emulator::compiled_kernels()),
                &["compute capability 7.5", "need 8.0", "A100"],
            );
        }
        assert!(open(DeviceChoice::CudaDevice(1), 1, Some(cuda_emulator::compiled_kernels())).is_err());
    });
}

#[test]
fn without_matrix_products_the_cpu_computes() {
    let Some(libraries) = cuda_emulator::directory_of(Driver::Emulated) else {
        cuda_emulator::skipped(
            "without_matrix_products_the_cpu_computes",
            "there is no g++ to build the CUDA emulator with",
        );
        return;
    };
    // A directory with the driver alone.
    let alone = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(libraries.join("libcuda.so.1"), alone.path().join("libcuda.so.1")).unwrap();
    let settings = [("LD_LIBRARY_PATH", alone.path().to_str().unwrap())];
    with_driver("without_matrix_products_the_cpu_computes", Driver::Emulated, &settings, || {
        match open(DeviceChoice::Cuda, 1, Some(cuda_emulator::compiled_kernels())) {
            // The system has the real one, which this cannot hide.
            Ok(opened) => assert_eq!(opened.cuda, Some(0)),
            Err(_) => goes_to_the_cpu(1, Some(cuda_emulator::compiled_kernels()), &["cuBLASLt", "pip install"]),
        }
    });
}

#[test]
fn without_a_compiler_the_cpu_computes_unless_kernels_are_compiled() {
    let test = "without_a_compiler_the_cpu_computes_unless_kernels_are_compiled";
    with_driver(test, Driver::Emulated, &[], || {
        match open(DeviceChoice::Cuda, 1, None) {
            // As above.
            Ok(opened) => assert_eq!(opened.cuda, Some(0)),
            Err(_) => goes_to_the_cpu(1, None, &["NVRTC", "pip install"]),
        }
        assert_eq!(open(DeviceChoice::Auto, 1, Some(cuda_emulator::compiled_kernels())).unwrap().cuda, Some(0));
    });
}

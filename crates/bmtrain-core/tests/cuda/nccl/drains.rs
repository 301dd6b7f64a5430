//! Calls that make the driver wait for the device while an all-gather waits for another rank. A real driver may hold up
//! the calls of all ranks of the process meanwhile; the emulated one fails them.

use super::*;
use bmtrain_core::kernel::{Gemm, Matrix, ScaleBy};

const DRAINS: [(&str, &str); 1] = [("EMULATED_CUDA_DRAINS", "1")];

/// Rank 1 goes on when rank 0 has made the file.
fn wait_for(flag: &Path) {
    let begin = Instant::now();
    while !flag.exists() {
        assert!(begin.elapsed() < MAX_TIME);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Rank 0 has given an all-gather to its lane, and rank 1 not yet, while a launch of rank 0 needs more scratch memory
/// than there is: returning what there was would wait for the all-gather.
#[test]
fn scratch_memory_grows_while_an_all_gather_waits_for_another_rank() {
    processes("scratch_memory_grows_while_an_all_gather_waits_for_another_rank", 2, &DRAINS, &[], |start| {
        let rank = start.join();
        // Factors of one type and a result of another: the product is made in f32 in scratch memory.
        let product = |size: usize| {
            let tensor = |dtype| Tensor::full_in(&rank.device, [size, size], dtype, 0.5, Segment::Activations).unwrap();
            let (a, mut c) = (tensor(DType::F16), tensor(DType::BF16));
            let factor = || Matrix::plain(a.view().unwrap(), size);
            rank.device.launch(Gemm::single([size, size, 1], factor(), factor(), c.dest(false).unwrap())).unwrap();
            c
        };
        let (first, flag) = (product(8), start.place.with_extension("given"));
        rank.device.sync().unwrap();
        let all_gather = || rank.launch(Op::AllGather, DType::F32, &[start.rank as u8; 64]).unwrap();
        let (gathered, second) = if start.rank == 0 {
            let gathered = all_gather();
            // More than the 4 MiB that are taken at first.
            let second = product(1100);
            std::fs::write(&flag, "").unwrap();
            (gathered, second)
        } else {
            wait_for(&flag);
            (all_gather(), product(1100))
        };
        rank.device.sync().unwrap();
        let mut bytes = vec![0; 128];
        let backend = rank.device.backend();
        backend.download(gathered.view_on(0..32, Lane::Zero).unwrap(), &mut bytes, Lane::Zero).unwrap();
        assert!(bytes[..64].iter().all(|byte| *byte == 0) && bytes[64..].iter().all(|byte| *byte == 1));
        for tensor in [first, second] {
            assert!(tensor.to_vec::<half::bf16>().unwrap().iter().all(|value| value.to_f32() == 0.25));
        }
    });
}

/// Rank 0 has given an all-gather to its lane, and rank 1 gives its own later. What takes page-locked memory, loads
/// kernels, the library's too, or returns memory meanwhile makes the driver wait for the device: rank 0 waits for the
/// all-gather before it asks the driver.
#[test]
fn the_driver_is_not_made_to_wait_for_an_all_gather() {
    processes("the_driver_is_not_made_to_wait_for_an_all_gather", 2, &DRAINS, &[], |start| {
        let rank = start.join();
        let backend = rank.device.backend();
        let flag = |step: usize| start.place.with_extension(format!("given{step}"));
        let upload = || {
            let mut to = Tensor::empty_in(&rank.device, [16], DType::F32, Segment::Activations).unwrap();
            backend.upload(&[0; 64], to.view_mut().unwrap(), Lane::Compute).unwrap();
        };
        let host_work = || backend.on_host(None, None, Box::new(|_, _| Ok(())), Lane::Copy).unwrap();
        let kernel = || {
            let full = |len| Tensor::full_in(&rank.device, [len], DType::F32, 2.0, Segment::Activations).unwrap();
            let (mut x, factor) = (full(8), full(1));
            let out = x.dest(false).unwrap();
            let scaling = ScaleBy { factor: factor.view().unwrap(), divisor: None, x: None, out };
            rank.device.launch(scaling).unwrap();
        };
        // The library loads the kernels of an algorithm.
        let product = || {
            let full = || Tensor::full_in(&rank.device, [4, 4], DType::F32, 0.5, Segment::Activations).unwrap();
            let (a, mut c) = (full(), full());
            let factor = || Matrix::plain(a.view().unwrap(), 4);
            rank.device.launch(Gemm::single([4, 4, 4], factor(), factor(), c.dest(false).unwrap())).unwrap();
        };
        let long_lived = Tensor::empty_in(&rank.device, [1 << 20], DType::F32, Segment::Parameters).unwrap();
        let returning = move || drop(long_lived);
        let steps: [Box<dyn FnOnce()>; 5] =
            [Box::new(upload), Box::new(host_work), Box::new(kernel), Box::new(product), Box::new(returning)];
        for (step, work) in steps.into_iter().enumerate() {
            let given = || rank.launch(Op::AllGather, DType::F32, &[start.rank as u8; 64]).unwrap();
            let _gathered = if start.rank == 0 {
                let gathered = given();
                std::fs::write(flag(step), "").unwrap();
                work();
                gathered
            } else {
                wait_for(&flag(step));
                // Long enough for the other rank to ask its driver.
                std::thread::sleep(Duration::from_millis(200));
                given()
            };
            rank.device.sync().unwrap();
        }
    });
}

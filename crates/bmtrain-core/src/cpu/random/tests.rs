//! The levels of vector code; `tests/it/kernels/random.rs` has the kernels.

use super::dropout_multipliers;
use crate::DType;
use crate::device::Device;
use crate::kernel::*;
use crate::philox::{self, Key};
use crate::simd::for_each_set;
use crate::tensor::Tensor;

#[test]
fn multipliers_follow_the_generator_for_any_start_and_length_on_every_instruction_set() {
    let dropout = Dropout::new(0.3, Key::new(5, "site"), 7, 3).unwrap().unwrap();
    let multiplier = |element: u64| {
        let block = element / 4;
        let counter = [block as u32, (block >> 32) as u32, dropout.step, dropout.micro_batch];
        let word = philox::block(dropout.key, counter)[(element % 4) as usize];
        if word < dropout.threshold { 0.0 } else { dropout.scale }
    };
    for_each_set(|set| {
        // The last start makes the block number carry into the upper counter.
        for start in [0, 1, 2, 3, 63, 64, 1 << 20, (1 << 34) - 70] {
            for len in [0, 1, 2, 5, 61, 63, 64, 65, 128, 1000] {
                let mut out = vec![f32::NAN; len];
                dropout_multipliers(&dropout, start, &mut out);
                let expected: Vec<f32> = (0..len as u64).map(|i| multiplier(start + i)).collect();
                assert_eq!(out, expected, "{set:?}: {len} from {start}");
            }
        }
    });
}

#[test]
fn every_level_of_vector_code_samples_the_same_bits() {
    let device = Device::cpu(1).unwrap();
    let sampled = |distribution| {
        let mut out = Tensor::full(&device, [5000], DType::F32, f32::NAN).unwrap();
        let (key, out_view) = (Key::new(1, "weight"), out.view_mut().unwrap());
        device.launch(FillRandom { distribution, key, offset: 3, out: out_view }).unwrap();
        out.to_vec::<f32>().unwrap()
    };
    for distribution in
        [Distribution::Normal(1.0, 2.0), Distribution::Uniform(-3.0, 5.0), Distribution::TruncatedNormal(0.5, 0.1)]
    {
        let best = sampled(distribution);
        for_each_set(|set| assert_eq!(sampled(distribution), best, "{set:?}"));
    }
}

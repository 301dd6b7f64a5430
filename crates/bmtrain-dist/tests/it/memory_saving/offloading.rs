//! Parameters that are offloaded to the host.

use super::{base, every_three};
use crate::ranks::{Rank, Setting, Which, on_ranks, peak, run};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::{DType, Segment};
use bmtrain_dist::Error;
use bmtrain_dist::inspect::inspect_model;
use bmtrain_dist::shard::{GradientSum, ZeroLevel};
use std::sync::Arc;

#[test]
fn offloaded_parameters_have_the_bits_of_others_under_any_order_of_the_lanes() {
    for (dtype, sum) in
        [(DType::F32, GradientSum::Elastic), (DType::BF16, GradientSum::Elastic), (DType::F16, GradientSum::Fast)]
    {
        let base = Setting { dtype, sum, ..base() };
        let offload = Setting {
            optimizer: Which::Offload,
            level: ZeroLevel::Three,
            offload_parameters: true,
            policy: Some(every_three),
            ..base.clone()
        };
        for ranks in [1, 2] {
            let expected = run(&Setting { ranks, level: ZeroLevel::Three, ..base.clone() });
            // On the CPU nothing moves.
            assert_eq!(run(&Setting { ranks, ..offload.clone() }), expected, "{dtype} on the CPU");
            for seed in 0..4 {
                for prefetch in [true, false] {
                    let setting = Setting { ranks, prefetch, beside_host: Some(seed), ..offload.clone() };
                    assert_eq!(run(&setting), expected, "{dtype}, {ranks} ranks, seed {seed}, prefetch {prefetch}");
                }
            }
        }
    }
}

fn offloaded() -> Setting {
    let offload = Setting { optimizer: Which::Offload, offload_parameters: true, beside_host: Some(1), ..base() };
    Setting { level: ZeroLevel::Three, blocks: 8, size: 64, sum: GradientSum::Fast, ..offload }
}

#[test]
fn a_device_holds_two_blocks_of_offloaded_parameters() {
    for ranks in [1, 2] {
        let setting = Setting { ranks, ..offloaded() };
        let measure = |comm: Arc<dyn Communicator>, setting: &Setting| {
            let number = comm.rank();
            let mut rank = Rank::new(comm, setting).unwrap();
            for step in 0..2 {
                rank.micro_batch(step, number, setting.micro_batches, 1.0).unwrap();
                rank.optim.step().unwrap();
            }
            let flats = rank.model.parameters.flats();
            let blocks = flats.iter().filter(|flat| flat.layout().spans().len() > 1);
            let block = blocks.map(|flat| 4 * flat.layout().gathered_len()).max().unwrap();
            let roots: usize = flats
                .iter()
                .filter(|flat| flat.layout().spans().len() == 1)
                .map(|f| 4 * f.layout().gathered_len())
                .sum();
            let shards: usize = flats.iter().map(|flat| 4 * flat.layout().shard_len()).sum();
            let report = rank.device.memory();
            let peaks = [Segment::Parameters, Segment::Gathered, Segment::Offload].map(|of| peak(&report, of));
            (peaks, [block, roots, shards])
        };
        let body = |comm| {
            let ([parameters, gathered, on_host], [block, roots, shards]) = measure(comm, &setting);
            assert_eq!(parameters, 0, "at rest on the device");
            // A shard arrives beside what is gathered from it.
            let bound = (2 * block + roots) * (ranks + 1) / ranks + 8 * 512;
            assert!(gathered <= bound, "{gathered} bytes gathered, bound {bound}");
            // Values and two moments, in whole pages.
            assert!(on_host >= 3 * shards && on_host <= 3 * shards + 3 * 16 * 4096, "{on_host} bytes of {shards}");
        };
        match ranks {
            1 => body(Arc::new(Solo) as Arc<dyn Communicator>),
            _ => drop(on_ranks(ranks, setting.options, |rank| body(Arc::new(rank)))),
        }
    }
}

#[test]
fn offloaded_parameters_are_loaded_read_and_inspected_like_others() {
    let setting = offloaded();
    let plain = Setting { offload_parameters: false, beside_host: None, ..setting.clone() };
    let [mut apart, mut usual] = [&setting, &plain].map(|setting| Rank::new(Arc::new(Solo), setting).unwrap());
    for rank in [&mut apart, &mut usual] {
        for param in &rank.model.parameters {
            let values: Vec<f32> = (0..param.spec().shape.elements()).map(|i| (i as f32 * 0.37).sin()).collect();
            param.load(&values).unwrap();
            assert_eq!(param.read().unwrap(), values, "{}", param.name());
            param
                .load_part::<Error>(&mut |first, out| {
                    out.iter_mut().enumerate().for_each(|(i, value)| *value = ((first + i) as f32 * 0.11).cos());
                    Ok(())
                })
                .unwrap();
        }
        rank.micro_batch(0, 0, 1, 1.0).unwrap();
    }
    let rows = |rank: &Rank| inspect_model(&rank.model.parameters, "*", 1.0).unwrap();
    assert_eq!(rows(&apart), rows(&usual));
    for rank in [&mut apart, &mut usual] {
        rank.optim.step().unwrap();
    }
    assert_eq!(apart.optim.fingerprint().unwrap(), usual.optim.fingerprint().unwrap());
}

#[test]
fn offloading_without_the_parts_it_needs_is_refused() {
    let refused = |setting: Setting| match Rank::new(Arc::new(Solo), &setting) {
        Err(error) => error.to_string(),
        Ok(mut rank) => {
            rank.micro_batch(0, 0, 1, 1.0).unwrap();
            rank.optim.step().unwrap_err().to_string()
        }
    };
    let error = refused(Setting { level: ZeroLevel::Two, ..offloaded() });
    assert_eq!(error, "offload: parameters are offloaded under ZeRO-3 alone, and the level is 2");
    let error = refused(Setting { optimizer: Which::Adam, ..offloaded() });
    assert!(error.starts_with("offloaded parameters: its values are offloaded to the host"), "{error}");
}

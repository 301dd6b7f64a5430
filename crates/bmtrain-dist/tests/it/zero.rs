//! Training is the same, bit for bit, however parameters, gradients and optimizer state are sharded over ranks.

use crate::ranks::{Mixers, Rank, Setting, Which, on_ranks, run};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::HostOptions;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::OptimManager;
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup, ScalePolicy};
use bmtrain_dist::param::{BuilderOptions, F32Parameters};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use std::sync::Arc;

const LEVELS: [ZeroLevel; 4] = [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three];

#[test]
fn elastic_sums_give_the_bits_of_one_rank_at_every_level() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let alone = run(&Setting { dtype, ..Setting::default() });
        assert_eq!(alone.losses.len(), 20);
        for level in LEVELS {
            for ranks in [2, 4] {
                let shared = run(&Setting { dtype, ranks, level, ..Setting::default() });
                assert_eq!(shared, alone, "{dtype}, {ranks} ranks, {level:?}");
            }
        }
    }
}

#[test]
fn thirty_steps_on_one_two_and_four_ranks_are_the_same_run() {
    let setting = Setting { steps: 30, level: ZeroLevel::Three, ..Setting::default() };
    let alone = run(&setting);
    for ranks in [2, 4] {
        assert_eq!(run(&Setting { ranks, ..setting.clone() }), alone, "{ranks} ranks");
    }
}

#[test]
fn thirty_steps_with_state_on_the_host_are_the_run_with_state_on_the_device() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let setting = Setting { steps: 30, dtype, ..Setting::default() };
        let expected = run(&setting);
        assert_eq!(run(&Setting { optimizer: Which::Offload, ..setting.clone() }), expected, "{dtype}, one rank");
        for level in LEVELS {
            for ranks in [2, 4] {
                let offload = Setting { ranks, level, optimizer: Which::Offload, ..setting.clone() };
                assert_eq!(run(&offload), expected, "{dtype}, {ranks} ranks, {level:?}");
            }
        }
    }
}

/// A block has two storages then, which are gathered and reduced apart.
#[test]
fn parameters_in_f32_beside_sixteen_bits_give_the_bits_of_one_rank_at_every_level() {
    for dtype in [DType::BF16, DType::F16] {
        for [embeddings, norms] in [[true, false], [false, true], [true, true]] {
            let f32_parameters = F32Parameters { embeddings, norms, token_types: false };
            let setting = Setting { steps: 8, dtype, f32_parameters, ..Setting::default() };
            let alone = run(&setting);
            assert_ne!(alone.losses, run(&Setting { steps: 8, dtype, ..Setting::default() }).losses);
            for (level, optimizer) in
                LEVELS.into_iter().flat_map(|level| [(level, Which::Adam), (level, Which::Offload)])
            {
                let shared = run(&Setting { ranks: 2, level, optimizer, ..setting.clone() });
                assert_eq!(shared, alone, "{dtype}, {f32_parameters:?}, {level:?}, {optimizer:?}");
            }
            let (level, optimizer) = (ZeroLevel::Three, Which::Offload);
            let offloaded = Setting { level, optimizer, offload_parameters: true, ..setting.clone() };
            for offloaded in
                [Setting { beside_host: Some(5), ..offloaded.clone() }, Setting { ranks: 2, ..offloaded.clone() }]
            {
                assert_eq!(run(&offloaded), alone, "{offloaded:?}");
            }
        }
    }
}

#[test]
fn two_optimizers_of_the_same_storages_take_the_same_steps_as_one() {
    let setting = Setting { steps: 8, ..Setting::default() };
    let expected = run(&setting);
    for level in LEVELS {
        let both = run(&Setting { ranks: 2, level, optimizer: Which::Both, ..setting.clone() });
        // The optimizers' own part of the fingerprint counts two schedules.
        assert_eq!(
            (both.losses, both.fingerprint.weights),
            (expected.losses.clone(), expected.fingerprint.weights.clone())
        );
    }
}

#[test]
fn recomputing_and_fetching_ahead_change_no_bit() {
    let setting = Setting { ranks: 2, level: ZeroLevel::Three, ..Setting::default() };
    let expected = run(&setting);
    for level in [ZeroLevel::Two, ZeroLevel::Three] {
        for recompute in [Recompute::Keep, Recompute::Checkpoint] {
            for prefetch in [false, true] {
                let other = Setting { level, recompute, prefetch, ..setting.clone() };
                assert_eq!(run(&other), expected, "{other:?}");
            }
        }
    }
}

#[test]
fn fast_sums_do_not_depend_on_the_level_when_each_rank_has_one_micro_batch() {
    let setting = Setting { ranks: 2, micro_batches: 2, sum: GradientSum::Fast, ..Setting::default() };
    let expected = run(&setting);
    for level in LEVELS {
        assert_eq!(run(&Setting { level, ..setting.clone() }), expected, "{level:?}");
    }
    // Two terms have one sum: the tree of two leaves is the same.
    assert_eq!(run(&Setting { sum: GradientSum::Elastic, ..setting }), expected);
}

#[test]
fn announcing_the_last_micro_batch_changes_no_bit() {
    for sum in [GradientSum::Fast, GradientSum::Elastic] {
        for ranks in [1, 2, 4] {
            for level in LEVELS {
                for order in [&[][..], &[0, 1, 2, 2, 0]] {
                    let setting =
                        Setting { ranks, level, sum, order, micro_batches: 8, steps: 3, ..Setting::default() };
                    assert_eq!(run(&Setting { announce: true, ..setting.clone() }), run(&setting), "{setting:?}");
                }
            }
        }
    }
}

#[test]
fn fast_and_elastic_sums_agree_to_rounding() {
    let fast = run(&Setting { ranks: 2, sum: GradientSum::Fast, level: ZeroLevel::Three, ..Setting::default() });
    let elastic = run(&Setting::default());
    for ((_, fast), (_, elastic)) in fast.losses.iter().zip(&elastic.losses) {
        let (fast, elastic) = (f32::from_bits(*fast), f32::from_bits(*elastic));
        // Five steps apart by the rounding of sums of four gradients.
        assert!((fast - elastic).abs() < 1e-4 * elastic, "{fast} {elastic}");
    }
}

#[test]
fn fast_sums_of_several_micro_batches_depend_on_the_ranks() {
    // The purpose of the elastic order; if this fails, the equalities above prove nothing.
    let setting = Setting { sum: GradientSum::Fast, ..Setting::default() };
    assert_ne!(run(&setting).fingerprint, run(&Setting { ranks: 4, ..setting.clone() }).fingerprint);
}

#[test]
fn a_step_that_is_not_finite_on_one_rank_is_skipped_by_all() {
    for level in LEVELS {
        for optimizer in [Which::Adam, Which::Offload] {
            let setting = Setting { ranks: 2, level, broken: Some(2), optimizer, ..Setting::default() };
            let seen = run(&setting);
            assert_eq!(seen.skips, [2], "{level:?}");
            let alone = run(&Setting { ranks: 1, optimizer: Which::Adam, ..setting });
            assert_eq!(seen.fingerprint, alone.fingerprint, "{level:?}: the schedule and the moments did not change");
        }
    }
}

#[test]
fn what_the_last_step_moved_is_the_same_figure_however_the_work_is_shared() {
    let adam = AdamOptions { record_delta: true, ..AdamOptions::default() };
    for dtype in [DType::F32, DType::BF16] {
        let setting = Setting { dtype, adam, ..Setting::default() };
        let expected = run(&setting);
        assert!(!expected.deltas.is_empty() && expected.deltas.iter().all(|delta| delta.norm > 0.0));
        let silent = run(&Setting { adam: AdamOptions::default(), ..setting.clone() });
        assert!(silent.deltas.is_empty() && silent.fingerprint == expected.fingerprint, "measuring changes nothing");
        for level in LEVELS {
            for optimizer in [Which::Adam, Which::Offload, Which::Both] {
                let shared = run(&Setting { ranks: 2, level, optimizer, ..setting.clone() });
                assert_eq!(shared.deltas, expected.deltas, "{dtype}, {level:?}, {optimizer:?}");
            }
        }
    }
}

#[test]
fn loss_scaling_leaves_the_run_what_it_is_and_falls_after_an_overflow_on_every_rank() {
    let scaled = Setting {
        scale: Some(ScalePolicy::BmTrain { start: 1024.0, factor: 2.0, every: 3, min: 1.0, max: 4096.0 }),
        ..Setting::default()
    };
    // Powers of two change no digit of an f32.
    assert_eq!(run(&scaled).fingerprint.weights, run(&Setting::default()).fingerprint.weights);
    for dtype in [DType::F32, DType::F16] {
        let alone = run(&Setting { dtype, broken: Some(1), ..scaled.clone() });
        assert_eq!(alone.skips, [1], "{dtype}");
        assert_eq!(alone.scales, [1024.0, 1024.0, 512.0, 512.0, 512.0], "{dtype}");
        let shared = run(&Setting { dtype, broken: Some(1), ranks: 4, level: ZeroLevel::Three, ..scaled.clone() });
        assert_eq!(shared, alone, "{dtype}");
    }
}

#[test]
fn every_rank_names_the_same_broken_gradient() {
    for level in LEVELS {
        // The first weight of a block is the first rank's, the last one the second's.
        let setting = Setting { ranks: 2, level, frozen: &["table.*"], ..Setting::default() };
        let names = on_ranks(2, setting.options, |comm| {
            let own = comm.rank();
            let mut this = Rank::new(Arc::new(comm), &setting).unwrap();
            this.micro_batch(0, own, 2, f32::INFINITY).unwrap();
            assert!(this.optim.step().unwrap().skipped);
            this.optim.broken_gradient().map(str::to_owned)
        });
        assert_eq!(names, vec![Some("blocks.0.up.weight".to_owned()); 2], "{level:?}");
    }
}

#[test]
fn the_whole_state_is_gathered_once_for_each_storage() {
    for (optimizer, dtype, tensors) in [(Which::Adam, DType::BF16, 3), (Which::Offload, DType::F32, 2)] {
        let setting = Setting { ranks: 2, level: ZeroLevel::One, optimizer, dtype, ..Setting::default() };
        on_ranks(2, setting.options, |comm| {
            let (own, comm) = (comm.rank(), Arc::new(comm));
            let mut this = Rank::new(comm.clone(), &setting).unwrap();
            this.micro_batch(0, own, 2, 1.0).unwrap();
            this.optim.step().unwrap();
            let gathers = || comm.traffic().iter().find(|(name, _)| *name == "all_gather").map_or(0, |(_, t)| t.calls);
            let before = gathers();
            let state = this.optim.state().unwrap();
            assert_eq!(state.params.len(), this.model.parameters.iter().count());
            let storages = this.model.parameters.flats().len() as u64;
            assert_eq!(gathers() - before, tensors * storages, "{optimizer:?}");
        });
    }
}

#[test]
fn gradients_that_no_optimizer_takes_do_not_pile_up_and_those_of_another_manager_stay() {
    for level in LEVELS {
        on_ranks(2, HostOptions::default(), |comm| {
            let (own, device) = (comm.rank(), Device::cpu(1).unwrap());
            let sharding = Sharding { ranks: Arc::new(comm), level, sum: GradientSum::Elastic, prefetch: true };
            let options = BuilderOptions { sharding, ..BuilderOptions::default() };
            let model = Mixers::new(&device, [3, 24], &[], BlockOptions::default(), options).unwrap();
            let manager = |block: &str| {
                let params = model.parameters.iter().filter(|param| param.name().starts_with(block));
                let adam = Adam::new(ParamGroup::all(params, 0.0), AdamOptions::default()).unwrap();
                let mut manager = OptimManager::new(&device, Clip::default()).unwrap();
                manager.add(Box::new(adam), 1e-3);
                manager
            };
            let (mut first, mut second) = (manager("blocks.0."), manager("blocks.1."));
            let batch: Vec<i64> = (0..6).map(|row| (row * 5 + own as i64) % 13).collect();
            let batch = Tensor::from_slice_in(&device, [6], &batch, Segment::Data).unwrap();
            let mut held = Vec::new();
            for step in 0..6 {
                let mut cx = Ctx::training(&device, Randomness { seed: 3, step, micro_batch: own as u32 });
                let loss = model.loss(&batch, &batch, &mut cx).unwrap();
                first.backward(&loss, 0.5, &mut cx).unwrap();
                drop(loss);
                first.step().unwrap();
                assert!(!second.step().unwrap().skipped);
                device.sync().unwrap();
                let report = device.memory();
                held.push(report.segments.iter().find(|(known, _)| *known == Segment::Gradients).unwrap().1.now);
            }
            assert_eq!(held, [0; 6], "{level:?}: gradients are left over");
        });
    }
}

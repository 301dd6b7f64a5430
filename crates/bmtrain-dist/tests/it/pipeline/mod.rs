//! A model over pipeline stages against the same model on one: every bit of losses, norms, weights and optimizer state.

mod blocking_sends;
mod bubble;
mod runs;
mod sleepers;

use bmtrain_core::DType;
use bmtrain_dist::Module;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::optim::ScalePolicy;
use bmtrain_dist::pipeline::{Partition, Pipeline, Schedule, ScheduleKind};
use bmtrain_dist::shard::{GradientSum, ZeroLevel};
use runs::{Run, Seen, on_mesh, train, train_on_one_stage};
use std::time::{Duration, Instant};

/// Every kind of schedule on a number of stages, with its chunks.
fn kinds(stages: usize) -> impl Iterator<Item = Run> {
    let kinds = [
        (ScheduleKind::GPipe, 1),
        (ScheduleKind::OneForwardOneBackward, 1),
        (ScheduleKind::Interleaved, 2),
        (ScheduleKind::ZeroBubble, 1),
        (ScheduleKind::ZeroBubbleV, 2),
    ];
    kinds.into_iter().map(move |(kind, chunks)| Run { kind, chunks, stages, ..Run::default() })
}

fn assert_same(run: &Run, expected: &Seen) {
    let seen = train(run);
    assert_eq!(seen.losses, expected.losses, "losses of {run:?}");
    assert_eq!(seen.norms, expected.norms, "norms of {run:?}");
    assert_eq!(&seen, expected, "{run:?}");
}

#[test]
fn every_schedule_on_one_to_four_stages_is_one_stage_bit_for_bit() {
    // 12 micro-batches are a multiple of every number of stages.
    for tied in [true, false] {
        let expected = train_on_one_stage(&Run { tied, micro_batches: 12, ..Run::default() });
        for stages in 1..=4 {
            for run in kinds(stages).filter(|run| stages > 1 || run.chunks == 1) {
                assert_same(&Run { tied, micro_batches: 12, ..run }, &expected);
            }
        }
    }
}

#[test]
fn a_decoder_alone_is_one_stage_bit_for_bit() {
    let alone = |run: Run| Run { blocks: [0, 6], ..run };
    let expected = train_on_one_stage(&alone(Run::default()));
    for run in kinds(2) {
        assert_same(&alone(run), &expected);
    }
    // A stage for the embedding alone, and one for the head.
    assert_same(&alone(Run { stages: 4, counts: vec![0, 2, 4, 0], ..Run::default() }), &expected);
}

#[test]
fn stages_begin_and_end_anywhere_in_an_encoder_decoder() {
    let expected = train_on_one_stage(&Run::default());
    for counts in [vec![4, 4], vec![0, 8], vec![8, 0], vec![1, 5, 2], vec![0, 3, 5, 0]] {
        assert_same(&Run { stages: counts.len(), counts, ..Run::default() }, &expected);
    }
}

#[test]
fn f16_with_a_skipped_step_and_bf16_are_one_stage_bit_for_bit() {
    // The first scale overflows f16.
    let scale = Some(ScalePolicy::BmTrain { start: 16_777_216.0, factor: 2.0, every: 4, min: 1.0, max: 1e9 });
    for (dtype, scale) in [(DType::F16, scale), (DType::BF16, None)] {
        let of = |run: Run| Run { dtype, scale, ..run };
        let expected = train_on_one_stage(&of(Run::default()));
        assert_eq!(expected.skipped.contains(&true), dtype == DType::F16);
        assert!(expected.skipped.contains(&false));
        for run in kinds(2).chain(kinds(4)) {
            assert_same(&of(run), &expected);
        }
    }
}

#[test]
fn recomputed_blocks_are_kept_ones() {
    let expected = train_on_one_stage(&Run::default());
    for recompute in [Recompute::Checkpoint, Recompute::Auto] {
        for run in kinds(2) {
            assert_same(&Run { recompute, ..run }, &expected);
        }
    }
}

#[test]
fn an_overflow_on_the_last_stage_is_skipped_and_named_by_all() {
    let run = Run { broken: Some(2), steps: 5, ..Run::default() };
    let expected = train_on_one_stage(&run);
    assert_eq!(expected.skipped, [false, false, true, false, false]);
    for kind in kinds(2) {
        let seen = train(&Run { kind: kind.kind, chunks: kind.chunks, stages: 2, ..run.clone() });
        assert!(seen.broken.is_some());
        assert_eq!(Seen { broken: expected.broken.clone(), ..seen }, expected);
    }
}

#[test]
fn frozen_parts_send_no_gradient_and_change_no_bit_of_the_others() {
    for frozen in [&["table*", "position_bias", "encoder.0.*"][..], &["encoder.*", "table*"], &["decoder.*"]] {
        let expected = train_on_one_stage(&Run { frozen, steps: 5, ..Run::default() });
        for run in kinds(2).chain(kinds(4)) {
            assert_same(&Run { frozen, steps: 5, ..run }, &expected);
        }
    }
}

#[test]
fn stages_and_data_parallel_ranks_are_data_parallel_ranks_alone() {
    for level in [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three] {
        for sum in [GradientSum::Fast, GradientSum::Elastic] {
            let reduces_each_batch = level >= ZeroLevel::Two || sum == GradientSum::Elastic;
            let of = |run: Run| Run { level, sum, data: 2, steps: 5, tied: !reduces_each_batch, ..run };
            let expected = train_on_one_stage(&of(Run::default()));
            for run in kinds(2).filter(|run| !(run.kind.splits_backward() && reduces_each_batch)) {
                assert_same(&of(run), &expected);
            }
        }
    }
}

#[test]
fn a_rank_holds_the_parameters_of_its_stage_alone() {
    let run = Run { stages: 4, counts: vec![0, 3, 5, 0], tied: false, ..Run::default() };
    let held = on_mesh(&run, |rank| {
        let rank = rank.unwrap();
        let parameters = rank.model.parameters();
        let held: usize = parameters.iter().map(|param| param.spec().shape.elements()).sum();
        let names: Vec<String> = parameters.iter().map(|param| param.name().to_owned()).collect();
        (names, held, parameters.count(), parameters.declared().len())
    });
    let all: usize = held.iter().map(|(_, held, ..)| held).sum();
    assert!(held.iter().all(|(.., count, _)| *count == all), "every parameter is held once");
    let declared: usize = held.iter().map(|(names, ..)| names.len()).sum();
    assert!(held.iter().all(|(.., len)| *len == declared));
    assert_eq!(held[0].0, ["table.weight", "position_bias"]);
    assert!(held[1].0.iter().all(|name| name.starts_with("encoder.")));
    assert_eq!(held[3].0, ["head.weight"]);
}

#[test]
fn a_parameter_of_another_stage_has_no_value_and_the_error_names_both_stages() {
    let run = Run { stages: 2, ..Run::default() };
    let errors = on_mesh(&run, |rank| {
        let rank = rank.unwrap();
        let parameters = rank.model.parameters();
        let is_elsewhere = |name: &str| parameters.get(name).is_none();
        let other = parameters.declared().iter().find(|param| is_elsewhere(param.name())).unwrap();
        other.value().unwrap_err().to_string()
    });
    assert!(errors[0].contains("decoder.0") && errors[0].contains("pipeline stage 1, and stage 0"), "{}", errors[0]);
    assert!(
        errors[1].contains("position_bias") && errors[1].contains("pipeline stage 0, and stage 1"),
        "{}",
        errors[1]
    );
}

#[test]
fn neighbours_that_disagree_are_named_with_what_each_has() {
    let run = Run { stages: 2, ..Run::default() };
    let errors = on_mesh(&run, |rank| {
        let mut rank = rank.unwrap();
        let stages = rank.pipeline.stages().clone();
        // Stage 1 has another number of micro-batches.
        let micro_batches = 4 + stages.ranks().rank();
        let run = Run { micro_batches, ..run.clone() };
        let schedule = Schedule::new(run.kind, 2, 1, micro_batches).unwrap();
        rank.pipeline = Pipeline::new(&rank.device, &stages, schedule).unwrap();
        rank.losses(&run, 0, false).unwrap_err().to_string()
    });
    assert_eq!(errors[0], errors[1]);
    for part in ["stage 0 has", "stage 1 has", "4 micro-batches", "5 micro-batches"] {
        assert!(errors[0].contains(part), "{}", errors[0]);
    }
}

#[test]
fn stages_of_other_dtypes_disagree_on_the_edge() {
    let run = Run { stages: 2, steps: 1, ..Run::default() };
    let group = bmtrain_core::comm::host::HostGroup::threads(2, Default::default()).unwrap();
    let errors: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = group
            .into_iter()
            .map(|rank| {
                let run = run.clone();
                scope.spawn(move || {
                    use bmtrain_core::comm::Communicator;
                    let dtype = [DType::F32, DType::BF16][rank.rank()];
                    let mesh = bmtrain_dist::Mesh::new(rank.rank(), 2, 2, 1).unwrap();
                    let (rank, data) = (std::sync::Arc::new(rank), std::sync::Arc::new(bmtrain_core::comm::Solo));
                    let rank = runs::Rank::new(&Run { dtype, ..run.clone() }, mesh, rank, data).unwrap();
                    rank.losses(&run, 0, false).unwrap_err().to_string()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0].contains("encoder states f32") && errors[0].contains("encoder states bf16"), "{}", errors[0]);
}

#[test]
fn a_stage_that_is_late_or_gone_is_named_within_the_deadline() {
    let run = Run { stages: 2, deadline: Duration::from_secs(1), ..Run::default() };
    for is_gone in [true, false] {
        let errors = on_mesh(&run, |rank| {
            let rank = rank.unwrap();
            rank.losses(&run, 0, false).unwrap();
            let ranks = rank.pipeline.stages().ranks();
            if ranks.rank() == 1 {
                match is_gone {
                    true => ranks.abort("its data are gone"),
                    false => std::thread::sleep(3 * run.deadline),
                }
                return String::new();
            }
            let begin = Instant::now();
            let error = rank.losses(&run, 1, false).unwrap_err().to_string();
            assert!(begin.elapsed() < 3 * run.deadline, "{error}");
            error
        });
        assert!(errors[0].contains("rank 1"), "{}", errors[0]);
    }
}

#[test]
fn schedules_that_put_weight_gradients_off_refuse_reductions_of_each_micro_batch() {
    let run =
        Run { kind: ScheduleKind::ZeroBubble, stages: 2, sum: GradientSum::Elastic, tied: false, ..Run::default() };
    for error in on_mesh(&run, |rank| rank.unwrap().losses(&run, 0, false).unwrap_err().to_string()) {
        assert!(error.contains("zb-1p") && error.contains("1f1b"), "{error}");
    }
}

#[test]
fn a_tied_embedding_on_two_stages_is_refused_where_each_micro_batch_is_reduced() {
    let run = Run { stages: 2, sum: GradientSum::Elastic, ..Run::default() };
    for error in on_mesh(&run, |rank| rank.map(|_| ()).unwrap_err().to_string()) {
        assert!(error.contains("table.weight") && error.contains("ZeRO-1"), "{error}");
    }
}

#[test]
fn a_partition_of_other_blocks_or_places_is_refused() {
    let run = Run { stages: 2, counts: vec![3, 3, 2], ..Run::default() };
    for error in on_mesh(&run, |rank| rank.map(|_| ()).unwrap_err().to_string()) {
        assert!(error.contains("2 places") && error.contains("3 places"), "{error}");
    }
    assert!(Partition::of_counts(&[2, 0, 2]).is_err());
}

#[test]
fn evaluation_over_stages_has_the_losses_of_one_stage() {
    let run = Run { micro_batches: 5, ..Run::default() };
    let losses = |run: &Run| {
        on_mesh(run, |rank| {
            let rank = rank.unwrap();
            let load = |number| rank.micro_batch(run, 3, number);
            rank.pipeline.forward(&rank.model, 5, load, Ok).unwrap().to_vec::<f32>().unwrap()
        })
    };
    let expected = losses(&run);
    assert!(expected[0].iter().all(|loss| loss.is_finite()));
    for run in [Run { stages: 2, ..run.clone() }, Run { stages: 4, kind: ScheduleKind::ZeroBubble, ..run }] {
        assert!(losses(&run).iter().all(|found| *found == expected[0]));
    }
}

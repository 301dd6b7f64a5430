//! Tensor parallelism in 16-bit types with loss scaling, and with sums that do not depend on the number of
//! data-parallel ranks.

use super::runs::{Job, Run, on_mesh};
use super::{bert_job, gpt2_job, qwen3_job};
use bmtrain_core::DType;
use bmtrain_dist::optim::ScalePolicy;
use bmtrain_dist::param::F32Parameters;
use bmtrain_dist::shard::{GradientSum, ZeroLevel};

/// Of a model without token types.
const WITHOUT_TYPES: F32Parameters = F32Parameters { embeddings: true, norms: true, token_types: false };

/// A scale whose first steps overflow f16.
const SCALE: ScalePolicy =
    ScalePolicy::BmTrain { start: 16_777_216.0, factor: 2.0, every: 4, min: 1.0, max: 16_777_216.0 };

/// Every rank saw the same norms and skipped the same steps.
fn assert_agreed(run: &Run) {
    for rank in &run.ranks {
        assert_eq!((&rank.skipped, &rank.broken), (&run.ranks[0].skipped, &run.ranks[0].broken));
        assert_eq!(rank.fingerprint, run.ranks[0].fingerprint);
    }
}

/// Weights and activations are rounded to the dtype after sums in another order, so some are the neighbouring number:
/// one unit in the last place of the dtype, 2^-8 and 2^-11 of a value, and few of them. Losses are f32 means.
#[test]
fn sixteen_bit_types_train_as_on_one_rank_and_all_ranks_skip_the_same_steps() {
    let cases = [(DType::BF16, None, 5e-3), (DType::F16, Some(SCALE), 1e-3)];
    for (dtype, scale, tolerance) in cases {
        let mixed = [(gpt2_job(), WITHOUT_TYPES), (qwen3_job(), WITHOUT_TYPES)];
        let jobs = [(gpt2_job(), F32Parameters::default()), (qwen3_job(), F32Parameters::default())];
        for (job, f32_parameters) in jobs.into_iter().chain(mixed) {
            let job = Job { dtype, f32_parameters, scale, micro_batches: 2, ..job };
            let alone = on_mesh(&job, 1, 1);
            let skipped = &alone.ranks[0].skipped;
            assert_eq!(skipped.contains(&true), dtype == DType::F16, "{skipped:?}");
            assert!(skipped.contains(&false));
            for (world, level, sequence) in
                [(2, ZeroLevel::Zero, false), (2, ZeroLevel::Zero, true), (4, ZeroLevel::Three, true)]
            {
                let run = on_mesh(&Job { level, sequence, ..job.clone() }, world, 2);
                assert_agreed(&run);
                assert_eq!(&run.ranks[0].skipped, skipped, "{dtype} on {world} ranks");
                let (losses, expected) = (run.losses(), alone.losses());
                let apart = losses.iter().zip(&expected).map(|(a, b)| (a - b).abs() / expected[0]);
                let largest = apart.fold(0.0, f32::max);
                let mixed = f32_parameters.norms;
                eprintln!("{:?} {dtype} {mixed} on {world} ranks, {level:?}, {sequence}: {largest:.1e}", job.golden);
                assert!(largest <= tolerance, "{dtype} on {world} ranks: {largest:e}");
                assert!(expected[19] < expected[0] && losses[19] < losses[0], "nothing was learned: {losses:?}");
            }
        }
    }
}

/// Of a BERT all three kinds, of a GPT-2 those that it has; both with tied heads.
#[test]
fn parameters_in_f32_have_the_same_bits_on_two_ranks_at_every_level() {
    for (dtype, scale) in [(DType::BF16, None), (DType::F16, Some(SCALE))] {
        for (job, f32_parameters) in [
            (bert_job(), F32Parameters { embeddings: true, norms: true, token_types: true }),
            (bert_job(), F32Parameters { embeddings: false, norms: false, token_types: true }),
            (gpt2_job(), WITHOUT_TYPES),
        ] {
            let sum = GradientSum::Elastic;
            let job = Job { sum, micro_batches: 2, steps: 6, dtype, f32_parameters, scale, ..job };
            let one = on_mesh(&job, 1, 1);
            let narrow = on_mesh(&Job { f32_parameters: F32Parameters::default(), ..job.clone() }, 1, 1);
            assert_ne!(one.losses_of_micro_batches(), narrow.losses_of_micro_batches());
            for level in [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three] {
                let run = on_mesh(&Job { level, ..job.clone() }, 2, 1);
                assert_agreed(&run);
                assert_eq!(run.losses_of_micro_batches(), one.losses_of_micro_batches(), "{level:?}");
                assert_eq!((run.norms(), &run.ranks[0].skipped), (one.norms(), &one.ranks[0].skipped));
                assert_eq!(run.ranks[0].fingerprint, one.ranks[0].fingerprint, "{dtype} {level:?}");
            }
        }
    }
}

#[test]
fn elastic_sums_have_the_same_bits_with_any_number_of_data_parallel_ranks() {
    for (dtype, scale) in [(DType::F32, None), (DType::F16, Some(SCALE))] {
        for sequence in [false, true] {
            let job =
                Job { sum: GradientSum::Elastic, micro_batches: 4, steps: 6, sequence, dtype, scale, ..qwen3_job() };
            let one = on_mesh(&job, 2, 2);
            assert_agreed(&one);
            for (data, level) in [(2, ZeroLevel::One), (2, ZeroLevel::Three), (4, ZeroLevel::Two)] {
                let run = on_mesh(&Job { level, ..job.clone() }, 2 * data, 2);
                assert_agreed(&run);
                assert_eq!(run.losses_of_micro_batches(), one.losses_of_micro_batches(), "{data} {level:?}");
                assert_eq!(run.norms(), one.norms());
                assert!(run.norms().iter().any(|norm| f32::from_bits(*norm).is_finite()));
                assert_eq!(run.ranks[0].skipped, one.ranks[0].skipped);
                assert_eq!(run.ranks[0].fingerprint, one.ranks[0].fingerprint, "{data} {level:?}");
            }
        }
    }
}

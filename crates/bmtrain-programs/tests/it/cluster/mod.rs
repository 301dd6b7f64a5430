//! Sizing by formula: parameters, memory and communication of ranks in three dimensions.

mod measured;
mod published;

use bmtrain_dist::pipeline::ScheduleKind;
use bmtrain_dist::shard::ZeroLevel;
use bmtrain_programs::cluster::fit::{FitRequest, fit};
use bmtrain_programs::cluster::{Communication, Machine};
use model_center::formula::{ParallelLayout, RankMemory, TransformerSizes, families::sizes_of};
use std::fs;

fn gpt2() -> TransformerSizes {
    TransformerSizes::gpt2(24, 1024, 16, 50304, 1024)
}

/// One rank, 8 micro-batches of 2 sequences of 1024 tokens in 16 bits.
fn solo() -> ParallelLayout {
    ParallelLayout {
        tensor: 1,
        pipeline: 1,
        data: 1,
        zero: ZeroLevel::Zero,
        schedule: ScheduleKind::OneForwardOneBackward,
        chunks: 1,
        length: 1024,
        micro_batch: 2,
        micro_batches: 8,
        recompute: true,
        overlap: true,
        overlap_tensor: false,
        value_bytes: 2,
        gradient_bytes: 2,
    }
}

fn memory(layout: &ParallelLayout) -> RankMemory {
    RankMemory::of(&gpt2(), layout, &layout.schedule(&gpt2(), "here").unwrap())
}

fn communication(layout: &ParallelLayout) -> Communication {
    Communication::of(&gpt2(), layout, &layout.schedule(&gpt2(), "here").unwrap())
}

#[test]
fn parameters_are_counted_as_published() {
    assert_eq!(gpt2().parameters(), 354_871_296.0);
    let small = TransformerSizes::gpt2(40, 3072, 24, 54_272, 2048);
    assert_eq!(small.parameters(), 4_704_466_944.0);
    let llama = TransformerSizes {
        feed_forward: 11_008,
        gated: true,
        tied: false,
        positions: 0,
        ..TransformerSizes::gpt2(32, 4096, 32, 32_000, 0)
    };
    assert_eq!(llama.parameters(), 6_738_415_616.0);
}

#[test]
fn sizes_of_a_family_need_its_configuration_alone() {
    let directory = tempfile::tempdir().unwrap();
    let write = |text: &str| fs::write(directory.path().join("config.json"), text).unwrap();
    write(
        r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
            "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 100, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "max_position_embeddings": 128}"#,
    );
    let sizes = sizes_of(directory.path()).unwrap();
    assert_eq!((sizes.layers, sizes.width, sizes.heads, sizes.kv_heads, sizes.head_size), (3, 64, 8, 2, 8));
    assert_eq!((sizes.feed_forward, sizes.gated, sizes.vocabulary, sizes.positions), (160, true, 100, 0));
    write(r#"{"model_type": "t5"}"#);
    let message = sizes_of(directory.path()).unwrap_err().to_string();
    assert!(message.contains("\"t5\"") && message.contains("llama"), "{message}");
}

#[test]
fn zero_divides_the_classes_that_it_shards() {
    let values = gpt2().embedding_parameters() + 24.0 * gpt2().block_parameters();
    let of = |zero| memory(&ParallelLayout { data: 4, zero, ..solo() });
    let whole = of(ZeroLevel::Zero);
    assert_eq!((whole.parameters, whole.gradients, whole.optimizer), (2.0 * values, 4.0 * values, 12.0 * values));
    let one = of(ZeroLevel::One);
    assert_eq!((one.parameters, one.gradients, one.optimizer), (2.0 * values, 4.0 * values, 3.0 * values));
    let three = of(ZeroLevel::Three);
    assert_eq!((three.parameters, three.optimizer), (values / 2.0, 3.0 * values));
    assert_eq!(three.gathered, 4.0 * gpt2().block_parameters());
    assert!(three.gradients < 1.3 * values, "{}", three.gradients / values);
}

#[test]
fn the_first_stage_of_1f1b_holds_as_many_micro_batches_as_there_are_stages() {
    let hidden = 2.0 * 1024.0 * 1024.0 * 2.0;
    let whole = memory(&solo()).activations;
    let staged = memory(&ParallelLayout { pipeline: 4, ..solo() }).activations;
    // All blocks' inputs of one micro-batch, or a quarter of the blocks' of four.
    assert_eq!(staged, whole);
    let all = memory(&ParallelLayout { pipeline: 4, schedule: ScheduleKind::GPipe, ..solo() }).activations;
    assert_eq!(all - staged, 4.0 * 6.0 * hidden);
}

#[test]
fn tensor_parallel_ranks_share_weights_and_what_is_between_them() {
    let whole = memory(&ParallelLayout { recompute: false, ..solo() });
    let shared = memory(&ParallelLayout { tensor: 4, recompute: false, ..solo() });
    assert_eq!(shared.optimizer, whole.optimizer / 4.0);
    assert!(shared.activations > whole.activations / 4.0 && shared.activations < whole.activations);
}

#[test]
fn bytes_of_each_dimension_are_its_collectives_as_rings() {
    let hidden = 2.0 * 1024.0 * 1024.0 * 2.0;
    let none = communication(&solo());
    assert_eq!((none.tensor, none.pipeline, none.data), (0.0, 0.0, 0.0));
    // Two all-reduces a block in each of three passes, and two around the blocks, for 8 micro-batches.
    let tensor = communication(&ParallelLayout { tensor: 4, ..solo() }).tensor;
    assert_eq!(tensor, 8.0 * (24.0 * 3.0 * 2.0 + 2.0) * 2.0 * 0.75 * hidden);
    // A stage in the middle sends every micro-batch forward and its gradient backward.
    assert_eq!(communication(&ParallelLayout { pipeline: 4, ..solo() }).pipeline, 16.0 * hidden);
    assert_eq!(communication(&ParallelLayout { pipeline: 2, ..solo() }).pipeline, 8.0 * hidden);
    // Each of two tensor-parallel ranks sends half of it, and gathers the other half of what it receives.
    let both = communication(&ParallelLayout { pipeline: 2, tensor: 2, ..solo() });
    assert_eq!(both.pipeline, 8.0 * hidden / 2.0);
    let reduces = 8.0 * (12.0 * 3.0 * 2.0 + 1.0) * 2.0 * 0.5 * hidden;
    assert_eq!(both.tensor, reduces + 8.0 * 0.5 * hidden);
    let values = gpt2().embedding_parameters() + 24.0 * gpt2().block_parameters();
    let data = |zero| communication(&ParallelLayout { data: 4, zero, ..solo() }).data / (0.75 * 2.0 * values);
    assert_eq!([ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three].map(data), [2.0, 2.0, 9.0, 24.0]);
}

#[test]
fn layouts_that_cannot_be_are_refused_by_name() {
    let refused = |layout: ParallelLayout| layout.schedule(&gpt2(), "here").unwrap_err().to_string();
    assert!(refused(ParallelLayout { tensor: 3, ..solo() }).contains("here, heads"));
    assert!(refused(ParallelLayout { pipeline: 5, ..solo() }).contains("here, layers"));
    assert!(refused(ParallelLayout { data: 0, ..solo() }).contains("here, ranks"));
    assert!(refused(ParallelLayout { tensor: usize::MAX, data: 2, ..solo() }).contains("here, ranks"));
    assert!(refused(ParallelLayout { length: 0, ..solo() }).contains("here, batch"));
    assert!(refused(ParallelLayout { micro_batch: usize::MAX, ..solo() }).contains("here, batch"));
    let interleaved = ScheduleKind::Interleaved;
    let layout = ParallelLayout { pipeline: 4, schedule: interleaved, micro_batches: 6, ..solo() };
    assert!(refused(ParallelLayout { chunks: 3, ..layout }).contains("use 4 or 8"));
    assert!(refused(ParallelLayout { chunks: 1, ..layout }).contains("use 1f1b"));
}

fn request(ranks: usize, memory: f64) -> FitRequest {
    FitRequest {
        sizes: TransformerSizes::gpt2(40, 5120, 40, 50_304, 1024),
        ranks,
        memory,
        batch: 256,
        length: 1024,
        value_bytes: 2,
        gradient_bytes: 2,
        machine: Machine::example().unwrap(),
    }
}

#[test]
fn layouts_for_13_billion_parameters_fit_32_devices_of_32_gigabytes() {
    let found = fit(&request(32, 32e9)).unwrap();
    assert!(found.fitting.len() > 5 && found.tried > found.fitting.len(), "{}", found.tried);
    for fitting in &found.fitting {
        assert_eq!(fitting.layout.ranks(), 32);
        assert_eq!(fitting.layout.batch(), 256);
        assert!(fitting.memory.total() < 32e9, "{fitting:?}");
    }
    assert!(found.fitting.windows(2).all(|pair| pair[0].report.step <= pair[1].report.step));
    assert!(found.smallest.is_none());
}

#[test]
fn what_fits_nowhere_is_answered_with_what_it_needs_at_least() {
    let found = fit(&request(2, 16e9)).unwrap();
    assert!(found.fitting.is_empty());
    let (layout, memory) = found.smallest.unwrap();
    assert!(layout.ranks() == 2 && memory.total() > 16e9);
    for (ranks, memory) in [(0, 1e9), (4, 0.0), (4, f64::NAN)] {
        assert!(fit(&request(ranks, memory)).is_err());
    }
    // A prime number of ranks that divides neither heads nor blocks nor the batch.
    assert!(fit(&request(31, 80e9)).unwrap_err().to_string().contains("31 ranks"));
}

//! Tensors named by a forward pass, the numbers all ranks share, and the memory of each.

use crate::ranks::{Mixer, ROWS, Setting, VOCABULARY, on_ranks};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::inspect::{
    SummaryRow, TensorInspector, average_loss, format_memory, format_summary, gather_result, memory_report, sum_loss,
    write_rank,
};
use bmtrain_dist::nn::{Embedding, EmbeddingOptions};
use bmtrain_dist::optim::Clip;
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Block, Builder, OptimManager, Result, TransformerBlockList};
use half::bf16;
use std::rc::Rc;
use std::sync::Arc;

const SIZE: usize = 16;
const MICRO_BATCHES: usize = 4;

/// A mixer that shows what enters it and, twice under one name, what leaves it.
struct Shown(Mixer);

impl Block for Shown {
    type Carry = Var;
    type Shared = ();
    type Cache = ();

    fn forward(&self, x: Var, _: &(), _: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        cx.observe("input", &x)?;
        let y = self.0.forward(x, &(), None, cx)?;
        cx.observe("output", &y)?;
        let half = ops::scale(cx, &y, 0.5)?;
        cx.observe("output", &half)?;
        Ok(half)
    }
}

/// The table of all micro-batches, on all ranks together.
fn table(comm: Arc<dyn Communicator>, recompute: Recompute, level: ZeroLevel) -> Vec<SummaryRow> {
    let (own, ranks) = (comm.rank(), comm.size());
    let device = Device::cpu(1).unwrap();
    let sharding = Sharding { ranks: comm.clone(), level, sum: GradientSum::Elastic, prefetch: true };
    let b = Builder::new(&device, BuilderOptions { seed: 3, sharding, ..BuilderOptions::default() });
    let words = EmbeddingOptions { entries: VOCABULARY, size: SIZE, init: Init::normal(0.5), padding_index: None };
    let words = Embedding::new(&b.at("table"), words).unwrap();
    let policy = BlockOptions::from(recompute);
    let blocks =
        TransformerBlockList::build(&b.at("blocks"), 3, policy, |_, b| Ok(Shown(Mixer::new(b, SIZE)?))).unwrap();
    let optim = OptimManager::new(&device, Clip::default()).unwrap();
    let inspector = Rc::new(TensorInspector::new());
    for index in (own..MICRO_BATCHES).step_by(ranks) {
        let mut cx = Ctx::training(&device, Randomness { seed: 1, step: 0, micro_batch: index as u32 });
        cx.set_observer(inspector.clone());
        let ids =
            |salt: usize| -> Vec<i64> { (0..ROWS).map(|row| ((row * salt + index) % VOCABULARY) as i64).collect() };
        let tensor = |salt| Tensor::from_slice_in(&device, [ROWS], &ids(salt), Segment::Data).unwrap();
        let x = words.forward(&tensor(5), &cx).unwrap();
        let x = cx.at("blocks", |cx| blocks.forward(x, &(), cx)).unwrap();
        let logits = words.project(&x, None, &cx).unwrap();
        let loss = ops::cross_entropy(&cx, &logits, &tensor(3), &ops::CrossEntropy::default()).unwrap();
        cx.observe("loss", &loss).unwrap();
        optim.backward(&loss, 0.25, &mut cx).unwrap();
    }
    inspector.summary(&*comm, &device, 1.0).unwrap()
}

#[test]
fn named_values_have_one_table_however_blocks_are_kept_and_ranks_share_the_micro_batches() {
    let alone = table(Arc::new(Solo), Recompute::Keep, ZeroLevel::Zero);
    let names: Vec<String> = (0..3)
        .flat_map(|block| ["input", "output", "output#2"].map(|name| format!("blocks.{block}.{name}")))
        .chain(["loss".to_owned()])
        .collect();
    assert_eq!(alone.iter().map(|row| row.name.clone()).collect::<Vec<_>>(), names);
    for row in &alone {
        let is_loss = row.name == "loss";
        let shape = if is_loss { [MICRO_BATCHES].to_vec() } else { [MICRO_BATCHES * ROWS, SIZE].to_vec() };
        assert_eq!(row.shape, format!("{shape:?}"));
        assert_eq!(row.values.count, shape.iter().product::<usize>() as u64);
        assert_eq!(row.gradient.unwrap().count, row.values.count, "{}", row.name);
    }
    let loss = alone.last().unwrap().gradient.unwrap();
    assert_eq!((loss.mean, loss.deviation()), (0.25, 0.0), "the weight of a micro-batch");
    // Half of the output goes on: its gradient is twice the output's, and what enters the next block is the same
    // tensor.
    let gradient = |row: usize| alone[row].gradient.unwrap();
    assert!((gradient(2).deviation() - 2.0 * gradient(1).deviation()).abs() < 1e-12);
    assert_eq!(alone[3].values, alone[2].values);
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        assert_eq!(table(Arc::new(Solo), recompute, ZeroLevel::Zero), alone, "{recompute:?}");
        for (ranks, level) in [(2, ZeroLevel::Two), (2, ZeroLevel::Three), (4, ZeroLevel::Three)] {
            let options = Setting::default().options;
            for rows in on_ranks(ranks, options, |comm| table(Arc::new(comm), recompute, level)) {
                for (row, expected) in rows.iter().zip(&alone) {
                    assert_eq!((&row.name, &row.shape), (&expected.name, &expected.shape));
                    let (found, gradient) = (row.gradient.unwrap(), expected.gradient.unwrap());
                    for (a, b) in [(row.values, expected.values), (found, gradient)] {
                        // The bits of every tensor are the same; f64 statistics are merged in another order.
                        assert_eq!((a.count, a.min, a.max), (b.count, b.min, b.max), "{}", row.name);
                        assert!((a.mean - b.mean).abs() < 1e-12 && (a.deviation() - b.deviation()).abs() < 1e-12);
                    }
                }
            }
        }
    }
}

#[test]
fn tensors_are_kept_on_request_and_shapes_that_differ_are_called_mixed() {
    let device = Device::cpu(1).unwrap();
    let inspector = Rc::new(TensorInspector::keeping());
    for rows in [2, 3] {
        let mut cx = Ctx::training(&device, Randomness { seed: 0, step: 0, micro_batch: rows as u32 });
        cx.set_observer(inspector.clone());
        let x = |shape: [usize; 2]| {
            Var::constant(Tensor::full_in(&device, shape, DType::BF16, rows as f32, Segment::Activations).unwrap())
        };
        cx.at("deep", |cx| cx.observe("grows", &x([rows, 4]))).unwrap();
        cx.observe("changes", &x([4, rows])).unwrap();
    }
    let rows = inspector.summary(&Solo, &device, 1.0).unwrap();
    let shown: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.shape.as_str(), row.gradient)).collect();
    assert_eq!(shown, [("deep.grows", "[5, 4]", None), ("changes", "mixed", None)]);
    assert_eq!(rows[0].values.mean, (8.0 * 2.0 + 12.0 * 3.0) / 20.0);
    let kept = inspector.tensor("deep.grows").unwrap();
    assert_eq!(kept.to_vec::<bf16>().unwrap(), [bf16::from_f32(3.0); 12]);
    assert!(inspector.tensor("grows").is_none() && TensorInspector::new().tensor("deep.grows").is_none());
    inspector.clear();
    assert!(inspector.summary(&Solo, &device, 1.0).unwrap().is_empty());
    assert_eq!(format_summary(&[]).lines().count(), 1);
}

#[test]
fn ranks_that_name_different_values_are_told_so() {
    on_ranks(2, Setting::default().options, |comm| {
        let device = Device::cpu(1).unwrap();
        let inspector = Rc::new(TensorInspector::new());
        let mut cx = Ctx::inference(&device);
        cx.set_observer(inspector.clone());
        let x = Var::constant(Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap());
        cx.observe(["left", "right"][comm.rank()], &x).unwrap();
        let error = inspector.summary(&comm, &device, 1.0).unwrap_err().to_string();
        assert!(error.contains("all ranks have to name the same"), "{error}");
    });
}

#[test]
fn losses_are_summed_and_averaged_over_the_ranks() {
    for ranks in [2, 4] {
        on_ranks(ranks, Setting::default().options, |comm| {
            let device = Device::cpu(1).unwrap();
            let own = 1.5 + comm.rank() as f32;
            let loss = Tensor::from_slice_in(&device, [1], &[own], Segment::Activations).unwrap();
            let half = Tensor::from_slice_in(&device, [], &[bf16::from_f32(own)], Segment::Activations).unwrap();
            let sum: f32 = (0..ranks).map(|rank| 1.5 + rank as f32).sum();
            for loss in [&loss, &half] {
                assert_eq!(sum_loss(&comm, loss).unwrap(), sum);
                assert_eq!(average_loss(&comm, loss).unwrap(), sum / ranks as f32);
            }
            let two = Tensor::from_slice_in(&device, [2], &[own, own], Segment::Activations).unwrap();
            assert!(sum_loss(&comm, &two).unwrap_err().to_string().contains("a loss has one element"));
        });
    }
}

#[test]
fn results_of_all_ranks_stand_one_behind_the_other_also_when_some_have_fewer() {
    for counts in [[2, 2, 2, 2], [3, 0, 1, 2], [0, 0, 0, 0]] {
        on_ranks(4, Setting::default().options, |comm| {
            let device = Device::cpu(1).unwrap();
            let of = |rank: usize| -> Vec<i64> { (0..counts[rank] * 3).map(|i| (100 * rank + i) as i64).collect() };
            let own = comm.rank();
            let x = Tensor::from_slice_in(&device, [counts[own], 3], &of(own), Segment::Data).unwrap();
            let all = gather_result(&comm, &x).unwrap();
            assert_eq!(all.shape().dims(), [counts.iter().sum::<usize>(), 3]);
            assert_eq!(all.to_vec::<i64>().unwrap(), (0..4).flat_map(of).collect::<Vec<_>>());
        });
    }
    on_ranks(2, Setting::default().options, |comm| {
        let device = Device::cpu(1).unwrap();
        let x = Tensor::full_in(&device, [2, 3 + comm.rank()], DType::F32, 0.0, Segment::Data).unwrap();
        let error = gather_result(&comm, &x).unwrap_err().to_string();
        assert!(error.contains(&format!("rank {}", 1 - comm.rank())), "{error}");
    });
}

#[test]
fn one_rank_speaks() {
    let said = on_ranks(3, Setting::default().options, |comm| {
        let mut out = Vec::new();
        write_rank(&comm, 1, "hello", &mut out).unwrap();
        String::from_utf8(out).unwrap()
    });
    assert_eq!(said, ["", "hello\n", ""]);
}

#[test]
fn every_rank_sees_the_memory_of_all() {
    let reports = on_ranks(2, Setting::default().options, |comm| {
        let device = Device::cpu(1).unwrap();
        let megabytes = 1 + comm.rank();
        let kept = Tensor::full_in(&device, [megabytes << 18], DType::F32, 1.0, Segment::Optimizer).unwrap();
        let report = memory_report(&comm, &device).unwrap();
        drop(kept);
        report
    });
    assert_eq!(reports[0].len(), 2);
    for (a, b) in reports[0].iter().zip(&reports[1]) {
        assert_eq!((a.rank, &a.segments, a.process), (b.rank, &b.segments, b.process));
        let optimizer = a.segments.iter().find(|(segment, _)| *segment == Segment::Optimizer).unwrap().1;
        assert_eq!(optimizer.now, (1 + a.rank) << 20);
        assert!(a.total.now >= optimizer.now && a.pool >= a.total.now);
        assert_eq!(a.process, std::process::id());
        if cfg!(target_os = "linux") {
            assert!(a.resident.unwrap() > 1 << 20 && a.peak_resident.unwrap() >= a.resident.unwrap());
        }
    }
    let shown = format_memory(&reports[0]);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..2], ["rank", "optimizer"], "\n{shown}");
    assert_eq!([lines[1][..2].to_vec(), lines[2][..2].to_vec()], [["0", "1.0"], ["1", "2.0"]], "\n{shown}");
}

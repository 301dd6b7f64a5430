//! How often the host waits for its device in a training step as the finetuning program makes it: once, whatever the
//! model, the numbers and the ranks. A host that waits more often gives the device nothing to do meanwhile.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::cpu::CpuBackend;
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::wrap::Waits;
use bmtrain_core::{Backend, Ctx, DType, Device, Segment, Tensor, Var};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::optim::{
    Adam, AdamOffload, AdamOptions, Clip, LossScaler, Optimizer, ParamGroup, ScalePolicy, StepInfo,
};
use bmtrain_dist::param::BuilderOptions;
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{ControlGroup, Module, OptimManager};
use model_center::config::{Gpt2Config, TextConfig};
use model_center::model::gpt2::Gpt2;
use model_center::model::{Batch, Head, TextModel};
use std::sync::Arc;

/// Before this step memory is still taken for the first time.
const STEADY: u32 = 2;
const STEPS: u32 = 8;
const MICRO_BATCHES: u32 = 3;

#[derive(Debug, Clone, Copy)]
struct Job {
    dtype: DType,
    level: u64,
    offload: bool,
    sum: GradientSum,
    /// Beyond what f16 holds: the step is skipped, and that is the host's decision.
    scale: f32,
}

const PLAIN: Job = Job { dtype: DType::F32, level: 0, offload: false, sum: GradientSum::Fast, scale: 1.0 };

fn model(job: Job, device: &Device, ranks: &Arc<dyn Communicator>) -> Gpt2 {
    let level = ZeroLevel::from_number(job.level).unwrap();
    let sharding = Sharding { ranks: Arc::clone(ranks), level, sum: job.sum, prefetch: true };
    let builder = BuilderOptions { dtype: job.dtype, sharding, ..BuilderOptions::default() };
    let text = TextConfig {
        vocab_size: 50,
        dim_model: 32,
        num_heads: 2,
        dim_head: 16,
        dim_ff: 48,
        num_layers: 3,
        ..Gpt2Config::default().text
    };
    let config = Gpt2Config { text, ..Gpt2Config::default() };
    let blocks = BlockOptions::from(Recompute::Checkpoint);
    Gpt2::new(device, config, Head::CausalLm { tied: true }, blocks, builder).unwrap()
}

fn batch(step: u32, micro_batch: u32) -> Batch {
    let salt = i64::from(step * MICRO_BATCHES + micro_batch);
    Batch::next_tokens(7, (0..14).map(|at| (at * at + salt * 5 + at) % 50).collect(), Some(vec![1; 14]))
}

/// Waits of each step on one rank, with what came of it and the losses of all ranks.
fn train(job: Job, ranks: Arc<dyn Communicator>) -> Vec<(u64, StepInfo, Vec<f32>)> {
    let waits = Arc::new(Waits::new(Arc::new(CpuBackend::new(1).unwrap())));
    let device = Device::new(Arc::clone(&waits) as Arc<dyn Backend>);
    let (model, control) = (model(job, &device, &ranks), ControlGroup::new(Arc::clone(&ranks), &device));
    let groups = ParamGroup::by_decay(model.parameters(), 0.01);
    let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 0.5 }).unwrap();
    let adam: Box<dyn Optimizer> = match job.offload {
        true => Box::new(AdamOffload::new(groups, AdamOptions::default()).unwrap()),
        false => Box::new(Adam::new(groups, AdamOptions::default()).unwrap()),
    };
    optim.add(adam, 2e-3);
    if job.dtype == DType::F16 {
        let policy = ScalePolicy::Static { scale: job.scale };
        optim.set_scaler(LossScaler::new(policy, LossScaler::MAX_SKIPS).unwrap());
    }
    let step = |step: u32| {
        waits.take();
        let mut losses = Vec::new();
        for micro_batch in 0..MICRO_BATCHES {
            let mut cx = Ctx::training(&device, Randomness { seed: 3, step, micro_batch });
            let loss = model.loss(&batch(step, micro_batch), &mut cx).unwrap().unwrap();
            let weight = 1.0 / (MICRO_BATCHES as f32 * ranks.size() as f32);
            match micro_batch + 1 == MICRO_BATCHES {
                true => optim.backward_last(&loss, weight, &mut cx).unwrap(),
                false => optim.backward(&loss, weight, &mut cx).unwrap(),
            }
            losses.push(loss);
        }
        let known = Tensor::from_slice_in(&device, [2], &[step as f32, 1.0], Segment::Data).unwrap();
        let numbers: Vec<&Tensor> = losses.iter().map(Var::value).chain([&known]).collect();
        let told = control.gather_later(&numbers).unwrap();
        let (info, told) = optim.step_and_read(&[&told]).unwrap();
        (waits.take(), info, told)
    };
    (0..STEPS).map(step).collect()
}

fn on_two(job: Job) -> Vec<Vec<(u64, StepInfo, Vec<f32>)>> {
    let group = HostGroup::threads(2, HostOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = group.into_iter().map(|rank| scope.spawn(move || train(job, Arc::new(rank)))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn check(job: Job, seen: &[(u64, StepInfo, Vec<f32>)], ranks: usize) {
    let each = MICRO_BATCHES as usize + 2;
    for (step, (waits, info, told)) in seen.iter().enumerate() {
        assert_eq!(told.len(), ranks * each, "{job:?}");
        for told in told.chunks(each) {
            assert!(told[..each - 2].iter().all(|loss| (0.1..10.0).contains(loss)), "{job:?}: {told:?}");
            assert_eq!(told[each - 2..], [step as f32, 1.0]);
        }
        assert!(!info.skipped, "{job:?}, step {step}: {info:?}");
        assert!(step < STEADY as usize || *waits == 1, "{job:?} on {ranks} ranks, step {step}: {waits} waits");
    }
}

#[test]
fn a_step_makes_the_host_wait_once() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for offload in [false, true] {
            let job = Job { dtype, offload, scale: 128.0, ..PLAIN };
            check(job, &train(job, Arc::new(Solo)), 1);
        }
    }
}

#[test]
fn so_it_does_on_every_rank() {
    for level in [0, 2, 3] {
        for sum in [GradientSum::Fast, GradientSum::Elastic] {
            for offload in [false, level > 0] {
                let job = Job { dtype: DType::F16, level, sum, offload, scale: 128.0 };
                for seen in on_two(job) {
                    check(job, &seen, 2);
                }
            }
        }
    }
}

#[test]
fn to_skip_a_step_is_decided_by_the_same_wait() {
    let job = Job { dtype: DType::F16, scale: 1e30, ..PLAIN };
    let seen = train(job, Arc::new(Solo));
    for (waits, info, _) in &seen[STEADY as usize..] {
        // A lost step makes one more, to look for the gradient to blame.
        assert!(info.skipped && *waits == 2, "{waits} waits, {info:?}");
    }
}

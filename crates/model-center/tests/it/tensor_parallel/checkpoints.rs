//! What any layout of ranks saves, any other reads: the same bits of all tensors, and training goes on.

mod padding;

use super::runs::Job;
use super::{gpt2_job, qwen3_job, ranks};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::wrap::Counting;
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::checkpoint::{
    Checkpoint, Facts, SaveEvent, Saver, Store, TrainingState, load_parameters, reshard, restore,
};
use bmtrain_dist::optim::{
    Adam, AdamOffload, AdamOptions, Clip, Fingerprint, LossScaler, Optimizer, ParamGroup, ScalePolicy,
};
use bmtrain_dist::param::{BuilderOptions, F32Parameters, InitMode};
use bmtrain_dist::pipeline::{MicroBatch, Partition, PartitionRule, Pipeline, Schedule, ScheduleKind, StageGroup};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{ControlGroup, Mesh, OptimManager, RankGroup, RankGroups};
use model_center::model::{LossSettings, TextModel};
use std::ops::Range;
use std::sync::Arc;

/// How ranks share a model.
#[derive(Debug, Clone, Copy)]
struct Layout {
    world: usize,
    /// Pipeline stages.
    stages: usize,
    /// Tensor-parallel ranks of a stage.
    tensor: usize,
    level: ZeroLevel,
}

impl Layout {
    const fn new(world: usize, tensor: usize, level: ZeroLevel) -> Self {
        Layout { world, stages: 1, tensor, level }
    }

    const fn staged(world: usize, stages: usize, tensor: usize, level: ZeroLevel) -> Self {
        Layout { world, stages, tensor, level }
    }

    fn data(self) -> usize {
        self.world / self.stages / self.tensor
    }
}

const ALONE: Layout = Layout::new(1, 1, ZeroLevel::Zero);

const LAYOUTS: [Layout; 12] = [
    ALONE,
    Layout::new(2, 1, ZeroLevel::Zero),
    Layout::new(2, 1, ZeroLevel::One),
    Layout::new(2, 1, ZeroLevel::Two),
    Layout::new(2, 1, ZeroLevel::Three),
    Layout::new(2, 2, ZeroLevel::Zero),
    Layout::new(4, 4, ZeroLevel::Zero),
    Layout::new(4, 2, ZeroLevel::One),
    Layout::new(4, 2, ZeroLevel::Three),
    Layout::staged(2, 2, 1, ZeroLevel::Zero),
    Layout::staged(4, 2, 1, ZeroLevel::One),
    Layout::staged(4, 2, 2, ZeroLevel::Zero),
];

/// Loss bits of a step and micro-batch.
type Losses = Vec<(u32, u32, u32)>;

/// What is trained beside the job.
#[derive(Clone, Copy)]
struct Training {
    dtype: DType,
    f32_parameters: F32Parameters,
    offload: bool,
    scale: Option<ScalePolicy>,
    deltas: bool,
    seed: u64,
}

impl Default for Training {
    fn default() -> Self {
        let f32_parameters = F32Parameters::default();
        Training { dtype: DType::F32, f32_parameters, offload: false, scale: None, deltas: false, seed: 11 }
    }
}

/// One rank: its model, optimizer, and all ranks.
struct Rank {
    device: Device,
    mesh: Mesh,
    model: Box<dyn TextModel>,
    optim: OptimManager,
    /// Where there are several stages.
    pipeline: Option<Pipeline>,
    control: ControlGroup,
}

/// The stages of a job's model, whose blocks are divided by their parameters.
fn stages_of(job: &Job, groups: &RankGroups, schedule: &Schedule) -> StageGroup {
    let mesh = groups.mesh();
    if mesh.pipeline_size() == 1 {
        return StageGroup::default();
    }
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let sketch = job.model(&nowhere, BuilderOptions { init: InitMode::Deferred, ..BuilderOptions::default() }).unwrap();
    let rule = PartitionRule::default();
    let partition = Partition::of_model(&rule, sketch.parameters(), schedule.places()).unwrap();
    let (colour, key) = mesh.colour_and_key(RankGroup::Pipe);
    StageGroup::new(groups.world().split(colour, key).unwrap(), partition, schedule).unwrap()
}

impl Rank {
    fn new(job: &Job, groups: &RankGroups, level: ZeroLevel, training: Training) -> Rank {
        let device = Device::cpu(1).unwrap();
        let (mesh, tensor) = (groups.mesh(), job.tensor_group(Arc::clone(groups.tensor())));
        let sharding = Sharding { ranks: Arc::clone(groups.data()), level, sum: GradientSum::Fast, prefetch: true };
        let Training { dtype, f32_parameters, seed, .. } = training;
        let own = job.micro_batches as usize / mesh.data_size();
        let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, mesh.pipeline_size(), 1, own).unwrap();
        let stages = stages_of(job, groups, &schedule);
        let pipeline = (stages.stages() > 1).then(|| Pipeline::new(&device, &stages, schedule).unwrap());
        let options =
            BuilderOptions { mesh, tensor, stages, sharding, dtype, f32_parameters, seed, ..BuilderOptions::default() };
        let model = job.model(&device, options).unwrap();
        let mut optim = OptimManager::new(&device, Clip { max_norm: 1.0, ..Clip::default() }).unwrap();
        let params = ParamGroup::by_decay(model.parameters(), 0.01);
        let adam = AdamOptions { record_delta: training.deltas, ..AdamOptions::default() };
        let optimizer: Box<dyn Optimizer> = match training.offload {
            true => Box::new(AdamOffload::new(params, adam).unwrap()),
            false => Box::new(Adam::new(params, adam).unwrap()),
        };
        optim.add(optimizer, 1e-3);
        if let Some(policy) = training.scale {
            optim.set_scaler(LossScaler::new(policy, 8).unwrap());
        }
        let control = ControlGroup::new(Arc::clone(groups.world()), &device);
        Rank { device, mesh, model, optim, pipeline, control }
    }

    /// The losses of this rank, if it is the first of a tensor group on the first stage: the others have the same.
    fn train(&mut self, job: &Job, steps: Range<u32>) -> Losses {
        let mut losses = Vec::new();
        for step in steps {
            let data = (self.mesh.data_rank()..job.micro_batches as usize).step_by(self.mesh.data_size());
            let own: Vec<u32> = data.map(|number| number as u32).collect();
            let weight = 1.0 / job.micro_batches as f32;
            let of_step = match &self.pipeline {
                Some(pipeline) => {
                    let mut load = |number: usize| {
                        let micro_batch = own[number];
                        let randomness = Randomness { seed: 3, step, micro_batch };
                        Ok((MicroBatch { batch: job.batch(micro_batch), randomness, weight }, LossSettings::default()))
                    };
                    let losses = self.model.forward_backward(pipeline, &self.optim, &mut load).unwrap();
                    losses.to_vec::<f32>().unwrap()
                }
                None => {
                    let loss = |&micro_batch: &u32| {
                        let mut cx = Ctx::training(&self.device, Randomness { seed: 3, step, micro_batch });
                        let loss = self.model.loss(&job.batch(micro_batch), &mut cx).unwrap().unwrap();
                        self.optim.backward(&loss, weight, &mut cx).unwrap();
                        loss.value().item().unwrap()
                    };
                    own.iter().map(loss).collect()
                }
            };
            losses.extend(own.iter().zip(of_step).map(|(micro_batch, loss)| (step, *micro_batch, loss.to_bits())));
            self.optim.step().unwrap();
        }
        losses.retain(|_| self.mesh.tensor_rank() == 0 && self.mesh.stage() == 0);
        losses
    }

    fn save(&self, store: &Store, step: u64) {
        let state = serde_json::to_value(self.state()).unwrap();
        let state = [("training".to_owned(), state)].into_iter().collect();
        let facts = Facts { recipe: "r".into(), state, ..Facts::default() };
        let mut saver = Saver::new(store.clone(), self.control.clone(), 2).unwrap();
        saver.begin(&self.device, step, facts, self.model.parameters(), &self.optim).unwrap();
        let event = saver.finish().unwrap();
        assert!(matches!(event, Some(SaveEvent::Saved { .. })), "{event:?}");
    }

    fn state(&self) -> TrainingState {
        TrainingState::of(&self.optim, self.model.parameters()).unwrap()
    }

    fn restore(&mut self, store: &Store) {
        let checkpoint = newest(store);
        let state = checkpoint.manifest().facts.state["training"].clone();
        let state: TrainingState = serde_json::from_value(state).unwrap();
        restore(&checkpoint, &state, self.model.parameters(), &mut self.optim).unwrap();
        assert_eq!(self.state(), state);
    }
}

fn newest(store: &Store) -> Checkpoint {
    store.newest_verified().unwrap().checkpoint.unwrap()
}

/// Run on all ranks of a layout; what they return in the order of the ranks.
fn on_ranks<T: Send>(layout: Layout, body: impl Fn(RankGroups) -> T + Sync) -> Vec<T> {
    ranks::on_stages(layout.world, layout.stages, layout.tensor, body)
}

/// The losses of all ranks in the order of the micro-batches, and the fingerprint, on which they agree.
fn joined(ranks: Vec<(Losses, Fingerprint)>) -> (Losses, Fingerprint) {
    let fingerprint = ranks[0].1.clone();
    assert!(ranks.iter().all(|(_, other)| *other == fingerprint));
    let mut losses: Losses = ranks.into_iter().flat_map(|(losses, _)| losses).collect();
    losses.sort_unstable();
    (losses, fingerprint)
}

/// What a layout came to without a break: the losses of all steps, the state after half of them, its checkpoint.
struct Course {
    layout: Layout,
    losses: Losses,
    fingerprint: Fingerprint,
    store: Store,
    _directory: tempfile::TempDir,
}

fn course(job: &Job, layout: Layout) -> Course {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let ranks = on_ranks(layout, |groups| {
        let mut rank = Rank::new(job, &groups, layout.level, Training::default());
        let mut losses = rank.train(job, 0..2);
        rank.save(&store, 2);
        let fingerprint = rank.optim.fingerprint().unwrap();
        losses.extend(rank.train(job, 2..4));
        (losses, fingerprint)
    });
    let (losses, fingerprint) = joined(ranks);
    Course { layout, losses, fingerprint, store, _directory: directory }
}

#[test]
fn every_layout_resumes_from_the_checkpoint_of_every_other() {
    let job = qwen3_job();
    let courses: Vec<Course> = LAYOUTS.iter().map(|layout| course(&job, *layout)).collect();
    let plain: Vec<f32> = courses[0].losses.iter().map(|(.., loss)| f32::from_bits(*loss)).collect();
    assert_eq!(plain.len(), 8);
    assert_ne!(plain[0], plain[6], "nothing was trained");
    for layout in LAYOUTS {
        let resumed = on_ranks(layout, |groups| {
            let resume = |from: &Course| {
                // Other initial values than those that were saved.
                let mut rank = Rank::new(&job, &groups, layout.level, Training { seed: 99, ..Training::default() });
                rank.restore(&from.store);
                let fingerprint = rank.optim.fingerprint().unwrap();
                (rank.train(&job, 2..4), fingerprint)
            };
            courses.iter().map(resume).collect::<Vec<_>>()
        });
        for (number, from) in courses.iter().enumerate() {
            let (losses, fingerprint) = joined(resumed.iter().map(|rank| rank[number].clone()).collect());
            let what = format!("{:?} to {layout:?}", from.layout);
            assert_eq!(fingerprint, from.fingerprint, "{what}: other tensors");
            let (before, after) = from.losses.split_at(4);
            assert_eq!((before.len(), losses.len()), (4, after.len()), "{what}");
            if (from.layout.data(), from.layout.tensor) == (layout.data(), layout.tensor) {
                // At any ZeRO level, on any number of stages.
                assert_eq!(losses, after, "{what}");
            }
            for ((step, micro_batch, loss), expected) in losses.iter().zip(&plain[4..]) {
                let error = (f32::from_bits(*loss) - expected).abs() / plain[0];
                // f32 sums in other orders.
                assert!(error <= 1e-5, "{what}: loss of step {step}, micro-batch {micro_batch}: {error:e}");
            }
        }
    }
}

#[test]
fn one_set_of_tensors_has_one_digest_whichever_ranks_save_it() {
    let job = qwen3_job();
    let from = course(&job, Layout::new(4, 2, ZeroLevel::Three));
    let digest = newest(&from.store).digest().unwrap();
    let held = |store: &Store| {
        let checkpoint = newest(store);
        let pieces = checkpoint.manifest().files.iter().flat_map(|file| &file.pieces);
        let elements: u64 = pieces.map(|piece| piece.spec.count().unwrap()).sum();
        (elements, checkpoint.tensors().iter().map(|tensor| tensor.elements).sum::<u64>())
    };
    for layout in LAYOUTS {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        on_ranks(layout, |groups| {
            let mut rank = Rank::new(&job, &groups, layout.level, Training { seed: 5, ..Training::default() });
            rank.restore(&from.store);
            rank.save(&store, 2);
        });
        assert_eq!(newest(&store).digest().unwrap(), digest, "{layout:?}");
        // Heads, norms and biases that ranks have alike are saved once, and a tied embedding of two stages.
        let (saved, all) = held(&store);
        assert_eq!(saved, all, "{layout:?}");
        let copy = tempfile::tempdir().unwrap();
        let copy = Store::open(copy.path()).unwrap();
        reshard(&newest(&store), &copy, 3, "copy").unwrap();
        assert_eq!(newest(&copy).digest().unwrap(), digest, "{layout:?}");
    }
}

#[test]
fn masters_moments_and_loss_scale_pass_between_layouts_and_between_device_and_host() {
    for f32_parameters in [
        F32Parameters::default(),
        // Those have no masters.
        F32Parameters { embeddings: true, norms: true, token_types: false },
    ] {
        pass_between_layouts(f32_parameters);
    }
}

fn pass_between_layouts(f32_parameters: F32Parameters) {
    let job = Job { dropout: 0.0, ..qwen3_job() };
    let legs = [
        (Layout::new(2, 2, ZeroLevel::Zero), true),
        (ALONE, false),
        (Layout::new(2, 1, ZeroLevel::Three), true),
        (Layout::staged(4, 2, 2, ZeroLevel::Zero), true),
        (Layout::new(4, 4, ZeroLevel::Zero), false),
        (Layout::staged(4, 2, 1, ZeroLevel::One), false),
        (Layout::new(4, 2, ZeroLevel::One), true),
        (Layout::new(4, 2, ZeroLevel::Three), false),
        (ALONE, true),
    ];
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut last: Option<Fingerprint> = None;
    for (leg, (layout, offload)) in legs.into_iter().enumerate() {
        let ranks = on_ranks(layout, |groups| {
            // Small enough for f16, and another one after every second step.
            let scale = Some(ScalePolicy::Megatron { start_power: 8, window: 2, hysteresis: 1, floor: 1.0 });
            let (dtype, seed) = (DType::F16, leg as u64);
            let training = Training { dtype, f32_parameters, offload, scale, deltas: false, seed };
            let mut rank = Rank::new(&job, &groups, layout.level, training);
            if leg > 0 {
                rank.restore(&store);
            }
            let restored = rank.optim.fingerprint().unwrap();
            rank.train(&job, leg as u32..leg as u32 + 1);
            let trained = rank.optim.fingerprint().unwrap();
            rank.save(&store, leg as u64 + 1);
            (restored, trained)
        });
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{layout:?}");
        if let Some(last) = last {
            assert_eq!(ranks[0].0, last, "{layout:?}");
        }
        assert_ne!(ranks[0].0, ranks[0].1, "{layout:?}: nothing was trained");
        last = Some(ranks[0].1.clone());
    }
}

#[test]
fn the_state_of_a_manager_is_of_full_tensors() {
    let job = qwen3_job();
    let state = |layout: Layout, from: Option<&bmtrain_dist::optim::ManagerState>, store: &Store| {
        let states = on_ranks(layout, |groups| {
            let mut rank = Rank::new(&job, &groups, layout.level, Training::default());
            match from {
                None => {
                    rank.train(&job, 0..1);
                    rank.save(store, 1);
                }
                Some(from) => {
                    load_parameters(&newest(store), rank.model.parameters()).unwrap();
                    rank.optim.load_state(from).unwrap();
                }
            }
            (rank.optim.state().unwrap(), rank.optim.fingerprint().unwrap())
        });
        assert!(states.iter().all(|state| *state == states[0]));
        states.into_iter().next().unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let saved = state(Layout::new(4, 2, ZeroLevel::One), None, &store);
    for (world, tensor, level) in
        [(1, 1, ZeroLevel::Zero), (2, 2, ZeroLevel::Zero), (4, 4, ZeroLevel::Zero), (4, 2, ZeroLevel::Three)]
    {
        let layout = Layout::new(world, tensor, level);
        assert_eq!(state(layout, Some(&saved.0), &store), saved, "{layout:?}");
    }
}

#[test]
fn how_far_a_step_moved_each_parameter_is_of_full_tensors() {
    let job = Job { dropout: 0.0, ..qwen3_job() };
    for offload in [false, true] {
        let deltas = |layout: Layout| {
            let all = on_ranks(layout, |groups| {
                let mut rank =
                    Rank::new(&job, &groups, layout.level, Training { offload, deltas: true, ..Training::default() });
                rank.train(&job, 0..2);
                rank.optim.deltas().unwrap()
            });
            assert!(all.iter().all(|deltas| *deltas == all[0]), "{layout:?}");
            all.into_iter().next().unwrap()
        };
        let plain = deltas(ALONE);
        assert!(plain.len() > 10 && plain.iter().any(|delta| delta.norm > 0.0));
        // A stage measures its own parameters.
        for layout in LAYOUTS[5..].iter().filter(|layout| layout.stages == 1) {
            for (delta, expected) in deltas(*layout).iter().zip(&plain) {
                assert_eq!(delta.name, expected.name);
                // Adam divides small gradients, whose sums have another order, by their own size.
                let error = (delta.norm - expected.norm).abs() / expected.norm;
                assert!(error <= 1e-3, "{layout:?}: {}: {} for {}", delta.name, delta.norm, expected.norm);
            }
        }
    }
}

/// What is not the model's is the same error on all ranks, before anything is changed.
#[test]
fn a_checkpoint_that_does_not_fit_is_one_error_on_all_stages() {
    let job = qwen3_job();
    let from = course(&job, ALONE);
    let other = course(&gpt2_job(), ALONE);
    let untrained = tempfile::tempdir().unwrap();
    let untrained = Store::open(untrained.path()).unwrap();
    on_ranks(ALONE, |groups| Rank::new(&job, &groups, ZeroLevel::Zero, Training::default()).save(&untrained, 1));
    let errors = on_ranks(Layout::staged(4, 2, 2, ZeroLevel::Zero), |groups| {
        let mut rank = Rank::new(&job, &groups, ZeroLevel::Zero, Training::default());
        let before = rank.optim.fingerprint().unwrap();
        let steps = |of: &Store| {
            let state = newest(of).manifest().facts.state["training"].clone();
            serde_json::from_value::<TrainingState>(state).unwrap()
        };
        let mut wrong = |checkpoint: &Store, change: &dyn Fn(&mut TrainingState)| {
            let mut state = steps(&from.store);
            change(&mut state);
            let (params, optim) = (rank.model.parameters(), &mut rank.optim);
            restore(&newest(checkpoint), &state, params, optim).unwrap_err().to_string()
        };
        let last = |state: &TrainingState| state.optimizers[0].steps.keys().last().unwrap().clone();
        let errors = [
            wrong(&other.store, &|_| {}),
            // Moments of all stages are missing.
            wrong(&untrained, &|_| {}),
            wrong(&untrained, &|state| {
                let last = last(state);
                state.optimizers[0].steps.retain(|name, _| *name == last);
            }),
            wrong(&from.store, &|state| {
                state.optimizers[0].steps.insert("nowhere".into(), 1);
            }),
            wrong(&from.store, &|state| state.optimizers.clear()),
            wrong(&from.store, &|state| {
                state.frozen.frozen.insert("nowhere".into());
            }),
        ];
        assert_eq!(rank.optim.fingerprint().unwrap(), before);
        rank.restore(&from.store);
        assert_eq!(rank.optim.fingerprint().unwrap(), from.fingerprint);
        errors
    });
    assert!(errors.iter().all(|rank| *rank == errors[0]), "{errors:?}");
    let expected = ["saved as", "there is no", "there is no", "nowhere", "1 optimizers", "nowhere"];
    for (error, expected) in errors[0].iter().zip(expected) {
        assert!(error.contains(expected), "{error}");
    }
}

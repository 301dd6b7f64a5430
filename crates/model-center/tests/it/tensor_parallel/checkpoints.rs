//! What any layout of ranks saves, any other reads: the same bits of all tensors, and training goes on.

use super::runs::Job;
use super::{gpt2_job, qwen3_job, ranks};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::checkpoint::{Checkpoint, Facts, SaveEvent, Saver, Store, TrainingState, load_parameters, restore};
use bmtrain_dist::optim::{
    Adam, AdamOffload, AdamOptions, Clip, Fingerprint, LossScaler, Optimizer, ParamGroup, ScalePolicy,
};
use bmtrain_dist::param::{BuilderOptions, TensorGroup};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{ControlGroup, Mesh, OptimManager, RankGroups};
use model_center::model::TextModel;
use std::ops::Range;
use std::sync::Arc;

/// Ranks, tensor-parallel ranks among them, ZeRO level.
type Layout = (usize, usize, ZeroLevel);

const LAYOUTS: [Layout; 9] = [
    (1, 1, ZeroLevel::Zero),
    (2, 1, ZeroLevel::Zero),
    (2, 1, ZeroLevel::One),
    (2, 1, ZeroLevel::Two),
    (2, 1, ZeroLevel::Three),
    (2, 2, ZeroLevel::Zero),
    (4, 4, ZeroLevel::Zero),
    (4, 2, ZeroLevel::One),
    (4, 2, ZeroLevel::Three),
];

/// Loss bits of a step and micro-batch.
type Losses = Vec<(u32, u32, u32)>;

/// What is trained beside the job.
#[derive(Clone, Copy)]
struct Training {
    dtype: DType,
    offload: bool,
    scale: Option<ScalePolicy>,
    deltas: bool,
    seed: u64,
}

impl Default for Training {
    fn default() -> Self {
        Training { dtype: DType::F32, offload: false, scale: None, deltas: false, seed: 11 }
    }
}

/// One rank: its model, optimizer, and all ranks.
struct Rank {
    device: Device,
    mesh: Mesh,
    model: Box<dyn TextModel>,
    optim: OptimManager,
    team: ControlGroup,
}

impl Rank {
    fn new(job: &Job, groups: &RankGroups, level: ZeroLevel, training: Training) -> Rank {
        let device = Device::cpu(1).unwrap();
        let (mesh, tensor) = (groups.mesh(), Arc::clone(groups.tensor()));
        let sharding = Sharding { ranks: Arc::clone(groups.data()), level, sum: GradientSum::Fast, prefetch: true };
        let tensor =
            TensorGroup { ranks: tensor, vocabulary_multiple: job.vocabulary_multiple, sequence: job.sequence };
        let (dtype, seed) = (training.dtype, training.seed);
        let options = BuilderOptions { mesh, tensor, sharding, dtype, seed, ..BuilderOptions::default() };
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
        let team = ControlGroup::new(Arc::clone(groups.world()), &device);
        Rank { device, mesh, model, optim, team }
    }

    /// The losses of this rank, if it is the first of a tensor group, whose ranks have the same.
    fn train(&mut self, job: &Job, steps: Range<u32>) -> Losses {
        let mut losses = Vec::new();
        for step in steps {
            let data = (self.mesh.data_rank()..job.micro_batches as usize).step_by(self.mesh.data_size());
            for micro_batch in data.map(|number| number as u32) {
                let mut cx = Ctx::training(&self.device, Randomness { seed: 3, step, micro_batch });
                let loss = self.model.loss(&job.batch(micro_batch), &mut cx).unwrap().unwrap();
                self.optim.backward(&loss, 1.0 / job.micro_batches as f32, &mut cx).unwrap();
                losses.push((step, micro_batch, loss.value().item().unwrap().to_bits()));
            }
            self.optim.step().unwrap();
        }
        losses.retain(|_| self.mesh.tensor_rank() == 0);
        losses
    }

    fn save(&self, store: &Store, step: u64) {
        let state = serde_json::to_value(self.state()).unwrap();
        let state = [("training".to_owned(), state)].into_iter().collect();
        let facts = Facts { recipe: "r".into(), state, ..Facts::default() };
        let mut saver = Saver::new(store.clone(), self.team.clone(), 2).unwrap();
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
fn on_ranks<T: Send>((world, tensor, _): Layout, body: impl Fn(RankGroups) -> T + Sync) -> Vec<T> {
    ranks::on_ranks(world, tensor, body)
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
        let mut rank = Rank::new(job, &groups, layout.2, Training::default());
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
fn every_layout_goes_on_from_the_checkpoint_of_every_other() {
    let job = qwen3_job();
    let courses: Vec<Course> = LAYOUTS.iter().map(|layout| course(&job, *layout)).collect();
    let plain: Vec<f32> = courses[0].losses.iter().map(|(.., loss)| f32::from_bits(*loss)).collect();
    assert_eq!(plain.len(), 8);
    assert_ne!(plain[0], plain[6], "nothing was trained");
    for layout in LAYOUTS {
        let resumed = on_ranks(layout, |groups| {
            let resume = |from: &Course| {
                // Other initial values than those that were saved.
                let mut rank = Rank::new(&job, &groups, layout.2, Training { seed: 99, ..Training::default() });
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
            if (from.layout.0, from.layout.1) == (layout.0, layout.1) {
                // The same ranks, at any ZeRO level.
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
    let from = course(&job, (4, 2, ZeroLevel::Three));
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
            let mut rank = Rank::new(&job, &groups, layout.2, Training { seed: 5, ..Training::default() });
            rank.restore(&from.store);
            rank.save(&store, 2);
        });
        assert_eq!(newest(&store).digest().unwrap(), digest, "{layout:?}");
        // Heads, norms and biases that ranks have alike are saved once.
        let (saved, all) = held(&store);
        assert_eq!(saved, all, "{layout:?}");
    }
}

#[test]
fn masters_moments_and_loss_scale_pass_between_layouts_and_between_device_and_host() {
    let job = Job { dropout: 0.0, ..qwen3_job() };
    let legs = [
        ((2, 2, ZeroLevel::Zero), true),
        ((1, 1, ZeroLevel::Zero), false),
        ((2, 1, ZeroLevel::Three), true),
        ((4, 4, ZeroLevel::Zero), false),
        ((4, 2, ZeroLevel::One), true),
        ((4, 2, ZeroLevel::Three), false),
        ((1, 1, ZeroLevel::Zero), true),
    ];
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut last: Option<Fingerprint> = None;
    for (leg, (layout, offload)) in legs.into_iter().enumerate() {
        let ranks = on_ranks(layout, |groups| {
            // Small enough for f16, and another one after every second step.
            let scale = Some(ScalePolicy::Megatron { start_power: 8, window: 2, hysteresis: 1, floor: 1.0 });
            let training = Training { dtype: DType::F16, offload, scale, deltas: false, seed: leg as u64 };
            let mut rank = Rank::new(&job, &groups, layout.2, training);
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
            let mut rank = Rank::new(&job, &groups, layout.2, Training::default());
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
    let saved = state((4, 2, ZeroLevel::One), None, &store);
    for layout in [(1, 1, ZeroLevel::Zero), (2, 2, ZeroLevel::Zero), (4, 4, ZeroLevel::Zero), (4, 2, ZeroLevel::Three)]
    {
        assert_eq!(state(layout, Some(&saved.0), &store), saved, "{layout:?}");
    }
}

#[test]
fn padding_of_the_vocabulary_is_in_no_checkpoint_and_stays_zero() {
    // 97 tokens, all of them on the first rank.
    let job = Job { vocabulary_multiple: 128, ..gpt2_job() };
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    on_ranks((2, 2, ZeroLevel::Zero), |groups| {
        let mut rank = Rank::new(&job, &groups, ZeroLevel::Zero, Training::default());
        rank.train(&job, 0..1);
        rank.save(&store, 1);
        let mut again = Rank::new(&job, &groups, ZeroLevel::Zero, Training { seed: 4, ..Training::default() });
        again.restore(&store);
        let values = |rank: &Rank| rank.model.parameters().iter().map(|p| p.read().unwrap()).collect::<Vec<_>>();
        assert_eq!(values(&rank), values(&again));
        assert_eq!(rank.train(&job, 1..3), again.train(&job, 1..3));
        assert_eq!(rank.optim.fingerprint().unwrap(), again.optim.fingerprint().unwrap());
    });
    let checkpoint = newest(&store);
    let table = checkpoint.tensors().iter().find(|tensor| tensor.shape.first() == Some(&97)).unwrap();
    assert!(checkpoint.manifest().files[1].pieces.iter().all(|piece| piece.spec.name != table.name));
}

#[test]
fn how_far_a_step_moved_each_parameter_is_of_full_tensors() {
    let job = Job { dropout: 0.0, ..qwen3_job() };
    for offload in [false, true] {
        let deltas = |layout: Layout| {
            let all = on_ranks(layout, |groups| {
                let mut rank =
                    Rank::new(&job, &groups, layout.2, Training { offload, deltas: true, ..Training::default() });
                rank.train(&job, 0..2);
                rank.optim.deltas().unwrap()
            });
            assert!(all.iter().all(|deltas| *deltas == all[0]), "{layout:?}");
            all.into_iter().next().unwrap()
        };
        let plain = deltas(LAYOUTS[0]);
        assert!(plain.len() > 10 && plain.iter().any(|delta| delta.norm > 0.0));
        for layout in &LAYOUTS[5..] {
            for (delta, expected) in deltas(*layout).iter().zip(&plain) {
                assert_eq!(delta.name, expected.name);
                // Adam divides small gradients, whose sums have another order, by their own size.
                let error = (delta.norm - expected.norm).abs() / expected.norm;
                assert!(error <= 1e-3, "{layout:?}: {}: {} for {}", delta.name, delta.norm, expected.norm);
            }
        }
    }
}

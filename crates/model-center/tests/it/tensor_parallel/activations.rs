//! Memory of activations on each rank of a tensor group, against what a block is known to keep.

use super::{gpt2_job, runs::Job};
use crate::memory_saving::on_threads;
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::{Ctx, Device, Segment};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::optim::Clip;
use bmtrain_dist::param::{BuilderOptions, TensorGroup};
use bmtrain_dist::{Mesh, OptimManager};
use model_center::model::{Batch, TextModel};
use serde_json::json;
use std::sync::Arc;

/// D, N and F of the blocks.
const SIZES: [usize; 3] = [64, 4, 256];
pub const ROWS: usize = 8;
pub const LENGTH: usize = 64;

/// Peak of the activations of a forward and a backward pass over [`ROWS`] sequences of [`LENGTH`] tokens, in bytes.
pub fn peak_of_a_pass(device: &Device, model: &dyn TextModel) -> usize {
    let optim = OptimManager::new(device, Clip::default()).unwrap();
    let ids = (0..ROWS * LENGTH).map(|at| at as i64 % 31).collect();
    let batch = Batch::next_tokens(LENGTH, ids, None);
    device.reset_peaks();
    let mut cx = Ctx::training(device, Randomness::default());
    let loss = model.loss(&batch, &mut cx).unwrap().unwrap();
    optim.backward(&loss, 1.0, &mut cx).unwrap();
    let report = device.memory();
    report.segments.iter().find(|(segment, _)| *segment == Segment::Activations).unwrap().1.peak
}

/// Peak of the activations of a forward and a backward pass on the first rank, in bytes.
fn peak(layers: usize, recompute: Recompute, tensor: usize, sequence: bool) -> usize {
    let [dim, heads, inner] = SIZES;
    let fields = json!({"n_embd": dim, "n_head": heads, "n_inner": inner, "n_layer": layers, "n_positions": LENGTH});
    let job = Job { fields, recompute, ..gpt2_job() };
    let run = |ranks: Arc<dyn Communicator>| {
        let (device, mesh) = (Device::cpu(1).unwrap(), Mesh::new(ranks.rank(), tensor, 1, tensor).unwrap());
        let group = TensorGroup { ranks, vocabulary_multiple: 8, sequence, ..TensorGroup::default() };
        let builder = BuilderOptions { mesh, tensor: group, ..BuilderOptions::default() };
        let model = job.model(&device, builder).unwrap();
        peak_of_a_pass(&device, &*model)
    };
    on_threads(tensor, |rank| run(Arc::new(rank))).into_iter().max().unwrap()
}

/// What each further block adds to the peak is what it keeps: per token, of D values each, its input, two normalised
/// inputs and the sum between them, which sequence sharding divides; queries, keys, values and their context, and the
/// input of the activation, which heads and columns divide anyway. A recomputed block keeps its input.
#[test]
fn activations_of_a_block_fall_with_the_ranks_as_predicted() {
    let [dim, heads, inner] = SIZES;
    let bytes = |values: usize| values * ROWS * LENGTH * 4;
    for tensor in [1, 2, 4] {
        for sequence in [false, true] {
            let of_tokens = if sequence { tensor } else { 1 };
            // With mean and deviation of two norms, and the log-sum-exp of each head.
            let kept = bytes(4 * dim + 4) / of_tokens + bytes(4 * dim + inner + heads) / tensor;
            for (recompute, predicted) in [(Recompute::Keep, kept), (Recompute::Checkpoint, bytes(dim) / of_tokens)] {
                let of_layers = |layers| peak(layers, recompute, tensor, sequence);
                let each = (of_layers(6) - of_layers(2)) / 4;
                let ratio = each as f64 / predicted as f64;
                eprintln!("tensor {tensor}, sequence {sequence}, {recompute:?}: {each} bytes, {ratio:.4} of predicted");
                // Memory is given out in units of 512 bytes.
                assert!((1.0..1.02).contains(&ratio), "{each} bytes a block, predicted {predicted}");
            }
        }
    }
}

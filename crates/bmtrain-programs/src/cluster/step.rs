//! One training step in time.
//!
//! Each chunk's work has the time of its arithmetic and of the collectives inside the stage; the engine of
//! [`bmtrain_dist::pipeline::simulate`] runs the schedule; what follows the last micro-batch (gradients that are
//! reduced once, the optimizer, parameters that are gathered) is added for each stage. What a dimension's communication
//! costs is the difference to a step in which it takes no time.

use super::communication::{Communication, REDUCES_OF_BLOCK};
use super::machine::Machine;
use super::network::Ring;
use crate::Result;
use bmtrain_dist::mesh::RankGroup;
use bmtrain_dist::pipeline::{self, PipelineCosts, Schedule, Simulation, Transfer, WorkTimes};
use bmtrain_dist::shard::ZeroLevel;
use model_center_train::formula::{ParallelLayout, TransformerSizes, memory::parameters_of_stage};

/// Parts into which an all-reduce and the products beside it are divided where they overlap: the first has nothing to
/// overlap with.
const TENSOR_PARTS: f64 = 4.0;

/// A simulated step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Seconds of the whole step.
    pub step: f64,
    /// The pipeline in time, without what follows the last micro-batch.
    pub pipeline: Simulation,
    /// Idle over busy time of the stage that waits most.
    pub bubble: f64,
    /// Seconds by which the step is longer because of each dimension's communication. They do not add up where waits
    /// for one hide another.
    pub exposed: Exposed,
    /// Seconds of the optimizer.
    pub optimizer: f64,
    /// Bytes that a rank sends.
    pub communication: Communication,
    /// Tokens of all ranks per second.
    pub tokens_per_second: f64,
    /// Sequences of all ranks per second.
    pub sequences_per_second: f64,
    /// Floating-point operations of the model per rank and second: without what is computed again.
    pub model_flops: f64,
    /// Floating-point operations that a rank does per second, recomputation included.
    pub hardware_flops: f64,
    /// `model_flops` over the peak of a rank.
    pub utilisation: f64,
}

/// Seconds of communication that nothing overlaps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exposed {
    /// All-reduces between tensor-parallel ranks.
    pub tensor: f64,
    /// Messages between stages.
    pub pipeline: f64,
    /// Gathers and reductions between data-parallel ranks.
    pub data: f64,
}

/// Simulate a step of a model in a layout on a machine; `place` names the source of the numbers in errors.
///
/// # Errors
/// Numbers that [`TransformerSizes::validate`], [`Machine::validate`] or [`ParallelLayout::schedule`] refuse.
pub fn simulate(
    sizes: &TransformerSizes,
    layout: &ParallelLayout,
    machine: &Machine,
    place: &str,
) -> Result<StepReport> {
    sizes.validate(place)?;
    machine.validate(place)?;
    let schedule = layout.schedule(sizes, place)?;
    let network = Network {
        tensor: Ring::of(layout, RankGroup::Tensor, machine)?,
        data: Ring::of(layout, RankGroup::TensorZero, machine)?,
        has_free_pipeline: false,
    };
    let model = StepModel { sizes, layout, machine, schedule: &schedule };
    let (step, pipeline) = model.run(network)?;
    let saved = |network: Network| -> Result<f64> { Ok((step - model.run(network)?.0).max(0.0)) };
    let exposed = Exposed {
        tensor: saved(Network { tensor: network.tensor.free(), ..network })?,
        pipeline: saved(Network { has_free_pipeline: true, ..network })?,
        data: saved(Network { data: network.data.free(), ..network })?,
    };
    let tokens = layout.batch() as f64 * layout.length as f64;
    let each = |flops: f64| flops * tokens / step / layout.ranks() as f64;
    let again = sizes.layers as f64 * (sizes.matrix_flops() + sizes.attention_flops(layout.length));
    let model_flops = each(sizes.training_flops(layout.length));
    Ok(StepReport {
        step,
        bubble: pipeline.bubble(),
        pipeline,
        exposed,
        optimizer: model.optimizer(),
        communication: Communication::of(sizes, layout, &schedule),
        tokens_per_second: tokens / step,
        sequences_per_second: layout.batch() as f64 / step,
        model_flops,
        hardware_flops: model_flops + if layout.recompute { each(again) } else { 0.0 },
        utilisation: model_flops / machine.flops,
    })
}

/// The rings of a step; some may take no time.
#[derive(Debug, Clone, Copy)]
struct Network {
    tensor: Ring,
    data: Ring,
    has_free_pipeline: bool,
}

struct StepModel<'a> {
    sizes: &'a TransformerSizes,
    layout: &'a ParallelLayout,
    machine: &'a Machine,
    schedule: &'a Schedule,
}

impl StepModel<'_> {
    /// Seconds of the step, and its pipeline.
    fn run(&self, network: Network) -> Result<(f64, Simulation)> {
        let places = self.schedule.places();
        let stage_ranks = self.layout.tensor * self.layout.data;
        let costs = PipelineCosts {
            work: (0..places).map(|place| self.work(place, network)).collect(),
            message_bytes: self.layout.message_bytes(self.sizes),
            hosts: (0..self.layout.pipeline).map(|stage| stage * stage_ranks / self.machine.ranks_per_host).collect(),
            inside: self.machine.inside,
            between: self.machine.between,
            transfer: Transfer::Overlapped,
        };
        let costs = if network.has_free_pipeline { costs.with_free_links() } else { costs };
        let simulation = pipeline::simulate(self.schedule, &costs)?;
        let ends = simulation.stages().iter().enumerate();
        let end = ends.map(|(stage, timeline)| timeline.end() + self.tail(stage, &costs, network)).fold(0.0, f64::max);
        Ok((end + self.optimizer(), simulation))
    }

    /// Values of a chunk's blocks on one rank.
    fn chunk_values(&self) -> f64 {
        self.blocks() * self.sizes.block_parameters() / self.layout.tensor as f64
    }

    fn blocks(&self) -> f64 {
        self.layout.blocks_of_chunk(self.sizes)
    }

    /// The work of the chunk at a place, with the collectives of its stage.
    fn work(&self, place: usize, network: Network) -> WorkTimes {
        let Self { sizes, layout, machine, schedule } = self;
        let seconds = |flops: f64| machine.compute_time(flops * layout.tokens() / layout.tensor as f64);
        let blocks = self.blocks();
        let head = if place + 1 == schedule.places() { seconds(sizes.head_flops()) } else { 0.0 };
        let (matrices, attention) =
            (seconds(blocks * sizes.matrix_flops()), seconds(blocks * sizes.attention_flops(layout.length)));
        let reduces = blocks * REDUCES_OF_BLOCK * network.tensor.all_reduce(layout.hidden_bytes(sizes));
        let with_reduces = |compute: f64| match layout.overlap_tensor {
            true => compute.max(reduces) + compute.min(reduces) / TENSOR_PARTS,
            false => compute + reduces,
        };
        let forward = with_reduces(matrices + attention);
        let again = if layout.recompute { forward } else { 0.0 };
        // Two products of attention have four gradients, all of activations.
        let input_gradient = again + with_reduces(matrices + 2.0 * attention) + head;
        let weight_gradient = matrices + head;
        self.sharded(WorkTimes { forward: forward + head, input_gradient, weight_gradient }, network)
    }

    /// Times with the gathers and reductions that ZeRO has for every micro-batch, which overlap block by block.
    fn sharded(&self, work: WorkTimes, network: Network) -> WorkTimes {
        let Self { layout, schedule, .. } = self;
        let (values, blocks) = (self.chunk_values(), self.blocks());
        let gather = match layout.zero {
            ZeroLevel::Three => network.data.half(values * layout.value_bytes as f64),
            _ => 0.0,
        };
        let reduce = match layout.zero {
            ZeroLevel::Two | ZeroLevel::Three => network.data.half(values * layout.gradient_bytes as f64),
            _ => 0.0,
        };
        let forward = self.together(work.forward, gather, blocks);
        if schedule.kind().splits_backward() {
            return WorkTimes {
                forward,
                input_gradient: self.together(work.input_gradient, gather, blocks),
                weight_gradient: self.together(work.weight_gradient, reduce, blocks),
            };
        }
        // One pass in which both lanes have the whole time.
        let backward = self.together(work.input_gradient + work.weight_gradient, gather + reduce, blocks);
        WorkTimes { forward, input_gradient: backward, weight_gradient: 0.0 }
    }

    /// Seconds of computation and of communication between data-parallel ranks. Where they overlap block by block, the
    /// longer of both, and the other's share of one block, which has nothing to overlap with.
    fn together(&self, compute: f64, communication: f64, blocks: f64) -> f64 {
        match self.layout.overlap {
            true => compute.max(communication) + compute.min(communication) / blocks.max(1.0),
            false => compute + communication,
        }
    }

    /// Seconds after a stage's last micro-batch: gradients that are reduced once, which overlap with the last
    /// micro-batch's backward pass, and parameters that are gathered once, under ZeRO-2 overlapped with the first
    /// forward pass.
    fn tail(&self, stage: usize, costs: &PipelineCosts, network: Network) -> f64 {
        let Self { sizes, layout, schedule, .. } = self;
        let values = parameters_of_stage(sizes, layout, (schedule, stage));
        let (parameters, gradients) = (values * layout.value_bytes as f64, values * layout.gradient_bytes as f64);
        let works = (0..schedule.chunks()).map(|chunk| costs.work[schedule.place(stage, chunk)]);
        let (forward, backward) = works.fold((0.0, 0.0), |(forward, backward), work| {
            (forward + work.forward, backward + work.input_gradient + work.weight_gradient)
        });
        let blocks = self.blocks() * schedule.chunks() as f64;
        let behind = |compute: f64, communication: f64| self.together(compute, communication, blocks) - compute;
        match layout.zero {
            ZeroLevel::Zero => behind(backward, network.data.all_reduce(gradients)),
            ZeroLevel::One => behind(backward, network.data.half(gradients)) + network.data.half(parameters),
            ZeroLevel::Two => behind(forward, network.data.half(parameters)),
            ZeroLevel::Three => 0.0,
        }
    }

    /// Seconds of the optimizer on the stage with most parameters.
    fn optimizer(&self) -> f64 {
        let Self { sizes, layout, schedule, machine } = self;
        let stages = (0..schedule.stages()).map(|stage| parameters_of_stage(sizes, layout, (schedule, stage)));
        let shards = if layout.zero >= ZeroLevel::One { layout.data as f64 } else { 1.0 };
        machine.optimizer_time(stages.fold(0.0, f64::max) / shards)
    }
}

//! Work of a rank of `bench collectives`: each operation at each size, timed.
//!
//! A time is the slowest rank's between a barrier and the end of its lane. Neighbours on the machine make times longer,
//! never shorter: the median is printed with the best and the worst.

use super::collectives::{Group, Options, Precision};
use super::figures::Figure;
use crate::cli::terminal;
use bmtrain_core::comm::{Collective, Communicator, Reduction, tensors};
use bmtrain_core::{DType, Device, Lane, Segment, Storage, Tensor};
use bmtrain_dist::Mesh;
use model_center_base::{Error, Result};
use std::sync::Arc;
use std::time::Instant;

/// The operations.
pub(super) const NAMES: [&str; 6] =
    ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send/recv"];

pub(super) fn dtype(precision: Precision) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
        Precision::F16 => DType::F16,
    }
}

/// The group of this rank that is measured.
fn measured(options: &Options, world: &Arc<dyn Communicator>) -> Result<Arc<dyn Communicator>> {
    let (rank, ranks) = (world.rank(), world.size());
    let is_of_mesh = matches!(options.group, Some(Group::Mesh(_)));
    if !is_of_mesh && (options.tensor.is_some() || options.pipeline.is_some()) {
        let reason = "--tensor and --pipeline are for groups of a mesh";
        return Err(Error::argument("--group", reason, "give --group tensor, data or pipeline"));
    }
    let (colour, key) = match options.group {
        None => return Ok(Arc::clone(world)),
        Some(Group::Consecutive(size)) if size > 1 && ranks.is_multiple_of(size) => (rank / size, rank),
        Some(Group::Consecutive(size)) => {
            let reason = format!("{ranks} ranks cannot be divided into groups of {size}");
            return Err(Error::argument("--group", reason, "give a divisor of the number of ranks that is above 1"));
        }
        Some(Group::Mesh(kind)) => {
            let (pipeline, tensor) = (options.pipeline.unwrap_or(1), options.tensor.unwrap_or(1));
            let Ok(mesh) = Mesh::new(rank, ranks, pipeline, tensor) else {
                let reason = format!("{ranks} ranks cannot be divided by {pipeline} pipeline x {tensor} tensor ranks");
                return Err(Error::argument("--group", reason, "change --tensor, --pipeline or the number of ranks"));
            };
            if mesh.group_size(kind) < 2 {
                let data = mesh.data_size();
                let reason =
                    format!("of {pipeline} pipeline x {data} data x {tensor} tensor ranks, this group has one rank");
                return Err(Error::argument("--group", reason, "change --tensor, --pipeline or the number of ranks"));
            }
            mesh.colour_and_key(kind)
        }
    };
    Ok(world.split(colour, key)?)
}

/// One rank's part; the first one prints.
pub(super) fn measure(options: &Options, world: &Arc<dyn Communicator>, device: &Device) -> Result<()> {
    let ranks = measured(options, world)?;
    ranks.connect_messages()?;
    let (size, dtype) = (ranks.size(), dtype(options.dtype));
    let sizes = match options.size.as_slice() {
        [] => (12..=26).step_by(2).map(|power| 1 << power).collect(),
        sizes => sizes.to_vec(),
    };
    for name in NAMES.into_iter().filter(|name| name.contains(&options.only)) {
        for bytes in &sizes {
            // As many elements as every rank can get an equal part of.
            let elements = (bytes / dtype.size() / size).max(1) * size;
            let exchange = Exchange::new(device, name, elements, dtype)?;
            let mut times = Vec::with_capacity(options.repeat);
            for round in 0..options.warm_up + options.repeat {
                world.barrier()?;
                let begin = Instant::now();
                exchange.run(&*ranks, device)?;
                if round >= options.warm_up {
                    times.push(begin.elapsed().as_secs_f32());
                }
            }
            // Of each repetition the time of the slowest rank.
            let own = Tensor::from_slice_in(device, [times.len()], &times, Segment::Data)?;
            let times = tensors::all_reduce(&**world, own, Reduction::Max)?.to_vec::<f32>()?;
            if world.rank() == 0 {
                let figure = Figure::new(name, elements * dtype.size(), size, &times);
                terminal::print(&if options.json { figure.json() } else { figure.line() })?;
            }
        }
    }
    Ok(())
}

/// One operation at one size, with its memory.
struct Exchange {
    name: &'static str,
    send: Storage,
    recv: Storage,
}

impl Exchange {
    const LANE: Lane = Lane::Zero;

    fn new(device: &Device, name: &'static str, elements: usize, dtype: DType) -> Result<Self> {
        let new = || Storage::zeros(device, elements, dtype, Segment::Gradients);
        let exchange = Exchange { name, send: new()?, recv: new()? };
        device.sync()?;
        Ok(exchange)
    }

    /// Run the operation once and wait for it.
    fn run(&self, ranks: &dyn Communicator, device: &Device) -> Result<()> {
        let (all, part) = (self.send.len(), self.send.len() / ranks.size());
        let send = |len: usize| self.send.view_on(0..len, Self::LANE);
        let data = |len: usize| self.recv.view_mut_on(0..len, Self::LANE);
        let by = Reduction::Sum;
        let collective = match (self.name, ranks.rank()) {
            ("all_gather", _) => Collective::AllGather { send: send(part)?, recv: data(all)? },
            ("reduce_scatter", _) => Collective::ReduceScatter { send: send(all)?, recv: data(part)?, by },
            ("all_reduce", _) => Collective::AllReduce { data: data(all)?, by },
            ("broadcast", _) => Collective::Broadcast { data: data(all)?, root: 0 },
            ("all_to_all", _) => Collective::AllToAll { send: send(all)?, recv: data(all)? },
            (_, 0) => Collective::Send { data: send(all)?, to: 1 },
            (_, 1) => Collective::Recv { data: data(all)?, from: 0 },
            _ => return Ok(()),
        };
        ranks.launch(device.backend(), collective, Self::LANE)?;
        Ok(device.sync()?)
    }
}

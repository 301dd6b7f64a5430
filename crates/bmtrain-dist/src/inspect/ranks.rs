//! Numbers and results of all ranks on each, and output of one: [`sum_loss`], [`average_loss`], [`gather_result`],
//! [`print_rank`].

use super::moments::gather_words;
use crate::error::{Error, Result};
use crate::param::widen;
use bmtrain_core::comm::{Communicator, Reduction, tensors};
use bmtrain_core::kernel::Fill;
use bmtrain_core::shape::MAX_RANK;
use bmtrain_core::{Lane, Segment, Shape, Tensor};
use std::io::{ErrorKind, Write};

/// The sum of the losses of all ranks. Waits for them.
pub fn sum_loss(ranks: &dyn Communicator, loss: &Tensor) -> Result<f32> {
    reduce_loss(ranks, loss, Reduction::Sum)
}

/// The mean of the losses of all ranks, which for micro-batches of equal weight is the batch's loss. Waits for them.
pub fn average_loss(ranks: &dyn Communicator, loss: &Tensor) -> Result<f32> {
    reduce_loss(ranks, loss, Reduction::Average)
}

fn reduce_loss(ranks: &dyn Communicator, loss: &Tensor, by: Reduction) -> Result<f32> {
    let values = widen(loss)?;
    if values.len() != 1 {
        return Err(Error::setting("loss", format!("a loss has one element, got shape {}", loss.shape())));
    }
    // In f32, whatever the loss is in.
    let own = Tensor::from_slice_in(loss.device(), [1], &values, Segment::Workspace)?;
    Ok(tensors::all_reduce(ranks, own, by)?.item()?)
}

/// The rows of all ranks, concatenated in rank order. Ranks may have different numbers of rows,
/// also none.
///
/// Shapes: `[A_r, ..]` on rank r → `[sum of A_r, ..]` on every rank.
pub fn gather_result(ranks: &dyn Communicator, x: &Tensor) -> Result<Tensor> {
    let (device, shape) = (x.device(), x.shape());
    let Some((&rows, inner)) = shape.dims().split_first() else {
        return Err(Error::setting("gather_result", "a scalar has no rows: reshape it to [1]"));
    };
    let mut own = [0; 2 + MAX_RANK];
    let dtype = x.dtype().name().bytes().fold(0, |word, byte| word << 8 | i64::from(byte));
    own[..2].copy_from_slice(&[dtype, shape.rank() as i64]);
    own[2..].iter_mut().zip(shape.dims()).for_each(|(word, dim)| *word = *dim as i64);
    let all = gather_words(ranks, device, &own)?;
    let is_alike = |words: &Vec<i64>| words[..2] == own[..2] && words[3..] == own[3..];
    if let Some(other) = all.iter().position(|words| !is_alike(words)) {
        let reason = format!(
            "rank {} has {} x {shape} and rank {other} something that differs in more than the number of rows",
            ranks.rank(),
            x.dtype()
        );
        return Err(Error::setting("gather_result", reason));
    }
    let counts: Vec<usize> = all.iter().map(|words| words[2] as usize).collect();
    let most = counts.iter().copied().max().unwrap_or(0);
    if counts.iter().all(|count| *count == most) {
        return Ok(tensors::all_gather(ranks, x)?);
    }
    let of = |rows: usize| Shape::new(&[&[rows], inner].concat());
    let (row, backend) = (of(1)?.elements(), device.backend());
    let mut padded = Tensor::empty_in(device, of(most)?, x.dtype(), Segment::Workspace)?;
    device.launch(Fill { value: 0.0, out: padded.view_mut()? })?;
    backend.copy(x.view()?, padded.view_mut()?.part(0, rows * row)?, Lane::Compute)?;
    let gathered = tensors::all_gather(ranks, &padded)?;
    let mut result = Tensor::empty_in(device, of(counts.iter().sum())?, x.dtype(), Segment::Activations)?;
    let mut start = 0;
    for (rank, count) in counts.into_iter().enumerate() {
        let from = gathered.view()?.part(rank * most * row, count * row)?;
        backend.copy(from, result.view_mut()?.part(start, count * row)?, Lane::Compute)?;
        start += count * row;
    }
    Ok(result)
}

/// Print lines on standard output if this is rank `rank`. A closed pipe is not an error.
pub fn print_rank(ranks: &dyn Communicator, rank: usize, text: &str) -> std::io::Result<()> {
    write_rank(ranks, rank, text, &mut std::io::stdout().lock())
}

/// [`print_rank`] to somewhere else.
pub fn write_rank(ranks: &dyn Communicator, rank: usize, text: &str, to: &mut dyn Write) -> std::io::Result<()> {
    if ranks.rank() != rank {
        return Ok(());
    }
    match to.write_all(format!("{text}\n").as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

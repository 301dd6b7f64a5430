//! What the ranks that train together have to tell each other beside tensors: a few numbers, a name, that all is well.
//!
//! Defines [`Team`]. Called by training loops and by the [`Saver`](crate::snapshot::Saver); in a training step by
//! [`Team::gather_later`], which waits for nobody.

use crate::error::{Error, Result};
use bmtrain_core::comm::{Collective, Communicator};
use bmtrain_core::limits::Resource;
use bmtrain_core::{DType, Device, Element, Error as CoreError, Lane, Segment, Storage, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// How often the ranks that wait for one of them hear that it is still at work: well within any deadline.
const SIGN_OF_LIFE: Duration = Duration::from_millis(200);

/// One rank's view of the team. Every call is a matter of all ranks: they make the same calls in the same order.
#[derive(Debug, Clone)]
pub struct Team {
    ranks: Arc<dyn Communicator>,
    device: Device,
}

impl Team {
    /// The team of a communicator, exchanging small numbers through this rank's device.
    pub fn new(ranks: Arc<dyn Communicator>, device: &Device) -> Self {
        Team { ranks, device: device.clone() }
    }

    /// What connects them.
    pub fn ranks(&self) -> &Arc<dyn Communicator> {
        &self.ranks
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.ranks.rank()
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.ranks.size()
    }

    /// Whether this rank writes files and speaks for all.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// The numbers of every rank, in the order of the ranks; all give equally many. Waits for the others.
    ///
    /// # Errors
    /// A failing exchange.
    pub fn gather(&self, numbers: &[f32]) -> Result<Vec<Vec<f32>>> {
        self.gather_values(numbers)
    }

    /// The numbers of every rank, as [`Team::gather`], without a wait: f32 tensors of this rank, one behind the other,
    /// to `[ranks, numbers]` on the device.
    ///
    /// # Errors
    /// Another dtype; a failing exchange.
    pub fn gather_later(&self, numbers: &[&Tensor]) -> Result<Tensor> {
        let own = join(&self.device, numbers)?;
        let count = own.elements();
        if self.size() == 1 {
            return Ok(own.reshape([1, count])?);
        }
        let backend = self.device.backend();
        // Exchanges on their way in another lane come first on every rank.
        backend.wait(Lane::Compute, backend.mark(Lane::Zero)?)?;
        let mut all = Tensor::empty_in(&self.device, [self.size(), count], DType::F32, Segment::Workspace)?;
        let collective = Collective::AllGather { send: own.view()?, recv: all.view_mut()? };
        self.ranks.launch(backend, collective, Lane::Compute)?;
        Ok(all)
    }

    /// The texts of every rank, in the order of the ranks. Waits for the others.
    ///
    /// # Errors
    /// A failing exchange; bytes that are no text, which a communicator that works never gives.
    pub fn gather_texts(&self, text: &str) -> Result<Vec<String>> {
        let lengths = self.gather_values(&[text.len() as i64])?;
        let longest = lengths.iter().flatten().copied().max().unwrap_or(0).max(0) as usize;
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(longest, 0);
        let all = if longest == 0 { vec![Vec::new(); self.size()] } else { self.gather_values(&bytes)? };
        let cut = |(mut bytes, length): (Vec<u8>, &i64)| {
            bytes.truncate(usize::try_from(*length).unwrap_or(0));
            String::from_utf8(bytes).map_err(|e| Error::setting("team", format!("a rank sent no text: {e}")))
        };
        all.into_iter().zip(lengths.iter().flatten()).map(cut).collect()
    }

    /// What the first rank says. What the others give is not looked at.
    ///
    /// # Errors
    /// As [`Team::gather_texts`].
    pub fn first_text(&self, text: &str) -> Result<String> {
        let own = if self.is_first() { text } else { "" };
        Ok(self.gather_texts(own)?.into_iter().next().unwrap_or_default())
    }

    /// Let the first rank do something that may take longer than ranks wait for each other. The others hear until its
    /// end that it is alive; what it came to is `None` for them.
    ///
    /// # Errors
    /// A failing exchange; a panic of `work`; a thread that the system refuses.
    pub fn while_first<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<Option<T>> {
        if self.size() == 1 {
            return Ok(Some(work()));
        }
        if !self.is_first() {
            while self.gather(&[0.0])?.first().and_then(|numbers| numbers.first()) == Some(&1.0) {}
            return Ok(None);
        }
        std::thread::scope(|scope| {
            let (done, told) = std::sync::mpsc::channel();
            let worker = move || {
                let result = work();
                // The receiver is gone when the ranks lost each other meanwhile.
                let _ = done.send(());
                result
            };
            let refused = |error| CoreError::refused("thread for the work of rank 0", Resource::Threads, error);
            let worker = std::thread::Builder::new().spawn_scoped(scope, worker).map_err(refused)?;
            while told.recv_timeout(SIGN_OF_LIFE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                self.gather(&[1.0])?;
            }
            self.gather(&[0.0])?;
            let died = |_| Error::RankThread { rank: 0, reason: "a thread that worked for the first rank died".into() };
            worker.join().map(Some).map_err(died)
        })
    }

    fn gather_values<T: Element>(&self, values: &[T]) -> Result<Vec<Vec<T>>> {
        if self.size() == 1 {
            return Ok(vec![values.to_vec()]);
        }
        let len = values.len();
        let own = Tensor::from_slice_in(&self.device, [len], values, Segment::Workspace)?;
        let mut all = Tensor::empty_in(&self.device, [self.size() * len], T::DTYPE, Segment::Workspace)?;
        let collective = Collective::AllGather { send: own.view()?, recv: all.view_mut()? };
        self.ranks.launch(self.device.backend(), collective, Lane::Compute)?;
        Ok(all.to_vec::<T>()?.chunks(len.max(1)).map(<[T]>::to_vec).collect())
    }
}

/// The values of f32 tensors one behind the other, still on the device.
///
/// # Errors
/// Another dtype; no memory left.
pub(crate) fn join(device: &Device, parts: &[&Tensor]) -> Result<Tensor> {
    let count = parts.iter().map(|part| part.elements()).sum();
    let all = Storage::empty(device, count, DType::F32, Segment::Workspace)?;
    let mut start = 0;
    for part in parts {
        let to = all.view_mut(start..start + part.elements())?;
        device.backend().copy(part.view()?, to, Lane::Compute)?;
        start += part.elements();
    }
    Ok(all.tensor(0, [count])?)
}

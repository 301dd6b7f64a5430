//! Control messages between the ranks that train together: a few numbers, a name, a sign of life.
//!
//! Called by training loops and by the [`Saver`](crate::checkpoint::Saver); in a training step by
//! [`ControlGroup::gather_later`], which does not wait.

use crate::error::{Error, Result};
use bmtrain_core::comm::{Collective, Communicator};
use bmtrain_core::limits::Resource;
use bmtrain_core::{DType, Device, Element, Error as CoreError, Lane, Segment, Storage, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which a working rank reports to the ranks that wait for it: well within any deadline.
const SIGN_OF_LIFE: Duration = Duration::from_millis(200);

/// One rank's view of the group. Every method is collective: all ranks make the same calls in the same order.
#[derive(Debug, Clone)]
pub struct ControlGroup {
    ranks: Arc<dyn Communicator>,
    device: Device,
}

impl ControlGroup {
    /// The group of a communicator, which sends small tensors of this rank's device.
    pub fn new(ranks: Arc<dyn Communicator>, device: &Device) -> Self {
        ControlGroup { ranks, device: device.clone() }
    }

    /// The communicator.
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

    /// Whether this is rank 0, which writes files and logs.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// All-gather of numbers, in the order of the ranks; all ranks pass the same number of them. Waits for the others.
    pub fn gather(&self, numbers: &[f32]) -> Result<Vec<Vec<f32>>> {
        self.gather_values(numbers)
    }

    /// As [`ControlGroup::gather`], without a wait: the concatenated f32 tensors of this rank to `[ranks, numbers]` on
    /// the device.
    pub fn gather_later(&self, numbers: &[&Tensor]) -> Result<Tensor> {
        let own = join(&self.device, numbers)?;
        let count = own.elements();
        if self.size() == 1 {
            return Ok(own.reshape([1, count])?);
        }
        let backend = self.device.backend();
        // Collectives in flight on another lane come first on every rank.
        backend.wait(Lane::Compute, backend.mark(Lane::Zero)?)?;
        let mut all = Tensor::empty_in(&self.device, [self.size(), count], DType::F32, Segment::Workspace)?;
        let collective = Collective::AllGather { send: own.view()?, recv: all.view_mut()? };
        self.ranks.launch(backend, collective, Lane::Compute)?;
        Ok(all)
    }

    /// All-gather of texts, in the order of the ranks. Waits for the others.
    pub fn gather_texts(&self, text: &str) -> Result<Vec<String>> {
        let lengths = self.gather_values(&[text.len() as i64])?;
        let longest = lengths.iter().flatten().copied().max().unwrap_or(0).max(0) as usize;
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(longest, 0);
        let all = if longest == 0 { vec![Vec::new(); self.size()] } else { self.gather_values(&bytes)? };
        let cut = |(mut bytes, length): (Vec<u8>, &i64)| {
            bytes.truncate(usize::try_from(*length).unwrap_or(0));
            String::from_utf8(bytes)
                .map_err(|e| Error::setting("control group", format!("a rank sent bytes that are not UTF-8: {e}")))
        };
        all.into_iter().zip(lengths.iter().flatten()).map(cut).collect()
    }

    /// Broadcast of the first rank's text; `text` of the others is ignored.
    pub fn first_text(&self, text: &str) -> Result<String> {
        let own = if self.is_first() { text } else { "" };
        Ok(self.gather_texts(own)?.into_iter().next().unwrap_or_default())
    }

    /// Run `work` on the first rank while the others wait, longer than the deadline of a collective if need be. Returns
    /// its result on the first rank and `None` on the others.
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
                // The receiver is gone if a collective has failed meanwhile.
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

/// The concatenated values of f32 tensors, on the device.
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

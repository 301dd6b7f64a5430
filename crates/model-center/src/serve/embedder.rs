//! The model's thread for embeddings: inputs of all requests share passes.

use super::api::ApiError;
use super::job::{EmbedJob, Job};
use super::queue::Ticket;
use super::{Grace, Shared, is_of_requests, next_jobs};
use crate::model::{Batch, TextModel};
use crate::run::StopFlag;
use crate::{Error, Result};
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::param::widen;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// The most tokens of a pass, padding included, unless one input has more.
const MOST_TOKENS: usize = 8192;

/// A job with the embeddings so far.
struct ActiveJob {
    job: EmbedJob,
    embeddings: RefCell<Vec<Vec<f32>>>,
    /// Inputs that have none yet.
    left: Cell<usize>,
    /// Its place in the queue, until its last input is in a pass.
    ticket: Cell<Option<Ticket>>,
}

impl ActiveJob {
    fn new(mut job: EmbedJob) -> Self {
        let inputs = job.inputs.len();
        let ticket = Cell::new(job.ticket.take());
        ActiveJob { job, embeddings: RefCell::new(vec![Vec::new(); inputs]), left: Cell::new(inputs), ticket }
    }

    /// Takes the embedding of an input, and sends the result with the last one.
    fn put(&self, input: usize, embedding: Vec<f32>) {
        if let Some(place) = self.embeddings.borrow_mut().get_mut(input) {
            *place = embedding;
        }
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0 {
            // A connection that is gone wants none.
            let _ = self.job.result.send(Ok(self.embeddings.take()));
        }
    }
}

/// The state between two passes.
pub(super) struct Embedder<'e> {
    model: &'e dyn TextModel,
    device: &'e Device,
    shared: &'e Shared,
    waiting: VecDeque<(Rc<ActiveJob>, usize)>,
}

impl<'e> Embedder<'e> {
    pub(super) fn new((model, device): (&'e dyn TextModel, &'e Device), shared: &'e Shared) -> Self {
        Embedder { model, device, shared, waiting: VecDeque::new() }
    }

    /// Serves until a stop is requested and all jobs have ended, or their time is over.
    ///
    /// # Errors
    /// A device that fails in a pass.
    pub(super) fn run(&mut self, received: &Receiver<Job>, stop: &StopFlag) -> Result<()> {
        let grace = Grace::default();
        loop {
            let until = grace.look(stop, self.shared);
            for job in next_jobs(received, self.waiting.is_empty() && until.is_none()) {
                self.accept(job);
            }
            self.waiting.retain(|(job, _)| !job.job.cancelled.is_set());
            if let Some(until) = until
                && (self.waiting.is_empty() || Instant::now() >= until)
            {
                self.end_all(&ApiError::stopping());
                return Ok(());
            }
            let pass = self.next_pass();
            if let Err(error) = self.pass(&pass) {
                self.waiting.extend(pass);
                self.end_all(&ApiError::internal(error.to_string()));
                if !is_of_requests(&error) {
                    return Err(error);
                }
            }
        }
    }

    fn accept(&mut self, job: Job) {
        let Job::Embed(job) = job else { return };
        let job = Rc::new(ActiveJob::new(job));
        self.waiting.extend((0..job.job.inputs.len()).map(|input| (Rc::clone(&job), input)));
    }

    fn end_all(&mut self, error: &ApiError) {
        for (job, _) in self.waiting.drain(..) {
            // Those after the first of a job find its connection gone.
            let _ = job.job.result.send(Err(error.clone()));
        }
    }

    /// The next inputs in the order they came, up to the tokens of a pass.
    fn next_pass(&mut self) -> Vec<(Rc<ActiveJob>, usize)> {
        let (mut pass, mut longest): (Vec<(Rc<ActiveJob>, usize)>, usize) = (Vec::new(), 0);
        while let Some((job, input)) = self.waiting.front() {
            longest = longest.max(job.job.inputs.get(*input).map_or(0, Vec::len));
            if !pass.is_empty() && longest * (pass.len() + 1) > MOST_TOKENS {
                break;
            }
            if input + 1 == job.job.inputs.len() {
                job.ticket.take();
            }
            pass.extend(self.waiting.pop_front());
        }
        pass
    }

    fn pass(&self, pass: &[(Rc<ActiveJob>, usize)]) -> Result<()> {
        let inputs: Vec<&[u32]> =
            pass.iter().map(|(job, input)| job.job.inputs.get(*input).map_or(&[][..], Vec::as_slice)).collect();
        let Some(encoder) = self.shared.encoder().filter(|_| !inputs.is_empty()) else { return Ok(()) };
        let metrics = &self.shared.metrics;
        metrics.running.store(inputs.len(), Ordering::Release);
        let computed = hidden_states(self.model, &inputs, self.device);
        metrics.running.store(0, Ordering::Release);
        let (hidden, length, width) = computed?;
        for (((job, input), tokens), hidden) in pass.iter().zip(&inputs).zip(hidden.chunks((length * width).max(1))) {
            let own = hidden.get(..tokens.len() * width).unwrap_or_default();
            job.put(*input, encoder.sentences.embed(own, width));
        }
        metrics.passes.fetch_add(1, Ordering::AcqRel);
        metrics.prompt_tokens.fetch_add(inputs.iter().map(|tokens| tokens.len() as u64).sum(), Ordering::AcqRel);
        Ok(())
    }
}

/// The last hidden states of inputs that are padded on the right, `[B, L, D]`, with L and D.
fn hidden_states(model: &dyn TextModel, inputs: &[&[u32]], device: &Device) -> Result<(Vec<f32>, usize, usize)> {
    let length = inputs.iter().map(|tokens| tokens.len()).max().unwrap_or(0);
    let (mut ids, mut mask) = (Vec::new(), Vec::new());
    for tokens in inputs {
        let end = ids.len() + length;
        ids.extend(tokens.iter().map(|id| i64::from(*id)));
        mask.resize(ids.len(), 1_u8);
        ids.resize(end, 0);
        mask.resize(end, 0);
    }
    let attention_mask = mask.contains(&0).then_some(mask);
    let batch = Batch { attention_mask, ..Batch::new(length, ids) };
    let mut last = None;
    let mut observe = |_: usize, value: &bmtrain_core::Tensor| {
        last = Some(value.clone());
        Ok::<(), bmtrain_dist::Error>(())
    };
    model.forward(&batch, Some(&mut observe), &mut Ctx::inference(device))?;
    let last = last.ok_or_else(|| Error::model("the model", "it has no hidden states", "use an encoder"))?;
    let width = last.shape().last();
    Ok((widen(&last)?, length, width))
}

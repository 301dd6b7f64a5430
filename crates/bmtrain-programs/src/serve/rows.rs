//! The model's thread for embeddings and predictions: rows of all requests share passes.

use super::api::ApiError;
use super::job::{Job, RowsJob};
use super::queue::Ticket;
use super::{Grace, Shared, is_of_requests, next_jobs};
use crate::Result;
use bmtrain_core::Device;
use model_center_base::stop_flag::StopFlag;
use model_center_formats::tokenizer::Encoding;
use model_center_models::TextModel;
use model_center_train::predict::MAX_TOKENS;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// A job with the outputs so far.
struct ActiveJob {
    job: RowsJob,
    outputs: RefCell<Vec<Vec<f32>>>,
    /// Rows that have none yet.
    left: Cell<usize>,
    /// Its place in the queue, until its last row is in a pass.
    ticket: Cell<Option<Ticket>>,
}

impl ActiveJob {
    fn new(mut job: RowsJob) -> Self {
        let rows = job.rows.len();
        let ticket = Cell::new(job.ticket.take());
        ActiveJob { job, outputs: RefCell::new(vec![Vec::new(); rows]), left: Cell::new(rows), ticket }
    }

    /// Takes the outputs of a row, and sends the result with the last one.
    fn put(&self, row: usize, outputs: Vec<f32>) {
        if let Some(place) = self.outputs.borrow_mut().get_mut(row) {
            *place = outputs;
        }
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0 {
            // A connection that is gone wants none.
            let _ = self.job.result.send(Ok(self.outputs.take()));
        }
    }
}

/// The state between two passes.
pub(super) struct RowEngine<'e> {
    model: &'e dyn TextModel,
    device: &'e Device,
    shared: &'e Shared,
    waiting: VecDeque<(Rc<ActiveJob>, usize)>,
}

impl<'e> RowEngine<'e> {
    pub(super) fn new((model, device): (&'e dyn TextModel, &'e Device), shared: &'e Shared) -> Self {
        RowEngine { model, device, shared, waiting: VecDeque::new() }
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
        let Job::Rows(job) = job else { return };
        let job = Rc::new(ActiveJob::new(job));
        self.waiting.extend((0..job.job.rows.len()).map(|row| (Rc::clone(&job), row)));
    }

    fn end_all(&mut self, error: &ApiError) {
        for (job, _) in self.waiting.drain(..) {
            // Those after the first of a job find its connection gone.
            let _ = job.job.result.send(Err(error.clone()));
        }
    }

    /// The next rows in the order they came, up to the tokens of a pass.
    fn next_pass(&mut self) -> Vec<(Rc<ActiveJob>, usize)> {
        let (mut pass, mut longest): (Vec<(Rc<ActiveJob>, usize)>, usize) = (Vec::new(), 0);
        while let Some((job, row)) = self.waiting.front() {
            longest = longest.max(job.job.rows.get(*row).map_or(0, |row| row.input_ids.len()));
            if !pass.is_empty() && longest * (pass.len() + 1) > MAX_TOKENS {
                break;
            }
            if row + 1 == job.job.rows.len() {
                job.ticket.take();
            }
            pass.extend(self.waiting.pop_front());
        }
        pass
    }

    fn pass(&self, pass: &[(Rc<ActiveJob>, usize)]) -> Result<()> {
        let rows: Vec<&Encoding> = pass.iter().filter_map(|(job, row)| job.job.rows.get(*row)).collect();
        let Some(served) = self.shared.predictor().filter(|_| !rows.is_empty()) else { return Ok(()) };
        let metrics = &self.shared.metrics;
        metrics.running.store(rows.len(), Ordering::Release);
        let computed = served.predictor.outputs((self.model, self.device), &rows);
        metrics.running.store(0, Ordering::Release);
        for ((job, row), outputs) in pass.iter().zip(computed?) {
            job.put(*row, outputs);
        }
        metrics.passes.fetch_add(1, Ordering::AcqRel);
        let tokens = rows.iter().map(|row| row.input_ids.len() as u64).sum();
        metrics.prompt_tokens.fetch_add(tokens, Ordering::AcqRel);
        Ok(())
    }
}

//! The model's thread for texts: all running sequences take a token in each pass, prompts are read in pieces beside
//! them, new sequences join and ended ones leave between two passes.
//!
//! A sequence joins when its whole KV cache, prompt and new tokens, has room: so none is ever put back. What it
//! generates depends on the others by rounding only ([`PackedDecoding`]), and on its own seed.

use super::api::ApiError;
use super::job::{Event, GenerateJob, Job, ScoredToken};
use super::prefill::{Prefill, score};
use super::queue::Ticket;
use super::{Grace, Shared, is_of_requests, next_jobs};
use crate::{Error, Result};
use bmtrain_core::Ctx;
use model_center_base::stop_flag::StopFlag;
use model_center_models::generate::{Sequence, TokenSampler, no_possible_token};
use model_center_models::{LogitsRead, PackedDecoding, SequenceTokens};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// The most numbers of logits that a pass returns for prompts: 64 MiB of them.
const MAX_LOGITS: usize = 1 << 24;

/// A job with its sequences.
pub(super) struct ActiveJob {
    pub(super) job: GenerateJob,
    sampler: TokenSampler,
    /// Its place in the queue, until its last prompt is read.
    ticket: RefCell<Option<Ticket>>,
    /// Prompts that wait.
    waiting: Cell<usize>,
    /// Sequences that have not ended.
    open: Cell<usize>,
    /// Nothing more is sent.
    ended: Cell<bool>,
}

impl ActiveJob {
    fn new(mut job: GenerateJob) -> Self {
        let ticket = RefCell::new(job.ticket.take());
        let (waiting, open) = (Cell::new(job.prompts.len()), Cell::new(job.prompts.len() * job.choices));
        ActiveJob {
            sampler: TokenSampler::new(&job.options.method),
            ticket,
            waiting,
            open,
            ended: Cell::new(false),
            job,
        }
    }

    /// Sends an event; without a receiver the job is over.
    pub(super) fn send(&self, event: Event) {
        if !self.ended.get() && self.job.events.send(event).is_err() {
            self.ended.set(true);
        }
    }

    fn fail(&self, error: ApiError) {
        self.send(Event::Failed(error));
        self.ended.set(true);
    }

    fn is_over(&self) -> bool {
        self.ended.get() || self.job.cancelled.is_set()
    }

    /// A prompt leaves the queue.
    fn left_queue(&self) {
        self.waiting.set(self.waiting.get().saturating_sub(1));
        if self.waiting.get() == 0 {
            self.ticket.take();
        }
    }

    /// Some of its sequences have ended.
    fn close(&self, sequences: usize) {
        self.open.set(self.open.get().saturating_sub(sequences));
        if self.open.get() == 0 {
            self.send(Event::Done);
            self.ended.set(true);
        }
    }

    /// Tokens of the KV caches of all sequences of a prompt.
    fn reserved(&self, prompt: usize) -> usize {
        self.job.choices * self.of_one(prompt)
    }

    /// Tokens of the KV cache of one sequence of a prompt.
    fn of_one(&self, prompt: usize) -> usize {
        let length = |lengths: Option<usize>| lengths.unwrap_or(0);
        length(self.job.prompts.get(prompt).map(Vec::len)) + length(self.job.limits.get(prompt).copied())
    }
}

/// A sequence that takes a token in each pass.
struct Running<'e> {
    job: Rc<ActiveJob>,
    prompt: usize,
    /// Among all sequences of the job.
    index: usize,
    /// The sequence of the model.
    sequence: usize,
    generated: Sequence<'e>,
}

/// The state between two passes.
pub(super) struct Engine<'e, 'd> {
    decoding: Box<dyn PackedDecoding + 'd>,
    cx: &'e mut Ctx,
    shared: &'e Shared,
    waiting: VecDeque<(Rc<ActiveJob>, usize)>,
    prefills: Vec<Prefill>,
    running: Vec<Running<'e>>,
    /// Tokens of the KV caches of all sequences.
    reserved: usize,
}

impl<'e, 'd> Engine<'e, 'd> {
    pub(super) fn new(decoding: Box<dyn PackedDecoding + 'd>, cx: &'e mut Ctx, shared: &'e Shared) -> Self {
        let (waiting, prefills, running) = (VecDeque::new(), Vec::new(), Vec::new());
        Engine { decoding, cx, shared, waiting, prefills, running, reserved: 0 }
    }

    /// Serves until a stop is requested and all jobs have ended, or their time is over.
    ///
    /// # Errors
    /// A device that fails in a pass.
    pub(super) fn run(&mut self, received: &Receiver<Job>, stop: &StopFlag) -> Result<()> {
        let grace = Grace::default();
        loop {
            let until = grace.look(stop, self.shared);
            for job in next_jobs(received, self.is_idle() && until.is_none()) {
                self.accept(job);
            }
            if let Some(until) = until
                && (self.is_idle() || Instant::now() >= until)
            {
                self.end_all(&ApiError::stopping());
                return Ok(());
            }
            self.remove_ended();
            self.admit();
            self.count();
            if let Err(error) = self.pass() {
                // Which sequence is the reason is not known.
                self.end_all(&ApiError::internal(error.to_string()));
                if !is_of_requests(&error) {
                    return Err(error);
                }
            }
            self.count();
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.prefills.is_empty() && self.running.is_empty()
    }

    fn accept(&mut self, job: Job) {
        let Job::Generate(job) = job else { return };
        let job = Rc::new(ActiveJob::new(*job));
        self.waiting.extend((0..job.job.prompts.len()).map(|prompt| (Rc::clone(&job), prompt)));
    }

    fn count(&self) {
        let metrics = &self.shared.metrics;
        let prefills: usize = self.prefills.iter().map(|prefill| prefill.job.job.choices).sum();
        metrics.running.store(self.running.len() + prefills, Ordering::Release);
        metrics.reserved_tokens.store(self.reserved, Ordering::Release);
    }

    /// Frees what belongs to jobs that are over.
    fn remove_ended(&mut self) {
        let Engine { decoding, waiting, prefills, running, reserved, .. } = self;
        waiting.retain(|(job, _)| {
            let stays = !job.is_over();
            if !stays {
                job.left_queue();
            }
            stays
        });
        prefills.retain(|prefill| {
            let stays = !prefill.job.is_over();
            if !stays {
                decoding.close(prefill.sequence);
                *reserved -= prefill.job.reserved(prefill.prompt);
            }
            stays
        });
        running.retain(|running| {
            let stays = !running.job.is_over();
            if !stays {
                decoding.close(running.sequence);
                *reserved -= running.job.of_one(running.prompt);
            }
            stays
        });
    }

    fn end_all(&mut self, error: &ApiError) {
        let jobs = self.waiting.iter().map(|(job, _)| job);
        let jobs = jobs.chain(self.prefills.iter().map(|prefill| &prefill.job));
        for job in jobs.chain(self.running.iter().map(|running| &running.job)) {
            job.fail(error.clone());
        }
        self.remove_ended();
        self.count();
    }

    /// Lets prompts join in the order they came, as long as their sequences have room.
    fn admit(&mut self) {
        while let Some((job, prompt)) = self.waiting.front() {
            let (job, prompt) = (Rc::clone(job), *prompt);
            let active: usize = self.prefills.iter().map(|prefill| prefill.job.job.choices).sum();
            let sequences = self.running.len() + active + job.job.choices;
            let tokens = self.reserved + job.reserved(prompt);
            if sequences > self.shared.options.sequences || tokens > self.shared.cached_tokens {
                return;
            }
            self.waiting.pop_front();
            job.left_queue();
            self.reserved = tokens;
            let sequence = self.decoding.open(job.of_one(prompt));
            self.prefills.push(Prefill::new(job, prompt, sequence));
        }
    }

    /// Divides the tokens of a pass that running sequences leave evenly among prompts; what short ones leave goes to
    /// the first of the others.
    fn plan(&mut self) {
        let vocabulary = self.shared.decoder().map_or(0, |decoder| decoder.setup.info.vocab_size);
        let mut logits = (MAX_LOGITS / vocabulary.max(1)).max(1);
        let budget = self.shared.options.step_tokens.saturating_sub(self.running.len()).max(1);
        let share = (budget / self.prefills.len().max(1)).max(1);
        let mut left = budget;
        for prefill in &mut self.prefills {
            left -= prefill.plan(share.min(left), &mut logits);
        }
        for prefill in &mut self.prefills {
            left += prefill.planned();
            logits += prefill.planned_logits();
            left -= prefill.plan(left, &mut logits);
        }
    }

    /// Runs a pass, if there is a sequence, and takes what it gives.
    fn pass(&mut self) -> Result<()> {
        self.plan();
        let last: Vec<[u32; 1]> =
            self.running.iter().map(|running| [running.generated.tokens.last().copied().unwrap_or(0)]).collect();
        let of_running = self.running.iter().zip(&last).map(|(running, last)| SequenceTokens {
            sequence: running.sequence,
            tokens: last,
            logits: LogitsRead::Last,
        });
        let parts: Vec<SequenceTokens<'_>> = of_running.chain(self.prefills.iter().filter_map(Prefill::part)).collect();
        if parts.is_empty() {
            return Ok(());
        }
        let prompts: usize = parts.iter().skip(last.len()).map(|part| part.tokens.len()).sum();
        let mut logits = self.decoding.extend(&parts, self.cx)?.into_iter();
        drop(parts);
        self.shared.metrics.passes.fetch_add(1, Ordering::AcqRel);
        self.shared.metrics.prompt_tokens.fetch_add(prompts as u64, Ordering::AcqRel);
        let mut running = std::mem::take(&mut self.running);
        running.retain_mut(|running| {
            let Some(logits) = logits.next() else { return true };
            let continues = self.advance(running, logits);
            if !continues {
                self.leave(&running.job, running.prompt, running.sequence);
            }
            continues
        });
        self.running = running;
        for mut prefill in std::mem::take(&mut self.prefills) {
            match prefill.take(&mut logits) {
                Ok(Some(logits)) => self.begin(&prefill, &logits),
                Ok(None) => self.prefills.push(prefill),
                Err(error) => {
                    prefill.job.fail(ApiError::internal(error.to_string()));
                    self.prefills.push(prefill);
                }
            }
        }
        Ok(())
    }

    /// A sequence has ended.
    fn leave(&mut self, job: &ActiveJob, prompt: usize, sequence: usize) {
        self.decoding.close(sequence);
        self.reserved -= job.of_one(prompt);
        job.close(1);
    }

    /// Lets the sequences of a prompt begin with their first tokens.
    fn begin(&mut self, prefill: &Prefill, logits: &[f32]) {
        let (prompt, choices) = (prefill.prompt, prefill.job.job.choices);
        if prefill.limit() == 0 {
            self.decoding.close(prefill.sequence);
            self.reserved -= prefill.job.reserved(prompt);
            prefill.job.close(choices);
            return;
        }
        // The first that goes on has the sequence of the prompt, the others copies of it.
        let mut own = Some(prefill.sequence);
        for index in prompt * choices..(prompt + 1) * choices {
            match self.first_token(prefill, index, logits, &mut own) {
                Ok(Some(running)) => self.running.push(running),
                Ok(None) => {
                    self.reserved -= prefill.job.of_one(prompt);
                    prefill.job.close(1);
                }
                Err(error) => {
                    self.reserved -= prefill.job.of_one(prompt);
                    prefill.job.fail(ApiError::internal(error.to_string()));
                }
            }
        }
        if let Some(sequence) = own {
            self.decoding.close(sequence);
        }
    }

    /// A sequence with its first token, if it goes on. It takes the sequence of the prompt, or a copy.
    fn first_token(
        &mut self,
        prefill: &Prefill,
        index: usize,
        logits: &[f32],
        own: &mut Option<usize>,
    ) -> Result<Option<Running<'e>>> {
        let (shared, job) = (self.shared, Rc::clone(&prefill.job));
        let tokenizer = shared.decoder().and_then(|decoder| decoder.setup.tokenizer.as_deref());
        let generated = Sequence::new(tokenizer, job.job.options.stop_strings.clone(), job.job.kept.clone())?;
        let mut running = Running { job, prompt: prefill.prompt, index, sequence: prefill.sequence, generated };
        if !self.advance(&mut running, logits.to_vec()) {
            return Ok(None);
        }
        if own.take().is_none() {
            running.sequence = self.decoding.copy(prefill.sequence, running.job.of_one(prefill.prompt))?;
        }
        Ok(Some(running))
    }

    /// Chooses the next token of a sequence; returns whether it goes on.
    fn advance(&self, running: &mut Running<'e>, mut logits: Vec<f32>) -> bool {
        let ActiveJob { job, sampler, .. } = &*running.job;
        let unprocessed = job.scores.map(|top| (top, logits.clone()));
        let prompt = job.prompts.get(running.prompt).map_or(&[][..], Vec::as_slice);
        let limit = job.limits.get(running.prompt).copied().unwrap_or(0);
        let generated = &mut running.generated;
        let position = generated.tokens.len();
        let processed = job.options.process_logits((prompt, &generated.tokens), limit, &mut logits);
        let chosen = sampler.choose(&logits, running.index as u64, position);
        let is_unprocessed = processed.is_err();
        let taken = || {
            processed?;
            let token = chosen.ok_or_else(|| no_possible_token(format!("token {position}")))?;
            let score = unprocessed.map(|(top, logits)| score(&logits, token, top)).transpose()?;
            let text = generated.push(token, limit, &job.options)?;
            Ok::<_, Error>((ScoredToken { token, score }, text))
        };
        match taken() {
            Ok((token, text)) => {
                self.shared.metrics.generated_tokens.fetch_add(1, Ordering::AcqRel);
                let finish_reason = running.generated.finish_reason;
                running.job.send(Event::Token { sequence: running.index, token, text, finish_reason });
                finish_reason.is_none()
            }
            Err(error) => {
                running.job.fail(failure(&error, is_unprocessed));
                true
            }
        }
    }
}

/// Why a sequence has no further token. That no token goes on with a text of its form is a matter of the form.
fn failure(error: &Error, is_unprocessed: bool) -> ApiError {
    match error {
        Error::Data { .. } if is_unprocessed => ApiError::of_input(error, "response_format"),
        error => ApiError::internal(error.to_string()),
    }
}

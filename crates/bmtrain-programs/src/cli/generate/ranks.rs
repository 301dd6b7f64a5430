//! The ranks of a run: each opens its part of the model and generates for its share of the prompts.

use super::chat::Conversation;
use super::output::{Statistics, TextOutput, show};
use super::setup::{GenerateRun, open_options};
use crate::cli::{ranks::on_groups, terminal};
use crate::{Error, Result};
use bmtrain_core::comm::Communicator;
use bmtrain_core::cpu::{CpuOptions, Placement};
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::launch::{DistributedOptions, ProcessGroup, cpu_options, threads_per_rank};
use bmtrain_dist::{Mesh, RankGroups};
use model_center_base::error::ExitStatus;
use model_center_base::stop_flag::StopFlag;
use model_center_models::generate::{Generated, Generator, Prompt, TextChunk};
use model_center_recipe::run::{listen, listen_to_interrupts};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest wait of a rank for another, whose batch or reader may be slow. A rank that fails is noticed at once: all are
/// threads of this process.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// State that the ranks share.
struct SharedRun {
    group: ProcessGroup,
    run: GenerateRun,
    output: Mutex<Option<TextOutput>>,
    stop: StopFlag,
    /// Set when standard output is closed.
    is_unread: AtomicBool,
}

/// Generate for all prompts, or start the conversation.
pub(super) fn run(run: GenerateRun) -> Result<ExitStatus> {
    let output = Mutex::new(Some(TextOutput::open(&run)?));
    let options = DistributedOptions { deadline: Some(LONGEST_WAIT), ..DistributedOptions::default() };
    let group = ProcessGroup::join(run.launch.clone(), options)?;
    let shared =
        Arc::new(SharedRun { group, run, output, stop: StopFlag::default(), is_unread: AtomicBool::new(false) });
    let _listening = match shared.run.options.reads_lines() {
        // Ctrl-C ends an answer there.
        true => listen_to_interrupts(&shared.stop)?,
        false => listen(&shared.stop)?,
    };
    let of_rank = {
        let shared = Arc::clone(&shared);
        move |ranks| shared.rank(ranks)
    };
    let ended = shared.group.run(of_rank);
    let is_cut = ended.is_err() && shared.stop.is_requested();
    let output = shared.output().take();
    if is_cut && shared.is_unread.load(Ordering::Acquire) {
        return Ok(ExitStatus::Done);
    }
    if is_cut {
        let written = match (&shared.run.options.output, shared.run.options.append) {
            (Some(_), false) => ": nothing was written",
            (Some(_), true) => ": the same command goes on",
            (None, _) => "",
        };
        terminal::note(&format!("\nstopped{written}"));
        return Ok(ExitStatus::Interrupted);
    }
    ended?;
    let statistics = output.map(TextOutput::finish).transpose()?.unwrap_or_default();
    if !shared.run.options.quiet {
        terminal::note(&statistics.to_string());
    }
    Ok(ExitStatus::Done)
}

impl SharedRun {
    /// Ignores a poisoned lock: the panic of that rank ends the run.
    fn output(&self) -> MutexGuard<'_, Option<TextOutput>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_output<T: Default>(&self, work: impl FnOnce(&mut TextOutput) -> T) -> T {
        self.output().as_mut().map(work).unwrap_or_default()
    }

    fn with_statistics(&self, work: impl FnOnce(&mut Statistics)) {
        self.with_output(|output| work(&mut output.statistics));
    }

    /// One rank's part.
    fn rank(&self, ranks: Arc<dyn Communicator>) -> Result<ExitStatus> {
        let GenerateRun { options, registry, setup, launch, settings, .. } = &self.run;
        let is_first = ranks.rank() == 0;
        let placement =
            Placement { pinning: options.pin_threads, index: ranks.rank(), ranks: launch.ranks_in_process() };
        let threads = threads_per_rank(self.run.threads, launch.local_size);
        let cpu = CpuOptions { placement, ..cpu_options(threads)? };
        let notify = is_first && !options.quiet;
        let opened = self.group.open_device(options.device.device, ranks.rank(), cpu)?;
        opened.note.iter().filter(|_| notify).for_each(|note| terminal::note(note));
        options.held.check_device(opened.cuda.is_some())?;
        let groups = RankGroups::split(self.group.communicator(&opened, ranks)?, options.pipeline, options.tensor)?;
        let (device, on_cuda) = (Device::new(opened.backend), opened.cuda.is_some());
        let open = on_groups(open_options(options, setup.adapter.as_ref(), &device), &groups)?;
        let opened = registry.open(&setup.directory, &open)?;
        let may_continue = || self.check_stop();
        let generator = Generator::new(&*opened.model, setup.tokenizer.as_deref(), settings.options.clone())?
            .on_ranks(Arc::clone(groups.world()))
            .with_check(&may_continue);
        if options.reads_lines() {
            let total = Conversation::new(&self.run, &generator, &device, &self.stop).run()?;
            self.with_statistics(|statistics| *statistics = total);
        } else {
            self.rows(&generator, groups.mesh(), &device)?;
        }
        if on_cuda {
            let peak = device.memory().total.peak;
            self.with_statistics(|statistics| statistics.device_bytes = statistics.device_bytes.max(Some(peak)));
        }
        Ok(ExitStatus::Done)
    }

    /// Generate for this rank's prompts of every round. All ranks take part in each round, if without prompts. The
    /// ranks of a tensor group and the stages of a pipeline have the same prompts and choose the same tokens; the first
    /// of them shows and writes the texts.
    fn rows(&self, generator: &Generator<'_>, mesh: Mesh, device: &Device) -> Result<()> {
        let (all, batch, writes) = (self.run.rows.len(), self.run.batch, mesh.tensor_rank() == 0 && mesh.stage() == 0);
        for round in (self.run.done..all).step_by(batch * mesh.data_size()) {
            let first = (round + mesh.data_rank() * batch).min(all);
            let mine = first..(first + batch).min(all);
            let texts = self.generate(generator, (mine.clone(), writes), device)?;
            if !writes {
                continue;
            }
            for (index, texts) in mine.zip(texts) {
                let row = (index, &self.run.rows[index]);
                let echoes = texts.iter().map(|text| self.echo(index, text)).collect::<Result<Vec<_>>>()?;
                let has_text = self.run.setup.tokenizer.is_some();
                let add = |output: &mut TextOutput| Some(output.add(row, &texts, &echoes, has_text));
                self.stop_unless_read(self.with_output(add).unwrap_or(Ok(true))?);
            }
        }
        Ok(())
    }

    /// With --echo, the prompt, and the space before the first token, which its text alone does not have.
    fn echo(&self, index: usize, text: &Generated) -> Result<String> {
        let tokenizer = self.run.setup.tokenizer.as_ref().filter(|_| self.run.options.echo);
        let (Some(tokenizer), Prompt::Text(prompt)) = (tokenizer, &self.run.rows[index].prompt) else {
            return Ok(String::new());
        };
        let ids = &self.run.ids[index];
        let both: Vec<u32> = ids.iter().chain(text.tokens.first()).copied().collect();
        let (before, after) = (tokenizer.decode(ids, true)?, tokenizer.decode(&both, true)?);
        let has_space = |text: &str| text.starts_with(char::is_whitespace);
        let is_apart = after.get(before.len()..).is_some_and(has_space) && !has_space(&text.text);
        Ok(format!("{prompt}{}", if is_apart { " " } else { "" }))
    }

    /// The place of the row of `prompt N` in an error.
    fn place(&self, place: &str) -> String {
        let numbered = place.strip_prefix("prompt ").map(|rest| rest.split_once(',').unwrap_or((rest, "")));
        let row = numbered.and_then(|(index, rest)| Some((self.run.rows.get(index.parse::<usize>().ok()?)?, rest)));
        match row {
            Some((row, "")) => row.place.clone(),
            Some((row, rest)) => format!("{},{rest}", row.place),
            None => place.to_owned(),
        }
    }

    fn generate(
        &self,
        generator: &Generator<'_>,
        (mine, writes): (std::ops::Range<usize>, bool),
        device: &Device,
    ) -> Result<Vec<Vec<Generated>>> {
        let streams = self.run.streams();
        if writes {
            self.with_statistics(Statistics::start);
        }
        let mut on_text = |chunk: TextChunk<'_>| {
            if writes {
                self.with_statistics(Statistics::on_text);
                self.stop_unless_read(!streams || show(chunk.text)?);
            }
            Ok(())
        };
        let prompts = &self.run.ids[mine.clone()];
        let texts = generator.generate(prompts, mine.start as u64, &mut Ctx::inference(device), &mut on_text);
        texts.map_err(|error| match error {
            // A model without bidirectional attention over the prompt.
            Error::Data { place, reason, fix } if place == "context" => Error::argument("--context", reason, fix),
            Error::Data { place, reason, fix } => Error::data(self.place(&place), reason, fix),
            other => other,
        })
    }

    /// Stop all ranks if standard output is closed, as by `| head`.
    fn stop_unless_read(&self, is_read: bool) {
        if !is_read {
            self.is_unread.store(true, Ordering::Release);
            self.stop.request();
        }
    }

    /// An error, which is not printed, if the run was asked to stop.
    fn check_stop(&self) -> Result<()> {
        match self.stop.is_requested() {
            true => Err(Error::argument("this run", "it was asked to stop", "start it again")),
            false => Ok(()),
        }
    }
}

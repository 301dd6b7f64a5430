//! The ranks at work: each opens its part of the model and generates behind its share of the prompts, round by round.
//!
//! Defines [`run`], which `run` of the program calls with what was prepared.

use super::chat;
use super::rows::Said;
use super::setup::{Job, open_options};
use super::sink::{Figures, Sink, show};
use crate::terminal;
use bmtrain_core::comm::Communicator;
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::launch::{DistributedOptions, ProcessGroup, threads_per_rank};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use model_center::generate::{Generated, Generator, Piece};
use model_center::run::{ExitStatus, StopFlag, listen, listen_to_interrupts};
use model_center::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a rank waits for another: a reader may be slow, a batch of long prompts takes its time, a process may be
/// halted. A rank that fails is known at once, for all are threads of this process.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// What the ranks share.
struct Work {
    group: ProcessGroup,
    job: Job,
    sink: Mutex<Option<Sink>>,
    stop: StopFlag,
    /// Set when nobody reads the texts any more.
    is_unread: AtomicBool,
}

/// Generate, or talk.
///
/// # Errors
/// A file that cannot be written; a failing device; a lost rank.
pub(super) fn run(job: Job) -> Result<ExitStatus> {
    let sink = Mutex::new(Some(Sink::open(&job)?));
    let options = DistributedOptions { deadline: Some(LONGEST_WAIT), ..DistributedOptions::default() };
    let group = ProcessGroup::join(job.launch.clone(), options)?;
    let work = Arc::new(Work { group, job, sink, stop: StopFlag::default(), is_unread: AtomicBool::new(false) });
    let _listening = match work.job.options.is_conversation() {
        // Ctrl-C ends an answer there.
        true => listen_to_interrupts(&work.stop)?,
        false => listen(&work.stop)?,
    };
    let of_rank = {
        let work = Arc::clone(&work);
        move |ranks| work.rank(ranks)
    };
    let ended = work.group.run(of_rank);
    let is_cut = ended.is_err() && work.stop.is_requested();
    let sink = work.sink().take();
    if is_cut && work.is_unread.load(Ordering::Acquire) {
        return Ok(ExitStatus::Done);
    }
    if is_cut {
        let written = if work.job.options.output.is_some() { ": nothing was written" } else { "" };
        terminal::note(&format!("\nstopped{written}"));
        return Ok(ExitStatus::Interrupted);
    }
    ended?;
    let figures = sink.map(Sink::finish).transpose()?.unwrap_or_default();
    if !work.job.options.quiet {
        terminal::note(&figures.to_string());
    }
    Ok(ExitStatus::Done)
}

impl Work {
    /// Where texts go. A rank that panicked with it in hand ends the run by itself.
    fn sink(&self) -> MutexGuard<'_, Option<Sink>> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Do something with it.
    fn with_sink<T: Default>(&self, work: impl FnOnce(&mut Sink) -> T) -> T {
        self.sink().as_mut().map(work).unwrap_or_default()
    }

    fn with_figures(&self, work: impl FnOnce(&mut Figures)) {
        self.with_sink(|sink| work(&mut sink.figures));
    }

    /// One rank's part.
    fn rank(&self, ranks: Arc<dyn Communicator>) -> Result<ExitStatus> {
        let Job { options, registry, directory, launch, settings, tokenizer, .. } = &self.job;
        let is_first = ranks.rank() == 0;
        let threads = threads_per_rank(self.job.threads, launch.local_size);
        let notify = is_first && !options.quiet;
        let opened = self.group.open_device(options.device, ranks.rank(), threads)?;
        opened.note.iter().filter(|_| notify).for_each(|note| terminal::note(note));
        let ranks = self.group.communicator(&opened, ranks)?;
        let (device, on_cuda) = (Device::new(opened.backend), opened.cuda.is_some());
        let sharding = match ranks.size() {
            1 => Sharding::solo(),
            _ => {
                Sharding { ranks: Arc::clone(&ranks), level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch: true }
            }
        };
        let opened = registry.open(directory, &open_options(options, &device, sharding))?;
        let may_go_on = || self.check_stop();
        let generator = Generator::new(&*opened.model, tokenizer.as_deref(), settings.generate.clone())
            .map_err(|error| settings.blame(error))?
            .on_ranks(Arc::clone(&ranks))
            .asking(&may_go_on);
        if options.is_conversation() {
            let of_talk = chat::Talk::new(&self.job, &generator, &device, &self.stop).run()?;
            self.with_figures(|figures| *figures = of_talk);
        } else {
            self.rows(&generator, &*ranks, &device)?;
        }
        if on_cuda {
            let peak = device.memory().total.peak;
            self.with_figures(|figures| figures.device_bytes = figures.device_bytes.max(Some(peak)));
        }
        Ok(ExitStatus::Done)
    }

    /// This rank's prompts of every round. All ranks take part in each, if with no prompt.
    fn rows(&self, generator: &Generator<'_>, ranks: &dyn Communicator, device: &Device) -> Result<()> {
        let (all, batch) = (self.job.rows.len(), self.job.batch);
        for round in (0..all).step_by(batch * ranks.size()) {
            let first = (round + ranks.rank() * batch).min(all);
            let mine = first..(first + batch).min(all);
            let texts = self.generate(generator, mine.clone(), device)?;
            for (number, texts) in mine.zip(texts) {
                let row = (number, &self.job.rows[number]);
                let fronts = texts.iter().map(|text| self.front(number, text)).collect::<Result<Vec<_>>>()?;
                let take = |sink: &mut Sink| Some(sink.take(row, &texts, &fronts, self.job.tokenizer.is_some()));
                self.heed(self.with_sink(take).unwrap_or(Ok(true))?);
            }
        }
        Ok(())
    }

    /// What is printed in front of a text: with --echo its prompt, and the space that words alone do not have at their
    /// beginning.
    fn front(&self, number: usize, text: &Generated) -> Result<String> {
        let (true, Some(tokenizer)) = (self.job.options.echo, &self.job.tokenizer) else { return Ok(String::new()) };
        let Said::Text(prompt) = &self.job.rows[number].said else { return Ok(String::new()) };
        let ids = &self.job.ids[number];
        let both: Vec<u32> = ids.iter().chain(text.words.first()).copied().collect();
        let (before, behind) = (tokenizer.decode(ids, true)?, tokenizer.decode(&both, true)?);
        let has_space = |text: &str| text.starts_with(char::is_whitespace);
        let is_apart = behind.get(before.len()..).is_some_and(has_space) && !has_space(&text.text);
        Ok(format!("{prompt}{}", if is_apart { " " } else { "" }))
    }

    /// Where the prompt stands that the library knows by its number.
    fn place(&self, place: &str) -> String {
        let numbered = place.strip_prefix("prompt ").map(|rest| rest.split_once(',').unwrap_or((rest, "")));
        let row =
            numbered.and_then(|(number, behind)| Some((self.job.rows.get(number.parse::<usize>().ok()?)?, behind)));
        match row {
            Some((row, "")) => row.place.clone(),
            Some((row, behind)) => format!("{},{behind}", row.place),
            None => place.to_owned(),
        }
    }

    fn generate(
        &self,
        generator: &Generator<'_>,
        mine: std::ops::Range<usize>,
        device: &Device,
    ) -> Result<Vec<Vec<Generated>>> {
        let shows = self.job.shows_pieces();
        self.with_figures(Figures::start);
        let mut on_piece = |piece: Piece<'_>| {
            self.with_figures(Figures::piece);
            self.heed(!shows || show(piece.piece)?);
            Ok(())
        };
        let prompts = &self.job.ids[mine.clone()];
        let texts = generator.generate(prompts, mine.start as u64, &mut Ctx::inference(device), &mut on_piece);
        texts.map_err(|error| match error {
            // The model knows that it reads no prompt from both sides, but not who asked for it.
            Error::Data { place, reason, fix } if place == "context" => Error::argument("--context", reason, fix),
            Error::Data { place, reason, fix } => Error::data(self.place(&place), reason, fix),
            other => other,
        })
    }

    /// Ask all ranks to end if nobody reads what is written, as behind `| head`.
    fn heed(&self, is_read: bool) {
        if !is_read {
            self.is_unread.store(true, Ordering::Release);
            self.stop.request();
        }
    }

    /// Whether somebody asks for an end; what the error says is not shown.
    fn check_stop(&self) -> Result<()> {
        match self.stop.is_requested() {
            true => Err(Error::argument("this run", "it was asked to stop", "start it again")),
            false => Ok(()),
        }
    }
}

//! Time and memory of a run by phase, for its log.
//!
//! Defines [`RunTimes`].

use bmtrain_dist::inspect::process as memory;
use model_center_recipe::run::Phases;
use std::time::Instant;

/// Where the time of this process went.
pub(super) struct RunTimes {
    begin: Instant,
    pub(super) eval_seconds: f64,
    pub(super) save_seconds: f64,
    /// Phases of all steps of this process.
    phases: Phases,
    /// Phases of the steps since the last record.
    since_record: Phases,
    memory: MemoryAfter,
}

impl RunTimes {
    /// Times of a process that began then.
    pub(super) fn new(begin: Instant) -> Self {
        RunTimes {
            begin,
            eval_seconds: 0.0,
            save_seconds: 0.0,
            phases: Phases::default(),
            since_record: Phases::default(),
            memory: MemoryAfter::default(),
        }
    }

    /// Seconds since the process began.
    pub(super) fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Count a step, after which this many bytes were resident.
    pub(super) fn stepped(&mut self, phases: Phases, resident: u64) {
        self.phases += phases;
        self.since_record += phases;
        self.memory.steps = self.memory.steps.max(resident);
    }

    /// Count an evaluation.
    pub(super) fn evaluated(&mut self, seconds: f64) {
        self.eval_seconds += seconds;
        self.memory.eval = self.memory.eval.max(resident());
    }

    /// Count the time for which training waited for a save.
    pub(super) fn saved(&mut self, seconds: f64) {
        self.save_seconds += seconds;
        let save = Phases { save: seconds, ..Phases::default() };
        self.phases += save;
        self.since_record += save;
        self.memory.save = self.memory.save.max(resident());
    }

    /// The phases of the steps since the last record.
    pub(super) fn take_since_record(&mut self) -> Phases {
        std::mem::take(&mut self.since_record)
    }

    /// Time by phase in `seconds` of the process, and memory after each kind of work.
    pub(super) fn table(&self, seconds: f64) -> String {
        let share = |name: &str, part: f64| format!("  {name:<12} {part:>10.2} s {:>5.1} %", 100.0 * part / seconds);
        let Phases { step, save, .. } = self.phases;
        let mut lines = vec![format!("time of the run: {seconds:.2} s"), share("steps", step)];
        let phases = self.phases.named().filter(|(name, _)| *name != "save");
        lines.extend(phases.map(|(name, part)| share(&format!("  {name}"), part)));
        lines.extend([share("evaluation", self.eval_seconds), share("save", save)]);
        lines.push(share("other", seconds - step - save - self.eval_seconds));
        let memory = [("steps", self.memory.steps), ("evaluation", self.memory.eval), ("save", self.memory.save)];
        lines.push("peak resident memory after".to_owned());
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        let used = memory.into_iter().filter(|(_, bytes)| *bytes > 0);
        lines.extend(used.map(|(name, bytes)| format!("  {name:<12} {:>10.1} MiB", mib(bytes))));
        lines.join("\n")
    }
}

/// The most resident memory after each kind of work, bytes; 0 without any.
#[derive(Debug, Default)]
struct MemoryAfter {
    steps: u64,
    eval: u64,
    save: u64,
}

/// Resident memory now, bytes; 0 where the system does not provide it.
fn resident() -> u64 {
    memory::now().map_or(0, |memory| memory.rss_bytes)
}

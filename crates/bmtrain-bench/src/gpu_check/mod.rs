//! The gpu-check program: proof that the CUDA backend computes on a real device what the CPU computes, and measurements
//! of how fast it is there.

mod agree;
mod compare;
mod environment;
mod isolated;
mod kernel_table;
mod kernels;
mod models;
mod modes;
mod options;
mod overlap;
mod report;
pub mod tiny;
mod variants;
mod warpgroups;
mod watchdog;

use crate::speed::Sizes;
use crate::step::shape;
use bmtrain_core::cpu::Processors;
use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::{Backend, Device};
use bmtrain_programs::cli::terminal;
use clap::ValueEnum;
use environment::Environment;
use kernels::Ceilings;
use model_center_base::Result;
use model_center_base::error::ExitStatus;
pub use options::{Options, Part, With};
use options::{backend_options, without_options};
use report::Report;
use std::sync::Arc;
use std::time::Duration;
use watchdog::Watchdog;

/// Where everything runs, and how large.
struct Place {
    backend: Arc<CudaBackend>,
    /// How it was opened.
    number: usize,
    options: CudaOptions,
    /// None of [`With`] is on.
    is_ordinary: bool,
    memory_bytes: usize,
    threads: usize,
    scale: Scale,
}

/// How large what is measured is.
struct Scale {
    copy_bytes: usize,
    product: usize,
    overlap_product: usize,
    overlap_copy: usize,
    sizes: Sizes,
    models: Vec<models::Timed>,
    /// Steps of the tiny models' training, enough for their losses to fall.
    training_steps: u32,
}

impl Scale {
    fn real() -> Self {
        Scale {
            copy_bytes: 1 << 30,
            product: 8192,
            overlap_product: 8192,
            overlap_copy: 32 << 20,
            sizes: Sizes::GPT2_XL,
            models: models::real(),
            training_steps: 20,
        }
    }

    /// So small that an emulated device is soon done with it.
    fn emulated() -> Self {
        Scale {
            copy_bytes: 1 << 16,
            product: 64,
            overlap_product: 64,
            overlap_copy: 1 << 12,
            sizes: Sizes::TINY,
            models: models::emulated(),
            training_steps: 8,
        }
    }
}

impl Place {
    /// A device with a pool of its own, over the one backend.
    fn device(&self) -> Device {
        Device::new(Arc::clone(&self.backend) as Arc<dyn Backend>)
    }

    /// The same device, with launches that repeat replayed as CUDA graphs.
    fn with_graphs(&self) -> Result<Arc<CudaBackend>> {
        if self.options.graphs {
            return Ok(Arc::clone(&self.backend));
        }
        self.opened_again(CudaOptions { graphs: true, ..self.options.clone() })
    }

    /// The same device, with attention on products of warpgroups.
    fn with_warpgroup_attention(&self) -> Result<Arc<CudaBackend>> {
        self.opened_again(CudaOptions { warpgroup_attention: true, ..self.options.clone() })
    }

    /// A device with all options off that `With` has, for what is compared with them.
    fn ordinary(&self) -> Result<Device> {
        if self.is_ordinary {
            return Ok(self.device());
        }
        Ok(Device::new(self.opened_again(without_options(&self.options))?))
    }

    fn opened_again(&self, options: CudaOptions) -> Result<Arc<CudaBackend>> {
        Ok(Arc::new(CudaBackend::open(self.number, &options)?))
    }

    /// After a failure: note if the device is lost by it. A kernel that died leaves a device whose every later call
    /// fails, while other failures are told once.
    fn note_loss(&self, after: &str, report: &mut Report) {
        if report.is_lost() || self.device().sync().is_ok() {
            return;
        }
        if let Err(error) = self.device().sync() {
            report.lose(after, &error.to_string());
        }
    }
}

/// Run the program.
///
/// # Errors
/// A device that fails outside of a check; a file that cannot be written. Where there is no device or a library is
/// missing, one line reports it and the status is a failure's.
pub fn run(options: &Options) -> Result<ExitStatus> {
    if options.list {
        let line = |part: &Part| {
            let value = part.to_possible_value();
            let help = value.and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default();
            format!("{:<12} {help}", part.name())
        };
        terminal::print(&Part::ALL.iter().map(line).collect::<Vec<_>>().join("\n"))?;
        return Ok(ExitStatus::Done);
    }
    if let (Some(theirs), Some(ours)) = (&options.compare, &options.json) {
        return match compare::compare(ours, theirs) {
            Ok(table) => terminal::print(&table).map(|()| ExitStatus::Done),
            Err(reason) => {
                terminal::note(&format!("gpu-check: {}", reason.replace('\n', " ")));
                Ok(ExitStatus::Internal)
            }
        };
    }
    let threads = Processors::of_this_process().default_threads();
    let cuda = backend_options(&options.with, threads)?;
    let environment = match Environment::find(options.device, &cuda) {
        Ok(environment) => environment,
        Err(missing) => {
            terminal::note(&format!("gpu-check: {}", missing.replace('\n', " ")));
            return Ok(ExitStatus::Internal);
        }
    };
    let mut report = Report::new(environment.is_emulated(), options.json.clone(), With::names(&options.with));
    if options.resume {
        report.resume(&options.only.iter().map(|part| part.name()).collect::<Vec<_>>())?;
    }
    let place = Place {
        backend: Arc::new(CudaBackend::open(options.device, &cuda)?),
        number: options.device,
        options: cuda,
        is_ordinary: options.with.is_empty(),
        // An emulated driver does not report it.
        memory_bytes: environment.memory_bytes().unwrap_or(1 << 29),
        threads,
        scale: if report.emulated { Scale::emulated() } else { Scale::real() },
    };
    if let (Some(rank), Some(meeting)) = (options.rank, &options.meeting) {
        let _watched = watched(options.part_limit, Part::Modes);
        return modes::rank(&place, rank, meeting).map(|()| ExitStatus::Done);
    }
    check(options, &environment, &place, &mut report)?;
    report.write(None)?;
    terminal::print(&report.table())?;
    let passed = report.is_clean() && (!options.targets || report.reaches_targets());
    Ok(if passed { ExitStatus::Done } else { ExitStatus::Internal })
}

/// Ends the program if a part takes longer than this many seconds.
fn watched(limit: Option<u32>, part: Part) -> Option<Watchdog> {
    limit.map(|seconds| Watchdog::start(part, Duration::from_secs(seconds.into())))
}

/// All parts that are wanted. One that ends in an error does not keep the others from being run.
fn check(options: &Options, environment: &Environment, place: &Place, report: &mut Report) -> Result<()> {
    let budget = Duration::from_secs_f64(options.seconds);
    let mut ceilings = None;
    for &part in Part::ALL {
        if !options.only.is_empty() && !options.only.contains(&part) {
            continue;
        }
        if report.is_done(&part.name()) {
            report.say(&format!("== {}: not run again", part.name()));
            continue;
        }
        if report.is_lost() {
            report.row(part.name(), "not run: the device is lost");
            continue;
        }
        if part.measures() && report.emulated && !options.measure {
            report.row(part.name(), "not measured: an emulated device has no speed");
            continue;
        }
        report.say(&format!("== {}", part.name()));
        report.write(Some(&part.name()))?;
        // With --isolate each process has the limit.
        let limit = options.part_limit.filter(|_| !(part == Part::Conformance && options.isolate));
        let _watched = watched(limit, part);
        let mut ceilings = |report: &mut Report| match ceilings {
            Some(known) => Ok(known),
            None => Ceilings::measure(place, budget, report).inspect(|measured| ceilings = Some(*measured)),
        };
        let done = match part {
            Part::Environment => {
                environment.tell(report);
                Ok(())
            }
            Part::Intrinsics => agree::intrinsics(place, report),
            Part::Conformance if options.isolate => isolated::conformance(options, report),
            Part::Conformance => agree::conformance(place, (&options.rows, options.stem.as_deref()), report),
            Part::Training => agree::training(place, report),
            Part::Modes => modes::modes(place, options, report),
            Part::Overlap => overlap::overlap(place, report),
            Part::Kernels => ceilings(report).and_then(|known| kernels::kernels(place, known, budget, report)),
            Part::Models => ceilings(report).and_then(|known| models::models(place, known, options, report)),
            Part::Warpgroups => {
                let known = if report.emulated && !options.measure { Ok(None) } else { ceilings(report).map(Some) };
                known.and_then(|known| warpgroups::warpgroups(place, &options.rows, known, budget, report))
            }
            Part::Variants => variants::variants(place, !report.emulated || options.measure, budget, report),
        };
        if let Err(error) = done {
            report.fail(format!("{}: {error}", part.name()));
            place.note_loss(&part.name(), report);
        }
        report.end(part.name());
    }
    Ok(())
}

//! What surrounds a training run: its output directory, its metrics file, its status line, its end.
//!
//! | file | defines |
//! |---|---|
//! | `output.rs` | [`OutputDirectory`], which holds one run and refuses another |
//! | `staged.rs` | [`StagedDirectory`], which appears under its name once it is complete |
//! | `lock.rs` | the lock that keeps other processes out of the directory |
//! | `marker.rs` | `run.json`, which names the directory's recipe and the run's outputs |
//! | `model_files.rs` | [`FileHashes`], the recorded files of a model; [`Damage`], one that differs |
//! | `metrics_log.rs` | [`MetricsLog`], the append-only `metrics.jsonl` |
//! | `status.rs`, `progress.rs` | [`Status`], the status line; [`Progress`], which shows it |
//! | `stop.rs` | [`StopConditions`], [`StopFlag`], [`BestTracker`] |
//! | `signals.rs` | signals as a request to stop; [`survive_file_size_limit`] |
//! | `state.rs` | [`BestState`] and [`Exact`], as they are kept with a checkpoint |
//! | `console.rs` | [`console`]: lines on standard output and standard error |
//! | `memory.rs` | [`memory`]: memory and processors as the operating system counts them |
//! | `model_card.rs` | [`ModelCard`], the `README.md` of a saved model |
//! | `report.rs` | [`ExitStatus`] and how an error is shown |
//!
//! Called by the training programs; nothing here trains or knows a model.

pub mod console;
mod lock;
mod marker;
pub mod memory;
mod metrics_log;
mod model_card;
mod model_files;
mod output;
mod progress;
mod report;
mod signals;
mod staged;

mod state;
mod status;
mod stop;

pub use crate::error::OutputFault;
pub use marker::{MAX_NAME_BYTES, is_output_name};
pub use memory::{Memory, available_cpus};
pub use metrics_log::{
    EndRecord, EvalRecord, MetricsLog, Record, ResumeRecord, StartRecord, StepRecord, Timing, deterministic_part,
    without_overtaken,
};
pub use model_card::{CardData, ModelCard};
pub use model_files::{CARD_FILE, Damage, FileHashes, unrecorded_damage};
pub use output::{
    CHECKPOINT_DIRECTORY, Earlier, IfThere, LAST_MODEL_DIRECTORY, MARKER, MODEL_DIRECTORY, OutputDirectory,
    RECIPE_FILE, STOP_FILE,
};
pub use progress::{Progress, ProgressMode};
pub use report::{ExitStatus, layout_error, render_error};
pub use signals::{Listening, listen, listen_to_interrupts, survive_file_size_limit};
pub use staged::StagedDirectory;
pub use state::{BestState, EarlyState, Exact};
pub use status::Status;
pub use stop::{BestTracker, StopConditions, StopFlag, StopReason};

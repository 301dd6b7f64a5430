//! Surroundings of a training run: its output directory, its metrics file, its status line, its end.
//!
//! Called by the training programs; nothing here trains or knows a model.

pub mod console;
pub mod lock;
mod lr_range;
mod machine;
pub mod marker;
mod metrics_log;
pub mod metrics_reader;
mod metrics_records;
mod model_card;
mod model_files;
mod output;
mod phases;
mod progress;
mod signals;
mod state;
mod status;
mod stop_reason;
pub mod tensorboard;
mod text_log;

pub use lr_range::{LR_RANGE_FILE, LrRange};
pub use machine::{Machine, commit_of};
pub use marker::{FIXED_NAMES, metrics_file};
pub use metrics_log::{MetricsLog, Record, deterministic_part, without_overtaken};
pub use metrics_reader::LineReader;
pub use metrics_records::{
    EndRecord, EvalRecord, Number, ResumeRecord, SampleRecord, StartRecord, StepRecord, TestRecord, Timing,
};
pub use model_card::{CardData, ModelCard};
pub use model_center_base::error::{ExitStatus, layout_error, render_error};
pub use model_center_base::file::StagedDirectory;
pub use model_center_base::file::{MAX_NAME_BYTES, is_output_name};
pub use model_center_base::stop_flag::StopFlag;
pub use model_files::{CARD_FILE, Damage, FileHashes, unrecorded_damage};
pub use model_files::{FileHash, hash_of};
pub use output::{
    CHECKPOINT_DIRECTORY, Earlier, IfThere, LAST_MODEL_DIRECTORY, MARKER, MODEL_DIRECTORY, OTHER_OR_REMOVE,
    OutputDirectory, RECIPE_FILE, REFERENCE_FILE, STOP_FILE,
};
pub use phases::Phases;
pub use progress::{Progress, ProgressMode};
pub use signals::{Listening, listen, listen_to_interrupts, survive_file_size_limit};
pub use state::{BestState, EarlyState, Exact};
pub use status::Status;
pub use stop_reason::StopReason;
pub use tensorboard::{EventLog, TENSORBOARD_DIRECTORY};
pub use text_log::{COMMAND_PREFIX, TEXT_LOG_FILE, TextLog, utc};

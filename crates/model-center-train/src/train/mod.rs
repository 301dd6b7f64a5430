//! Training: from a resolved recipe to a trained model directory with metrics and checkpoints.
//!
//! | file | defines |
//! |---|---|
//! | `finetune.rs` | [`finetune()`]: the run of each rank, its loop, and the training step |
//! | `preconditions.rs` | [`FinetuneOptions`] and the checks of the output directory |
//! | `dry_run.rs` | all checks before weights are read, with every mistake |
//! | `setup.rs`, `class_weights.rs`, `parameter_count.rs` | [`Setup`]: what is known before weights are read |
//! | `run_data.rs`, `records.rs`, `pretraining_data.rs` | [`RunData`]: records of a task, or samples of token files |
//! | `batches.rs`, `prefetch.rs` | batches at a position; batches of the next steps, formed by threads |
//! | `model_options.rs` | how the model is opened on its ranks, and saved |
//! | `timed_partition.rs` | pipeline stages by measured times, which the run records |
//! | `step_trainer.rs`, `given.rs` | [`StepTrainer`]: training by a program's loop, with its own batches |
//! | `step_runner.rs` | [`StepRunner`]: the passes of a step, which plans and benchmarks run too |
//! | `trainer.rs`, `passes.rs` | `Trainer`; the micro-batches of a step |
//! | `objective/` | [`Objective`]: the loss of labels, of pairs, of embeddings, of a teacher's student |
//! | `reference.rs` | log-probabilities of the reference model of pairs |
//! | `teacher.rs` | the teacher of a run |
//! | `divergence.rs` | whether the loss has left its course |
//! | `run_ranks.rs`, `division.rs` | the ranks by their samples; whether ranks divide batch and model |
//! | `agree.rs` | what the ranks all-gather with each step: metrics and votes |
//! | `run.rs`, `start.rs`, `finish.rs` | `Run`: evaluation, log and checkpoints, how it starts and ends |
//! | `run_times.rs`, `peak.rs` | time and memory of the run by phase; its share of the peak |
//! | `evaluate.rs`, `each_batch.rs`, `generated_answers.rs` | evaluation: losses, logits, metrics of generated text |
//! | `checkpointer.rs`, `resume.rs`, `save.rs` | checkpoints, resuming from them, model directories |
//! | `export.rs` | [`export()`]: a checkpoint as a model directory |
//! | `profile.rs`, `pool_usage.rs`, `memory_limit.rs`, `waiting.rs` | time and memory by part; progress notes |

mod agree;
mod batches;
mod beside;
mod checkpointer;
mod class_weights;
mod divergence;
mod division;
mod dry_run;
mod each_batch;
pub(crate) mod evaluate;
mod export;
mod finetune;
mod finish;
mod generated_answers;
mod given;
pub(crate) mod kept;
mod memory_limit;
mod model_options;
pub(crate) mod objective;
mod parameter_count;
mod passes;
mod peak;
mod pool_usage;
mod preconditions;
mod prefetch;
mod pretraining_data;
mod profile;
mod records;
mod reference;
mod resume;
mod resume_rules;
mod run;
mod run_data;
pub(crate) mod run_ranks;
mod run_times;
mod samples;
pub(crate) mod save;
mod setup;
mod start;
mod step_runner;
mod step_trainer;
pub(crate) mod stop;
mod teacher;
mod timed_partition;
pub(crate) mod trainer;
mod waiting;

pub use division::{check_layout, check_layout_of_config, check_ranks};
pub use dry_run::{environment_mistakes, refuse_all};
pub use evaluate::{EvalContext, EvalResult, Evaluation};
pub use export::{ExportOptions, Exported, export};
pub use finetune::{abandon_unless_done, finetune, finetune_on};
pub use generated_answers::GeneratedAnswers;
pub use model_options::{open_options, save_options};
pub use objective::{Objective, ObjectiveLoss, OwnObjective, Pass, PassNumbers, Reference, Supervised};
pub use passes::StepPasses;
pub use preconditions::{FinetuneOptions, on_ranks};
pub use resume::{CheckpointPath, Resume, passed_over_warning, recipe_of, store_directory};
pub use run_data::{EvalSet, RunData};
pub use setup::{Setup, prepare};
pub use step_runner::StepRunner;
pub use step_trainer::{StepOutcome, StepTrainer, StepTraining};
pub use stop::{BestTracker, StopConditions};
pub use teacher::TeacherSetup;
pub use waiting::note_reading;

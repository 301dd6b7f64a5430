//! Python bindings of model-center: the extension module `bmtrain._bmtrain`, which the package `bmtrain` re-exports.
//!
//! | file | defines |
//! |---|---|
//! | `worker.rs` | the thread that owns a model, and calls of it without the interpreter's lock |
//! | `session.rs` | what that thread holds: device, model, optimizer |
//! | `model.rs`, `open.rs`, `facts.rs`, `generate.rs` | `Model`: opening, forward passes, text, saving |
//! | `adapter.rs` | the adapter of a model, and how it is saved |
//! | `trainer.rs` | `Trainer` and `StepResult` |
//! | `batch.rs`, `dataset.rs`, `records.rs` | `Batch`, `Dataset` and its batches, records of an iterable |
//! | `runs.rs` | `finetune`, `read_metrics` |
//! | `arrays.rs`, `values.rs` | NumPy arrays and Python values from and to the library's |
//! | `error.rs` | exceptions |

mod adapter;
mod arrays;
mod batch;
mod dataset;
mod error;
mod facts;
mod generate;
mod model;
mod open;
mod predict;
mod records;
mod runs;
mod session;
mod trainer;
mod values;
mod worker;

/// Training and generation with transformers.
#[pyo3::pymodule]
mod _bmtrain {
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::dataset::{BatchIterator, Dataset};
    #[pymodule_export]
    use super::error::{ArgumentError, DataError, DivergedError, Error, ModelError, OutputError};
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::runs::{finetune, read_metrics};
    #[pymodule_export]
    use super::trainer::{StepResult, Trainer};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

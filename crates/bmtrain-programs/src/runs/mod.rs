//! Looking at runs: what their output directories hold, without touching what training writes.
//!
//! | file | what |
//! |---|---|
//! | `directory.rs` | [`RunDirectory`]: finding runs, their recipe, their state, their deletion |
//! | `curves.rs` | [`Curves`]: the scalars of a run in a bounded number of buckets |
//! | `summary.rs` | [`Summary`]: what a list of runs shows, and the events of a run |
//! | `index.rs` | [`Index`]: both, kept in a file beside the metrics that follows them |
//! | `repository.rs` | [`Repository`]: the runs below a directory |
//! | `report/` | [`Report`]: one or several runs as HTML, Markdown and JSON |
//! | `export.rs` | CSV, TensorBoard and Parquet |
//! | `serve/` | the local page |
//!
//! `metrics.jsonl` is the truth. The index is a cache: it is made anew where it is missing, stale or damaged, and a
//! directory that cannot be written to does without. Training neither reads nor writes it.

mod curves;
mod directory;
mod export;
mod index;
mod report;
mod repository;
pub mod serve;
mod summary;

pub use curves::{Curves, MAX_BUCKETS, Stream};
pub use directory::{RunDirectory, RunRecipe, RunState};
pub use export::{ExportFormat, export, write_csv};
pub use index::{INDEX_FILE, Index};
pub use model_center_recipe::run::metrics_reader::{LineReader, Position};
pub use report::Report;
pub use repository::{Repository, Run};
pub use summary::{Event, Summary};

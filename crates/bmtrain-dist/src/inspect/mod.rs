//! Looking at a run: statistics of parameters and of what a forward pass names, memory of every rank, and numbers that
//! all ranks share.
//!
//! | file | defines |
//! |---|---|
//! | `model.rs` | [`inspect_model`]: a row for each parameter and its gradient, nothing being gathered |
//! | `tensor.rs` | [`TensorInspector`]: a row for each value that [`Ctx::observe`](bmtrain_core::Ctx::observe) names |
//! | `moments.rs` | [`Moments`]: count, mean, deviation, smallest and largest, merged over parts |
//! | `table.rs` | [`format_summary`] and the columns |
//! | `ranks.rs` | [`sum_loss`], [`average_loss`], [`gather_result`], [`print_rank`] |
//! | `average.rs` | [`AverageRecorder`] |
//! | `memory.rs` | [`memory_report`], by rank and segment |
//! | `process.rs` | [`process`]: memory as the operating system counts it |
//!
//! Called by training programs; nothing here changes what is computed. All ranks have to make the same calls.

mod average;
mod memory;
mod model;
mod moments;
pub mod process;
mod ranks;
mod table;
mod tensor;

pub use average::AverageRecorder;
pub use memory::{MemoryRow, format_memory, memory_report};
pub use model::inspect_model;
pub use moments::Moments;
pub use ranks::{average_loss, gather_result, print_rank, sum_loss, write_rank};
pub use table::{SummaryRow, format_summary};
pub use tensor::TensorInspector;

//! Looking at a run: statistics of parameters and of what a forward pass names, memory of every rank, and numbers that
//! all ranks share.
//!
//! Called by training programs; nothing here changes what is computed. All ranks have to make the same calls.

mod average;
mod memory;
mod model;
mod moments;
pub mod process;
mod ranks;
mod stages;
mod table;
mod tensor;

pub use average::AverageRecorder;
pub use memory::{MemoryRow, format_memory, memory_report};
pub use model::inspect_model;
pub use moments::Moments;
pub use ranks::{average_loss, gather_result, print_rank, sum_loss, write_rank};
pub use stages::rows_of_stages;
pub use table::{SummaryRow, format_summary};
pub use tensor::TensorInspector;

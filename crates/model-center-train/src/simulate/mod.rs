//! A training step in time on a machine that is described by numbers: [`step::simulate`] composes the schedule of the
//! pipeline, the collectives of tensor and data parallelism and the arithmetic of a transformer.
//!
//! Nothing is measured and no device is opened. [`Machine`] states rates and links, [`scenario`] reads them with the
//! runs to simulate from a TOML file. The program `simulate` prints [`StepReport`]s.

pub mod machine;
pub mod network;
pub mod scenario;
pub mod step;

pub use machine::Machine;
pub use scenario::{Published, Run, Scenario};
pub use step::{StepReport, simulate};

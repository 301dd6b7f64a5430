//! A training step in time on a machine that is described by numbers: [`step::simulate`] composes the schedule of the
//! pipeline, the collectives of tensor and data parallelism and the arithmetic of a transformer.
//!
//! Nothing is measured and no device is opened. [`Machine`] states rates and links, [`scenario`] reads them with the
//! runs to simulate from a TOML file, [`communication`] is what a rank sends. `bmtrain simulate` prints
//! [`StepReport`]s, and [`fit`] searches the layouts that `bmtrain plan --fit` proposes, by these times and by the
//! [formula](model_center_train::formula) of memory: where hundreds of layouts are compared, none can be run.

pub mod communication;
pub mod fit;
pub mod fit_report;
pub mod machine;
pub mod network;
pub mod scenario;
pub mod step;

pub use communication::Communication;
pub use machine::Machine;
pub use scenario::{Published, Run, Scenario};
pub use step::{StepReport, simulate};

//! The programs as functions of the families they know: [`data()`], [`evaluate()`], [`finetune()`], [`forward()`],
//! [`generate()`], [`init()`], [`plan()`], [`predict()`], [`pretrain()`] and [`serve()`]; and [`runs()`], which needs
//! none of them.
//!
//! A crate with models of its own builds the same programs: its binary is a `main` that calls one of these functions
//! with a [`Registry`](model_center_models::Registry) of both tables. In `model-center` they are behind the feature
//! `cli`, because a program takes what a library should leave alone: the command line, the terminal, signals, the
//! allocator, the exit code.

pub mod comm;
pub mod data;
pub mod device;
pub mod environment;
pub mod evaluate;
pub mod exit_time;
pub mod finetune;
pub mod flags;
pub mod forward;
pub mod generate;
#[cfg(feature = "import")]
pub mod init;
pub mod limits;
pub mod opened;
pub mod places;
pub mod plan;
pub mod predict;
pub mod pretrain;
pub mod program;
pub mod ranks;
#[cfg(feature = "runs")]
pub mod runs;
#[cfg(feature = "serve")]
pub mod serve;
pub mod settings;
pub mod terminal;
pub mod trace;

pub use data::main as data;
pub use evaluate::main as evaluate;
pub use finetune::main as finetune;
pub use forward::main as forward;
pub use generate::main as generate;
#[cfg(feature = "import")]
pub use init::main as init;
pub use limits::HEAP;
pub use plan::main as plan;
pub use predict::main as predict;
pub use pretrain::main as pretrain;
#[cfg(feature = "runs")]
pub use runs::main as runs;
#[cfg(feature = "serve")]
pub use serve::main as serve;

/// The `main` of a program and its allocator: `program!(model_center::cli::finetune, Registry::default());`.
#[macro_export]
macro_rules! program {
    ($main:path, $registry:expr) => {
        #[global_allocator]
        static HEAP: $crate::bmtrain_core::heap::EndingHeap = $crate::cli::HEAP;

        fn main() -> std::process::ExitCode {
            $main($registry)
        }
    };
}

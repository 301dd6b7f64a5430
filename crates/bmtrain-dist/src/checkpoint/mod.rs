//! Checkpoints: [`state`] is the training state that is saved and restored, [`disk`] the files it is saved to.

pub mod disk;
pub mod state;

pub use disk::{
    Checkpoint, CheckpointName, Committed, ContentHash, Contents, Digest, ElementRun, Facts, FailPoints, Fault,
    FileRecord, KEEP_LEAST, Keep, Kind, LogicalTensor, MANIFEST_FILE, Manifest, Newest, NotAName, PassedOver,
    PieceRecord, PieceSpec, Report, SCHEMA, SaveJob, SaveOutcome, SaveThread, ShardWriter, Store, TensorPiece, Writer,
    reshard,
};
#[cfg(feature = "testing")]
pub use disk::{FailAction, FailPoint, simulated};
pub use state::{
    OptimizerState, SaveEvent, Saver, Snapshot, TrainingState, load_averages, load_parameters, restore,
    restore_without_optimizer_state,
};

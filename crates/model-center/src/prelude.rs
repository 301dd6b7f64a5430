//! The names that most programs over this crate use, including [`bmtrain_dist::prelude`]'s.
//!
//! ```
//! use model_center::prelude::*;
//! ```

pub use crate::batch::{Batch, Labels};
pub use crate::directory::ModelDirectory;
pub use crate::error::{Error, Result};
pub use crate::generate::{GenerateOptions, TextGenerator};
pub use crate::model::{
    Decode, MODELS, ModelEntry, ModelOutput, OpenMode, OpenOptions, Registry, SaveModel, SaveOptions, Staged, TextModel,
};
pub use crate::recipe::Recipe;
pub use crate::tokenizer::AutoTokenizer;
pub use crate::train::{FinetuneOptions, finetune};
pub use bmtrain_dist::prelude::*;

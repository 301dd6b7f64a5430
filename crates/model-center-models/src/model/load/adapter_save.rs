//! Files of a tuned model: a PEFT directory, or a directory of the merged model.

use crate::Result;
use crate::adapter::{AdapterPlan, PeftDetails};
use crate::model::{TextModel, from_parameters};
use model_center_formats::directory::{SaveOptions, copy_companions};
use std::path::Path;

impl AdapterPlan {
    /// Write the updates of a model, and what else is trained of it, as a PEFT directory with the tokenizer's files.
    /// One of the ranks that share the model writes, over pipeline stages the first one; the others call
    /// [`AdapterPlan::pass`].
    ///
    /// # Errors
    /// What the disk refuses; a lost rank.
    pub fn save(
        &self,
        model: &dyn TextModel,
        directory: &Path,
        details: &PeftDetails<'_>,
        tokenizer: Option<&Path>,
    ) -> Result<()> {
        self.write(directory, details, &mut from_parameters(model.parameters())?)?;
        tokenizer.map_or(Ok(()), |from| copy_companions(from, directory).map(drop))
    }

    /// Write the model with the updates added as a complete directory; the other ranks call
    /// [`AdapterPlan::pass_merged`].
    ///
    /// # Errors
    /// As [`SaveModel::save`](crate::model::SaveModel::save).
    pub fn save_merged(&self, model: &dyn TextModel, directory: &Path, options: &SaveOptions<'_>) -> Result<()> {
        model.write(directory, options, &mut self.merged(&mut from_parameters(model.parameters())?))
    }
}

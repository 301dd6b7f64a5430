//! Facts about a model once it is open, which need no call of its thread.

use crate::open::Opened;
use model_center::Result;
use model_center::model::ModelInfo;
use std::path::PathBuf;

/// The facts of an open model.
pub(crate) struct Facts {
    pub(crate) directory: PathBuf,
    /// Where the tokenizer's files are.
    pub(crate) texts: PathBuf,
    pub(crate) info: ModelInfo,
    pub(crate) parameters: Vec<String>,
    pub(crate) trainable: Vec<String>,
    pub(crate) values: usize,
    pub(crate) notes: Vec<String>,
    pub(crate) initialized: Vec<String>,
    /// Description of the adapter, if there is one.
    pub(crate) adapter: Option<String>,
}

impl Facts {
    pub(crate) fn of(opened: &Opened) -> Result<Self> {
        let session = &opened.session;
        let parameters = session.model()?.parameters();
        let declared = parameters.declared().iter();
        let trainable = declared.clone().filter(|param| param.is_trainable());
        Ok(Facts {
            directory: session.directory.clone(),
            texts: session.tokenizer_directory()?.to_owned(),
            info: session.info()?.clone(),
            trainable: trainable.map(|param| param.name().to_owned()).collect(),
            parameters: declared.map(|param| param.name().to_owned()).collect(),
            values: parameters.count(),
            notes: opened.notes.clone(),
            initialized: opened.initialized.clone(),
            adapter: session.tuned.as_ref().map(|tuned| tuned.plan.describe()),
        })
    }
}

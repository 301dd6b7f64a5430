//! What the thread of a model holds: its device, the model, and the optimizer once it is trained.

use crate::adapter::Tuned;
use model_center::adapter::tokenizer_directory;
use model_center::bmtrain_core::{Ctx, DType, Device};
use model_center::bmtrain_dist::param::widen;
use model_center::data::Batch;
use model_center::formats::DirectoryLayout;
use model_center::generate::GenerationSetup;
use model_center::model::{ModelInfo, SaveOptions, TextModel};
use model_center::tokenizer::Tokenizer;
use model_center::train::{StepOutcome, StepTrainer, StepTraining};
use model_center::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A tensor in host memory, its values widened to f32.
pub(crate) struct HostTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// A model with its device.
pub(crate) struct Session {
    pub(crate) device: Device,
    pub(crate) directory: PathBuf,
    pub(crate) dtype: DType,
    held: Held,
    /// What is trained of the model, if it was opened with an adapter.
    pub(crate) tuned: Option<Tuned>,
    /// Number of trainers so far: the last one's is in force.
    trainers: u64,
    /// Made with the first prompt.
    setup: Option<GenerationSetup>,
}

enum Held {
    Model(Box<dyn TextModel>),
    Trainer(Box<StepTrainer>),
    /// While a trainer is made.
    Nothing,
}

impl Session {
    pub(crate) fn new(
        device: Device,
        directory: &Path,
        dtype: DType,
        (model, tuned): (Box<dyn TextModel>, Option<Tuned>),
    ) -> Self {
        let (directory, held) = (directory.to_owned(), Held::Model(model));
        Session { device, directory, dtype, held, tuned, trainers: 0, setup: None }
    }

    /// Where the tokenizer's files are: an adapter may have its own.
    pub(crate) fn tokenizer_directory(&self) -> Result<&Path> {
        tokenizer_directory(self.tuned.as_ref().map(|tuned| &tuned.adapter), &self.directory)
    }

    pub(crate) fn model(&self) -> Result<&dyn TextModel> {
        match &self.held {
            Held::Model(model) => Ok(&**model),
            Held::Trainer(trainer) => Ok(trainer.model()),
            Held::Nothing => Err(Error::model("the model", "an earlier call failed within it", "open it again")),
        }
    }

    pub(crate) fn info(&self) -> Result<&ModelInfo> {
        Ok(self.model()?.info())
    }

    /// Begins training with a new optimizer; the number of the trainer.
    pub(crate) fn train(&mut self, settings: &[String]) -> Result<u64> {
        if let Some(tuned) = &self.tuned {
            tuned.plan.check_training()?;
        }
        let training = StepTraining::of_texts(self.model()?, &self.device, settings)?;
        let model = match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Model(model) => model,
            Held::Trainer(trainer) => trainer.into_model(),
            Held::Nothing => return Err(Error::model("the model", "it is not there", "open it again")),
        };
        self.held = Held::Trainer(Box::new(training.of(model)?));
        self.trainers += 1;
        Ok(self.trainers)
    }

    /// A step of the trainer of this number.
    pub(crate) fn step(&mut self, trainer: u64, batches: Vec<Batch>) -> Result<StepOutcome> {
        match &mut self.held {
            Held::Trainer(own) if trainer == self.trainers => own.step(batches),
            _ => Err(Error::argument("Trainer.step", "the model has a newer trainer", "use that one")),
        }
    }

    /// The outputs of a forward pass without dropout.
    pub(crate) fn forward(&self, batch: &Batch) -> Result<Vec<HostTensor>> {
        let output = self.model()?.forward(batch, None, &mut Ctx::inference(&self.device))?;
        let named = output.logits.iter().map(|logits| ("logits", logits));
        let named = named.chain(output.loss.iter().map(|loss| ("loss", loss)));
        let named = named.chain(output.extra.iter().map(|(name, value)| (*name, value)));
        let host = |(name, var): (&str, &model_center::bmtrain_core::Var)| {
            let value = var.value();
            Ok(HostTensor { name: name.to_owned(), shape: value.shape().dims().to_vec(), values: widen(value)? })
        };
        named.map(host).collect()
    }

    /// The values of a parameter.
    pub(crate) fn parameter(&self, name: &str) -> Result<HostTensor> {
        let parameters = self.model()?.parameters();
        let Some(param) = parameters.find_declared(name) else {
            let fix = "give one of Model.parameter_names";
            return Err(Error::argument("name", format!("the model has no parameter {name:?}"), fix));
        };
        let shape = param.spec().shape.dims().to_vec();
        Ok(HostTensor { name: name.to_owned(), shape, values: param.read()? })
    }

    /// Writes a Hugging Face directory; of a model with an adapter a PEFT directory, or with `merged` the whole model.
    pub(crate) fn save(&self, directory: &Path, dtype: Option<DType>, merged: bool) -> Result<()> {
        let (model, dtype) = (self.model()?, dtype.unwrap_or(self.dtype));
        if let Some(tuned) = &self.tuned {
            return tuned.save(model, directory, (dtype, merged), &self.directory);
        }
        if merged {
            return Err(Error::argument("merged", "the model has no adapter", "leave it out"));
        }
        let options = SaveOptions { dtype, companions: Some(&self.directory), layout: DirectoryLayout::HuggingFace };
        model.check_save(&options)?;
        model.save(directory, &options)
    }

    /// What generation needs beside the model; with this tokenizer, if it has none yet.
    pub(crate) fn generation(&mut self, tokenizer: Option<Arc<dyn Tokenizer>>) -> Result<&GenerationSetup> {
        let mut setup = match self.setup.take() {
            Some(setup) => setup,
            None => GenerationSetup {
                adapter: self.tuned.as_ref().map(|tuned| tuned.adapter.clone()),
                ..GenerationSetup::new(&self.directory, self.info()?)
            },
        };
        if let (None, Some(tokenizer)) = (&setup.tokenizer, tokenizer) {
            setup.open_chat_template(None)?;
            setup.tokenizer = Some(tokenizer);
        }
        Ok(self.setup.insert(setup))
    }
}

//! Everything that is known before the weights are read: the model directory, its tokenizer and the ranks.

use super::options::ModelOptions;
use crate::cli::{flags::with_flags, opened, ranks, terminal};
use crate::{Error, Result};
use bmtrain_core::Device;
use bmtrain_core::wrap::Counting;
use bmtrain_dist::Launch;
use model_center_formats::config::TextHead;
use model_center_formats::tokenizer::{AutoTokenizer, Tokenizer};
use model_center_models::adapter::{Adapter, tokenizer_directory};
use model_center_models::{ModelInfo, OpenMode, OpenOptions, OpenedModel, Registry};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most tokens of a sequence unless `--length` allows more: what published evaluations of GPT-2 read.
const DEFAULT_LENGTH: usize = 1024;
/// A larger batch is most likely a mistake, and exhausts the memory.
const MAX_BATCH: usize = 65_536;

/// A model directory that was checked, and the ranks.
pub(super) struct EvaluationSetup {
    pub(super) options: ModelOptions,
    pub(super) directory: PathBuf,
    adapter: Option<Adapter>,
    pub(super) launch: Launch,
    /// Threads of all ranks.
    pub(super) threads: usize,
    pub(super) info: ModelInfo,
    /// Tokens of a sequence.
    pub(super) length: usize,
    /// The evaluated file, for errors.
    pub(super) file: String,
    registry: Registry<'static>,
    head: TextHead,
}

impl EvaluationSetup {
    /// Check the options and a model with this head.
    pub(super) fn new(
        options: &ModelOptions,
        file: &Path,
        registry: Registry<'static>,
        head: TextHead,
    ) -> Result<EvaluationSetup> {
        check_options(options)?;
        let launch = ranks::launch(options.ranks, options.model_ranks())?;
        let threads = options.device.threads()?;
        let (model, adapter) = opened::adapted(&options.model, &options.source)?;
        let directory = opened::resolve(&model, options.source.revision.as_deref(), options.held.weights)?;
        let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
        let mut setup = EvaluationSetup {
            options: options.clone(),
            directory,
            adapter,
            launch,
            threads,
            info: ModelInfo::default(),
            length: 0,
            file: file.display().to_string(),
            registry,
            head,
        };
        let sketch = setup.open(&OpenOptions { mode: OpenMode::Check, ..setup.open_options(&nowhere) })?;
        ranks::check(setup.launch.world, options.model_ranks(), sketch.model.parameters())?;
        opened::remarks_of(&sketch).iter().for_each(|line| terminal::note(line));
        let info = sketch.model.info().clone();
        if info.generates_targets {
            let reason = "the model has an encoder and a decoder, and this is for models with one stack";
            return Err(Error::model(setup.place(), reason, "use a decoder, or for mlm an encoder"));
        }
        let most = info.max_length;
        setup.length = options.length.unwrap_or(most.min(DEFAULT_LENGTH));
        if setup.length == 0 || setup.length > most {
            let reason = format!("sequences of {} tokens, and the model has {most} positions", setup.length);
            return Err(Error::argument("--length", reason, format!("use a number from 1 to {most}")));
        }
        setup.info = info;
        Ok(setup)
    }

    fn place(&self) -> String {
        self.directory.display().to_string()
    }

    fn tokenizer_directory(&self) -> Result<&Path> {
        tokenizer_directory(self.adapter.as_ref(), &self.directory)
    }

    /// The tokenizer of the adapter or of the directory.
    pub(super) fn tokenizer(&self) -> Result<Arc<dyn Tokenizer>> {
        let tokenizer = AutoTokenizer::open(self.tokenizer_directory()?)?;
        tokenizer.require_rows(self.info.vocab_size)?;
        Ok(tokenizer)
    }

    /// The directory's tokenizer, if it has one.
    pub(super) fn tokenizer_if_any(&self) -> Result<Option<Arc<dyn Tokenizer>>> {
        AutoTokenizer::is_in(self.tokenizer_directory()?)?.then(|| self.tokenizer()).transpose()
    }

    /// Options to open the model with.
    pub(super) fn open_options(&self, device: &Device) -> OpenOptions {
        let options = &self.options;
        let open = OpenOptions { head: Some(self.head), weights: options.held.form(), ..OpenOptions::new(device) };
        options.device.open_options(&options.source, self.adapter.as_ref(), open)
    }

    /// The model.
    ///
    /// # Errors
    /// A model without a trained head of this kind.
    pub(super) fn open(&self, open: &OpenOptions) -> Result<OpenedModel> {
        let (what, other) = match self.head {
            TextHead::MaskedLm => ("masked tokens", "use an encoder with its masked-token head"),
            _ => ("the next token", "use a decoder with its language-modelling head"),
        };
        let opened = self.registry.open(&self.directory, open).map_err(|error| match error {
            Error::Argument { reason, .. } | Error::Recipe { reason, .. } => Error::model(self.place(), reason, other),
            error => with_flags(error),
        })?;
        match opened.initialized.first() {
            None => Ok(opened),
            Some(name) => {
                let reason = format!("the weights have no {name}, so the head for {what} is not trained");
                Err(Error::model(self.place(), reason, other))
            }
        }
    }
}

fn check_options(options: &ModelOptions) -> Result<()> {
    if options.batch == 0 || options.batch > MAX_BATCH {
        let reason = format!("{} sequences at a time", options.batch);
        return Err(Error::argument("--batch", reason, format!("use a number from 1 to {MAX_BATCH}")));
    }
    let shares = options.tensor > 1 || options.pipeline > 1;
    if options.held.are_as_stored() && (shares || options.device.dtype.is_some()) {
        let reason = "matrices in blocks are computed with in f32, and held by every rank";
        let fix = "leave --dtype, --tensor and --pipeline out, or choose --weights dequantised";
        return Err(Error::argument("--weights", reason, fix));
    }
    Ok(())
}

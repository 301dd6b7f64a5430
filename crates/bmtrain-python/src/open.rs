//! How a model is opened: from the arguments of `Model` to the library's options, on the model's own thread.

use crate::adapter::{AdapterArgument, Tuned};
use crate::error::argument;
use crate::session::Session;
use model_center::adapter::{Adapter, base_and_adapter};
use model_center::bmtrain_core::{DType, Device, DeviceChoice, DeviceRequest, cpu::Processors};
use model_center::bmtrain_dist::{
    block::Recompute,
    launch::{cpu_options, cuda_options},
    param::NamePatterns,
};
use model_center::config::ProblemType;
use model_center::formats::{ModelCaches, Pretrained, gguf::is_gguf};
use model_center::model::{HeadInit, OpenOptions, Registry, TextHead, WeightForm};
use model_center::recipe::adapter_of_settings;
use model_center::{Error, Result};
use pyo3::prelude::*;
use std::path::Path;

/// The most threads of a model.
const MAX_THREADS: usize = 1024;

/// The arguments of `Model`.
pub(crate) struct OpenArguments {
    pub(crate) path: String,
    pub(crate) revision: Option<String>,
    pub(crate) head: Option<Head>,
    pub(crate) labels: Vec<String>,
    pub(crate) dtype: Option<DType>,
    pub(crate) device: String,
    pub(crate) threads: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) recompute: bool,
    pub(crate) frozen: Vec<String>,
    pub(crate) only: Vec<String>,
    pub(crate) adapter: AdapterArgument,
}

/// Heads by name, as the command line has them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    Lm,
    Mlm,
    Nsp,
    Cls,
    Regression,
    Tokens,
    Qa,
    None,
}

impl Head {
    /// Every head with its name.
    const NAMES: [(&'static str, Head); 8] = [
        ("lm", Head::Lm),
        ("mlm", Head::Mlm),
        ("nsp", Head::Nsp),
        ("cls", Head::Cls),
        ("regression", Head::Regression),
        ("tokens", Head::Tokens),
        ("qa", Head::Qa),
        ("none", Head::None),
    ];

    pub(crate) fn named(name: &str) -> PyResult<Self> {
        let found = Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, head)| head);
        found.ok_or_else(|| {
            let known: Vec<&str> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            argument("head", format!("unknown head {name:?}"), &format!("give one of {}", known.join(", ")))
        })
    }
}

/// The dtype of parameters by its name.
pub(crate) fn dtype(name: &str) -> PyResult<DType> {
    let known = [DType::F32, DType::BF16, DType::F16];
    let found = known.into_iter().find(|dtype| dtype.name() == name);
    found.ok_or_else(|| argument("dtype", format!("unknown dtype {name:?}"), "give f32, bf16 or f16"))
}

/// A model that was opened, and what is to be known of its directory.
pub(crate) struct Opened {
    pub(crate) session: Session,
    pub(crate) notes: Vec<String>,
    pub(crate) initialized: Vec<String>,
}

/// Opens the model. On the thread that keeps it.
pub(crate) fn open(arguments: &OpenArguments) -> Result<Opened> {
    let threads = match arguments.threads {
        None => Processors::of_this_process().default_threads(),
        Some(count @ 1..=MAX_THREADS) => count,
        Some(count) => {
            let fix = format!("give a number from 1 to {MAX_THREADS}");
            return Err(Error::argument("threads", format!("{count} threads"), fix));
        }
    };
    let choice: DeviceChoice = arguments.device.parse().map_err(|_| {
        let reason = format!("unknown device {:?}", arguments.device);
        Error::argument("device", reason, "give cpu, auto, cuda, or cuda:0 for the first CUDA device")
    })?;
    let (model, adapter, weights) = adapted(arguments, choice)?;
    let file = Path::new(&model);
    let directory = match is_gguf(file) && arguments.revision.is_none() {
        true => file.to_owned(),
        false => Pretrained::resolve(&model, arguments.revision.as_deref(), &ModelCaches::default())?,
    };
    let request = DeviceRequest { local_rank: 0, local_size: 1, cpu: cpu_options(threads)?, cuda: cuda_options() };
    let backend = choice.open(&request)?;
    let device = Device::new(backend.backend);
    let options = OpenOptions { adapter: adapter.clone(), weights, ..options(arguments, &device)? };
    let opened = Registry::default().open(&directory, &options)?;
    let dtype = opened.model.parameters().declared().first().map_or(DType::F32, |param| param.spec().dtype);
    let notes = backend.note.into_iter().chain(opened.notes).collect();
    let revision = arguments.revision.clone();
    let of_plan = |(adapter, plan)| Tuned { adapter, plan, base_model: model.clone(), revision, weights };
    let tuned = adapter.zip(opened.adapter).map(of_plan);
    let session = Session::new(device, &directory, dtype, (opened.model, tuned));
    Ok(Opened { session, notes, initialized: opened.initialized })
}

/// The same head, weights and initial values as a recipe opens a model with for such labels.
fn options(arguments: &OpenArguments, device: &Device) -> Result<OpenOptions> {
    let outputs = arguments.labels.len();
    let head = match arguments.head {
        None if outputs == 0 => None,
        Some(Head::Cls) if outputs == 0 => None,
        None | Some(Head::Cls) => Some(TextHead::Classification { outputs }),
        Some(Head::Tokens) if outputs == 0 => None,
        Some(Head::Tokens) => Some(TextHead::TokenClassification { outputs }),
        Some(Head::Regression) => Some(TextHead::Classification { outputs: 1 }),
        Some(Head::Lm) => Some(TextHead::CausalLm),
        Some(Head::Mlm) => Some(TextHead::MaskedLm),
        Some(Head::Nsp) => Some(TextHead::NextSentence),
        Some(Head::Qa) => Some(TextHead::QuestionAnswering),
        Some(Head::None) => Some(TextHead::None),
    };
    let is_classifier = matches!(head, Some(TextHead::Classification { .. } | TextHead::TokenClassification { .. }));
    if outputs > 0 && (!is_classifier || arguments.head == Some(Head::Regression)) {
        return Err(Error::argument("labels", "this head has no classes", "leave them out, or give head=\"cls\""));
    }
    let problem = match (arguments.head, head) {
        (Some(Head::Regression), _) => Some(ProblemType::Regression),
        (_, Some(TextHead::Classification { .. })) => Some(ProblemType::SingleLabel),
        _ => None,
    };
    Ok(OpenOptions {
        head,
        // A language model keeps its head: a new one would destroy what was pretrained.
        head_values: match head {
            None | Some(TextHead::CausalLm) => HeadInit::Directory,
            _ => HeadInit::DirectoryOrRandom,
        },
        labels: arguments.labels.clone(),
        problem,
        dtype: arguments.dtype.unwrap_or(DType::F32),
        seed: arguments.seed,
        recompute: if arguments.recompute { Recompute::Checkpoint } else { Recompute::Keep },
        frozen: NamePatterns::new(&arguments.frozen),
        trained: (!arguments.only.is_empty()).then(|| NamePatterns::new(&arguments.only)),
        ..OpenOptions::new(device)
    })
}

/// The model to open, the adapter to open it with, and how its own weights are held.
fn adapted(arguments: &OpenArguments, device: DeviceChoice) -> Result<(String, Option<Adapter>, WeightForm)> {
    let (adapter, weights) = match &arguments.adapter {
        AdapterArgument::Settings(lines) => adapter_of_settings(lines, device)?,
        AdapterArgument::Directories(directories, factors) => {
            (Adapter::of_directories(directories, factors, "adapter_weights")?, WeightForm::default())
        }
    };
    let (model, adapter) = base_and_adapter(&arguments.path, adapter, "adapter=")?;
    let patterns = [("frozen", &arguments.frozen), ("only", &arguments.only)];
    if let (Some(_), Some((name, _))) = (&adapter, patterns.iter().find(|(_, patterns)| !patterns.is_empty())) {
        let reason = "a model with an adapter is frozen but for the adapter and what that trains";
        let fix = "leave it out, or name modules in the adapter's setting \"trained\"";
        return Err(Error::argument(*name, reason, fix));
    }
    Ok((model, adapter, weights))
}

//! Loads the weights of a directory into a model, and reads them from the model to write a directory.

use super::open_options::{HeadInit, OpenMode, OpenOptions, StageOptions, WeightForm};
use super::registry::{OpenedModel, param_shapes};
use crate::adapter::{AdapterPlan, TOKENS};
use crate::model::head::sentence_encoder::dense_layer::{self, DenseFile};
use crate::model::text_model::TextModel;
use bmtrain_core::Device;
use bmtrain_core::comm::Communicator;
use bmtrain_core::quantised::BlockFormat;
use bmtrain_core::wrap::Counting;
use bmtrain_dist::nn::LinearLayer;
use bmtrain_dist::param::{BuilderOptions, WholeReader, divided_block};
use bmtrain_dist::pipeline::{Partition, StageGroup};
use bmtrain_dist::{ControlGroup, Parameters};
use model_center_base::error::{Error, Result};
use model_center_formats::tokenizer::AutoTokenizer;
use model_center_formats::{
    Allow, BlockPlan, Fill, LoadPlan, NameTable, NotFinite, TensorSource, Weights, model_center, torchtitan,
};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// The names of a model's parameters in the files of each program that its family is read from.
#[derive(Debug, Clone)]
pub struct FileNames {
    /// In Hugging Face's.
    pub hugging_face: NameTable,
    /// In ModelCenter's, if it has the family.
    pub model_center: Option<NameTable>,
    /// In torchtitan's, if it has the family.
    pub torchtitan: Option<NameTable>,
    /// The modules of a sentence encoder whose values are in files of their own.
    pub(in crate::model) dense: Vec<DenseFile>,
}

impl FileNames {
    /// The names that the tensors of weights have.
    fn of(&self, weights: &Weights) -> Result<&NameTable> {
        let (found, whose, fix) = if model_center::is_model_center(weights) {
            let fix = "correct the family, or use a Hugging Face directory of the model";
            (self.model_center.as_ref(), "ModelCenter's", fix)
        } else if torchtitan::is_torchtitan(weights) {
            let fix = "correct the family, or write Hugging Face's files there (checkpoint.last_save_in_hf)";
            (self.torchtitan.as_ref(), "torchtitan's", fix)
        } else {
            (Some(&self.hugging_face), "", "")
        };
        found.ok_or_else(|| {
            let reason =
                format!("the weights have {whose} names, and a model like this is read under Hugging Face's alone");
            Error::model(weights.place(), reason, fix)
        })
    }
}

/// Builds a model and reads its values. All errors in the directory are found before memory for a parameter is
/// allocated: `build` is called once for a sketch that is compared with the weights, and once for the model. `tables`
/// are the family's names of parameters.
///
/// # Errors
/// A directory that does not fit the model: its configuration, names, shapes or dtypes; errors of `build`; out of
/// memory.
pub fn open_with<M: TextModel + 'static>(
    directory: &Path,
    options: &OpenOptions,
    tables: &FileNames,
    allow: &Allow,
    build: impl Fn(&Device, BuilderOptions) -> Result<M>,
) -> Result<OpenedModel> {
    open_boxed(directory, options, tables, allow, &|device, builder| Ok(Box::new(build(device, builder)?)))
}

/// Builds a model on a device.
type BuildModel<'a> = &'a dyn Fn(&Device, BuilderOptions) -> Result<Box<dyn TextModel>>;

/// [`open_with`] for all models, compiled once.
fn open_boxed(
    directory: &Path,
    options: &OpenOptions,
    tables: &FileNames,
    allow: &Allow,
    build: BuildModel<'_>,
) -> Result<OpenedModel> {
    if options.from_config {
        return from_config(options, &tables.hugging_face, build);
    }
    let weights = Weights::open(directory)?;
    // A sketch that allocates nothing has the same parameters; it is compared with the weights.
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let sketch = build(&nowhere, options.sketch_builder())?;
    if model_center::is_model_center(&weights) {
        model_center::check_vocab_size(&weights, sketch.info().vocab_size)?;
    }
    let names = tables.of(&weights)?;
    let adapter = adapter_plan(options, &*sketch, &tables.hugging_face)?;
    let mut allow = Allow { ignored: [&allow.ignored[..], &options.ignored].concat(), ..allow.clone() };
    let replaced: Vec<String> = adapter.iter().flat_map(AdapterPlan::replaced).map(str::to_owned).collect();
    allow.fresh.extend(replaced.iter().cloned());
    let mut shapes = param_shapes(sketch.parameters());
    shapes.retain(|shape| !dense_layer::is_dense(&shape.name));
    let plan = LoadPlan::build(names, &shapes, &weights, &allow)?;
    let dense = tables.dense.iter().map(|file| file.plan(directory)).collect::<Result<Vec<_>>>()?;
    let parameters = sketch.parameters().count();
    let blocks = blocks(&plan, &weights, options, &frozen_layers(sketch.parameters(), adapter.as_ref()))?;
    let notes: Vec<String> = blocks.iter().map(ToString::to_string).collect();
    let blocks = blocks.map(|blocks| blocks.formats).unwrap_or_default();
    let without_values = |model, plan: LoadPlan, adapter, notes| {
        let initialized = plan.fresh().iter().filter(|name| !replaced.contains(name)).cloned().collect();
        let (unused, blocks) = (plan.unused().to_vec(), blocks.clone());
        Ok(OpenedModel { model, initialized, unused, parameters, plan, adapter, blocks, notes })
    };
    if options.mode == OpenMode::Check {
        return without_values(sketch, plan, adapter, notes);
    }
    check_blocks(&blocks, sketch.parameters(), options.tensor.ranks.size())?;
    let stages = stages(options, sketch.parameters())?;
    let adapters = adapter.as_ref().map(|plan| Arc::new(plan.adapters()));
    let model =
        build(&options.device, BuilderOptions { blocks: blocks.clone(), stages, adapters, ..options.builder() })?;
    if options.mode == OpenMode::WithoutValues {
        return without_values(model, plan, adapter, notes);
    }
    let (mut found, mut found_in_blocks) = (Vec::new(), Vec::new());
    plan.load_noting(&weights, &mut found, |name, read| match model.parameters().get(name) {
        Some(param) if param.block_format().is_some() => plan.load_blocks(&weights, param, &mut found_in_blocks),
        Some(param) => param.load_part(read),
        None => Ok(()),
    })?;
    found.extend(found_in_blocks);
    dense_layer::load(&dense, model.parameters(), &mut found)?;
    NotFinite::refuse(&of_all_ranks(found, options)?)?;
    if let Some(text) = adapter.as_ref().and_then(AdapterPlan::first_text) {
        let mut table = Vec::new();
        plan.read(&weights, TOKENS, &mut table)?;
        adapter.iter().try_for_each(|plan| plan.begin_with(&text_ids(directory, text)?, &table, model.parameters()))?;
    }
    let initialized = initialize(&*model, adapter.as_ref(), &mut |name, values| {
        // Values that are not finite were refused when they were loaded.
        plan.read(&weights, name, values).map(drop)
    })?;
    let unused = plan.unused().to_vec();
    Ok(OpenedModel { model, initialized, unused, parameters, plan, adapter, blocks, notes })
}

/// The tokens of a text that virtual tokens begin with, with special tokens as around any text.
fn text_ids(directory: &Path, text: &str) -> Result<Vec<u32>> {
    let tokenizer = AutoTokenizer::open(directory)?;
    let (front, back) = tokenizer.template(false).around_first();
    let ids = tokenizer.tokenize(&[text])?.concat();
    Ok([front, ids, back].concat())
}

/// Load what the adapter's directory has, change the base model as it does, and initialize what is left; returns the
/// model's own initialized parameters. `base` reads the values of the base model.
fn initialize(model: &dyn TextModel, adapter: Option<&AdapterPlan>, base: Fill<'_>) -> Result<Vec<String>> {
    let parameters = model.parameters();
    adapter.map_or(Ok(()), |plan| plan.load(parameters, base))?;
    let is_own = |name: &String| parameters.get(name).is_none_or(|param| !param.spec().is_adapter);
    Ok(parameters.initialize_missing()?.into_iter().filter(is_own).collect())
}

/// The options' adapter of the model that a sketch is of.
fn adapter_plan(options: &OpenOptions, sketch: &dyn TextModel, names: &NameTable) -> Result<Option<AdapterPlan>> {
    let plan = |adapter| {
        AdapterPlan::new(adapter, sketch.parameters(), names, (options.head, sketch.info().generates_targets))
    };
    options.adapter.as_ref().map(plan).transpose()
}

/// The model without weights: initialized, or without values where only a sketch is asked for or none are needed.
fn from_config(options: &OpenOptions, names: &NameTable, build: BuildModel<'_>) -> Result<OpenedModel> {
    if options.weights != WeightForm::Dequantised {
        let reason = "weights are to be held in quantised blocks, and a model that begins without weights has none";
        return Err(Error::model("the model", reason, "give a directory with weights"));
    }
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let sketch = build(&nowhere, options.sketch_builder())?;
    let parameters = sketch.parameters().count();
    let plan = adapter_plan(options, &*sketch, names)?;
    let (adapters, of_opened) = (plan.as_ref().map(|plan| Arc::new(plan.adapters())), plan.clone());
    let opened = |model, initialized| OpenedModel {
        model,
        initialized,
        unused: Vec::new(),
        parameters,
        plan: LoadPlan::default(),
        adapter: of_opened.clone(),
        blocks: HashMap::new(),
        notes: Vec::new(),
    };
    if options.mode == OpenMode::Check {
        return Ok(opened(sketch, Vec::new()));
    }
    let stages = stages(options, sketch.parameters())?;
    let model = build(&options.device, BuilderOptions { stages, adapters, ..options.builder() })?;
    let initialized = if options.mode == OpenMode::WithoutValues {
        Vec::new()
    } else {
        initialize(&*model, plan.as_ref(), &mut |name, _| {
            let reason =
                "the adapter changes values of the base model, and a model that begins without weights has none";
            Err(Error::model(format!("parameter {name}"), reason, "give a directory with weights"))
        })?
    };
    Ok(opened(model, initialized))
}

/// Part of the model on each pipeline stage, by the parameters of its sketch.
fn stages(options: &OpenOptions, sketch: &Parameters) -> Result<StageGroup> {
    let Some(StageOptions { ranks, schedule, partition }) = &options.stages else { return Ok(StageGroup::default()) };
    let partition = Partition::of_model(partition, sketch, schedule.places())?;
    Ok(StageGroup::new(Arc::clone(ranks), partition, schedule)?)
}

/// Our names of the weights of linear layers of blocks that an adapter leaves frozen and as they are.
fn frozen_layers(sketch: &Parameters, adapter: Option<&AdapterPlan>) -> HashSet<String> {
    let is_own =
        |name: &String| adapter.is_some_and(|plan| plan.trained().chain(plan.changed()).any(|changed| changed == name));
    let layers = sketch.linear_layers().iter().filter(|layer| layer.is_in_block);
    layers.map(LinearLayer::weight).filter(|name| !is_own(name)).collect()
}

/// The matrices that are held in blocks, if that is asked for; `layers` are the linear layers that may be.
fn blocks(
    plan: &LoadPlan,
    weights: &Weights,
    options: &OpenOptions,
    layers: &HashSet<String>,
) -> Result<Option<BlockPlan>> {
    let wrong = |reason: String, fix: &str| Err(Error::model(weights.place(), reason, fix));
    if options.weights != WeightForm::Dequantised && !options.device.backend().memory_is_host() {
        let fix = "use the CPU (device.name = \"cpu\", or --device cpu), or weights that are not quantised";
        return wrong("products with quantised blocks are computed on the CPU alone".to_owned(), fix);
    }
    let blocks = match options.weights {
        WeightForm::Dequantised => return Ok(None),
        WeightForm::AsStored => plan.blocks(weights, None),
        WeightForm::LayersAsStored => plan.blocks(weights, Some(layers)),
        WeightForm::Nf4 => plan.quantised(layers),
    };
    if !blocks.formats.is_empty() {
        return Ok(Some(blocks));
    }
    if blocks.is_quantised {
        let why = match blocks.dequantised.first() {
            Some((name, reason)) => format!("{name} has {reason}"),
            None => "there is no linear layer of a block that is not trained as a whole".to_owned(),
        };
        let reason = format!("weights are to be quantised to NF4, and none can be: {why}");
        return wrong(reason, "open it with weights that are not quantised");
    }
    let why = match blocks.dequantised.first() {
        Some((name, reason)) => format!("no matrix can stay in its blocks: {name} has {reason}"),
        None => "no matrix is stored in quantised blocks".to_owned(),
    };
    let fix =
        "give a GGUF file with matrices in blocks (Q4_0 to Q8_0, Q4_K to Q6_K), or open it with dequantised weights";
    wrong(format!("weights are to be held as stored, and {why}"), fix)
}

/// Whether this number of tensor-parallel ranks gets whole blocks of the matrices that are held in blocks.
fn check_blocks(blocks: &HashMap<String, BlockFormat>, parameters: &Parameters, ranks: usize) -> Result<()> {
    for param in parameters.declared().iter().filter(|_| ranks > 1) {
        let Some(format) = blocks.get(param.name()) else { continue };
        for rank in 0..ranks {
            let local = param.spec().split.local(param.name(), param.spec().shape, ranks, rank)?;
            let Some(column) = divided_block(&local, format.elements()) else { continue };
            let (name, elements) = (param.name(), format.elements());
            let reason = format!(
                "{ranks} tensor-parallel ranks divide the rows of {name} at column {column}, inside a {format} block \
                 of {elements} values"
            );
            let fix =
                "use fewer tensor-parallel ranks, or weights that are not in blocks (adapter.quantize = \"none\")";
            return Err(Error::argument(TENSOR_RANKS, reason, fix));
        }
    }
    Ok(())
}

/// The place of an error in the number of tensor-parallel ranks.
pub const TENSOR_RANKS: &str = "parallel.tensor";

impl OpenedModel {
    /// Whether this number of tensor-parallel ranks gets whole blocks of the matrices that are held in blocks.
    ///
    /// # Errors
    /// [`Error::Argument`] with the first matrix whose blocks would be divided.
    pub fn check_tensor_ranks(&self, ranks: usize) -> Result<()> {
        check_blocks(&self.blocks, self.model.parameters(), ranks)
    }
}

/// Values found by any rank. Ranks that share parameters read shards of them, and all must return the same: a rank
/// without the error would deadlock waiting for the others.
fn of_all_ranks(found: Vec<NotFinite>, options: &OpenOptions) -> Result<Vec<NotFinite>> {
    // Over all groups these are all ranks that hold parts of the model.
    let groups = [&options.sharding.ranks, &options.tensor.ranks];
    let groups = groups.into_iter().chain(options.stages.as_ref().map(|stages| &stages.ranks));
    groups.filter(|ranks| ranks.size() > 1).try_fold(found, |found, ranks| of_group(found, ranks, &options.device))
}

fn of_group(found: Vec<NotFinite>, ranks: &Arc<dyn Communicator>, device: &Device) -> Result<Vec<NotFinite>> {
    let internal = |error: serde_json::Error| Error::model("weights", error.to_string(), "report this");
    let own = if found.is_empty() { String::new() } else { serde_json::to_string(&found).map_err(internal)? };
    let mut all: Vec<NotFinite> = Vec::new();
    for text in ControlGroup::new(Arc::clone(ranks), device).gather_texts(&own)? {
        let of_rank: Vec<NotFinite> =
            if text.is_empty() { Vec::new() } else { serde_json::from_str(&text).map_err(internal)? };
        all.extend(of_rank);
    }
    all.sort_by(|a, b| a.tensor.cmp(&b.tensor));
    all.dedup();
    Ok(all)
}

/// Tensors that a directory may lack or have in excess: `own` names the head's parameters, `unused` tensors of other
/// heads.
pub fn allow(values: HeadInit, own: &[&str], unused: &[&str]) -> Allow {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    let (missing, fresh): (&[&str], &[&str]) = match values {
        HeadInit::Directory => (&[], &[]),
        HeadInit::DirectoryOrRandom => (own, &[]),
        HeadInit::Random => (&[], own),
    };
    Allow { missing: texts(missing), unused: texts(unused), fresh: texts(fresh), ..Allow::default() }
}

/// Reads the values of parameters from the model that holds them, one in memory at a time, whichever pipeline stages
/// hold them.
///
/// # Errors
/// One of several stages that holds no parameter.
pub fn from_parameters(parameters: &Parameters) -> Result<impl FnMut(&str, &mut Vec<f32>) -> Result<()>> {
    let mut reader = WholeReader::of(parameters)?;
    Ok(move |name: &str, values: &mut Vec<f32>| {
        if let Some(param) = parameters.find_declared(name) {
            // Release the previous parameter's values first: two large parameters may follow each other.
            *values = Vec::new();
            *values = reader.read(param)?;
        }
        Ok(())
    })
}

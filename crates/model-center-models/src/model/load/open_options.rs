//! Options for opening a model directory.

use crate::Result;
use crate::adapter::Adapter;
use bmtrain_core::comm::Communicator;
use bmtrain_core::ops::ProductPrecision;
use bmtrain_core::{DType, Device};
use bmtrain_dist::block::{InputStore, Recompute};
use bmtrain_dist::param::{BuilderOptions, F32Parameters, InitMode, NamePatterns, TensorGroup};
use bmtrain_dist::pipeline::{PartitionRule, Schedule};
use bmtrain_dist::shard::Sharding;
use bmtrain_dist::{Mesh, RankGroups};
use model_center_formats::config::{
    ConfigSource, Fields, ProblemType, TextHead, directory_fields, model_center::is_model_center,
};
use std::path::Path;
use std::sync::Arc;

/// Where the weights of a head come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeadInit {
    /// From the directory, which must have them.
    #[default]
    Directory,
    /// From the directory if it has them; else initialized.
    DirectoryOrRandom,
    /// Initialized, whatever the directory has.
    Random,
}

/// How the weights of a file are held in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightForm {
    /// As numbers of the model's dtype; quantised blocks are dequantised while they are read.
    #[default]
    Dequantised,
    /// Matrices that the file stores in quantised blocks stay in them; products dequantise them on the way. They are
    /// frozen, and each data-parallel rank holds all of them. Others are held as with [`WeightForm::Dequantised`].
    AsStored,
    /// As [`WeightForm::AsStored`], the linear layers of blocks alone: embeddings and heads have values, which losses
    /// are computed from. For training beside a frozen model.
    LayersAsStored,
    /// The linear layers of blocks are quantised to NF4 ([`Nf4`](bmtrain_core::quantised::Nf4)) while they are read,
    /// and held as with [`WeightForm::LayersAsStored`]: QLoRA.
    Nf4,
}

/// How far a model is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenMode {
    /// The model with its values.
    #[default]
    Load,
    /// The final model on the device, with the headers of the weights read alone: for devices that only count memory.
    WithoutValues,
    /// Configuration and weights are compared, and nothing is loaded: the returned model is a sketch, which takes no
    /// memory.
    Check,
}

/// The pipeline stages that a model is opened on.
#[derive(Debug, Clone)]
pub struct StageOptions {
    /// One rank of each stage, among them this one.
    pub ranks: Arc<dyn Communicator>,
    /// The schedule that a step follows: it places the chunks of the model on the stages.
    pub schedule: Schedule,
    /// How the blocks are divided among the chunks.
    pub partition: PartitionRule,
}

/// Options for opening a model.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The device of its parameters.
    pub device: Device,
    /// Its family, for a directory whose `config.json` does not name one, as in ModelCenter's layout.
    pub family: Option<String>,
    /// Its head; `None` for the head of the directory's class.
    pub head: Option<TextHead>,
    /// The source of the head's weights.
    pub head_values: HeadInit,
    /// Whether a model without head has the modules `Dense` of a directory of sentence-transformers as parameters, see
    /// [`TextModel::sentence_embedding`](crate::model::TextModel::sentence_embedding).
    pub sentence_modules: bool,
    /// Patterns of tensors to ignore, in addition to tensors of other heads; `*` matches any text. Each must match a
    /// tensor, and none may match a tensor that the model needs.
    pub ignored: Vec<String>,
    /// Names of the classes in the order of the data; empty if they have none, or to take the names from the directory.
    /// If a directory's classifier names its classes, these must be the same names; its order is kept.
    pub labels: Vec<String>,
    /// The problem type; `None` for the configuration's.
    pub problem: Option<ProblemType>,
    /// Dtype of the parameters.
    pub dtype: DType,
    /// The parameters that are f32 where [`OpenOptions::dtype`] is a 16-bit one.
    pub f32_parameters: F32Parameters,
    /// Use the [dtype of the stored weights](model_center_formats::Weights::dtype) instead, if the family computes in
    /// it. A family whose hidden states overflow f16 uses f32 in its place.
    pub keep_dtype: bool,
    /// Whether matrices are held in quantised blocks.
    pub weights: WeightForm,
    /// Seed of the initialization.
    pub seed: u64,
    /// Store or recompute the blocks' activations.
    pub recompute: Recompute,
    /// Where the inputs of recomputed blocks are kept; the pieces of one tensor-parallel rank are the whole.
    pub recompute_inputs: InputStore,
    /// Precision of block matrix multiplications, see
    /// [`BuilderOptions::products`](bmtrain_dist::param::BuilderOptions::products).
    pub products: ProductPrecision,
    /// Values at rest are in the host's memory, see
    /// [`BuilderOptions::offload_parameters`](bmtrain_dist::param::BuilderOptions::offload_parameters).
    pub offload_parameters: bool,
    /// Dropout probability of hidden states, to override the model's.
    pub hidden_dropout: Option<f32>,
    /// Dropout probability of attention, to override the model's.
    pub attention_dropout: Option<f32>,
    /// Dtype of the gradients, in which they are also reduced across ranks.
    pub grad_dtype: DType,
    /// This rank's position among all ranks.
    pub mesh: Mesh,
    /// The tensor-parallel ranks of this rank's group.
    pub tensor: TensorGroup,
    /// The pipeline stages, one of them this rank's; `None` for the whole model.
    pub stages: Option<StageOptions>,
    /// Sharding of its parameters across data-parallel ranks, which are those with the same stage and tensor rank.
    pub sharding: Sharding,
    /// Full names of frozen parameters.
    pub frozen: NamePatterns,
    /// Full names of the only parameters that are trained, but for those frozen; `None` for all.
    pub trained: Option<NamePatterns>,
    /// Adapter trained beside the model, which is frozen.
    pub adapter: Option<Adapter>,
    /// How far the model is opened.
    pub mode: OpenMode,
    /// Build the model of `config.json` alone, with initialized values: weights are neither needed nor read.
    pub from_config: bool,
    /// The configuration of a model that is opened with [`OpenOptions::from_config`], instead of the directory's.
    pub config: Option<Arc<ConfigSource>>,
}

impl OpenOptions {
    /// The defaults for a device: the model as the directory states it.
    pub fn new(device: &Device) -> Self {
        OpenOptions {
            device: device.clone(),
            family: None,
            head: None,
            head_values: HeadInit::Directory,
            sentence_modules: false,
            ignored: Vec::new(),
            labels: Vec::new(),
            problem: None,
            dtype: DType::F32,
            f32_parameters: F32Parameters::default(),
            keep_dtype: false,
            weights: WeightForm::Dequantised,
            seed: 0,
            recompute: Recompute::Keep,
            recompute_inputs: InputStore::Device,
            products: ProductPrecision::Full,
            offload_parameters: false,
            hidden_dropout: None,
            attention_dropout: None,
            grad_dtype: DType::F32,
            mesh: Mesh::SOLO,
            tensor: TensorGroup::default(),
            stages: None,
            sharding: Sharding::solo(),
            frozen: NamePatterns::default(),
            trained: None,
            adapter: None,
            mode: OpenMode::Load,
            from_config: false,
            config: None,
        }
    }

    /// The fields of the configuration: the given one's, or the directory's.
    ///
    /// # Errors
    /// A directory whose `config.json` cannot be read.
    pub(crate) fn fields(&self, directory: &Path) -> Result<Fields> {
        self.config.as_ref().map_or_else(|| directory_fields(directory), |config| Ok(config.fields()))
    }

    /// Whether the configuration is ModelCenter's, which names no class.
    pub(in crate::model) fn is_named_by_model_center(&self, directory: &Path) -> Result<bool> {
        Ok(is_model_center(&self.fields(directory)?))
    }

    /// On a rank of these groups, tensor-parallel as they are and over their pipeline stages, if there are
    /// [`OpenOptions::stages`]; [`OpenOptions::sharding`] is to be over their data-parallel ranks.
    #[must_use]
    pub fn on_groups(self, groups: &RankGroups) -> Self {
        let tensor = TensorGroup { ranks: Arc::clone(groups.tensor()), ..self.tensor };
        let stages = self.stages.map(|stages| StageOptions { ranks: Arc::clone(groups.pipe()), ..stages });
        OpenOptions { mesh: groups.mesh(), tensor, stages, ..self }
    }

    /// Options of the model's parameters: deferred initialization, or none in [`OpenMode::WithoutValues`].
    pub fn builder(&self) -> BuilderOptions {
        let init = if self.mode == OpenMode::WithoutValues { InitMode::Uninitialized } else { InitMode::Deferred };
        let (mesh, tensor, sharding) = (self.mesh, self.tensor.clone(), self.sharding.clone());
        let offload_parameters = self.offload_parameters;
        BuilderOptions { init, mesh, tensor, sharding, offload_parameters, ..self.sketch_builder() }
    }

    /// Options of its sketch, which takes no memory and is compared with the weights: replicated, on one rank.
    pub fn sketch_builder(&self) -> BuilderOptions {
        let (frozen, trained) = (self.frozen.clone(), self.trained.clone());
        BuilderOptions {
            seed: self.seed,
            dtype: self.dtype,
            grad_dtype: self.grad_dtype,
            f32_parameters: self.f32_parameters,
            products: self.products,
            init: InitMode::Deferred,
            frozen,
            trained,
            ..BuilderOptions::default()
        }
    }
}

//! Options of a [`Builder`](super::Builder): tensor-parallel ranks, dtypes, sharding, initial values.

use super::{F32Parameters, FusionTable, NamePatterns};
use crate::mesh::Mesh;
use crate::param::Adapters;
use crate::shard::Sharding;
use crate::stages::StageGroup;
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::ops::ProductPrecision;
use bmtrain_core::{BlockFormat, DType};
use std::collections::HashMap;
use std::sync::Arc;

/// Initialization of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitMode {
    /// Random initialization at declaration, as [`Init`](super::Init) specifies.
    Random,
    /// Later, by a loader; [`Parameters::initialize_missing`](super::Parameters::initialize_missing) initializes what
    /// it does not load.
    Deferred,
    /// Never: the content of the memory is taken as it is, for a backend that computes nothing.
    Uninitialized,
}

/// The ranks that share one copy of every layer's weights.
#[derive(Debug, Clone)]
pub struct TensorGroup {
    /// The ranks; their number is the mesh's number of tensor ranks.
    pub ranks: Arc<dyn Communicator>,
    /// Multiple of tokens to which each rank's vocabulary is padded.
    pub vocabulary_multiple: usize,
    /// Whether the vocabulary of one rank is padded too, for a device that gains by it
    /// ([`Backend::aligns_products`](bmtrain_core::Backend::aligns_products)); over several ranks it always is. Padding
    /// rows are zeros without gradients, and no file has them. Optimizers of whole matrices refuse them.
    pub pads_one_rank: bool,
    /// Sequence sharding: between the parallel layers each rank has some of the tokens only, so that norms, dropout and
    /// residuals run on them and activations take that much less memory. Results differ by the order of sums alone. The
    /// models of `model-center` recompute all blocks with [`Recompute::Auto`](crate::block::Recompute::Auto).
    pub sequence: bool,
}

impl Default for TensorGroup {
    /// One rank; 128 as Megatron-LM has it, so that products over the vocabulary are of aligned sizes; no sequence
    /// sharding.
    fn default() -> Self {
        TensorGroup { ranks: Arc::new(Solo), vocabulary_multiple: 128, pads_one_rank: false, sequence: false }
    }
}

/// Options of a model's parameters.
#[derive(Debug, Clone)]
pub struct BuilderOptions {
    /// This rank's position.
    pub mesh: Mesh,
    /// The tensor-parallel ranks of this rank's group.
    pub tensor: TensorGroup,
    /// The pipeline stages, and what this rank's stage holds.
    pub stages: StageGroup,
    /// Seed of the initial values.
    pub seed: u64,
    /// Dtype of the parameters, and of hidden states.
    pub dtype: DType,
    /// Dtype of their gradients.
    pub grad_dtype: DType,
    /// The parameters that are f32, as are their gradients, where the others have 16 bits.
    pub f32_parameters: F32Parameters,
    /// Initialization of parameters.
    pub init: InitMode,
    /// Sharding over data-parallel ranks.
    pub sharding: Sharding,
    /// Full names of parameters that are frozen from the start: they have storages of their own, without memory for
    /// gradients or optimizer state.
    pub frozen: NamePatterns,
    /// Full names of the only parameters that are trained, but for those frozen; `None` for all.
    pub trained: Option<NamePatterns>,
    /// Trained parameters where the model is frozen: low-rank updates and learned factors of linear layers, and
    /// parameters by name. `None` trains all parameters that are not frozen.
    pub adapters: Option<Arc<Adapters>>,
    /// Full names of matrices that are held in quantised blocks, with the format of the blocks. They are frozen, each
    /// data-parallel rank holds all of them, and their values are set by
    /// [`Param::load_blocks`](super::Param::load_blocks). Tensor-parallel ranks split them at whole blocks.
    pub blocks: HashMap<String, BlockFormat>,
    /// The tensors of the original model that parameters have in one. Optimizers that see whole tensors
    /// ([`WholeRule`](crate::optim::WholeRule)) see these.
    pub fusion: FusionTable,
    /// Precision of matrix multiplications with the weights of blocks, where inputs and outputs of a layer are
    /// multiples of 16 on this rank. Weights, gradients and optimizer state are what they are otherwise.
    pub products: ProductPrecision,
    /// Values at rest are in the host's memory: a block's come to the device with its gather, and are released with it.
    /// They take ZeRO-3, on one rank too, and an [`AdamOffload`](crate::optim::AdamOffload), which updates them where
    /// they are. On the CPU the device's memory is the host's, and nothing moves.
    pub offload_parameters: bool,
}

impl Default for BuilderOptions {
    fn default() -> Self {
        BuilderOptions {
            mesh: Mesh::SOLO,
            tensor: TensorGroup::default(),
            stages: StageGroup::default(),
            seed: 0,
            dtype: DType::F32,
            grad_dtype: DType::F32,
            f32_parameters: F32Parameters::default(),
            init: InitMode::Random,
            sharding: Sharding::solo(),
            frozen: NamePatterns::default(),
            trained: None,
            adapters: None,
            blocks: HashMap::new(),
            fusion: FusionTable::default(),
            products: ProductPrecision::Full,
            offload_parameters: false,
        }
    }
}

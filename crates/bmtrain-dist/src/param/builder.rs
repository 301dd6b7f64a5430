//! The declaration of parameters: names from a path, storages per block, values initialized or left to a loader.

use super::blocks::BlockValues;
use super::census::Census;
use super::deferred::DeferredValue;
use super::flat::{FlatRanks, Siblings};
use super::{BuilderOptions, Flat, Init, InitMode, Param, ParamSpec, Parameters, Split, StorageSlot};
use crate::error::{Error, Result};
use crate::param::LinearLayer;
use crate::shard::{Sharding, ZeroLevel};
use crate::stages::ModelPart;
use bmtrain_core::comm::Communicator;
use bmtrain_core::ops::ProductPrecision;
use bmtrain_core::{DType, Device, Shape};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Debug)]
struct BuilderState {
    device: Device,
    options: BuilderOptions,
    names: RefCell<HashSet<String>>,
    /// Parameters of all pipeline stages.
    declared: RefCell<Vec<Param>>,
    /// Parameters of this rank's stage.
    params: RefCell<Vec<Param>>,
    linears: RefCell<Vec<LinearLayer>>,
    deferred: RefCell<Vec<DeferredValue>>,
    flats: RefCell<Vec<Rc<Flat>>>,
    siblings: Siblings,
    /// Parameters of the block that is being built.
    open: RefCell<Option<Vec<Param>>>,
    /// Number of blocks so far.
    blocks: Cell<usize>,
    census: Rc<Census>,
    asked: Rc<Cell<u64>>,
    updates_left_out: Rc<Cell<bool>>,
}

/// A place in the tree of parameter names. Cheap to clone; all clones feed the same [`Parameters`].
#[derive(Debug, Clone)]
pub struct Builder {
    state: Rc<BuilderState>,
    path: String,
    frozen: bool,
    /// Whether parameters are an adapter's, which is trained where the model is frozen.
    is_adapter: bool,
    is_table: bool,
    /// Whether parameters are used on sharded tokens.
    on_tokens: bool,
    /// Whether parameters are f32, whatever the options' dtype is.
    in_f32: bool,
    part: ModelPart,
    /// In place of the level of the options.
    level: Option<ZeroLevel>,
}

impl Builder {
    /// The root of a model's names.
    pub fn new(device: &Device, options: BuilderOptions) -> Self {
        let state = BuilderState {
            device: device.clone(),
            options,
            names: RefCell::default(),
            declared: RefCell::default(),
            params: RefCell::default(),
            linears: RefCell::default(),
            deferred: RefCell::default(),
            flats: RefCell::default(),
            siblings: Siblings::default(),
            open: RefCell::default(),
            blocks: Cell::new(0),
            census: Rc::default(),
            asked: Rc::default(),
            updates_left_out: Rc::default(),
        };
        let (state, part) = (Rc::new(state), ModelPart::Embed);
        Builder {
            state,
            path: String::new(),
            frozen: false,
            is_adapter: false,
            is_table: false,
            on_tokens: false,
            in_f32: false,
            part,
            level: None,
        }
    }

    /// The device of the parameters.
    pub fn device(&self) -> &Device {
        &self.state.device
    }

    /// The options given to [`Builder::new`].
    pub fn options(&self) -> &BuilderOptions {
        &self.state.options
    }

    /// The tensor-parallel ranks, if there are several.
    pub fn tensor_ranks(&self) -> Option<&Arc<dyn Communicator>> {
        Some(&self.state.options.tensor.ranks).filter(|ranks| ranks.size() > 1)
    }

    /// The tensor-parallel ranks, if there are several and they [shard tokens](super::TensorGroup::sequence).
    pub fn token_ranks(&self) -> Option<&Arc<dyn Communicator>> {
        self.tensor_ranks().filter(|_| self.state.options.tensor.sequence)
    }

    /// Split of an axis of token ids over the tensor-parallel ranks.
    pub fn vocabulary_split(&self, axis: usize) -> Split {
        let BuilderOptions { tensor, blocks, .. } = &self.state.options;
        // Quantised blocks are whole rows of a file.
        let pads = tensor.ranks.size() > 1 || (tensor.pads_one_rank && blocks.is_empty());
        Split::Vocabulary { axis, multiple: if pads { tensor.vocabulary_multiple } else { 1 } }
    }

    /// One name deeper.
    pub fn at(&self, name: &str) -> Builder {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Builder { path, ..self.clone() }
    }

    /// This place, below which parameters are frozen from the start, in addition to [`BuilderOptions::frozen`].
    pub fn frozen(&self) -> Builder {
        Builder { frozen: true, ..self.clone() }
    }

    /// The full name of this place.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// This place, below which parameters are an adapter's: they are trained whatever is frozen.
    pub fn adapter(&self) -> Builder {
        Builder { is_adapter: true, ..self.clone() }
    }

    /// This place, below which parameters are tables whose rows are looked up by number.
    #[must_use]
    pub fn tables(&self) -> Self {
        Builder { is_table: true, ..self.clone() }
    }

    /// Note a layer for [`Parameters::linear_layers`].
    /// What the factors of products with a weight are rounded to ([`BuilderOptions::products`]).
    pub(crate) fn products_with(&self, weight: &Param) -> ProductPrecision {
        /// Unit of tensor cores of 8 bits.
        const UNIT: usize = 16;
        let is_in_block = self.state.open.borrow().is_some();
        let fits = weight.local_shape().dims().iter().all(|length| length.is_multiple_of(UNIT));
        if is_in_block && fits { self.state.options.products } else { ProductPrecision::Full }
    }

    pub(crate) fn note_linear(&self, layer: LinearLayer) {
        let is_in_block = self.state.open.borrow().is_some();
        self.state.linears.borrow_mut().push(LinearLayer { is_in_block, ..layer });
    }

    /// Note a parameter whose initial value is computed from others, after these have theirs.
    pub(crate) fn note_deferred(&self, param: &Param, initialize: Rc<dyn Fn() -> Result<()>>) -> Result<()> {
        let deferred = DeferredValue { name: param.name().to_owned(), initialize };
        self.state.deferred.borrow_mut().push(deferred.clone());
        let is_in_block = self.state.open.borrow().is_some();
        if is_in_block { Ok(()) } else { self.initialize_deferred(&[deferred]) }
    }

    /// Initialize what depends on weights that are initialized when they are declared.
    fn initialize_deferred(&self, deferred: &[DeferredValue]) -> Result<()> {
        match self.state.options.init {
            InitMode::Random => deferred.iter().try_for_each(DeferredValue::initialize),
            InitMode::Deferred | InitMode::Uninitialized => Ok(()),
        }
    }

    /// Whether a parameter of this full name is trained from the start.
    fn trains(&self, name: &str) -> bool {
        let BuilderOptions { frozen, trained, adapters, .. } = &self.state.options;
        let is_left_out = trained.as_ref().is_some_and(|trained| !trained.matches(name));
        let is_frozen = self.frozen || is_left_out || frozen.matches(name);
        let adapters = adapters.as_ref();
        self.is_adapter || (!is_frozen && adapters.is_none_or(|adapters| adapters.trained.matches(name)))
    }

    /// This place, below which parameters are used where tokens are sharded, if they are: each rank computes a term of
    /// the gradient of a replicated one ([`Split::ReplicatedTerms`]).
    pub fn on_token_shards(&self) -> Builder {
        Builder { on_tokens: self.token_ranks().is_some(), ..self.clone() }
    }

    /// This place, below which parameters are f32 if `is_f32`, whatever [`BuilderOptions::dtype`] is.
    pub fn in_f32(&self, is_f32: bool) -> Builder {
        Builder { in_f32: self.in_f32 || is_f32, ..self.clone() }
    }

    /// This place, below which parameters outside of blocks are used in this part of the model: where they are when it
    /// is divided into pipeline stages. Without a call it is [`ModelPart::Embed`].
    pub fn part(&self, part: ModelPart) -> Builder {
        Builder { part, ..self.clone() }
    }

    /// This place, below which blocks have this ZeRO level; `None` changes nothing.
    pub(crate) fn with_level(&self, level: Option<ZeroLevel>) -> Builder {
        Builder { level: level.or(self.level), ..self.clone() }
    }

    /// A place in a list.
    pub fn index(&self, index: usize) -> Builder {
        self.at(&index.to_string())
    }

    /// Declare a parameter of this global shape. `decay` is whether weight decay applies by default.
    pub fn param(&self, name: &str, shape: impl Into<Shape>, init: Init, split: Split, decay: bool) -> Result<Param> {
        let BuilderOptions { mesh, dtype, .. } = self.state.options;
        let (name, shape) = (self.at(name).path, shape.into());
        if !self.state.names.borrow_mut().insert(name.clone()) {
            return Err(Error::parameter(name, "declared twice"));
        }
        let ranks = &self.state.options.tensor.ranks;
        if (ranks.size(), ranks.rank()) != (mesh.tensor_size(), mesh.tensor_rank()) {
            let (rank, size) = (mesh.tensor_rank(), mesh.tensor_size());
            let got = format!("the tensor group has rank {} of {}", ranks.rank(), ranks.size());
            return Err(Error::setting("mesh", format!("it has tensor rank {rank} of {size}, {got}")));
        }
        let split = if self.on_tokens && split == Split::Replicated { Split::ReplicatedTerms } else { split };
        let stages = &self.state.options.stages;
        if (stages.stages(), stages.ranks().rank()) != (mesh.pipeline_size(), mesh.stage()) {
            let (stage, size) = (mesh.stage(), mesh.pipeline_size());
            let got = format!("the stage group has stage {} of {}", stages.ranks().rank(), stages.stages());
            return Err(Error::setting("mesh", format!("it has pipeline stage {stage} of {size}, {got}")));
        }
        let local = split.local(&name, shape, mesh.tensor_size(), mesh.tensor_rank())?;
        let part = match &*self.state.open.borrow() {
            Some(_) => ModelPart::Block(self.state.blocks.get()),
            None => self.part,
        };
        if part == ModelPart::Tied && stages.ends().is_some() && self.state.options.sharding.reduces_each_batch() {
            let reason = "is on the first and on the last pipeline stage, which add its gradients once a step, and \
                          ZeRO-2, ZeRO-3 and elastic sums reduce gradients with every micro-batch: use ZeRO-0 or \
                          ZeRO-1 with fast sums, or untied embeddings";
            return Err(Error::parameter(name, reason));
        }
        let stage = (!stages.holds(part)).then(|| (stages.stage_of(part), mesh.stage()));
        let format = self.state.options.blocks.get(&name).copied();
        let trainable = format.is_none() && self.trains(&name);
        let dtype = if self.in_f32 { DType::F32 } else { dtype };
        let fusion = self.state.options.fusion.of(&name, &shape)?;
        let (is_adapter, is_table) = (self.is_adapter, self.is_table);
        let spec = ParamSpec { name, shape, dtype, init, split, fusion, trainable, decay, is_adapter, is_table };
        if stage.is_some() {
            let param = Param::new(spec, local, part, stage, None, &self.state.asked);
            self.state.declared.borrow_mut().push(param.clone());
            return Ok(param);
        }
        if let Some(format) = format {
            let blocks = BlockValues::new(&self.state.device, &spec, &local, format)?;
            let param = Param::new(spec, local, part, None, Some(blocks), &self.state.asked);
            if self.state.options.init == InitMode::Uninitialized {
                param.inner.initialized.set(true);
            }
            self.state.declared.borrow_mut().push(param.clone());
            self.state.params.borrow_mut().push(param.clone());
            return Ok(param);
        }
        let param = Param::new(spec, local, part, None, None, &self.state.asked);
        self.state.declared.borrow_mut().push(param.clone());
        let mut open = self.state.open.borrow_mut();
        match &mut *open {
            Some(block) => block.push(param.clone()),
            None => self.settle(std::slice::from_ref(&param), None)?,
        }
        Ok(param)
    }

    /// Build a block: parameters declared inside share one storage per dtype and group, and frozen ones have another.
    pub fn block<B>(&self, build: impl FnOnce(&Builder) -> Result<B>) -> Result<B> {
        if self.state.open.borrow_mut().replace(Vec::new()).is_some() {
            return Err(Error::parameter(self.path.clone(), "a block inside a block"));
        }
        let before = self.state.deferred.borrow().len();
        let built = build(self);
        let members = self.state.open.borrow_mut().take().unwrap_or_default();
        let built = built?;
        let number = self.state.blocks.replace(self.state.blocks.get() + 1);
        self.settle(&members, Some(number))?;
        self.initialize_deferred(&self.state.deferred.borrow()[before..])?;
        Ok(built)
    }

    /// Allocate the storages of parameters; `block` is the number of their block, if they are inside one.
    fn settle(&self, members: &[Param], block: Option<usize>) -> Result<()> {
        let BuilderOptions {
            seed,
            dtype,
            grad_dtype,
            init,
            offload_parameters,
            ref sharding,
            ref tensor,
            ref stages,
            ..
        } = self.state.options;
        let sharding = &Sharding { level: self.level.unwrap_or(sharding.level), ..sharding.clone() };
        // Storages of one dtype, of parameters that are trained or that are frozen.
        let kinds = [(true, dtype), (false, dtype), (true, DType::F32), (false, DType::F32)];
        let kinds = if dtype == DType::F32 { &kinds[..2] } else { &kinds[..] };
        for &(trainable, dtype) in kinds {
            let is_one = |param: &&Param| (param.spec().trainable, param.spec().dtype) == (trainable, dtype);
            let group: Vec<Param> = members.iter().filter(is_one).cloned().collect();
            if group.is_empty() {
                continue;
            }
            let grad_dtype = if dtype == self.state.options.dtype { grad_dtype } else { dtype };
            let block = block.map(|number| (number, Rc::clone(&self.state.census)));
            let (device, siblings) = (&self.state.device, &self.state.siblings);
            let ranks = FlatRanks { sharding, tensor: &tensor.ranks, stages, offload: offload_parameters };
            let flat = Flat::new(device, ranks, (dtype, grad_dtype), block, &group, siblings)?;
            for (index, param) in group.iter().enumerate() {
                // A parameter is declared once and belongs to one block, so it has no home yet.
                let _ = param.inner.home.set(StorageSlot { flat: Rc::clone(&flat), index });
                match init {
                    InitMode::Random => param.initialize(seed)?,
                    InitMode::Deferred => {}
                    InitMode::Uninitialized => param.inner.initialized.set(true),
                }
            }
            self.state.flats.borrow_mut().push(flat);
        }
        self.state.params.borrow_mut().extend(members.iter().cloned());
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.state.params.borrow().len()
    }

    pub(crate) fn since(&self, count: usize) -> Vec<Param> {
        self.state.params.borrow().iter().skip(count).cloned().collect()
    }

    /// Whether forward passes leave low-rank updates out, shared by all layers of the model.
    pub(crate) fn updates_left_out(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.state.updates_left_out)
    }

    pub(crate) fn asked(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.state.asked)
    }

    /// All parameters declared so far, in the order of their declaration.
    pub fn finish(&self) -> Parameters {
        Parameters {
            census: Rc::clone(&self.state.census),
            seed: self.state.options.seed,
            stages: self.state.options.stages.clone(),
            tensor: Arc::clone(&self.state.options.tensor.ranks),
            declared: self.state.declared.borrow().clone(),
            params: self.state.params.borrow().clone(),
            linears: self.state.linears.borrow().clone(),
            deferred: self.state.deferred.borrow().clone(),
            is_adapted: self.state.options.adapters.is_some(),
            updates_left_out: self.updates_left_out(),
            flats: self.state.flats.borrow().clone(),
        }
    }
}

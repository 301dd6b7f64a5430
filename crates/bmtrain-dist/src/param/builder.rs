//! The birth of parameters: names from a path, storages per block, values drawn or awaited.

use super::census::Census;
use super::flat::Siblings;
use super::{Flat, Init, NamePatterns, Param, ParamSpec, Split, widen};
use crate::error::{Error, Result};
use crate::mesh::Mesh;
use crate::shard::Sharding;
use crate::team::Team;
use bmtrain_core::{DType, Device, Shape};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

/// What happens to values at birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Birth {
    /// Draw them.
    Draw,
    /// Leave them for a loader; what it does not load is drawn by [`Parameters::initialize_missing`].
    Await,
    /// Take the memory's content for values: on a backend that computes nothing one value is as good as another.
    Leave,
}

/// How parameters of a model are made.
#[derive(Debug, Clone)]
pub struct BuilderOptions {
    /// This rank's place.
    pub mesh: Mesh,
    /// Seed of the initial values.
    pub seed: u64,
    /// Dtype of the parameters.
    pub dtype: DType,
    /// Dtype of their gradients.
    pub grad_dtype: DType,
    /// Draw values or wait for them.
    pub birth: Birth,
    /// How they are shared among data-parallel ranks.
    pub sharding: Sharding,
    /// Full names of those that are born frozen: they lie in storages of their own, which take no memory for gradients
    /// or optimizer state.
    pub frozen: NamePatterns,
}

impl Default for BuilderOptions {
    fn default() -> Self {
        BuilderOptions {
            mesh: Mesh::SOLO,
            seed: 0,
            dtype: DType::F32,
            grad_dtype: DType::F32,
            birth: Birth::Draw,
            sharding: Sharding::solo(),
            frozen: NamePatterns::default(),
        }
    }
}

#[derive(Debug)]
struct State {
    device: Device,
    options: BuilderOptions,
    names: RefCell<HashSet<String>>,
    params: RefCell<Vec<Param>>,
    flats: RefCell<Vec<Rc<Flat>>>,
    siblings: Siblings,
    /// Parameters of the block that is being built.
    open: RefCell<Option<Vec<Param>>>,
    /// Number of blocks so far.
    blocks: Cell<usize>,
    census: Rc<Census>,
    asked: Rc<Cell<u64>>,
}

/// A place in the tree of parameter names. Cheap to clone; all clones feed the same [`Parameters`].
#[derive(Debug, Clone)]
pub struct Builder {
    state: Rc<State>,
    path: String,
    frozen: bool,
}

impl Builder {
    /// The root of a model's names.
    pub fn new(device: &Device, options: BuilderOptions) -> Self {
        let state = State {
            device: device.clone(),
            options,
            names: RefCell::default(),
            params: RefCell::default(),
            flats: RefCell::default(),
            siblings: Siblings::default(),
            open: RefCell::default(),
            blocks: Cell::new(0),
            census: Rc::default(),
            asked: Rc::default(),
        };
        Builder { state: Rc::new(state), path: String::new(), frozen: false }
    }

    /// The device parameters are born on.
    pub fn device(&self) -> &Device {
        &self.state.device
    }

    /// How parameters are made.
    pub fn options(&self) -> &BuilderOptions {
        &self.state.options
    }

    /// One name deeper.
    pub fn at(&self, name: &str) -> Builder {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Builder { state: Rc::clone(&self.state), path, frozen: self.frozen }
    }

    /// The same place, below which parameters are born frozen, whatever [`BuilderOptions::frozen`] says of them.
    pub fn frozen(&self) -> Builder {
        Builder { frozen: true, ..self.clone() }
    }

    /// A place in a list.
    pub fn index(&self, index: usize) -> Builder {
        self.at(&index.to_string())
    }

    /// Declare a parameter of this global shape. `decay` says whether weight decay applies by default.
    ///
    /// # Errors
    /// A name that exists already, a split that does not fit the mesh, no memory left.
    pub fn param(&self, name: &str, shape: impl Into<Shape>, init: Init, split: Split, decay: bool) -> Result<Param> {
        let BuilderOptions { mesh, dtype, .. } = self.state.options;
        let (name, shape) = (self.at(name).path, shape.into());
        if !self.state.names.borrow_mut().insert(name.clone()) {
            return Err(Error::parameter(name, "declared twice"));
        }
        let local = split.local(&name, shape, mesh.tensor_size(), mesh.tensor_rank())?;
        let trainable = !self.frozen && !self.state.options.frozen.matches(&name);
        let spec = ParamSpec { name, shape, dtype, init, split, trainable, decay };
        let param = Param::new(spec, local, &self.state.asked);
        let mut open = self.state.open.borrow_mut();
        match &mut *open {
            Some(block) => block.push(param.clone()),
            None => self.settle(std::slice::from_ref(&param), None)?,
        }
        Ok(param)
    }

    /// Build a block: parameters declared inside lie together in one storage per dtype, group, and whether they are
    /// trained at birth.
    ///
    /// # Errors
    /// Those of `build`; a block inside a block.
    pub fn block<B>(&self, build: impl FnOnce(&Builder) -> Result<B>) -> Result<B> {
        if self.state.open.borrow_mut().replace(Vec::new()).is_some() {
            return Err(Error::parameter(self.path.clone(), "a block inside a block"));
        }
        let built = build(self);
        let members = self.state.open.borrow_mut().take().unwrap_or_default();
        let built = built?;
        let number = self.state.blocks.replace(self.state.blocks.get() + 1);
        self.settle(&members, Some(number))?;
        Ok(built)
    }

    /// Give parameters their storages; `block` is the number of the block they make up, if they are inside one.
    fn settle(&self, members: &[Param], block: Option<usize>) -> Result<()> {
        let BuilderOptions { seed, dtype, grad_dtype, birth, ref sharding, .. } = self.state.options;
        let (trained, frozen): (Vec<Param>, Vec<Param>) = members.iter().cloned().partition(|p| p.spec().trainable);
        for group in [trained, frozen].into_iter().filter(|group| !group.is_empty()) {
            let block = block.map(|number| (number, Rc::clone(&self.state.census)));
            let (device, siblings) = (&self.state.device, &self.state.siblings);
            let flat = Flat::new(device, sharding, (dtype, grad_dtype), block, &group, siblings)?;
            for (index, param) in group.iter().enumerate() {
                param.settle(&flat, index);
                match birth {
                    Birth::Draw => param.initialize(seed)?,
                    Birth::Await => {}
                    Birth::Leave => param.leave_values(),
                }
            }
            self.state.flats.borrow_mut().push(flat);
        }
        self.state.params.borrow_mut().extend(members.iter().cloned());
        Ok(())
    }

    /// Number of parameters in complete blocks so far.
    pub(crate) fn count(&self) -> usize {
        self.state.params.borrow().len()
    }

    /// The parameters that were completed since there were `count`.
    pub(crate) fn since(&self, count: usize) -> Vec<Param> {
        self.state.params.borrow().iter().skip(count).cloned().collect()
    }

    /// Counts how often trained parameters were asked for.
    pub(crate) fn asked(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.state.asked)
    }

    /// All parameters declared so far, in order of birth.
    pub fn finish(&self) -> Parameters {
        Parameters {
            census: Rc::clone(&self.state.census),
            seed: self.state.options.seed,
            params: self.state.params.borrow().clone(),
            flats: self.state.flats.borrow().clone(),
        }
    }
}

/// The parameters of a model, in order of birth.
#[derive(Debug, Clone)]
pub struct Parameters {
    census: Rc<Census>,
    seed: u64,
    params: Vec<Param>,
    flats: Vec<Rc<Flat>>,
}

impl Parameters {
    /// Every parameter.
    pub fn iter(&self) -> std::slice::Iter<'_, Param> {
        self.params.iter()
    }

    /// The storages they lie in.
    pub fn flats(&self) -> &[Rc<Flat>] {
        &self.flats
    }

    /// The most blocks whose values were whole at once on this rank so far, where blocks are whole only while they
    /// work; counted by the memory in use.
    pub fn most_whole_blocks(&self) -> usize {
        self.census.most()
    }

    /// The parameter of this full name.
    pub fn get(&self, name: &str) -> Option<&Param> {
        self.params.iter().find(|param| param.name() == name)
    }

    /// Number of values, over all tensor-parallel ranks.
    pub fn count(&self) -> usize {
        self.params.iter().map(|param| param.spec().shape.elements()).sum()
    }

    /// Draw what no loader has set, and return the names.
    ///
    /// # Errors
    /// A failing device.
    pub fn initialize_missing(&self) -> Result<Vec<String>> {
        let missing: Vec<&Param> = self.params.iter().filter(|param| !param.is_initialized()).collect();
        missing.iter().try_for_each(|param| param.initialize(self.seed))?;
        Ok(missing.iter().map(|param| param.name().to_owned()).collect())
    }

    /// Give up whole values of parameters outside of blocks, which a forward pass without a backward pass leaves
    /// behind.
    pub fn put_away(&self) {
        self.flats.iter().for_each(|flat| flat.put_away());
    }

    /// Forget all gradients and free their memory.
    pub fn clear_grads(&self) {
        self.flats.iter().for_each(|flat| flat.clear_grads());
    }
}

/// Reads whole parameters one after the other, holding one storage gathered at a time: a block is gathered once for all
/// its parameters. Every rank has to read the same parameters in the same order.
#[derive(Debug, Default)]
pub struct WholeReader {
    held: Option<Rc<Flat>>,
}

impl WholeReader {
    /// The whole values, widened. Waits for the device.
    ///
    /// # Errors
    /// As [`Param::read`].
    pub fn read(&mut self, param: &Param) -> Result<Vec<f32>> {
        self.pass(param)?;
        widen(&param.value()?)
    }

    /// Take part in another rank's reading of a parameter.
    ///
    /// # Errors
    /// As [`Param::read`].
    pub fn pass(&mut self, param: &Param) -> Result<()> {
        let flat = param.place()?.0;
        if !self.held.as_ref().is_some_and(|held| Rc::ptr_eq(held, flat)) {
            self.let_go();
            flat.gather()?;
            if !flat.sharding().cuts_values() {
                // The others have nothing to wait for, and would be far ahead of one that writes to a slow disk.
                Team::new(Arc::clone(&flat.sharding().ranks), flat.values().device()).gather(&[0.0])?;
            }
            self.held = Some(Rc::clone(flat));
        }
        Ok(())
    }

    fn let_go(&mut self) {
        if let Some(held) = self.held.take() {
            held.release();
        }
    }
}

impl Drop for WholeReader {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl<'a> IntoIterator for &'a Parameters {
    type Item = &'a Param;
    type IntoIter = std::slice::Iter<'a, Param>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

//! Kernels by name: their units are compiled and loaded when one of them is first launched.

use super::driver::{Context, Function, Module, failure};
use super::images::Images;
use crate::error::Result;
use bmtrain_kernels::Unit;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of shared memory that a launch of every kernel may choose without asking.
const GRANTED: u32 = 48 << 10;

/// Unit and name of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) unit: &'static str,
    pub(super) kernel: &'static CStr,
}

impl Name {
    /// The kernel of this name, which ends with a zero, in a unit. A mistake in it ends the compilation.
    pub(super) const fn new(unit: &'static str, text: &'static str) -> Self {
        match CStr::from_bytes_with_nul(text.as_bytes()) {
            Ok(kernel) => Name { unit, kernel },
            Err(_) => panic!("a name with a zero inside, or none at its end"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Modules {
    context: Arc<Context>,
    images: Images,
    loaded: Mutex<Loaded>,
}

#[derive(Debug, Default)]
struct Loaded {
    /// With the bytes of shared memory that their launches may choose.
    functions: HashMap<Name, (Function, u32)>,
    /// Units that were asked for, and whether they can be had.
    there: HashMap<&'static str, bool>,
    // Outlives every use of the functions: dropped with the backend.
    modules: HashMap<&'static str, Module>,
}

impl Modules {
    pub(super) fn new(context: &Arc<Context>, images: Images) -> Self {
        Modules { context: Arc::clone(context), images, loaded: Mutex::default() }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The units that were loaded, in the order of their names.
    pub(super) fn loaded_units(&self) -> Vec<&'static str> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let mut units: Vec<_> = loaded.modules.keys().copied().collect();
        units.sort_unstable();
        units
    }

    /// Whether a unit is there for this device, found once. Where it is not, a warning reports that once.
    pub(super) fn has(&self, unit: &'static str) -> bool {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        *loaded.there.entry(unit).or_insert_with(|| {
            let there = Unit::named(unit).is_some_and(|unit| self.images.has(unit, self.context.properties()));
            if !there {
                tracing::warn!(unit, "these kernels cannot be had for this device; others are used");
            }
            there
        })
    }

    /// A kernel that takes a structure of `bytes` bytes and may choose up to `shared` bytes of shared memory.
    pub(super) fn function(&self, name: Name, bytes: usize, shared: u32) -> Result<Function> {
        /// From here on shared memory decides how many blocks a multiprocessor holds.
        const MUCH: u32 = 16 << 10;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let Loaded { functions, modules, .. } = &mut *loaded;
        if let Some((function, granted)) = functions.get_mut(&name) {
            if shared > *granted {
                function.allow_shared(&self.context, shared)?;
                *granted = shared;
            }
            return Ok(*function);
        }
        if !modules.contains_key(name.unit) {
            let Some(unit) = Unit::named(name.unit) else {
                return Err(failure("load kernels", format!("there is no source {}", name.unit)));
            };
            let image = self.images.of(unit, self.context.properties())?;
            // SAFETY: compiled from the sources of this version, or from a directory that the caller of `open` vouches
            // for.
            #[allow(unsafe_code)]
            let module = unsafe { Module::load(&self.context, &image) }?;
            modules.insert(name.unit, module);
        }
        let Some(module) = modules.get(name.unit) else {
            return Err(failure("load kernels", format!("{} was not kept", name.unit)));
        };
        let function = module.function(name.kernel, bytes)?;
        if shared > GRANTED {
            function.allow_shared(&self.context, shared)?;
        }
        if shared >= MUCH
            && let Err(error) = function.prefer_shared(&self.context)
        {
            // Fewer blocks at once, and nothing else.
            tracing::debug!(%error, kernel = ?name.kernel, "the driver divides on-chip memory as it likes");
        }
        functions.insert(name, (function, shared.max(GRANTED)));
        Ok(function)
    }
}

//! Where compiled kernels come from.

use super::CudaOptions;
use super::compile::Compiler;
use super::driver::{Properties, failure};
use crate::error::Result;
use bmtrain_kernels::Unit;
use std::path::PathBuf;

/// A source of compiled kernels.
#[derive(Debug)]
pub(super) enum Images {
    /// Files `UNIT.cubin` in a directory, compiled elsewhere.
    Directory(PathBuf),
    /// Compiled for the device when they are first needed.
    Compiled(Box<Compiler>),
}

impl Images {
    /// The source that options name.
    pub(super) fn of_options(options: &CudaOptions) -> Self {
        match &options.compiled {
            Some(directory) => Images::Directory(directory.clone()),
            None => Images::Compiled(Box::new(Compiler::new(options))),
        }
    }

    /// The compiled kernels of a unit for a device.
    pub(super) fn of(&self, unit: &Unit, properties: Properties) -> Result<Vec<u8>> {
        match self {
            Images::Directory(directory) => {
                let path = directory.join(format!("{}.cubin", unit.name));
                std::fs::read(&path).map_err(|error| failure("load kernels", format!("{}: {error}", path.display())))
            }
            Images::Compiled(compiler) => compiler.image(unit, properties),
        }
    }
}

//! Sources of compiled kernels.

use super::CudaOptions;
use super::compile::Compiler;
use super::driver::{Properties, failure};
use crate::error::Result;
use bmtrain_kernels::Unit;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) enum Images {
    Directory(PathBuf),
    Compiled(Box<Compiler>),
}

impl Images {
    pub(super) fn of_options(options: &CudaOptions) -> Self {
        match &options.compiled {
            Some(directory) => Images::Directory(directory.clone()),
            None => Images::Compiled(Box::new(Compiler::new(options))),
        }
    }

    /// Whether there are kernels of a unit for such a device, as far as that can be known before they are loaded.
    pub(super) fn has(&self, unit: &Unit, properties: Properties) -> bool {
        match self {
            Images::Directory(directory) => file_of(directory, unit).is_file(),
            Images::Compiled(compiler) => compiler.serves(unit, properties),
        }
    }

    pub(super) fn of(&self, unit: &Unit, properties: Properties) -> Result<Vec<u8>> {
        match self {
            Images::Directory(directory) => {
                let path = file_of(directory, unit);
                std::fs::read(&path).map_err(|error| failure("load kernels", format!("{}: {error}", path.display())))
            }
            Images::Compiled(compiler) => compiler.image(unit, properties),
        }
    }
}

/// Path of a unit in a directory of compiled kernels.
fn file_of(directory: &Path, unit: &Unit) -> PathBuf {
    directory.join(format!("{}.cubin", unit.name))
}

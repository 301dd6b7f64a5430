//! Where compiled kernels come from.

use super::driver::{Properties, failure};
use crate::error::Result;
use bmtrain_kernels::Unit;
use std::path::PathBuf;

/// A source of compiled kernels.
#[derive(Debug)]
pub(super) enum Images {
    /// Files `UNIT.cubin` in a folder, compiled elsewhere.
    Folder(PathBuf),
    /// None were named.
    Missing,
}

impl Images {
    /// The compiled kernels of a unit for a device.
    ///
    /// # Errors
    /// They cannot be read or made.
    pub(super) fn of(&self, unit: &Unit, properties: Properties) -> Result<Vec<u8>> {
        let _ = properties;
        match self {
            Images::Folder(folder) => {
                let path = folder.join(format!("{}.cubin", unit.name));
                std::fs::read(&path).map_err(|error| failure("load kernels", format!("{}: {error}", path.display())))
            }
            Images::Missing => Err(failure("load kernels", "no folder of compiled kernels was named")),
        }
    }
}

//! Whether parameters are finite, before they are saved.

use super::{Flat, Parameters};
use crate::error::Result;
use bmtrain_core::kernel::NonFinite;
use bmtrain_core::{DType, Segment, Storage};
use std::rc::Rc;

impl Parameters {
    /// The number in [`Parameters::declared`] of the first parameter that [is saved](Parameters::is_saved) and has a
    /// value that is infinite or not a number, of the values that this rank stores. Waits for the device once.
    pub fn first_not_finite(&self) -> Result<Option<usize>> {
        let Some(device) = self.flats().first().map(|flat| flat.device()) else { return Ok(None) };
        let flags = Storage::zeros(device, self.declared().len(), DType::I32, Segment::Workspace)?;
        // The values of one storage at a time, which may be a copy of what the host holds.
        let mut read: Option<(Rc<Flat>, Storage)> = None;
        for (number, param) in self.declared().iter().enumerate() {
            if !param.is_held() || param.is_in_blocks() || !self.is_saved(param) {
                continue;
            }
            let (flat, index) = param.place()?;
            let known = read.take().filter(|(known, _)| Rc::ptr_eq(known, flat));
            let (_, values) = match known {
                Some(known) => read.insert(known),
                None => read.insert((Rc::clone(flat), flat.values_to_read()?)),
            };
            let x = values.view(flat.at_rest(index).1)?;
            device.launch(NonFinite { x, flag: flags.view_mut(number..number + 1)? })?;
        }
        let flags = flags.tensor(0, [flags.len()])?.to_vec::<i32>()?;
        Ok(flags.iter().position(|flag| *flag != 0))
    }
}

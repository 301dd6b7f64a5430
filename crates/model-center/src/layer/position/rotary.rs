//! Rotary positions: a table of angles on the device, [`RotaryAngles`].

use super::Rows;
use crate::layer::mask::Angles;
use crate::rotary::{RotaryConfig, RotaryScaling};
use bmtrain_core::{Ctx, Segment, Tensor};
use bmtrain_dist::Result;
use std::cell::RefCell;

/// A table of angles that grows with the longest row seen.
#[derive(Debug)]
pub struct RotaryAngles {
    config: RotaryConfig,
    /// With the length that its angles are for.
    table: RefCell<Option<(usize, Tensor)>>,
}

impl RotaryAngles {
    /// Nothing is made yet.
    pub fn new(config: RotaryConfig) -> Self {
        RotaryAngles { config, table: RefCell::default() }
    }

    /// What they are made of.
    pub fn config(&self) -> &RotaryConfig {
        &self.config
    }

    /// The angles of these tokens. Where the angles depend on the length of a text, all documents packed into
    /// sequences have the angles of the longest one.
    pub fn of(&self, rows: Rows<'_>, cx: &Ctx) -> Result<Angles> {
        let (past, all) = (rows.past, rows.keys());
        if let Some(numbers) = rows.numbers {
            return Ok(Angles { table: self.table_for(rows.reach, cx)?, positions: Some(numbers.clone()) });
        }
        let table = self.table_for(all, cx)?; // [all or more, R]
        // Rows of the table from the first new token on.
        let table = if past == 0 { table } else { table.slice(past..all)? }; // [L or more, R]
        Ok(Angles { table, positions: None })
    }

    fn table_for(&self, length: usize, cx: &Ctx) -> Result<Tensor> {
        let mut kept = self.table.borrow_mut();
        let fits = |(made_for, table): &(usize, Tensor)| match self.config.scaling {
            // The angles themselves depend on the length.
            RotaryScaling::Dynamic { trained, .. } => *made_for == length || length.max(*made_for) <= trained,
            _ => true,
        } && table.shape().dims()[0] >= length;
        if let Some((_, table)) = kept.as_ref().filter(|kept| fits(kept)) {
            return Ok(table.clone());
        }
        // By powers of two: rows of slowly growing lengths make few tables.
        let rows = length.next_power_of_two().max(64);
        let values = self.config.table(rows, length);
        let table = Tensor::from_slice_in(cx.device(), [rows, self.config.dims], &values, Segment::Data)?;
        *kept = Some((length, table.clone()));
        Ok(table)
    }
}

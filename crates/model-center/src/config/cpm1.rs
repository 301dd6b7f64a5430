//! The configuration of CPM-1.
//!
//! Defines [`Cpm1Config`]; called by [`crate::model`]'s CPM-1 and the binaries.

use serde_json::{Map, Value};

use super::dialect::Dialect;
use super::{ClassFields, Config, CpmFields, Fields, HfHeader, model_center};
use crate::Result;

/// Sizes and options of a CPM-1.
///
/// Defaults are those of ModelCenter's class, whose scales are off; its published model, `cpm1-large`, has both on, the
/// head tied, and weights of variance one.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/cpm1_config.py`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cpm1Config {
    /// All there is.
    pub cpm: CpmFields,
}

const DIALECT: Dialect = super::cpm::dialect("CPM-1", Cpm1Config::MODEL_TYPE, || CpmFields::default().text);

impl Config for Cpm1Config {
    const MODEL_TYPE: &'static str = "cpm1";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let mut cpm = CpmFields::take(&DIALECT, &mut fields)?;
        DIALECT.finish(fields, &mut cpm.text)?;
        Ok(Cpm1Config { cpm })
    }

    fn to_dict(&self) -> Map<String, Value> {
        self.cpm.to_dict(&DIALECT)
    }

    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        model_center::class_fields(self, header)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        self.cpm.with_header(self.to_dict(), header)
    }
}

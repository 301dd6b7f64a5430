//! `[save]`: which weights are saved.

use super::DTYPES;
use super::data::DataSettings;
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::settings;
use bmtrain_core::DType;

const WHICH: [(&str, SaveWhich); 4] =
    [("best", SaveWhich::Best), ("last", SaveWhich::Last), ("both", SaveWhich::Both), ("none", SaveWhich::None)];

settings! {
    /// `[save]`: which weights are saved.
    #[derive(Debug, Clone, PartialEq)]
    pub struct SaveSettings in "save" (r, data: &DataSettings, model: DType) then checked() {
        /// Which weights the run leaves in its output directory; `none` is for measurements.
        pub which: SaveWhich = choice(
            &WHICH, if data.source.has_eval() { SaveWhich::Best } else { SaveWhich::Last }), "0.1",
            default("`\"best\"` with `data.eval`, else `\"last\"`");
        /// Dtype of the saved weights.
        pub dtype: DType = choice(&DTYPES, model), "0.1", follows("model.dtype");
        /// Save the model with the updates of `[adapter]` added, not the updates alone.
        pub merged: bool = flag(false), "0.2", later("false");
    }
}

/// Weights that a run saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveWhich {
    /// Those that evaluated best.
    Best,
    /// The last step's.
    Last,
    /// Both, in two directories.
    Both,
    /// None: the run leaves its metrics alone.
    None,
}

impl SaveWhich {
    /// Whether the weights that evaluated best are saved.
    pub fn keeps_best(self) -> bool {
        matches!(self, SaveWhich::Best | SaveWhich::Both)
    }
}

impl SaveSettings {
    /// Adds what has no effect.
    fn checked(self, r: &mut Reader) -> Self {
        if self.which == SaveWhich::None {
            let why = "save.which = \"none\" saves no model";
            r.without_effect("save.dtype", "save.which", why, "remove one of the two");
        }
        self
    }
}

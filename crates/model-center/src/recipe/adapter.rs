//! The keys of `[adapter]`: what is trained where the model is frozen.

use super::kinds::{Expected, Range};
use super::reader::Reader;
use super::settings::{SaveWhich, Settings};
use crate::adapter::{Adapter, LoraConfig};
use std::path::PathBuf;

/// The largest rank.
const MOST_RANK: u64 = 1 << 16;
const DIRECTORY: Expected = Expected { what: "the path of a PEFT directory", example: "runs/first/model" };
/// The keys of new updates.
const OF_NEW: [&str; 6] = [
    "adapter.rank",
    "adapter.alpha",
    "adapter.rank_stabilized",
    "adapter.dropout",
    "adapter.targets",
    "adapter.trained",
];

/// How a model is tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    None,
    Lora,
}

pub(super) fn read(r: &mut Reader) -> Option<Adapter> {
    let defaults = LoraConfig::default();
    let method = r.choice("adapter.method", &[("none", Method::None), ("lora", Method::Lora)], Method::None);
    let path = r.optional_path("adapter.path", "not set: new updates", DIRECTORY);
    let config = LoraConfig {
        rank: r.integer("adapter.rank", defaults.rank as u64, 1..=MOST_RANK) as usize,
        alpha: r.single("adapter.alpha", f64::from(defaults.alpha), Range::Above(0.0)),
        rank_stabilized: r.flag("adapter.rank_stabilized", defaults.rank_stabilized),
        dropout: r.single("adapter.dropout", f64::from(defaults.dropout), Range::Below(0.0, 1.0)),
        targets: r
            .optional_texts(
                "adapter.targets",
                "not set: [\"all-linear\"], the linear layers of all blocks",
                "[\"q_proj\", \"v_proj\"]",
            )
            .unwrap_or(defaults.targets),
        trained: r
            .optional_texts("adapter.trained", "not set: a new head alone", "[\"lm_head\"]")
            .unwrap_or(defaults.trained),
    };
    let unused = match (method, &path) {
        (Method::None, _) => {
            let why = "adapter.method = \"none\" trains the model itself";
            for key in OF_NEW.into_iter().chain(["adapter.path"]) {
                r.without_effect(key, "adapter.method", why, "remove it, or set adapter.method = \"lora\"");
            }
            return None;
        }
        (Method::Lora, None) => &[][..],
        (Method::Lora, Some(_)) => &OF_NEW[..],
    };
    for key in unused {
        r.without_effect(
            key,
            "adapter.path",
            "adapter.path has the updates and their settings",
            "remove one of the two",
        );
    }
    Some(path.map_or(Adapter::New(config), |path: PathBuf| Adapter::Saved(path)))
}

/// Adds what contradicts itself or has no effect.
pub(super) fn check(r: &mut Reader, s: &Settings) {
    if s.adapter.is_none() {
        r.without_effect("save.merged", "adapter.method", "without updates there is nothing to merge", "remove it");
        return;
    }
    if s.save.which == SaveWhich::None {
        r.without_effect("save.merged", "save.which", "save.which = \"none\" saves no model", "remove one of the two");
    }
    if s.data.source.pretraining().is_some() {
        let reason = "task pretrain trains a whole model, and `adapter.method` trains updates of one that is frozen";
        r.contradiction(&["adapter.method", "data.task"], reason, "set adapter.method = \"none\", or use another task");
    }
}

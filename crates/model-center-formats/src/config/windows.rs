//! Windows of attention in configuration files: `use_sliding_window` with `max_window_layers`, or `layer_types` with a
//! name for each layer.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{Fields, TextConfig};
use crate::Result;
use model_center_base::file::printable;

/// Name of a layer without a window.
const FULL: &str = "full_attention";
/// Number of keys in most families.
const SIZE: &str = "sliding_window";
/// Name of a layer with a window.
const SLIDING: &str = "sliding_attention";

/// The windows of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowFields {
    /// Whether there are any. Hugging Face: `use_sliding_window`.
    pub is_used: bool,
    /// The number of keys, the token's own last. Hugging Face: `sliding_window`. Files give it also where
    /// it is not used.
    pub size: Option<usize>,
    /// The number of layers without one, from the first, where a file does not list them.
    /// Hugging Face: `max_window_layers`.
    pub max_window_layers: usize,
    /// Layers with a window, counted from 0. Hugging Face: `layer_types`.
    pub layers: BTreeSet<usize>,
}

impl Default for WindowFields {
    /// No layer has one. Numbers are the defaults of transformers.
    fn default() -> Self {
        WindowFields { is_used: false, size: Some(4096), max_window_layers: 28, layers: BTreeSet::new() }
    }
}

impl WindowFields {
    /// Take the fields out for a model of these sizes; where the file is silent `silent` counts, but for its layers.
    ///
    /// # Errors
    /// Sizes out of range; a list that does not have one name for each layer, or not one of the two; a layer with a
    /// window where there is none.
    pub fn take(fields: &mut Fields, text: &TextConfig, silent: &Self) -> Result<Self> {
        // Layers are counted one by one below.
        text.validate(fields.place())?;
        let is_used = fields.take_flag("use_sliding_window")?.unwrap_or(silent.is_used);
        let size = match fields.has("sliding_window") {
            true => fields.take_size("sliding_window")?,
            false => silent.size,
        };
        let max_window_layers = fields.take_index("max_window_layers")?.unwrap_or(silent.max_window_layers);
        let has_windows = is_used && size.is_some();
        let layers = match fields.take("layer_types") {
            None if has_windows => (max_window_layers..text.num_layers).collect(),
            None => BTreeSet::new(),
            Some(listed) => listed_layers(fields, &listed, text.num_layers)?,
        };
        if !has_windows && !layers.is_empty() {
            let reason = format!("layers are listed as {SLIDING}, and the file turns windows off or gives no size");
            let fix = "set use_sliding_window to true and sliding_window to a size, or correct the list";
            return Err(fields.error("layer_types", &reason, fix));
        }
        Ok(WindowFields { is_used, size, max_window_layers, layers })
    }

    /// The window of a layer, counted from 0.
    pub fn of(&self, layer: usize) -> Option<usize> {
        self.size.filter(|_| self.is_used && self.layers.contains(&layer))
    }

    /// Write them for a model of `num_layers` layers.
    pub fn write(&self, num_layers: usize, map: &mut Map<String, Value>) {
        let kind = |layer| if self.of(layer).is_some() { SLIDING } else { FULL };
        let kinds: Vec<&str> = (0..num_layers).map(kind).collect();
        map.insert("use_sliding_window".to_string(), json!(self.is_used));
        map.insert("sliding_window".to_string(), json!(self.size));
        map.insert("max_window_layers".to_string(), json!(self.max_window_layers));
        map.insert("layer_types".to_string(), json!(kinds));
    }
}

/// Windows of a regular part of the layers, or of listed ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerWindows {
    /// Size of a window as the file states it.
    pub size: Option<usize>,
    /// One layer of this many has no window, where the file does not list them.
    pub period: usize,
    /// Place of that layer in the period.
    pub full: FullLayer,
    /// Layers with a window, counted from 0, where the file lists them. Hugging Face: `layer_types`.
    pub listed: Option<BTreeSet<usize>>,
}

/// The layer of each period that has no window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FullLayer {
    /// The first.
    First,
    /// The last.
    Last,
}

impl LayerWindows {
    /// Windows of this size in all layers but the last of each `period`.
    pub const fn all_but_last(period: usize, size: usize) -> Self {
        LayerWindows { size: Some(size), period, full: FullLayer::Last, listed: None }
    }

    /// Windows of this size in all layers but the first of each `period`.
    pub const fn all_but_first(period: usize, size: usize) -> Self {
        LayerWindows { size: Some(size), period, full: FullLayer::First, listed: None }
    }

    /// Whether a layer, counted from 0, has a window.
    pub fn has(&self, layer: usize) -> bool {
        match &self.listed {
            Some(listed) => listed.contains(&layer),
            None => match self.full {
                FullLayer::First => !layer.is_multiple_of(self.period),
                FullLayer::Last => !(layer + 1).is_multiple_of(self.period),
            },
        }
    }

    /// The size of a layer's window.
    pub fn of(&self, layer: usize) -> Option<usize> {
        self.size.filter(|_| self.has(layer))
    }

    /// The size of a layer's window to one side, the token's own among its keys, where half of the keys that the file
    /// states are on either side.
    pub fn each_side(&self, layer: usize) -> Option<usize> {
        self.of(layer).map(|size| size / 2 + 1)
    }

    /// The fields of a file for a model of these sizes; `names` holds the name of the size, then of the period. Where
    /// the file is silent `self` counts.
    ///
    /// # Errors
    /// Sizes out of range; a list that does not have one name for each layer, or not one of the two; a layer with a
    /// window where there is none; where the size has another name than `sliding_window`, a `sliding_window` that is
    /// not half of it.
    pub(super) fn take(&self, fields: &mut Fields, text: &TextConfig, names: &[&str]) -> Result<Self> {
        // Layers are counted one by one below.
        text.validate(fields.place())?;
        let mut windows = self.clone();
        if let Some(name) = names.first().filter(|name| fields.has(name)) {
            windows.size = fields.take_size(name)?;
        }
        if let Some(name) = names.first().filter(|name| **name != SIZE)
            && fields.peek_index(SIZE)?.is_some_and(|half| windows.size.is_some_and(|size| size / 2 != half))
        {
            let reason = format!("transformers takes it for half of {name}, and it is not");
            return Err(fields.error(SIZE, &reason, "remove it, or correct one of the two"));
        }
        if let Some(name) = names.get(1) {
            windows.period = fields.take_size(name)?.unwrap_or(self.period);
        }
        if let Some(listed) = fields.take("layer_types") {
            let listed = listed_layers(fields, &listed, text.num_layers)?;
            // A list that repeats the period is left out.
            let is_regular = (0..text.num_layers).all(|layer| windows.has(layer) == listed.contains(&layer));
            windows.listed = (!is_regular).then_some(listed);
        }
        if windows.size.is_none() && (0..text.num_layers).any(|layer| windows.has(layer)) {
            let reason = "layers have windows, and the file gives no size";
            return Err(fields.error(names.first().unwrap_or(&SLIDING), reason, "give the number of keys of a window"));
        }
        Ok(windows)
    }

    /// Write them for a model of `num_layers` layers.
    pub(super) fn write(&self, names: &[&str], num_layers: usize, map: &mut Map<String, Value>) {
        let kind = |layer| if self.has(layer) { SLIDING } else { FULL };
        let kinds: Vec<&str> = (0..num_layers).map(kind).collect();
        map.insert("layer_types".to_string(), json!(kinds));
        let values = [json!(self.size), json!(self.period)];
        // A list has no period.
        let count = if self.listed.is_some() { 1 } else { 2 };
        map.extend(names.iter().zip(values).take(count).map(|(name, value)| ((*name).to_owned(), value)));
    }
}

/// The layers with a window according to a list.
fn listed_layers(fields: &Fields, listed: &Value, num_layers: usize) -> Result<BTreeSet<usize>> {
    let words = listed.as_array().filter(|words| words.len() == num_layers).ok_or_else(|| {
        let reason = format!("this is not a list of {num_layers} kinds of layers");
        fields.error("layer_types", &reason, &format!("give {FULL} or {SLIDING} for each layer"))
    })?;
    let mut layers = BTreeSet::new();
    for (layer, word) in words.iter().enumerate() {
        match word.as_str() {
            Some(FULL) => {}
            Some(SLIDING) => {
                layers.insert(layer);
            }
            _ => {
                let reason = format!("unknown kind of layer {}", printable(&word.to_string(), 40));
                return Err(fields.error("layer_types", &reason, &format!("known are: {FULL}, {SLIDING}")));
            }
        }
    }
    Ok(layers)
}

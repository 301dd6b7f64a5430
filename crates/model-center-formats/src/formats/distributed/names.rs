//! The model's tensors in a training state.
//!
//! Defines [`choose`] and [`LeftOut`]. A run saves its model and its optimizer as one dictionary of dictionaries, under
//! keys that its author chose: `model` and `optim`, both under `app`, or the model's tensors at the top beside
//! `optimizer`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::metadata::{Saved, SavedTensor};
use crate::{Error, Result};
use model_center_base::file::{printable, read_text};

/// The longest note of Megatron core, which has a line.
const MAX_NOTE_BYTES: u64 = 1 << 16;
/// Keys under which programs keep a model; keys around those, such as `app`, may be any.
const MODELS: &[&str] = &["model", "module", "state_dict", "model_state_dict", "model_state", "network", "net"];
/// Keys under which they keep what else a training state has.
const OTHERS: &[&str] = &[
    "optim",
    "optimizer",
    "optimizers",
    "optim_state",
    "optimizer_state",
    "optimizer_state_dict",
    "state",
    "param_groups",
    "lr_scheduler",
    "lr_schedulers",
    "scheduler",
    "schedulers",
    "dataloader",
    "dataloaders",
    "train_state",
    "trainer_state",
    "trainer",
    "progress",
    "rng",
    "rng_state",
    "scaler",
    "grad_scaler",
    "step",
];
/// Other entries where there are no keys around the model's tensors: the number of steps, and the rotary table that
/// torchtitan saved until version 0.1.0, which the configuration tells.
const ALONE: &[&str] = &["step", "freqs_cis"];
/// Names of an optimizer's tensors where its dictionary is a flat one beside the model's.
const MOMENTS: &[&str] = &["step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum", "square_avg"];
/// Wrappers of modules in training, which do not belong to their names.
const WRAPPERS: &[&str] = &["_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."];

/// Parts of a checkpoint that are not the model's, such as an optimizer's state: the number of tensors by the keys
/// around them. Under keys with none there are other values.
pub type LeftOut = BTreeMap<String, usize>;

/// The model's tensors under their own names, and what else the checkpoint has.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) tensors: Vec<(String, SavedTensor)>,
    pub(super) left: LeftOut,
}

/// Chooses the model's tensors.
///
/// # Errors
/// There are none, tensors of several models, two of one name, or names of a program that has its own.
pub(super) fn choose(directory: &Path, saved: Saved) -> Result<Chosen> {
    let bad = |reason: String, fix: &str| Error::model(directory.display().to_string(), reason, fix);
    let mut groups: BTreeMap<Vec<String>, Vec<(String, SavedTensor)>> = BTreeMap::new();
    for tensor in saved.tensors {
        let (around, name) = split(&tensor.key, tensor.path.as_deref());
        groups.entry(around).or_default().push((name, tensor));
    }
    let is_other = |around: &[String]| around.iter().any(|key| OTHERS.contains(&key.as_str()));
    let models: Vec<Vec<String>> = groups.keys().filter(|around| !is_other(around)).cloned().collect();
    let shown = |around: &[String]| if around.is_empty() { "the top".into() } else { around.join(".") };
    // Keys of a model come first, then what is under no key, then keys that may mean anything.
    let tier = |around: &[String]| match around.last() {
        Some(key) if MODELS.contains(&key.as_str()) => 0,
        None => 1,
        Some(_) => 2,
    };
    let mut tiers = (0..3).map(|wanted| models.iter().filter(|around| tier(around) == wanted).collect::<Vec<_>>());
    let held = |groups: Vec<&Vec<String>>| list(&groups.into_iter().map(|around| shown(around)).collect::<Vec<_>>());
    let chosen = match tiers.find(|tier| !tier.is_empty()) {
        None => {
            let reason = format!("it has no tensors of a model, only those under {}", held(groups.keys().collect()));
            return Err(bad(reason, "give the directory with the model's tensors"));
        }
        Some(tier) if tier.len() > 1 => {
            let reason = format!("it has tensors of several models, under {}", held(tier));
            return Err(bad(reason, "save the one that is meant into a checkpoint of its own"));
        }
        Some(tier) => tier.into_iter().next().cloned().unwrap_or_default(),
    };
    let tensors = groups.remove(&chosen).unwrap_or_default();
    let mut left: LeftOut =
        groups.iter().map(|(around, tensors)| (printable(&shown(around), 80), tensors.len())).collect();
    for value in &saved.values {
        let (around, _) = split(&value.key, value.path.as_deref());
        // Values beside a model's tensors are modules' own.
        if around != chosen {
            left.entry(printable(&shown(&around), 80)).or_default();
        }
    }
    let names: BTreeSet<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
    if names.len() < tensors.len() {
        return Err(bad("two tensors have the same name".into(), "save the model without what wraps it in training"));
    }
    refuse_own_names(&names).map_err(|(reason, fix)| bad(reason, fix))?;
    Ok(Chosen { tensors, left })
}

/// The keys around a tensor, and its name in what they lead to.
fn split(key: &str, path: Option<&[String]>) -> (Vec<String>, String) {
    let Some(path) = path else { return flat(key) };
    // Composer saves everything under one more key.
    let path = match path {
        [first, inner @ ..] if first == "state" && inner.first().is_some_and(|key| MODELS.contains(&key.as_str())) => {
            inner
        }
        whole => whole,
    };
    // A tensor's own name is the last key; a model that was saved as dictionaries in each other has it in several.
    let keys = path.len().saturating_sub(1);
    let is_known = |key: &String| MODELS.contains(&key.as_str()) || OTHERS.contains(&key.as_str());
    let around = path.iter().take(keys).rposition(is_known).map_or(keys.min(1), |last| last + 1);
    let (around, name) = path.split_at(around);
    match around.is_empty() {
        true => flat(&name.join(".")),
        false => {
            // What an optimizer has for a tensor is under that tensor's name.
            let other = around.iter().position(|key| OTHERS.contains(&key.as_str()));
            (around.iter().take(other.map_or(around.len(), |at| at + 1)).cloned().collect(), bare(&name.join(".")))
        }
    }
}

/// Keys of a flat dictionary: an optimizer's keys beside the model's begin and end in names of its own.
fn flat(key: &str) -> (Vec<String>, String) {
    let is_moment = |rest: &str| rest.rsplit_once('.').is_some_and(|(_, last)| MOMENTS.contains(&last));
    let is_optimizers = key.strip_prefix("state.").is_some_and(is_moment) || key.starts_with("param_groups.");
    let around = if is_optimizers { vec!["state".to_owned()] } else { Vec::new() };
    if ALONE.contains(&key) {
        return (vec![key.to_owned()], key.to_owned());
    }
    (around, bare(key))
}

/// A name without what wraps modules in training.
fn bare(name: &str) -> String {
    let mut name = WRAPPERS.iter().fold(name.to_owned(), |name, wrapper| name.replace(wrapper, ""));
    if let Some(rest) = name.strip_prefix("module.") {
        name = rest.to_owned();
    }
    name
}

/// Names of programs that have their own layouts of layers.
fn refuse_own_names(names: &BTreeSet<&str>) -> Result<(), (String, &'static str)> {
    let has = |end: &str| names.iter().find(|name| name.ends_with(end)).map(|name| printable(name, 120));
    if let Some(found) = has("self_attention.linear_qkv.weight") {
        return Err((format!("its tensors have the names of Megatron core, such as {found}"), MEGATRON_CORE_FIX));
    }
    Ok(())
}

/// Fix for a checkpoint of Megatron core.
pub(in crate::formats) const MEGATRON_CORE_FIX: &str =
    "write Hugging Face's files there: AutoBridge.export_ckpt of Megatron Bridge, and convert those";

fn list(names: &[String]) -> String {
    printable(&names.join(", "), 300)
}

/// Whether a checkpoint with a list of tensors is Megatron core's, which has a note of how it was saved, or the values
/// that all ranks share, beside it.
pub(in crate::formats) fn is_megatron_core(directory: &Path) -> bool {
    let note = read_text(&directory.join("metadata.json"), MAX_NOTE_BYTES).ok();
    let note = note.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    directory.join("common.pt").is_file() || note.is_some_and(|note| note.get("sharded_backend").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(path: &[&str]) -> SavedTensor {
        let path: Vec<String> = path.iter().map(|key| (*key).to_owned()).collect();
        let (key, dtype) = (path.join("."), "float32".to_owned());
        SavedTensor { key, path: Some(path), dtype, shape: vec![1], chunks: Vec::new() }
    }

    fn chosen(paths: &[&[&str]]) -> Result<(Vec<String>, Vec<String>)> {
        let tensors = paths.iter().map(|path| saved(path)).collect();
        let chosen = choose(Path::new("x"), Saved { tensors, ..Saved::default() })?;
        Ok((chosen.tensors.into_iter().map(|(name, _)| name).collect(), chosen.left.into_keys().collect()))
    }

    #[test]
    fn a_model_is_found_under_any_keys() {
        let moment: &[&str] = &["optim", "state", "a.weight", "exp_avg"];
        for (model, left) in [
            (vec!["model", "a.weight"], vec!["optim"]),
            (vec!["app", "model", "a.weight"], vec!["optim"]),
            (vec!["model", "a", "weight"], vec!["optim"]),
            (vec!["a.weight"], vec!["optim"]),
            (vec!["ours", "a.weight"], vec!["optim"]),
            (vec!["model", "module._orig_mod.a.weight"], vec!["optim"]),
        ] {
            let (names, others) = chosen(&[&model, moment]).unwrap();
            assert_eq!((names, others), (vec!["a.weight".to_owned()], left.iter().map(|s| (*s).to_owned()).collect()));
        }
        // Beside a flat optimizer, and beside what averages the weights.
        let (names, left) = chosen(&[&["a.weight"], &["state.a.weight.exp_avg"], &["step"]]).unwrap();
        assert_eq!((names, left), (vec!["a.weight".into()], vec!["state".into(), "step".into()]));
        let (names, left) = chosen(&[&["model", "a"], &["ema", "a"], &["seed"]]).unwrap();
        assert_eq!((names, left), (vec!["a".into()], vec!["ema".into(), "the top".into()]));
    }

    #[test]
    fn what_is_no_model_or_several_is_named() {
        for (paths, reason) in [
            (vec![&["optim", "state", "a", "step"][..]], "no tensors of a model"),
            (vec![&["model", "a"][..], &["net", "a"]], "several models, under model, net"),
            (vec![&["one", "a"][..], &["two", "a"]], "several models, under one, two"),
            (vec![&["model", "a"][..], &["model", "_orig_mod.a"]], "the same name"),
            (vec![&["layers.0.self_attention.linear_qkv.weight"][..]], "names of Megatron core"),
        ] {
            let error = chosen(&paths).unwrap_err().to_string();
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }
}

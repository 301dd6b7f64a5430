//! The optimizer of a configuration, with the numbers that the trainers give to it.

use super::settings::Settings;
use super::trainer::Trainer;
use crate::Result;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_recipe::key;

/// Optimizers of the trainers, with ours.
const OPTIMIZERS: [(&str, &str); 25] = [
    ("adamw_torch", "adamw"),
    ("adamw_torch_fused", "adamw"),
    ("adamw_hf", "adamw"),
    ("adamw_apex_fused", "adamw"),
    ("adamw_torch_8bit", "adamw-8bit"),
    ("adamw_8bit", "adamw-8bit"),
    ("adamw_bnb_8bit", "adamw-8bit"),
    ("ao_adamw_8bit", "adamw-8bit"),
    ("paged_adamw", "adamw"),
    ("paged_adamw_32bit", "adamw"),
    ("paged_adamw_8bit", "adamw-8bit"),
    ("adamw", "adamw"),
    ("adafactor", "adafactor"),
    ("sgd", "sgd"),
    ("adagrad", "adagrad"),
    ("rmsprop", "rmsprop"),
    ("rmsprop_bnb", "rmsprop"),
    ("rmsprop_bnb_8bit", "rmsprop"),
    ("lion", "lion"),
    ("lion_32bit", "lion"),
    ("lion_8bit", "lion"),
    ("paged_lion_32bit", "lion"),
    ("paged_lion_8bit", "lion"),
    ("lion_pytorch", "lion"),
    ("muon", "muon"),
];
/// Those that take `adam_beta1` and `adam_beta2`.
const WITH_BETAS: [&str; 4] = ["adamw", "adamw-8bit", "lion", "muon"];
/// Those that take `adam_epsilon`.
const WITH_EPSILON: [&str; 3] = ["adamw", "adamw-8bit", "muon"];
/// bitsandbytes' Lion, which the Trainer gives Adam's default of the second average.
const LION_OF_TRAINER: [&str; 4] = ["lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit"];

/// Writes the optimizer, weight decay and clipping.
pub(super) fn translate(s: &Settings<'_>, trainer: &Trainer, sheet: &mut Sheet) -> Result<()> {
    let name = s.text(trainer.optimizer)?.unwrap_or("adamw_torch");
    let Some((_, ours)) = OPTIMIZERS.iter().find(|(theirs, _)| *theirs == name) else {
        let known: Vec<&str> = OPTIMIZERS.iter().map(|(theirs, _)| *theirs).collect();
        let reason = format!("the optimizer {name} is not available; available are {}", known.join(", "));
        return s.refuse(trainer.optimizer, reason, "choose another one");
    };
    let is_muon = s.flag("use_muon")?;
    let ours = if is_muon { "muon" } else { *ours };
    if is_muon {
        s.pass_over(&[trainer.optimizer], "use_muon decides", sheet);
    }
    if is_muon || s.has(trainer.optimizer) {
        let shown = s.shown_all(&[if is_muon { "use_muon" } else { trainer.optimizer }]);
        sheet.text(key!(train.optimizer), ours, shown);
        if !is_muon && name.contains("8bit") && ours != "adamw-8bit" {
            let why = "moments are f32 here: `train.offload = true` keeps them in host memory";
            sheet.note(NoteKind::Differs, s.shown(trainer.optimizer), why);
        }
    }
    let decay = s.number_or("weight_decay", 0.0)?;
    sheet.number(key!(train.weight_decay), decay.value, decay.from);
    let betas = ["adam_beta1", "adam_beta2"];
    let is_adams = LION_OF_TRAINER.contains(&name) && !is_muon;
    if !WITH_BETAS.contains(&ours) {
        s.pass_over(&betas, "the optimizer has no such averages", sheet);
    } else if is_adams || betas.iter().any(|key| s.has(key)) {
        let default = if ours == "lion" && !is_adams { 0.99 } else { 0.999 };
        let (one, two) = (s.number_or(betas[0], 0.9)?, s.number_or(betas[1], default)?);
        sheet.betas(one, two);
    }
    match s.number("adam_epsilon")? {
        Some(eps) if WITH_EPSILON.contains(&ours) => sheet.number(key!(train.eps), eps, s.shown("adam_epsilon")),
        Some(_) => s.pass_over(&["adam_epsilon"], "it is not given to this optimizer", sheet),
        None => {}
    }
    let clip = s.number_or("max_grad_norm", 1.0)?;
    sheet.clip(clip.value, clip.from);
    Ok(())
}

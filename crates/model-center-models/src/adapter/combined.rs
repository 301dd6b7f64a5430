//! Several PEFT directories at once: a plan with the updates of all, each times its directory's weight.
//!
//! Source: PEFT 0.21, `add_weighted_adapter` with `combination_type = "cat"`, whose matrices have the same product.

use super::config::AdapterConfig;
use super::peft::changes::Change;
use super::plan::AdapterPlan;
use super::{Adapter, WeightedAdapter};
use crate::{Error, Result};
use bmtrain_dist::Parameters;
use model_center_formats::NameTable;
use model_center_formats::config::TextHead;

impl AdapterPlan {
    /// The plan of several directories, with the arguments of [`AdapterPlan::new`].
    pub(super) fn combined(
        adapters: &[WeightedAdapter],
        parameters: &Parameters,
        names: &NameTable,
        head: (Option<TextHead>, bool),
    ) -> Result<AdapterPlan> {
        let mut all: Option<AdapterPlan> = None;
        for (number, WeightedAdapter { path, weight }) in adapters.iter().enumerate() {
            let wrong = |reason: &str, fix: &str| Error::model(path.display().to_string(), reason, fix);
            if !weight.is_finite() {
                return Err(wrong("its weight is not a number", "give a number such as 0.5"));
            }
            let mut plan = AdapterPlan::new(&Adapter::Saved(path.clone()), parameters, names, head)?;
            match &mut plan.config {
                AdapterConfig::Lora(config) if !config.dora => config.dropout = 0.0,
                _ => {
                    let reason = "adapters are combined, or weighted, where all of them are LoRA's";
                    return Err(wrong(
                        reason,
                        "merge it first (bmtrain convert --merge), and combine the others with the result",
                    ));
                }
            }
            plan.described = vec![format!("{weight} x {}", plan.describe())];
            for update in &mut plan.updates {
                update.scale *= weight;
                update.number(number);
            }
            plan.trained.iter_mut().for_each(|param| param.source = number);
            plan.number_changes(number, *weight).map_err(|(what, name)| {
                let reason = format!("it has {what} ({name}), which adds up with no other adapter's");
                wrong(&reason, "merge it first (bmtrain convert --merge), and combine the others with the result")
            })?;
            let Some(all) = &mut all else {
                all = Some(plan);
                continue;
            };
            if let Some(twice) = plan.trained.iter().find(|param| all.trained().any(|name| name == param.name)) {
                let reason = format!("it has all of {}, as another of the adapters does", twice.name);
                return Err(wrong(&reason, "use one of the two"));
            }
            all.updates.extend(plan.updates);
            all.trained.extend(plan.trained);
            all.changes.extend(plan.changes);
            all.stored.extend(plan.stored);
            all.equal.extend(plan.equal);
            all.saved.extend(plan.saved);
            all.described.extend(plan.described);
        }
        all.ok_or_else(|| Error::argument("--adapter", "there is none", "name a PEFT directory"))
    }

    /// Number the changes of the base model as one of several directories', and multiply them by its weight.
    fn number_changes(&mut self, number: usize, weight: f32) -> std::result::Result<(), (&'static str, String)> {
        for change in &mut self.changes {
            change.source = number;
            match &mut change.change {
                Change::Update { scale, .. } | Change::Bias { scale, .. } => *scale *= weight,
                other => {
                    let (what, name) = other.describe();
                    return Err((what, name.to_owned()));
                }
            }
        }
        self.equal.iter_mut().for_each(|(source, ..)| *source = number);
        Ok(())
    }
}

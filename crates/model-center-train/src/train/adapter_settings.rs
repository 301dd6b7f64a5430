//! The adapter of a model that a program opens itself, by the keys of a recipe's `[adapter]`.
//!
//! Defines [`adapter_of_settings`], which reads them as a recipe does: the same keys, ranges, defaults and messages.

use super::step_trainer::{of_argument, recipe_of_settings};
use crate::{Error, Result};
use bmtrain_core::{DType, DeviceChoice};
use model_center_models::WeightForm;
use model_center_models::adapter::Adapter;

/// The adapter of settings such as `adapter.method="lora"` and `adapter.rank=8`, for
/// [`OpenOptions::adapter`](model_center_models::OpenOptions::adapter), and how the frozen model is held
/// (`adapter.quantize`), for [`OpenOptions::weights`](model_center_models::OpenOptions::weights). `None` for
/// `adapter.method="none"`, the default. The model is opened in `dtype` on `device`.
///
/// # Errors
/// [`Error::Argument`] for a key that is unknown, out of range, without effect or of another table; quantised weights
/// on a CUDA device.
pub fn adapter_of_settings(
    settings: &[String],
    dtype: DType,
    device: DeviceChoice,
) -> Result<(Option<Adapter>, WeightForm)> {
    let keys = || settings.iter().map(|setting| setting.split('=').next().unwrap_or_default().trim());
    if let Some(key) = keys().find(|key| !key.starts_with("adapter.")) {
        let fix = "give keys of the table [adapter], such as adapter.method=\"lora\"";
        return Err(Error::argument(key, "it is not a setting of an adapter", fix));
    }
    let resolved = recipe_of_settings(settings, dtype, device).map_err(of_argument)?;
    Ok((resolved.adapter.clone(), resolved.base_weights))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_center_models::adapter::{AdapterConfig, LoraConfig};

    fn read(settings: &[&str], device: DeviceChoice) -> Result<(Option<Adapter>, WeightForm)> {
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        adapter_of_settings(&settings, DType::F32, device)
    }

    #[test]
    fn settings_have_the_defaults_of_a_recipe() {
        let lora = |config| Some(Adapter::New(AdapterConfig::Lora(config)));
        let (adapter, form) = read(&["adapter.method=\"lora\""], DeviceChoice::Cpu).unwrap();
        assert_eq!((adapter, form), (lora(LoraConfig::default()), WeightForm::Dequantised));
        let settings = ["adapter.method=\"lora\"", "adapter.rank=8", "adapter.alpha=16", "adapter.quantize=\"nf4\""];
        let (adapter, form) = read(&settings, DeviceChoice::Cpu).unwrap();
        let expected = LoraConfig { rank: 8, alpha: 16.0, ..LoraConfig::default() };
        assert_eq!((adapter, form), (lora(expected), WeightForm::Nf4));
        assert_eq!(read(&[], DeviceChoice::Cpu).unwrap(), (None, WeightForm::Dequantised));
    }

    #[test]
    fn mistakes_have_the_messages_of_a_recipe() {
        let refused = |settings: &[&str], device| read(settings, device).unwrap_err().to_string();
        for (settings, expected) in [
            (&["adapter.method=\"lorra\""][..], "did you mean \"lora\"?"),
            (&["adapter.method=\"lora\"", "adapter.r=8"], "adapter.r"),
            (&["adapter.method=\"lora\"", "adapter.rank=0"], "`adapter.rank` must be"),
            (&["adapter.method=\"lora\"", "adapter.virtual_tokens=3"], "it is for adapter.method = \"prompt\""),
            (&["adapter.method=\"lora\"", "adapter.r=8", "adapter.alpha=0"], "adapter.r"),
            (&["adapter.rank=8"], "set adapter.method = \"lora\""),
            (&["train.lr=1"], "train.lr: it is not a setting of an adapter"),
        ] {
            let error = refused(settings, DeviceChoice::Cpu);
            assert!(error.contains(expected) && !error.contains('\n'), "{settings:?}: {error}");
        }
        let error = refused(&["adapter.method=\"lora\"", "adapter.quantize=\"nf4\""], DeviceChoice::Cuda);
        assert!(error.contains("computed on the CPU alone"), "{error}");
    }
}

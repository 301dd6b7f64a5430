//! How the model of a run is opened on its ranks and saved: from the settings of a recipe to the library's options.

use crate::{Error, Result};
use bmtrain_core::comm::Communicator;
use bmtrain_core::cpu::{CpuOptions, InstructionSet};
use bmtrain_core::device_spec::Opened;
use bmtrain_core::ops::ProductPrecision;
use bmtrain_core::{DType, Device};
use bmtrain_dist::RankGroups;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::{NamePatterns, TensorGroup};
use bmtrain_dist::pipeline::Schedule;
use bmtrain_dist::shard::Sharding;
use model_center_base::batch::LabelSpace;
use model_center_formats::config::{ProblemType, TextHead};
use model_center_formats::directory::DirectoryLayout;
use model_center_models::adapter::PeftDetails;
use model_center_models::{HeadInit, OpenOptions, SaveOptions, StageOptions};
use model_center_recipe::{Head, Products, Resolved};
use std::path::Path;
use std::sync::Arc;

/// How the recipe shares parameters among these data-parallel ranks.
fn sharding(resolved: &Resolved, ranks: Arc<dyn Communicator>) -> Sharding {
    Sharding {
        ranks,
        level: resolved.parallel.zero,
        sum: resolved.train.gradient_sum,
        prefetch: resolved.parallel.prefetch,
    }
}

/// How the model of this run is opened on a rank of these groups; `device` is where its parameters go.
///
/// # Errors
/// A number of micro-batches that the schedule of the pipeline does not run.
pub fn open_options(
    resolved: &Resolved,
    labels: &LabelSpace,
    device: &Device,
    groups: &RankGroups,
) -> Result<OpenOptions> {
    let sharding = sharding(resolved, Arc::clone(groups.data()));
    let whole = whole_options(resolved, labels, device);
    let tensor = TensorGroup { sequence: resolved.parallel.sequence, ..whole.tensor };
    let stages = stages(resolved, groups)?;
    let recompute = match whole.recompute {
        // The room for activations is one micro-batch's, and a stage has several in flight.
        Recompute::Auto if stages.is_some() => Recompute::Checkpoint,
        other => other,
    };
    Ok(OpenOptions { sharding, tensor, stages, recompute, ..whole }.on_groups(groups))
}

/// Options of a CPU backend for the products of a run.
pub(super) fn with_products(resolved: &Resolved, cpu: CpuOptions) -> CpuOptions {
    CpuOptions { bf16_products: resolved.train.products == Products::Bf16, ..cpu }
}

/// Whether a run multiplies bf16 by bf16 where the processor can.
pub(super) fn multiplies_bf16(resolved: &Resolved) -> bool {
    resolved.model.dtype == DType::BF16 || resolved.train.products == Products::Bf16
}

/// What the device that was opened multiplies without widening it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Multiplies {
    /// The instruction set; `None` on a CUDA device.
    pub(super) set: Option<InstructionSet>,
    /// Whether 8-bit factors are multiplied as they are.
    pub(super) fp8: bool,
}

impl Multiplies {
    pub(super) fn of(opened: &Opened, set: InstructionSet) -> Self {
        Multiplies { set: opened.cuda.is_none().then_some(set), fp8: opened.backend.multiplies_fp8() }
    }
}

/// Whether the device that was opened multiplies as the run asks; a note where the setting gains nothing there.
///
/// # Errors
/// Products in bf16 of f32 factors on a CUDA device.
pub(super) fn check_products(products: Products, device: Multiplies) -> Result<Option<String>> {
    match (products, device.set) {
        (Products::Bf16, None) => {
            let (reason, fix) = ("f32 factors are rounded to bf16 on a CPU alone", "set model.dtype = \"bf16\"");
            Err(Error::argument("train.products", reason, format!("{fix}, or remove train.products")))
        }
        (Products::Bf16, Some(set)) if !set.multiplies_bf16() => Ok(Some(format!(
            "train.products = \"bf16\" changes nothing here: {set} does not multiply bf16, and products are in f32"
        ))),
        (Products::Fp8, set) if !device.fp8 => {
            let what = if set.is_some() { "a CPU" } else { "this GPU" };
            Ok(Some(format!(
                "train.products = \"fp8\" is slower here than \"full\": {what} does not multiply 8-bit numbers, and \
                 factors are rounded to 8 bits and multiplied in f32; GPUs of compute capability 8.9 and later do"
            )))
        }
        _ => Ok(None),
    }
}

/// The pipeline stages of these groups, with the schedule of a data-parallel rank's micro-batches.
fn stages(resolved: &Resolved, groups: &RankGroups) -> Result<Option<StageOptions>> {
    let (parallel, data_ranks) = (&resolved.parallel, groups.mesh().data_size());
    if groups.pipe().size() == 1 {
        return Ok(None);
    }
    let micro_batches = resolved.micro_batches_on(data_ranks);
    let schedule = Schedule::new(parallel.schedule, groups.pipe().size(), parallel.virtual_stages, micro_batches)?;
    Ok(Some(StageOptions { ranks: Arc::clone(groups.pipe()), schedule, partition: parallel.partition.rule() }))
}

/// The same for a model on one rank.
pub(super) fn whole_options(resolved: &Resolved, labels: &LabelSpace, device: &Device) -> OpenOptions {
    let names = match labels {
        LabelSpace::Classes(names) | LabelSpace::TokenClasses(names) | LabelSpace::LabelSets(names) => names.clone(),
        _ => Vec::new(),
    };
    let problem = match labels {
        // One output with a binary cross-entropy.
        LabelSpace::Value if resolved.data.source.task().has_probabilities() => Some(ProblemType::MultiLabel),
        LabelSpace::Value => Some(ProblemType::Regression),
        LabelSpace::LabelSets(_) => Some(ProblemType::MultiLabel),
        LabelSpace::Classes(_) | LabelSpace::Choices(_) => Some(ProblemType::SingleLabel),
        LabelSpace::NextTokens
        | LabelSpace::Pairs
        | LabelSpace::Unpaired
        | LabelSpace::Texts(_)
        | LabelSpace::Target
        | LabelSpace::Verbalizer(_)
        | LabelSpace::MaskedTokens { .. }
        | LabelSpace::TokenClasses(_)
        | LabelSpace::Span => None,
    };
    let head = match labels {
        LabelSpace::MaskedTokens { sentences: true } => TextHead::Pretraining,
        LabelSpace::MaskedTokens { sentences: false } => TextHead::MaskedLm,
        _ if labels.need_lm_head() => TextHead::CausalLm,
        LabelSpace::TokenClasses(names) => TextHead::TokenClassification { outputs: names.len() },
        LabelSpace::Span => TextHead::QuestionAnswering,
        LabelSpace::Texts(_) => TextHead::None,
        _ => TextHead::Classification { outputs: labels.outputs() },
    };
    let whole_parameters = resolved.train.optimizer.needs_whole_parameters();
    let pads_one_rank = device.backend().aligns_products() && whole_parameters.is_none();
    OpenOptions {
        family: resolved.model.family.clone(),
        ignored: resolved.model.leave.clone(),
        head: Some(head),
        head_values: match resolved.model.head {
            // Encoders are published without their pretraining heads, too.
            _ if matches!(labels, LabelSpace::MaskedTokens { .. }) => HeadInit::DirectoryOrRandom,
            // A language model keeps its head: a new one would destroy what was pretrained.
            _ if labels.need_lm_head() => HeadInit::Directory,
            Head::Auto => HeadInit::DirectoryOrRandom,
            Head::New => HeadInit::Random,
        },
        sentence_modules: matches!(labels, LabelSpace::Texts(_)),
        labels: names,
        problem,
        dtype: resolved.model.dtype,
        adapter: resolved.adapter.clone(),
        frozen: frozen(resolved, labels),
        trained: resolved.train.only_trained(),
        weights: resolved.base_weights,
        f32_parameters: resolved.model.f32_parameters,
        grad_dtype: resolved.train.gradient_dtype.of(resolved.model.dtype),
        seed: resolved.model.init_seed,
        tensor: TensorGroup { pads_one_rank, ..TensorGroup::default() },
        recompute: resolved.train.recompute,
        recompute_inputs: resolved.train.recompute_inputs,
        products: match resolved.train.products {
            Products::Fp8 => ProductPrecision::Fp8,
            // Those in bf16 are the backend's.
            Products::Full | Products::Bf16 => ProductPrecision::Full,
        },
        offload_parameters: resolved.train.offload_parameters,
        hidden_dropout: resolved.model.hidden_dropout,
        attention_dropout: resolved.model.attention_dropout,
        ..OpenOptions::new(device)
    }
}

/// Patterns of frozen parameters. Embeddings are made without the pooler of a base model, which has no gradient then:
/// weight decay alone would change it.
fn frozen(resolved: &Resolved, labels: &LabelSpace) -> NamePatterns {
    let pooler = matches!(labels, LabelSpace::Texts(_)).then_some("pooler.*");
    NamePatterns::new(resolved.train.frozen.iter().map(String::as_str).chain(pooler))
}

/// How the model of this run is saved; `directory` is the one it came from.
pub fn save_options<'f>(resolved: &Resolved, directory: &'f Path) -> SaveOptions<'f> {
    SaveOptions { dtype: resolved.save.dtype, companions: Some(directory), layout: DirectoryLayout::HuggingFace }
}

/// Details of a PEFT directory of this run besides its updates.
pub(super) fn peft_details(resolved: &Resolved) -> PeftDetails<'_> {
    let (base_model, revision) = (resolved.model.path.as_str(), resolved.model.revision.as_deref());
    PeftDetails { base_model, revision, dtype: resolved.save.dtype }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_in_bf16_are_for_a_cpu_and_a_note_says_where_they_change_nothing() {
        let cpu = |set| Multiplies { set: Some(set), fp8: false };
        let gpu = Multiplies { set: None, fp8: false };
        assert_eq!(check_products(Products::Full, gpu).unwrap(), None);
        assert_eq!(check_products(Products::Full, cpu(InstructionSet::Portable)).unwrap(), None);
        let note = check_products(Products::Bf16, cpu(InstructionSet::Portable)).unwrap().unwrap();
        assert!(note.contains("portable does not multiply bf16"), "{note}");
        assert_eq!(check_products(Products::Bf16, cpu(InstructionSet::Amx)).unwrap(), None);
        let error = check_products(Products::Bf16, gpu).unwrap_err().to_string();
        assert!(error.contains("train.products") && error.contains("model.dtype"), "{error}");
    }

    #[test]
    fn products_in_8_bits_are_noted_to_be_slower_where_the_device_does_not_multiply_them() {
        for (set, what) in [(Some(InstructionSet::Amx), "a CPU"), (None, "this GPU")] {
            let note = check_products(Products::Fp8, Multiplies { set, fp8: false }).unwrap().unwrap();
            assert!(note.contains("slower") && note.contains(what) && note.lines().count() == 1, "{note}");
        }
        assert_eq!(check_products(Products::Fp8, Multiplies { set: None, fp8: true }).unwrap(), None);
    }
}

//! Optimizers that see whole tensors, over models with fused parameters, against PyTorch and transformers on separate
//! matrices. The data are described in `golden/README.md` and made by `scripts/golden/make_optimizers_models.py`.

use crate::goldens::{check, directory, distance, f64s, inputs, norm, open};

use bmtrain_core::autograd::Randomness;
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::OptimManager;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::optim::{AdafactorOptions, AdamOptions, Clip, MuonOptions, MuonScale, ParamGroup};
use model_center::formats::SafetensorsFile;
use model_center::recipe::OptimizerSettings;

const STEPS: usize = 20;
const LR: f64 = 2e-3;
const UNSCALED_LR: f64 = 3e-4;

/// The name in the file, and ours.
fn optimizers() -> [(&'static str, OptimizerSettings); 4] {
    let muon = |scale| {
        let rest = AdamOptions { epsilon: 1e-4, ..AdamOptions::default() };
        OptimizerSettings::Muon(MuonOptions { scale, ..MuonOptions::default() }, rest)
    };
    let adafactor = |scale_parameter| {
        OptimizerSettings::Adafactor(AdafactorOptions { epsilon: 1e-8, scale_parameter, ..AdafactorOptions::default() })
    };
    [
        ("muon", muon(MuonScale::Original)),
        ("muon-match", muon(MuonScale::MatchAdamW)),
        ("adafactor", adafactor(false)),
        ("adafactor-scaled", adafactor(true)),
    ]
}

fn follows_the_original(name: &str, (model, head): (&str, &str)) {
    let golden = SafetensorsFile::open(&directory("optimizers", "golden.safetensors")).unwrap();
    let (device, batch) = (Device::cpu(1).unwrap(), inputs(model, head));
    for (optimizer_name, settings) in optimizers() {
        let what = format!("{name}.{optimizer_name}");
        let (ours, before) = (open(&device, model, head, Recompute::Keep), open(&device, model, head, Recompute::Keep));
        let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
        for optimizer in settings.make(ParamGroup::by_decay(ours.parameters(), 0.1), false).unwrap() {
            optim.add(optimizer, if optimizer_name == "adafactor" { UNSCALED_LR } else { LR });
        }
        let losses = f64s(&golden, &format!("{what}.losses"));
        assert_eq!(losses.len(), STEPS);
        for (step, expected) in losses.iter().enumerate() {
            let mut cx = Ctx::training(&device, Randomness { seed: 0, step: step as u32, micro_batch: 0 });
            let loss = ours.loss(&batch, &mut cx).unwrap().unwrap();
            optim.backward(&loss, 1.0, &mut cx).unwrap();
            assert!(!optim.step().unwrap().skipped);
            let error = (f64::from(loss.value().item().unwrap()) - expected).abs() / losses[0];
            assert!(error <= 1e-5, "{what} step {step}: loss off by {error:e} of the first loss");
        }
        let mut compared = 0;
        for (param, before) in ours.parameters().iter().zip(before.parameters()) {
            let (values, before) = (param.read().unwrap(), before.read().unwrap());
            for piece in ours.names().pieces(param.name(), param.spec().shape.dims(), true).unwrap() {
                let name = format!("{what}.after.{}", piece.name);
                if golden.entry(&name).is_none() {
                    continue;
                }
                let theirs = f64s(&golden, &name);
                check(&name, &piece.of(&values).unwrap(), &theirs);
                let moved = distance(&piece.of(&before).unwrap(), &theirs) / norm(&theirs);
                let is_without_gradient = name.ends_with("key.bias");
                assert!(moved > 1e-3 || is_without_gradient, "{name}: moved by {moved:e}");
                compared += 1;
            }
        }
        let prefix = format!("{what}.after.");
        let all = golden.tensors().iter().filter(|entry| entry.name.starts_with(&prefix)).count();
        assert_eq!(compared, all, "{what}: every tensor is compared");
    }
}

#[test]
fn queries_keys_values_gate_and_up_of_llama_are_updated_as_separate_matrices() {
    follows_the_original("llama", ("llama_a", "lm"));
}

#[test]
fn fused_weights_and_biases_of_bert_are_updated_as_separate_tensors() {
    follows_the_original("bert", ("bert_b", "mlm"));
}

#[test]
fn keys_and_values_of_cross_attention_are_updated_as_separate_matrices() {
    follows_the_original("t5", ("t5_b", "lm"));
}

#[test]
fn the_fused_matrix_of_gpt2_stays_whole_with_the_shape_of_the_original() {
    follows_the_original("gpt2", ("gpt2_a", "lm"));
}

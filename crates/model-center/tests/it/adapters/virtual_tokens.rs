//! Prompt and prefix tuning: positions of label words, projected keys and values, models without a place for them.

use crate::goldens::adapters::GOLDENS;
use crate::goldens::{check, directory, f64s};
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::widen;
use model_center::adapter::{Adapter, AdapterConfig, PrefixConfig};
use model_center::data::{Batch, Labels, VerbalizerBatch};
use model_center::formats::SafetensorsFile;
use model_center::model::{OpenOptions, Registry, TextHead};

/// Positions of label words are in sequences that virtual tokens made longer.
#[test]
fn label_words_after_virtual_tokens_are_read_where_each_sequence_has_them() {
    let device = Device::cpu(1).unwrap();
    for golden in GOLDENS.iter().filter(|golden| golden.has_virtual_tokens()) {
        let opened = golden.open_saved(&device);
        let has_encoder = opened.model.info().generates_targets;
        let texts = [[5i64, 6, 7, 8], [9, 10, 11, 12]];
        let of = |texts: &[[i64; 4]]| {
            // The decoder's last token, or the third of a decoder alone.
            let (length, at) = if has_encoder { (2, 1) } else { (4, 2) };
            let positions = (0..texts.len()).map(|row| (row * length + at) as i64).collect();
            let batch = Batch {
                decoder_input_ids: has_encoder.then(|| texts.iter().flat_map(|text| [0, text[1]]).collect()),
                labels: Some(Labels::Classes(vec![1; texts.len()])),
                verbalizer: Some(VerbalizerBatch { label_words: vec![3, 20, 14], positions }),
                ..Batch::new(4, texts.concat())
            };
            let output = opened.model.forward(&batch, None, &mut Ctx::inference(&device)).unwrap();
            widen(output.logits.unwrap().value()).unwrap()
        };
        let (both, first, second) = (of(&texts), of(&texts[..1]), of(&texts[1..]));
        let apart = [first, second].concat();
        assert_eq!(both.len(), 6, "{}", golden.name);
        for (both, apart) in both.iter().zip(&apart) {
            assert!((both - apart).abs() <= 1e-5, "{}: {both} for {apart}", golden.name);
        }
        assert!(apart[..3] != apart[3..], "{}: the texts differ", golden.name);
    }
}

/// The keys and values that PEFT computed from smaller embeddings are in the directory.
#[test]
fn keys_and_values_that_were_projected_have_pefts_logits() {
    let (device, llama) = (Device::cpu(1).unwrap(), &GOLDENS[0]);
    let projected = directory("adapters", "prefix_projected");
    let opened = llama.open(&device, Adapter::Saved(projected.clone()), Recompute::Keep);
    assert!(opened.initialized.is_empty(), "{:?}", opened.initialized);
    let file = SafetensorsFile::open(&projected.join("golden.safetensors")).unwrap();
    let wide: Vec<f64> = llama.logits(&opened, &device).iter().map(|value| f64::from(*value)).collect();
    let ours: Vec<f32> = llama.defined_at(&wide).iter().map(|value| *value as f32).collect();
    check("projected", &ours, &llama.defined_at(&f64s(&file, "logits")));
}

/// Packed documents, lengths, models that are no decoders, a directory of another model.
#[test]
fn keys_and_values_of_virtual_tokens_are_refused_where_they_make_no_sense() {
    let device = Device::cpu(1).unwrap();
    let prefix = |tokens| Adapter::New(AdapterConfig::Prefix(PrefixConfig { tokens }));
    let open = |model: &str, name: &str, head, adapter| {
        let options = OpenOptions { adapter: Some(adapter), head, ..OpenOptions::new(&device) };
        Registry::default().open(&directory(model, name), &options)
    };
    for (model, name, head) in [
        ("t5_b", "lm", Some(TextHead::CausalLm)),
        ("bert_a", "cls", Some(TextHead::Classification { outputs: 2 })),
        ("bert_a", "mlm", None),
        ("gpt2_a", "cls", Some(TextHead::Classification { outputs: 3 })),
    ] {
        let error = open(model, name, head, prefix(2)).err().unwrap().to_string();
        assert!(error.contains("prefix tuning is for decoders with a language-modelling head"), "{model}: {error}");
    }
    let error = open("cpm1_a", "lm", None, prefix(2)).err().unwrap().to_string();
    assert!(error.contains("contexts and spans, which virtual tokens are no part of"), "{error}");
    let error = open("mistral_a", "lm", None, prefix(2)).err().unwrap().to_string();
    assert!(error.contains("prefix tuning has no place in a sliding window"), "{error}");
    let of_llama = Adapter::Saved(directory("adapters", "prefix_llama"));
    let error = open("gpt2_a", "lm", None, of_llama).err().unwrap().to_string();
    assert!(error.contains("prompt_embeddings") && error.contains("[3, 80]"), "{error}");

    let opened = open("gpt2_a", "lm", None, prefix(3)).unwrap();
    assert_eq!(opened.model.info().max_length, 16);
    let plan = opened.adapter.as_ref().unwrap();
    assert_eq!(plan.describe(), "keys and values of 3 virtual tokens before a sequence, in 2 layers");
    assert_eq!(plan.values(), 2 * 3 * 2 * 20);
    let error = plan.check_merge().unwrap_err().to_string();
    assert!(error.contains("cannot be merged"), "{error}");
    let loss = |batch: &Batch| opened.model.loss(batch, &mut Ctx::inference(&device)).err().unwrap().to_string();
    let error = loss(&Batch::next_tokens(17, vec![5; 17], None));
    assert!(error.contains("20 tokens in a row, the model has 19 positions"), "{error}");
    let packed = Batch { document_starts: Some(vec![0, 0, 2, 2]), ..Batch::next_tokens(4, vec![5; 4], None) };
    let error = loss(&packed);
    assert!(error.contains("virtual tokens precede a sequence"), "{error}");
}

//! Packed documents: several texts in one sequence are computed as each of them alone.

use crate::goldens::open;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::widen;
use model_center::model::{Batch, Labels, TextModel};

/// The families with one stack: learned, token-counting, rotary, ALiBi and relative positions, causal and bidirectional
/// attention, sliding windows, grouped key heads. None of the models has dropout in these passes.
const MODELS: [(&str, &str); 30] = [
    ("gpt2_a", "lm"),
    ("gpt2_b", "untied"),
    ("llama_a", "lm"),
    ("bert_a", "mlm"),
    ("bert_b", "mlm"),
    ("roberta_a", "mlm"),
    ("megatron_bert_a", "mlm"),
    ("distilbert_a", "mlm"),
    ("electra_a", "mlm"),
    ("mpnet_a", "mlm"),
    ("albert_a", "mlm"),
    ("modernbert_a", "mlm"),
    ("bloom_b", "lm"),
    ("opt_a", "lm"),
    ("gptj_a", "lm"),
    ("mistral_a", "lm"),
    ("qwen3_a", "lm"),
    ("gemma2_a", "lm"),
    ("gemma3_a", "lm"),
    ("cpm1_a", "lm"),
    ("granite_a", "lm"),
    ("ministral_a", "lm"),
    ("cwm_a", "lm"),
    ("seed_oss_a", "lm"),
    ("olmo2_a", "lm"),
    ("olmo3_a", "lm"),
    ("smollm3_a", "lm"),
    ("phi3_b", "lm"),
    ("glm4_a", "lm"),
    ("gpt_neox_a", "lm"),
];

/// Tokens of the documents of each sequence. The first sequence is longer than the positions of most of the models.
const DOCUMENTS: [&[usize]; 2] = [&[5, 1, 8, 3, 7], &[2, 6, 8, 4]];

fn token(at: usize) -> i64 {
    5 + (at as i64 * 13 + at as i64 / 4) % 24
}

/// The documents, each of ids that no other one has in this order.
fn documents() -> Vec<Vec<Vec<i64>>> {
    let mut ids = (0..).map(token);
    let mut document = |length: &usize| ids.by_ref().take(*length).collect();
    DOCUMENTS.iter().map(|lengths| lengths.iter().map(&mut document).collect()).collect()
}

/// All documents in two sequences, the second one padded on the right.
fn packed() -> Batch {
    let length = DOCUMENTS[0].iter().sum::<usize>();
    let (mut ids, mut mask, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    for row in documents() {
        let first = ids.len();
        for document in row {
            starts.resize(starts.len() + document.len(), (ids.len() - first) as u32);
            ids.extend(document);
        }
        mask.resize(ids.len(), 1);
        starts.resize(first + length, (ids.len() - first) as u32);
        ids.resize(first + length, 1);
        mask.resize(first + length, 0);
    }
    Batch { document_starts: Some(starts), ..Batch::next_tokens(length, ids, Some(mask)) }
}

/// Tokens of a document that are predicted.
fn targets(document: &[i64], head: &str) -> usize {
    if head == "mlm" { document.len() } else { document.len() - 1 }
}

/// The loss of a batch; its gradients, times `weight`, are added to the model's.
fn add(device: &Device, model: &dyn TextModel, batch: &Batch, weight: f32) -> f32 {
    let mut cx = Ctx::gradients(device);
    let loss = model.loss(batch, &mut cx).unwrap().unwrap();
    let value = loss.value().item().unwrap();
    let seed = Tensor::full_in(device, [1], DType::F32, weight, Segment::Activations).unwrap();
    cx.take_tape().unwrap().backward(device, vec![(loss, seed)], &[]).unwrap();
    value
}

fn gradients(model: &dyn TextModel) -> Vec<(String, Vec<f32>)> {
    let gradients = model.parameters().iter().map(|param| {
        let grad = param.grad().unwrap().map(|grad| widen(&grad).unwrap());
        (param.name().to_owned(), grad.unwrap_or_default())
    });
    gradients.collect()
}

fn pass(device: &Device, of: (&str, &str), recompute: Recompute, batch: &Batch) -> (f32, Vec<(String, Vec<f32>)>) {
    let model = open(device, of.0, of.1, recompute);
    (add(device, &*model, batch, 1.0), gradients(&*model))
}

fn check_same(what: &str, got: (f32, Vec<(String, Vec<f32>)>), expected: (f32, Vec<(String, Vec<f32>)>)) {
    assert!((got.0 - expected.0).abs() <= 1e-6 * expected.0.abs(), "{what}: the loss {} for {}", got.0, expected.0);
    let largest = expected.1.iter().flat_map(|(_, x)| x).fold(0.0f32, |largest, x| largest.max(x.abs()));
    assert!(largest > 0.0, "{what}");
    for ((name, got), (_, expected)) in got.1.iter().zip(&expected.1) {
        assert_eq!(got.len(), expected.len(), "{what} {name}");
        for (a, b) in got.iter().zip(expected) {
            assert!((a - b).abs() <= 1e-6 * largest, "{what} {name}: {a} for {b}, the largest is {largest}");
        }
    }
}

#[test]
fn packed_documents_have_the_losses_and_gradients_of_each_alone() {
    let device = Device::cpu(1).unwrap();
    for of in MODELS {
        let all: Vec<Vec<i64>> = documents().into_iter().flatten().collect();
        let count = all.iter().map(|document| targets(document, of.1)).sum::<usize>() as f32;
        let alone = open(&device, of.0, of.1, Recompute::Keep);
        let mut loss = 0.0;
        for document in all.iter().filter(|document| targets(document, of.1) > 0) {
            let weight = targets(document, of.1) as f32 / count;
            let batch = Batch::next_tokens(document.len(), document.clone(), None);
            loss += weight * add(&device, &*alone, &batch, weight);
        }
        let alone = (loss, gradients(&*alone));
        for recompute in [Recompute::Keep, Recompute::Checkpoint, Recompute::Attention] {
            let together = pass(&device, of, recompute, &packed());
            check_same(&format!("{of:?} {recompute:?}"), together, alone.clone());
        }
    }
}

#[test]
fn other_documents_and_their_number_reach_no_prediction() {
    // Without the document mask the losses differ, so the comparison above can fail.
    let device = Device::cpu(1).unwrap();
    for of in MODELS {
        let masked = pass(&device, of, Recompute::Keep, &packed()).0;
        let starts = Some(vec![0; packed().input_ids.len()]);
        let length = packed().length;
        let fits = open(&device, of.0, of.1, Recompute::Keep).info().max_length >= length;
        let together = Batch { document_starts: starts, ..packed() };
        let unmasked = |batch| open(&device, of.0, of.1, Recompute::Keep).loss(&batch, &mut Ctx::inference(&device));
        match fits {
            true => assert_ne!(masked, unmasked(together).unwrap().unwrap().value().item().unwrap(), "{of:?}"),
            false => assert!(unmasked(together).unwrap_err().to_string().contains("positions"), "{of:?}"),
        }
    }
}

#[test]
fn one_document_for_each_sequence_changes_no_bit() {
    let device = Device::cpu(1).unwrap();
    for of in MODELS {
        let ids: Vec<i64> = (0..16).map(token).collect();
        let plain = Batch::next_tokens(8, ids, None);
        let documents = Batch { document_starts: Some(vec![0; 16]), ..plain.clone() };
        let [plain, documents] = [plain, documents].map(|batch| pass(&device, of, Recompute::Keep, &batch));
        assert_eq!(plain, documents, "{of:?}");
    }
}

#[test]
fn threads_change_no_bit_of_packed_documents() {
    for of in [("gpt2_a", "lm"), ("bloom_b", "lm"), ("cpm1_a", "lm"), ("bert_a", "mlm")] {
        let [one, three] = [1, 3].map(|threads| {
            let device = Device::cpu(threads).unwrap();
            pass(&device, of, Recompute::Keep, &packed())
        });
        assert_eq!(one, three, "{of:?}");
    }
}

#[test]
fn documents_are_refused_where_a_sequence_has_one_meaning() {
    let device = Device::cpu(1).unwrap();
    let refused = |model: &str, head: &str, batch: &Batch| {
        let model = open(&device, model, head, Recompute::Keep);
        model.forward(batch, None, &mut Ctx::inference(&device)).unwrap_err().to_string()
    };
    let one_line = |error: &str, reason: &str| {
        assert!(error.contains("document_starts") && error.contains(reason) && error.lines().count() == 1, "{error}");
    };
    let labels = Some(Labels::Classes(vec![0, 1]));
    let pairs =
        |labels| Batch { labels, document_starts: Some(vec![0, 0, 2, 2, 0, 1, 1, 1]), ..Batch::new(4, vec![7; 8]) };
    one_line(&refused("gpt2_a", "cls", &pairs(labels.clone())), "classifies sequences");
    one_line(&refused("bert_a", "nsp", &pairs(labels)), "classifies sequences");
    let sentences = Batch { next_sentence: Some(vec![0, 1]), ..pairs(None) };
    one_line(&refused("bert_a", "pretraining", &sentences), "once for each sequence");
    one_line(&refused("t5_a", "lm", &pairs(Some(Labels::Target(vec![7; 8])))), "the encoder's whole sequence");
    let model = open(&device, "gpt2_a", "lm", Recompute::Keep);
    let mut cx = Ctx::inference(&device);
    let mut decoding = model.decoding(Default::default(), &mut cx).unwrap();
    one_line(&decoding.extend(&pairs(None), &mut cx).unwrap_err().to_string(), "generation continues one text");
}

#[test]
fn starts_that_do_not_divide_a_sequence_are_refused() {
    let device = Device::cpu(1).unwrap();
    let model = open(&device, "gpt2_a", "lm", Recompute::Keep);
    for (starts, reason) in [
        (vec![0, 0, 2], "2 rows of 3"),
        (vec![0, 0, 1, 0, 0, 0], "token 2 of sequence 0"),
        (vec![0, 0, 2, 1, 1, 1], "token 0 of sequence 1"),
        (vec![0, 0, 0, 0, 9, 9], "token 1 of sequence 1"),
        (vec![0, 1, 0, 0, 0, 0], "token 2 of sequence 0"),
    ] {
        let batch = Batch { document_starts: Some(starts), ..Batch::next_tokens(3, vec![7; 6], None) };
        let error = model.loss(&batch, &mut Ctx::inference(&device)).unwrap_err().to_string();
        assert!(error.contains(reason) && error.lines().count() == 1, "{error}");
    }
}

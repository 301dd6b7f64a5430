//! CPM-1 beside its goldens: who sees whom, what only it takes, ModelCenter's directories, new weights.

use crate::goldens;

use bmtrain_core::{Ctx, Device};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::param::{BuilderOptions, widen};
use goldens::directories::{check_model_center, logits, opened};
use goldens::{directory, inputs};
use model_center::config::{Cpm1Config, TextConfig};
use model_center::model::cpm1::Cpm1;
use model_center::model::{Batch, Head, TextModel};

/// Places of a row of six tokens whose logits differ when the token at `changed` does.
fn reached(context: Option<[u8; 6]>, span: Option<[i64; 6]>, changed: usize) -> Vec<usize> {
    let device = Device::cpu(1).unwrap();
    let model = opened(&device, &directory("cpm1_a", "untied"));
    let values = |id: i64| {
        let mut ids = vec![5, 6, 7, 8, 9, 10];
        ids[changed] = id;
        let batch =
            Batch { context: context.map(Vec::from), span: span.map(Vec::from), ..Batch::next_tokens(6, ids, None) };
        logits(&device, &*model, &batch)
    };
    let (first, second) = (values(20), values(30));
    (0..6).filter(|at| first[at * 47..(at + 1) * 47] != second[at * 47..(at + 1) * 47]).collect()
}

#[test]
fn a_token_is_visible_to_later_ones_and_a_context_to_its_whole_span() {
    assert_eq!(reached(None, None, 2), [2, 3, 4, 5]);
    let context = Some([1, 1, 1, 0, 0, 0]);
    assert_eq!(reached(context, None, 2), [0, 1, 2, 3, 4, 5]);
    assert_eq!(reached(context, None, 4), [4, 5]);
    // A context does not see tokens outside of the context, wherever they are.
    assert_eq!(reached(Some([0, 0, 1, 0, 1, 0]), None, 1), [1, 3, 5]);
    let spans = Some([3, 3, 3, 1, 1, 3]);
    assert_eq!(reached(None, spans, 1), [1, 2, 5]);
    assert_eq!(reached(Some([1, 0, 1, 1, 1, 0]), spans, 4), [3, 4]);
}

#[test]
fn contexts_and_spans_are_for_this_family_and_one_value_for_each_token() {
    let device = Device::cpu(1).unwrap();
    let model = opened(&device, &directory("cpm1_a", "lm"));
    let score = |model: &dyn TextModel, batch: &Batch| {
        model.forward(batch, None, &mut Ctx::inference(&device)).map(|_| ()).map_err(|error| error.to_string())
    };
    let plain = inputs("cpm1_a", "lm");
    score(&*model, &plain).unwrap();
    for (batch, texts) in [
        (Batch { context: Some(vec![1; 3]), ..plain.clone() }, ["context has 3 values", "44 input ids"]),
        (Batch { span: Some(vec![1; 3]), ..plain.clone() }, ["span has 3 values", "44 input ids"]),
        (Batch { context: Some(vec![2; 44]), ..plain.clone() }, ["context has values other than 0 and 1", "fix: "]),
    ] {
        let error = score(&*model, &batch).unwrap_err();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
    for (family, head) in [("bert_a", "mlm"), ("gpt2_a", "lm"), ("t5_a", "lm"), ("cpm2_a", "lm")] {
        let (other, plain) = (opened(&device, &directory(family, head)), inputs(family, head));
        let count = plain.input_ids.len();
        for (name, batch) in [
            ("context", Batch { context: Some(vec![1; count]), ..plain.clone() }),
            ("span", Batch { span: Some(vec![0; count]), ..plain.clone() }),
        ] {
            let error = score(&*other, &batch).unwrap_err();
            assert!(error.contains(name) && error.contains("leave it out"), "{error}");
        }
    }
}

#[test]
fn directories_in_the_layout_of_model_center_are_read_back() {
    for head in ["lm", "untied", "cls"] {
        check_model_center("cpm1_a", head);
    }
}

#[test]
fn weights_of_variance_one_make_logits_of_variance_one() {
    let device = Device::cpu(1).unwrap();
    for tied in [true, false] {
        let text = TextConfig {
            vocab_size: 301,
            dim_model: 40,
            num_heads: 2,
            dim_head: 20,
            dim_ff: 160,
            num_layers: 2,
            init_std: 1.0,
            ..Cpm1Config::default().text
        };
        let config = Cpm1Config { text, length_scale: true, attn_scale: true, ..Cpm1Config::default() };
        let head = Head::CausalLm { tied };
        let model = Cpm1::new(&device, config, head, BlockOptions::default(), BuilderOptions::default()).unwrap();
        let batch = Batch::next_tokens(32, (0..256).map(|index| index % 301).collect(), None);
        let scores = model.forward(&batch, None, &mut Ctx::inference(&device)).unwrap();
        let values = widen(scores.logits.unwrap().value()).unwrap();
        let variance = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
        // The states of one token in 256 are 40 numbers; with a tied head a token's state also meets its own row.
        assert!((variance - 1.0).abs() < 0.15, "{tied}: {variance}");
    }
}

//! Verbalizers: a head that evaluates a few label tokens at one position of each row gives the logits and the loss of
//! the whole head there, in every form of head; invalid verbalizers are refused.

use crate::goldens;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::OptimManager;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::widen;
use goldens::directories::{logits, opened};
use goldens::{directory, inputs};
use model_center::data::VerbalizerPosition;
use model_center::model::{
    Batch, ForwardOptions, Labels, LossSettings, ModelOutput, OpenOptions, Registry, TextHead, TextModel,
    VerbalizerBatch,
};

fn device() -> Device {
    Device::cpu(1).unwrap()
}

/// Every form of a language-modelling head: tied and untied, with a trained bias, with a constant one, with a scale
/// before it, of decoders and of encoder-decoders.
const HEADS: [(&str, &str); 9] = [
    ("gpt2_a", "lm"),
    ("gpt2_a", "untied"),
    ("gptj_a", "lm"),
    ("cpm1_a", "lm"),
    ("t5_a", "lm"),
    ("t5_b", "lm"),
    ("bart_a", "lm"),
    ("cpm2_a", "lm"),
    ("cpm_t5_a", "lm"),
];

const WORDS: [i64; 3] = [9, 4, 21];

/// A golden batch without labels, whose decoder, if there is one, reads two tokens of its own.
fn unlabelled(model: &str, head: &str) -> Batch {
    let batch = inputs(model, head);
    let is_encoder_decoder = ["t5", "bart", "cpm2", "cpm_t5"].iter().any(|family| model.starts_with(family));
    let decoder_input_ids = is_encoder_decoder.then(|| [3, 6].repeat(batch.rows));
    Batch { labels: None, decoder_input_ids, decoder_attention_mask: None, ..batch }
}

/// The same with a verbalizer in the middle of each row, or after the decoder's last token.
fn asking(batch: &Batch) -> Batch {
    let (length, at) = if batch.decoder_input_ids.is_some() { (2, 1) } else { (batch.length, batch.length / 2) };
    let positions: Vec<i64> = (0..batch.rows).map(|row| (row * length + at) as i64).collect();
    let verbalizer = VerbalizerBatch { label_words: WORDS.to_vec(), positions };
    let classes = (0..batch.rows).map(|row| (row % 3) as i64).collect();
    Batch { verbalizer: Some(verbalizer), labels: Some(Labels::Classes(classes)), ..batch.clone() }
}

fn loss(device: &Device, model: &dyn TextModel, batch: &Batch) -> f32 {
    model.loss(batch, &mut Ctx::inference(device)).unwrap().unwrap().value().item().unwrap()
}

/// All outputs with this weight of the prompts' loss.
fn with_prompts(
    model: &dyn TextModel,
    batch: &Batch,
    prompt_loss: f32,
    device: &Device,
) -> Result<ModelOutput, String> {
    let loss = LossSettings { prompt_loss, ..LossSettings::default() };
    let options = ForwardOptions { loss, ..ForwardOptions::default() };
    model.forward_with(batch, options, &mut Ctx::inference(device)).map_err(|error| error.to_string())
}

fn close(ours: f32, expected: f32) -> bool {
    // Sums over the model's size in another order: a few roundings of f32.
    (ours - expected).abs() <= 1e-5 * (1.0 + expected.abs())
}

#[test]
fn label_tokens_have_the_logits_of_the_whole_head() {
    for (model, head) in HEADS {
        let (device, plain) = (device(), unlabelled(model, head));
        let opened = opened(&device, &directory(model, head));
        let asked = asking(&plain);
        let all = logits(&device, &*opened, &plain);
        let scores = opened.forward(&asked, None, &mut Ctx::inference(&device)).unwrap();
        let ours = widen(scores.logits.unwrap().value()).unwrap();
        let verbalizer = asked.verbalizer.as_ref().unwrap();
        let of_place = |place: &i64| WORDS.map(|word| all[*place as usize * opened.info().vocab_size + word as usize]);
        let expected: Vec<f32> = verbalizer.positions.iter().flat_map(of_place).collect();
        assert_eq!(ours.len(), plain.rows * WORDS.len());
        assert!(ours.iter().zip(&expected).all(|(a, b)| close(*a, *b)), "{model} {head}: {ours:?} for {expected:?}");
        // The mean over the rows of the cross-entropy over the label tokens alone.
        let losses = expected.chunks(3).enumerate().map(|(row, logits)| {
            let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
            sum.ln() - logits[row % 3]
        });
        let expected = losses.sum::<f32>() / plain.rows as f32;
        let found = [scores.loss.unwrap().value().item().unwrap(), loss(&device, &*opened, &asked)];
        assert!(found.iter().all(|loss| close(*loss, expected)), "{model} {head}: {found:?} for {expected}");
    }
}

#[test]
fn the_prompt_loss_covers_the_prompt_tokens_and_the_label_token() {
    let (device, plain) = (device(), unlabelled("gpt2_a", "lm"));
    let model = opened(&device, &directory("gpt2_a", "lm"));
    let (rows, length) = (2, 5);
    let input_ids = plain.input_ids[..rows * length].to_vec();
    let prompts = Batch { rows, length, input_ids, attention_mask: None, ..plain };
    let asked = |prompt_loss| {
        let verbalizer = VerbalizerBatch { label_words: WORDS.to_vec(), positions: vec![4, 9] };
        let labels = Some(Labels::Classes(vec![2, 0]));
        let batch = Batch { verbalizer: Some(verbalizer), labels, ..prompts.clone() };
        with_prompts(&*model, &batch, prompt_loss, &device).unwrap().loss.unwrap().value().item().unwrap()
    };
    let with_answer: Vec<i64> =
        prompts.input_ids.chunks(length).zip([21, 9]).flat_map(|(row, word)| [row, &[word]].concat()).collect();
    let of_words = loss(&device, &*model, &Batch::next_tokens(length + 1, with_answer, None));
    for weight in [1.0, 0.25] {
        let (found, expected) = (asked(weight), asked(0.0) + weight * of_words);
        assert!(close(found, expected), "{weight}: {found} for {expected}");
    }
}

#[test]
fn answers_are_learnt_through_every_head() {
    for (model, head) in HEADS {
        let (device, batch) = (device(), asking(&unlabelled(model, head)));
        let opened = opened(&device, &directory(model, head));
        let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 1.0 }).unwrap();
        let adam = Adam::new(ParamGroup::by_decay(opened.parameters(), 0.0), AdamOptions::default()).unwrap();
        optim.add(Box::new(adam), 1e-2);
        let before = loss(&device, &*opened, &batch);
        for step in 0..20 {
            let mut cx = Ctx::training(&device, Randomness { seed: 1, step, micro_batch: 0 });
            let loss = opened.loss(&batch, &mut cx).unwrap().unwrap();
            optim.backward(&loss, 1.0, &mut cx).unwrap();
            optim.step().unwrap();
        }
        let after = loss(&device, &*opened, &batch);
        assert!(after < 0.5 * before, "{model} {head}: from {before} to {after}");
    }
}

#[test]
fn a_model_specifies_the_verbalizer_position() {
    let device = device();
    let place = |model: &str, head: &str, asked: Option<TextHead>| {
        let options = OpenOptions { head: asked, ..OpenOptions::new(&device) };
        let opened = Registry::default().open(&directory(model, head), &options).unwrap();
        opened.model.verbalizer_position().map_err(|error| error.to_string())
    };
    assert_eq!(place("gpt2_a", "lm", None), Ok(VerbalizerPosition::Next));
    assert_eq!(place("cpm1_a", "lm", None), Ok(VerbalizerPosition::Blank));
    assert_eq!(place("t5_a", "lm", None), Ok(VerbalizerPosition::Sentinel { start: Some(3) }));
    // Its configuration names a start token; ModelCenter's prompts begin with the sentinel all the same.
    assert_eq!(place("cpm2_b", "lm", None), Ok(VerbalizerPosition::Sentinel { start: None }));
    for (model, head, asked) in [("bert_a", "mlm", None), ("gpt2_a", "cls", None), ("t5_a", "lm", Some(TextHead::None))]
    {
        let message = place(model, head, asked).unwrap_err();
        assert!(message.contains("answers no prompts"), "{model} {head}: {message}");
    }
}

#[test]
fn what_is_no_answer_is_refused_by_its_name() {
    let device = device();
    let change = |batch: &Batch, change: &dyn Fn(&mut VerbalizerBatch)| {
        let mut batch = batch.clone();
        change(batch.verbalizer.as_mut().unwrap());
        batch
    };
    let refused = |model: &str, head: &str, batch: &Batch| {
        let opened = opened(&device, &directory(model, head));
        opened.forward(batch, None, &mut Ctx::inference(&device)).unwrap_err().to_string()
    };
    for (model, vocabulary) in [("gpt2_a", 97), ("t5_a", 47)] {
        let good = asking(&unlabelled(model, "lm"));
        let tokens = good.decoder_input_ids.as_ref().unwrap_or(&good.input_ids).len() as i64;
        for (batch, reason) in [
            (change(&good, &|verbalizer| verbalizer.label_words[1] = vocabulary), "verbalizer.label_words[1]"),
            (change(&good, &|verbalizer| verbalizer.positions[0] = tokens), "verbalizer.positions[0]"),
            (change(&good, &|verbalizer| verbalizer.positions[0] = -1), "verbalizer.positions[0]"),
            (change(&good, &|verbalizer| verbalizer.positions.truncate(1)), "verbalizer.positions has 1 values"),
            (change(&good, &|verbalizer| verbalizer.label_words.truncate(1)), "at least two label words"),
            (Batch { labels: Some(Labels::Classes(vec![3; good.rows])), ..good.clone() }, "labels[0]"),
        ] {
            let message = refused(model, "lm", &batch);
            assert!(message.contains(reason), "{model}, {reason}: {message}");
        }
        let of_nan = with_prompts(&*opened(&device, &directory(model, "lm")), &good, f32::NAN, &device).unwrap_err();
        assert!(of_nan.contains("give a number from 0 on"), "{model}: {of_nan}");
    }
    let t5 = asking(&unlabelled("t5_a", "lm"));
    let message = refused("t5_a", "lm", &Batch { decoder_input_ids: None, ..t5.clone() });
    assert!(message.contains("a label word follows what the decoder reads"), "{message}");
    let with_prompts = with_prompts(&*opened(&device, &directory("t5_a", "lm")), &asking(&t5), 1.0, &device);
    assert!(with_prompts.unwrap_err().contains("an encoder predicts no tokens of a prompt"));
    for (model, head) in [("bert_a", "mlm"), ("gpt2_a", "cls")] {
        let message = refused(model, head, &asking(&unlabelled(model, head)));
        assert!(message.contains("verbalizer") && message.contains("a language-modelling head"), "{model}: {message}");
    }
}

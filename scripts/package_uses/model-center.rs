//! Depends on model-center alone: a small BERT classifies two sentences.

use model_center::bmtrain_core::{Ctx, Device};
use model_center::bmtrain_dist::block::BlockOptions;
use model_center::bmtrain_dist::param::BuilderOptions;
use model_center::Result;
use model_center::config::{BertConfig, TextConfig};
use model_center::data::Batch;
use model_center::model::bert::Bert;
use model_center::model::{Head, TextModel};

#[test]
fn a_small_bert_classifies_two_sentences() -> Result<()> {
    let device = Device::cpu(1)?;
    let text = TextConfig {
        vocab_size: 40,
        dim_model: 24,
        num_heads: 4,
        dim_head: 6,
        dim_ff: 48,
        num_layers: 2,
        position_size: 16,
        ..BertConfig::default().text
    };
    let config = BertConfig { text, ..BertConfig::default() };
    let head = Head::Classifier { outputs: 3 };
    let bert = Bert::new(&device, config, head, BlockOptions::default(), BuilderOptions::default())?;
    let mask = vec![1, 1, 1, 0, 1, 1, 1, 1];
    let batch = Batch { attention_mask: Some(mask), ..Batch::new(4, vec![5, 6, 7, 0, 8, 9, 10, 11]) };
    let output = bert.forward(&batch, None, &mut Ctx::inference(&device))?;
    let logits = output.logits.expect("a classifier has logits").value().to_vec::<f32>()?;
    assert!(logits.len() == 6 && logits.iter().all(|value| value.is_finite()), "{logits:?}");
    Ok(())
}

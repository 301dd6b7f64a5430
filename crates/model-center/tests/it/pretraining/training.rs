//! Tiny models of random initialization follow PyTorch over thirty steps, on batches of our objectives that are handed
//! over in a file: `scripts/golden/make_pretraining.py`. The batches are frozen by the same files.

use std::path::Path;

use bmtrain_core::Device;
use model_center::data::{Batch, Labels};
use model_center::formats::{SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry};
use model_center::pretraining::{
    CausalLm, CausalOptions, MaskTokens, MaskedLm, MaskedLmOptions, PretrainingSamples, RowOptions, Sentinels,
    SpanCorruption, SpanOptions,
};
use tempfile::tempdir;

use super::{bert, part, rows};
use crate::corpus::write;
use crate::goldens::{check_losses, directory};
use crate::mutants::Random;
use model_center::corpus::TokenType;

const STEPS: u64 = 30;
const ROWS: u64 = 4;
const VOCABULARY: u32 = 61;
const EOD: u32 = 1;

/// Sentences that models can learn: each token follows from the one before, with exceptions.
fn corpus(prefix: &Path) {
    let mut random = Random(17);
    let mut token = 10;
    let mut sentence = |is_last: bool| -> Vec<u32> {
        let mut ids: Vec<u32> = (0..4 + random.below(8))
            .map(|_| {
                token = if random.below(5) == 0 { 10 + random.below(40) as u32 } else { 10 + (token * 7 + 3) % 40 };
                token
            })
            .collect();
        ids.extend(is_last.then_some(EOD));
        ids
    };
    let documents: Vec<Vec<Vec<u32>>> = (0..60)
        .map(|document| (0..2 + document % 7).map(|number| sentence(number == 1 + document % 7)).collect())
        .collect();
    write(prefix, TokenType::U8, &documents);
}

/// The batches of each model.
fn batches() -> Vec<(&'static str, Vec<Batch>)> {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    corpus(&prefix);
    let samples = STEPS * ROWS;
    let rows = |length| RowOptions { eod: Some(EOD), ..rows(directory.path(), length, samples, VOCABULARY) };
    let masking = CausalOptions { eod_mask_loss: true, ..CausalOptions::default() };
    let gpt2 = CausalLm::open(&[part(&prefix, false)], &rows(24), masking).unwrap();
    let options = MaskedLmOptions {
        tokens: MaskTokens { cls: 2, sep: 3, mask: 4, pad: 0, vocabulary: VOCABULARY },
        ..bert::options(directory.path(), 32, samples, VOCABULARY)
    };
    let bert = MaskedLm::open(&[part(&prefix, true)], &options).unwrap();
    let t5 = SpanOptions::t5(Sentinels::at_end(VOCABULARY, 8), EOD, 0);
    let t5 = SpanCorruption::open(&[part(&prefix, false)], &rows(32), &t5).unwrap();
    let of = |objective: &dyn PretrainingSamples| {
        (0..STEPS).map(|step| objective.batch(&(step * ROWS..(step + 1) * ROWS).collect::<Vec<_>>()).unwrap()).collect()
    };
    vec![("gpt2", of(&gpt2)), ("bert", of(&bert)), ("t5", of(&t5))]
}

/// The fields of a batch under the names of transformers, with their columns.
fn fields(batch: &Batch) -> Vec<(&'static str, Vec<i64>, Vec<usize>)> {
    let wide = |values: &[u8]| values.iter().map(|value| i64::from(*value)).collect::<Vec<_>>();
    let labels = batch.labels.as_ref().and_then(Labels::ids).unwrap().to_vec();
    let grid = |values: Vec<i64>| {
        let columns = values.len() / batch.rows;
        (values, vec![batch.rows, columns])
    };
    let mut fields = vec![("input_ids", grid(batch.input_ids.clone())), ("labels", grid(labels))];
    fields.extend(batch.attention_mask.as_ref().map(|mask| ("attention_mask", grid(wide(mask)))));
    fields.extend(batch.token_type_ids.clone().map(|types| ("token_type_ids", grid(types))));
    fields.extend(batch.next_sentence.clone().map(|next| ("next_sentence_label", (next, vec![batch.rows]))));
    fields.into_iter().map(|(name, (values, shape))| (name, values, shape)).collect()
}

#[test]
#[ignore = "writes the batches that scripts/golden/make_pretraining.py trains with"]
fn write_batches() {
    for (name, batches) in batches() {
        let mut entries = Vec::new();
        let mut tensors = Vec::new();
        for (number, batch) in batches.iter().enumerate() {
            for (field, values, shape) in fields(batch) {
                let name = format!("batch.{number}.{field}");
                entries.push(TensorEntry { name: name.clone(), dtype: StoredDtype::I64, shape });
                tensors.push((name, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()));
            }
        }
        let directory = directory("pretraining", name);
        std::fs::create_dir_all(&directory).unwrap();
        let mut writer = SafetensorsWriter::create(&directory.join("batches.safetensors"), &entries).unwrap();
        tensors.iter().for_each(|(name, bytes)| writer.write_raw(name, bytes).unwrap());
        writer.finish().unwrap();
    }
}

#[test]
fn thirty_steps_from_random_weights_follow_pytorch_on_the_same_batches() {
    for (name, batches) in batches() {
        let file = SafetensorsFile::open(&directory("pretraining", name).join("batches.safetensors")).unwrap();
        let mut compared = 0;
        for (number, batch) in batches.iter().enumerate() {
            for (field, values, _) in fields(batch) {
                let tensor = format!("batch.{number}.{field}");
                assert!(file.read_i64(&tensor).unwrap() == values, "{name}: {tensor} is no longer what it was");
                compared += 1;
            }
        }
        assert_eq!(compared, file.tensors().len());
        let losses = check_losses(&Device::cpu(1).unwrap(), ("pretraining", name), &batches);
        let first = losses[0];
        println!("figure: {name} {first:.4} to {:.4}", losses[losses.len() - 1]);
        assert!(losses[losses.len() - 1] < first - 0.1, "{name} learns nothing: {losses:?}");
    }
}

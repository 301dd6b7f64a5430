//! Incremental decoding with a KV cache gives the logits of a forward pass over the whole sequence,
//! for every family that generates, with rows padded on the left, cut into pieces in different ways, moved to other
//! places, and under ZeRO-3.

mod ranks;

use bmtrain_core::{Ctx, Device};
use bmtrain_dist::shard::Sharding;
use model_center::adapter::{Adapter, AdapterConfig, PrefixConfig};
use model_center::model::{Batch, DecodingOptions, OpenOptions, Registry, TextModel};
use std::path::{Path, PathBuf};

/// The largest difference between logits of pieces and logits of the whole, relative to the largest above one:
/// products of matrices of other heights add up in another order.
pub const TOLERANCE: f32 = 1e-5;
const LENGTHS: [usize; 3] = [7, 4, 6];
const LONGEST: usize = 7;

/// Every directory of golden data with a language-modelling head. Their models have learned positions, rotary
/// embeddings of both layouts with every kind of scaling, ALiBi slopes, relative position biases, sinusoids, sliding
/// windows, grouped queries, norms of heads and parallel blocks.
pub fn directories() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let models = std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path());
    let mut directories: Vec<PathBuf> = models
        .flat_map(|model| ["lm", "untied"].map(|head| model.join(head)))
        .filter(|directory| directory.is_dir())
        .collect();
    directories.sort();
    assert!(directories.len() >= 20, "{directories:?}");
    directories
}

pub fn open(device: &Device, directory: &Path, sharding: Sharding) -> Box<dyn TextModel> {
    Registry::default().open(directory, &OpenOptions { sharding, ..OpenOptions::new(device) }).unwrap().model
}

/// Token ids of a row without padding.
pub fn row(model: &dyn TextModel, row: usize, length: usize) -> Vec<i64> {
    let words = model.info().vocab_size - 4;
    (0..length).map(|place| (4 + (row * 31 + place * 17 + place * place * 5) % words) as i64).collect()
}

/// Rows padded on the left to one length.
fn padded(rows: &[Vec<i64>]) -> Batch {
    let longest = rows.iter().map(Vec::len).max().unwrap();
    let padding = |row: &Vec<i64>| longest - row.len();
    let ids = rows.iter().flat_map(|row| vec![1; padding(row)].into_iter().chain(row.clone())).collect();
    let mask = rows.iter().flat_map(|row| vec![0; padding(row)].into_iter().chain(vec![1; row.len()])).collect();
    Batch { labels: None, ..Batch::next_tokens(longest, ids, Some(mask)) }
}

/// What an encoder reads: of three lengths, padded on the right.
fn source(model: &dyn TextModel) -> Option<Batch> {
    let lengths = [7, 9, 4];
    let rows = lengths.map(|length| row(model, 40 + length, length));
    let ids = rows.iter().flat_map(|row| row.iter().copied().chain(vec![1; 9 - row.len()])).collect();
    let mask = lengths.iter().flat_map(|&length| (0..9).map(move |place| u8::from(place < length))).collect();
    let batch = Batch { labels: None, ..Batch::next_tokens(9, ids, Some(mask)) };
    model.info().generates_targets.then_some(batch)
}

/// One row of a batch, without its padding.
fn alone(batch: &Batch, row: usize) -> Batch {
    let mask = &batch.attention_mask.as_ref().unwrap()[row * batch.length..(row + 1) * batch.length];
    let ids = &batch.input_ids[row * batch.length..(row + 1) * batch.length];
    let tokens: Vec<i64> = ids.iter().zip(mask).filter(|(_, mask)| **mask == 1).map(|(id, _)| *id).collect();
    Batch { labels: None, ..Batch::next_tokens(tokens.len(), tokens, None) }
}

/// The logits of the whole row of one text, `[L, V]`, read at once and alone.
pub fn whole(model: &dyn TextModel, source: Option<&Batch>, index: usize, ids: &[i64], device: &Device) -> Vec<f32> {
    let batch = Batch { labels: None, ..Batch::next_tokens(ids.len(), ids.to_vec(), None) };
    let batch = match source {
        None => batch,
        Some(source) => Batch { decoder_input_ids: Some(ids.to_vec()), ..alone(source, index) },
    };
    let scores = model.forward(&batch, None, &mut Ctx::inference(device)).unwrap();
    scores.logits.unwrap().value().to_vec().unwrap()
}

/// Columns of a padded batch.
fn columns(batch: &Batch, from: usize, to: usize) -> Batch {
    let cut = |row: usize| row * batch.length + from..row * batch.length + to;
    let mask = batch.attention_mask.as_ref().unwrap();
    let ids = (0..batch.rows).flat_map(|row| batch.input_ids[cut(row)].to_vec()).collect();
    let mask = (0..batch.rows).flat_map(|row| mask[cut(row)].to_vec()).collect();
    Batch { labels: None, ..Batch::next_tokens(to - from, ids, Some(mask)) }
}

pub fn furthest(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let scale = theirs.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
    ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max) / scale
}

/// A decoder with keys and values of virtual tokens, sampled; `None` of other models.
fn prefixed(device: &Device, directory: &Path, tokens: usize, sharding: Sharding) -> Option<Box<dyn TextModel>> {
    let adapter = Some(Adapter::New(AdapterConfig::Prefix(PrefixConfig { tokens })));
    let options = OpenOptions { sharding, adapter, ..OpenOptions::new(device) };
    match Registry::default().open(directory, &options) {
        Ok(opened) => Some(opened.model),
        Err(error) => {
            let error = error.to_string();
            let reasons = ["prefix tuning is for decoders", "contexts and spans", "no place in a sliding window"];
            assert!(reasons.iter().any(|reason| error.contains(reason)), "{error}");
            None
        }
    }
}

#[test]
fn pieces_are_the_whole_for_every_family() {
    let device = Device::cpu(1).unwrap();
    let (mut worst, mut prefixes): (f32, usize) = (0.0, 0);
    let of = |directory: PathBuf| {
        let plain = open(&device, &directory, Sharding::solo());
        let prefixed = prefixed(&device, &directory, 1, Sharding::solo());
        [Some((plain, 0)), prefixed.map(|model| (model, 1))].map(|model| model.map(|model| (directory.clone(), model)))
    };
    for (directory, (model, before)) in directories().into_iter().flat_map(of).flatten() {
        prefixes += before;
        let source = source(&*model);
        let rows: Vec<Vec<i64>> = LENGTHS.iter().enumerate().map(|(i, &length)| row(&*model, i, length)).collect();
        let batch = padded(&rows);
        let wanted: Vec<Vec<f32>> =
            rows.iter().enumerate().map(|(i, ids)| whole(&*model, source.as_ref(), i, ids, &device)).collect();
        let vocabulary = model.info().vocab_size;
        for cuts in [vec![LONGEST], (4..=LONGEST).collect(), vec![5, 6, LONGEST]] {
            let mut cx = Ctx::inference(&device);
            let options = DecodingOptions { source: source.as_ref(), expected: 9 };
            let mut decoding = model.decoding(options, &mut cx).unwrap();
            let mut from = 0;
            for &to in &cuts {
                let logits: Vec<f32> = decoding.extend(&columns(&batch, from, to), &mut cx).unwrap().to_vec().unwrap();
                for (i, (ours, row)) in logits.chunks(vocabulary).zip(&rows).enumerate() {
                    let place = to - 1 - (LONGEST - row.len());
                    let theirs = &wanted[i][place * vocabulary..(place + 1) * vocabulary];
                    let error = furthest(ours, theirs);
                    assert!(error <= TOLERANCE, "{}, {cuts:?}, row {i} to {to}: {error}", directory.display());
                    worst = worst.max(error);
                }
                from = to;
            }
            assert_eq!((decoding.past().rows(), decoding.past().length()), (3, before + LONGEST));
        }
    }
    assert!(prefixes >= 12, "{prefixes}");
    println!("figure: {} models, {worst:.1e}", directories().len());
}

#[test]
fn rows_continue_from_others_for_every_family() {
    let device = Device::cpu(1).unwrap();
    let of = |directory: PathBuf| {
        let plain = open(&device, &directory, Sharding::solo());
        let models = [Some(plain), prefixed(&device, &directory, 1, Sharding::solo())];
        models.map(|model| model.map(|model| (directory.clone(), model)))
    };
    for (directory, model) in directories().into_iter().flat_map(of).flatten() {
        // The row of dynamic angles becomes longer than they are steady.
        let is_dynamic = directory.parent().is_some_and(|model| model.ends_with("qwen2_b"));
        if is_dynamic && model.parameters().iter().any(|param| param.spec().is_adapter) {
            continue;
        }
        let source = source(&*model);
        let rows: Vec<Vec<i64>> = LENGTHS.iter().enumerate().map(|(i, &length)| row(&*model, i, length)).collect();
        let (batch, vocabulary) = (padded(&rows), model.info().vocab_size);
        let mut cx = Ctx::inference(&device);
        let options = DecodingOptions { source: source.as_ref(), expected: 20 };
        let mut decoding = model.decoding(options, &mut cx).unwrap();
        decoding.extend(&batch, &mut cx).unwrap();
        // Twice, as in every step of a beam search, and each with a token of its own.
        decoding.reorder(&[2, 2, 0, 1], &cx).unwrap();
        decoding.reorder(&[1, 3, 0], &cx).unwrap();
        let from = [2, 1, 2];
        let next = Batch { labels: None, ..Batch::next_tokens(1, vec![7, 8, 9], None) };
        let logits: Vec<f32> = decoding.extend(&next, &mut cx).unwrap().to_vec().unwrap();
        for (i, (ours, from)) in logits.chunks(vocabulary).zip(from).enumerate() {
            let ids: Vec<i64> = rows[from].iter().copied().chain([next.input_ids[i]]).collect();
            let theirs = whole(&*model, source.as_ref(), from, &ids, &device);
            let error = furthest(ours, &theirs[theirs.len() - vocabulary..]);
            assert!(error <= TOLERANCE, "{}, row {i}: {error}", directory.display());
        }
        assert!(decoding.reorder(&[3], &cx).is_err());
    }
}

#[test]
fn a_context_is_bidirectional_and_decoding_continues_after_it() {
    let device = Device::cpu(1).unwrap();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cpm1_a/lm");
    let model = open(&device, &directory, Sharding::solo());
    let ids = row(&*model, 3, 8);
    let context = |length: usize| (0..length).map(|place| u8::from(place < 5)).collect::<Vec<u8>>();
    let part =
        |from: usize, to: usize| Batch { labels: None, ..Batch::next_tokens(to - from, ids[from..to].to_vec(), None) };
    let whole = Batch { context: Some(context(8)), ..part(0, 8) };
    let mut cx = Ctx::inference(&device);
    let wanted: Vec<f32> = model.forward(&whole, None, &mut cx).unwrap().logits.unwrap().value().to_vec().unwrap();
    let mut decoding = model.decoding(DecodingOptions::default(), &mut cx).unwrap();
    let first = Batch { context: Some(context(6)), ..part(0, 6) };
    let vocabulary = model.info().vocab_size;
    for (to, batch) in [(6, first), (7, part(6, 7)), (8, part(7, 8))] {
        let ours: Vec<f32> = decoding.extend(&batch, &mut cx).unwrap().to_vec().unwrap();
        let error = furthest(&ours, &wanted[(to - 1) * vocabulary..to * vocabulary]);
        assert!(error <= TOLERANCE, "to {to}: {error}");
    }
    let late = Batch { context: Some(vec![1]), ..part(0, 1) };
    assert!(decoding.extend(&late, &mut cx).unwrap_err().to_string().contains("first tokens"));
}

/// The angles of all tokens change with the length of the row, beyond 8 tokens of the first model; of the second and
/// the third once, beyond 13 and 9 tokens.
#[test]
fn stretched_angles_are_those_of_the_whole_row_as_it_grows() {
    let device = Device::cpu(1).unwrap();
    let directory = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name).join("lm");
    let plain = |name: &str| open(&device, &directory(name), Sharding::solo());
    let prefixed = |name: &str| prefixed(&device, &directory(name), 2, Sharding::solo()).unwrap();
    let two = [(plain("qwen2_b"), 13), (prefixed("qwen2_b"), 13)];
    for (model, last) in two.into_iter().chain([(plain("phi3_b"), 16), (prefixed("phi3_b"), 16), (plain("phi3_a"), 16)])
    {
        let (ids, vocabulary) = (row(&*model, 5, last), model.info().vocab_size);
        let mut cx = Ctx::inference(&device);
        let mut decoding = model.decoding(DecodingOptions::default(), &mut cx).unwrap();
        let mut from = 0;
        for to in [6, 7, 9, 10, 11, 13, 14, 16].into_iter().filter(|to| *to <= last) {
            let next = Batch { labels: None, ..Batch::next_tokens(to - from, ids[from..to].to_vec(), None) };
            let ours: Vec<f32> = decoding.extend(&next, &mut cx).unwrap().to_vec().unwrap();
            let theirs = whole(&*model, None, 0, &ids[..to], &device);
            let error = furthest(&ours, &theirs[theirs.len() - vocabulary..]);
            assert!(error <= TOLERANCE, "to {to}: {error}");
            from = to;
        }
    }
}

#[test]
fn what_cannot_be_gone_on_with_is_refused_and_nothing_changes() {
    let device = Device::cpu(1).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut cx = Ctx::inference(&device);
    let bert = open(&device, &golden.join("bert_a/mlm"), Sharding::solo());
    assert!(
        bert.decoding(DecodingOptions::default(), &mut cx)
            .err()
            .unwrap()
            .to_string()
            .contains("does not generate text")
    );
    let classifier = open(&device, &golden.join("gpt2_a/cls"), Sharding::solo());
    assert!(classifier.decoding(DecodingOptions::default(), &mut cx).err().unwrap().to_string().contains("lm"));
    let model = open(&device, &golden.join("gpt2_a/lm"), Sharding::solo());
    let mut decoding = model.decoding(DecodingOptions::default(), &mut cx).unwrap();
    let one = |id: i64| Batch { labels: None, ..Batch::next_tokens(1, vec![id], None) };
    let mut refused = |batch: &Batch, cx: &mut Ctx| decoding.extend(batch, cx).err().map(|error| error.to_string());
    assert!(refused(&one(model.info().vocab_size as i64), &mut cx).unwrap().contains("input_ids"));
    let long = vec![5; model.info().max_length + 1];
    let too_long = Batch { labels: None, ..Batch::next_tokens(long.len(), long, None) };
    assert!(refused(&too_long, &mut cx).is_some());
    assert!(refused(&Batch { context: Some(vec![1]), ..one(5) }, &mut cx).is_some());
    assert!(refused(&one(5), &mut cx).is_none());
    let two = Batch { labels: None, ..Batch::next_tokens(1, vec![5, 6], None) };
    assert!(refused(&two, &mut cx).unwrap().contains("2 sequences after the 1"));
    assert_eq!(decoding.past().length(), 1);
    let t5 = open(&device, &golden.join("t5_a/lm"), Sharding::solo());
    assert!(t5.decoding(DecodingOptions::default(), &mut cx).err().unwrap().to_string().contains("encoder"));
    let reads = DecodingOptions { source: Some(&one(5)), ..DecodingOptions::default() };
    assert!(model.decoding(reads, &mut cx).err().unwrap().to_string().contains("no encoder"));
}

//! What cannot be sampled is refused with place, reason and fix: before the first sample where it shows then.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use model_center::corpus::{DocumentSet, GroupOptions, MixtureWeight, TokenFile, TokenType};
use model_center::pretraining::{
    CausalLm, CausalOptions, CorpusPart, Infilling, InfillingOptions, MaskTokens, MaskedLm, MaskedLmOptions, Masking,
    PairSampler, PretrainingSamples, RowOptions, RowSampler, SecondSentence, Sentinels, SpanCorruption, SpanOptions,
    SpanScheme, continuations,
};
use model_center::tokenizer::AutoTokenizer;
use tempfile::tempdir;

use super::bert::options;
use super::{part, rows};
use crate::corpus::write;

fn text(prefix: &Path) {
    write(prefix, TokenType::I32, &[vec![(100..130).collect(), (130..150).collect()], vec![(150..170).collect(); 3]]);
}

fn message<T: std::fmt::Debug>(result: model_center::Result<T>) -> String {
    let message = result.unwrap_err().to_string();
    assert!(message.contains("(fix: ") && !message.contains('\n'), "{message}");
    message
}

#[test]
fn causal_objectives_refuse_what_they_cannot_sample() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    text(&prefix);
    let good = rows(directory.path(), 8, 10, 200);
    let all = [part(&prefix, false)];
    let open = |rows: &RowOptions, options| CausalLm::open(&all, rows, options);
    let plain = CausalOptions::default();
    let without = RowOptions { eod: None, ..good.clone() };
    assert!(open(&without, plain).is_ok());
    for options in [CausalOptions { eod_mask_loss: true, ..plain }, CausalOptions { reset_documents: true, ..plain }] {
        assert!(message(open(&without, options)).contains("EOD token: documents are told apart by it"));
    }
    assert!(message(Infilling::open(&all, &without, InfillingOptions::default())).contains("EOD token"));
    let infilling = InfillingOptions { shortest: 7 };
    assert!(message(Infilling::open(&all, &good, infilling)).contains("a context in documents of 7 tokens"));
    assert!(message(open(&rows(directory.path(), 0, 10, 200), plain)).contains("samples of 0 tokens"));
    assert!(message(open(&rows(directory.path(), 8, 0, 200), plain)).contains("an objective without samples"));
    assert!(
        message(open(&RowOptions { eod: Some(200), ..good.clone() }, plain)).contains("EOD token 200 is not below")
    );
    assert!(message(CausalLm::open(&[], &good, plain)).contains("no corpora"));
    // A token above the vocabulary is found when it is read.
    for sampler in [RowSampler::Packed, RowSampler::RandomWindows] {
        let small = RowOptions { vocabulary: 120, sampler, ..rows(directory.path(), 8, 10, 200) };
        let objective = open(&small, plain).unwrap();
        let found: Vec<String> =
            (0..10).filter_map(|sample| objective.batch(&[sample]).err()).map(|e| e.to_string()).collect();
        assert!(
            !found.is_empty() && found.iter().all(|e| e.contains("is not below the vocabulary's 120")),
            "{found:?}"
        );
    }
    // Documents without tokens.
    let empty = directory.path().join("e");
    write(&empty, TokenType::U8, &[vec![vec![]], vec![]]);
    for sampler in [RowSampler::Packed, RowSampler::RandomWindows] {
        let rows = RowOptions { sampler, ..good.clone() };
        assert!(message(CausalLm::open(&[part(&empty, false)], &rows, plain)).contains("they have no tokens"));
    }
    // A corpus that is cut off while it is used.
    let windows = RowOptions { sampler: RowSampler::RandomWindows, ..good };
    let objective = open(&windows, plain).unwrap();
    fs::File::options().write(true).open(prefix.with_extension("bin")).unwrap().set_len(40).unwrap();
    let cut: Vec<String> =
        (0..10).filter_map(|sample| objective.batch(&[sample]).err()).map(|e| e.to_string()).collect();
    assert!(cut.iter().any(|e| e.contains("cut off")), "{cut:?}");
}

#[test]
fn masked_objectives_refuse_what_they_cannot_sample() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    text(&prefix);
    let good = options(directory.path(), 32, 10, 200);
    let all = [part(&prefix, true)];
    let open = |options: &MaskedLmOptions| MaskedLm::open(&all, options);
    assert!(open(&good).is_ok());
    assert!(message(open(&MaskedLmOptions { sequence_length: 4, ..good.clone() })).contains("there is no text"));
    let outside = MaskTokens { mask: 200, ..good.tokens };
    assert!(message(open(&MaskedLmOptions { tokens: outside, ..good.clone() })).contains("MASK token 200"));
    for (share, most) in [(0.0, 5), (f64::NAN, 5), (1.5, 5), (0.1, 0)] {
        let masking = Masking { share, most, ..good.masking.clone() };
        assert!(message(open(&MaskedLmOptions { masking, ..good.clone() })).contains("masking: a share of"));
    }
    let short = GroupOptions { short: 1.5, ..good.groups.clone() };
    assert!(message(open(&MaskedLmOptions { groups: short, ..good.clone() })).contains("a share of 1.5"));
    let single = CorpusPart { documents: DocumentSet::range(0..1), ..all[0].clone() };
    assert!(message(MaskedLm::open(&[single], &good)).contains("1 documents, and a random second sentence"));
    let beyond = CorpusPart { documents: DocumentSet::range(0..9), ..all[0].clone() };
    assert!(message(MaskedLm::open(&[beyond], &good)).contains("documents up to 9, and the file has 2"));
    let small = MaskTokens { vocabulary: 120, ..good.tokens };
    let objective = open(&MaskedLmOptions { tokens: small, ..good.clone() }).unwrap();
    assert!(message(objective.batch(&[0, 1, 2, 3, 4])).contains("is not below the vocabulary's 120"));
    // Documents of one sentence have no pairs, and empty ones nothing at all.
    let whole = directory.path().join("w");
    write(&whole, TokenType::U8, &[vec![vec![100; 50]], vec![vec![101; 50]], vec![], vec![vec![]]]);
    let file = Arc::new(TokenFile::open(&whole).unwrap());
    let documents = |range: std::ops::Range<u64>| {
        let file = Arc::clone(&file);
        [CorpusPart { file, documents: DocumentSet::range(range), weight: MixtureWeight::Number(1.0) }]
    };
    let refused = message(MaskedLm::open(&documents(0..4), &good));
    assert!(refused.contains("none of 4 documents has 2 sentences") && refused.contains("--split-lines"), "{refused}");
    let random = MaskedLmOptions { sampler: PairSampler::Random, second: SecondSentence::Order, ..good.clone() };
    let objective = MaskedLm::open(&documents(0..4), &random).unwrap();
    assert!(message(objective.batch(&[0])).contains("have no sentences for a pair"));
    assert!(message(MaskedLm::open(&documents(2..4), &random)).contains("they have no tokens"));
    // The only other document is empty.
    let next = MaskedLmOptions { second: SecondSentence::Next, ..random };
    let objective = MaskedLm::open(&documents(1..3), &next).unwrap();
    assert!(message(objective.batch(&[0])).contains("beside document 1"));
}

#[test]
fn span_corruption_refuses_what_it_cannot_sample() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    text(&prefix);
    let sentinels = Sentinels { first: 99, count: 50, descending: true };
    let good = SpanOptions::t5(sentinels, 1, 0);
    let all = [part(&prefix, false)];
    let open =
        |length, options: &SpanOptions| SpanCorruption::open(&all, &rows(directory.path(), length, 5, 200), options);
    assert!(open(16, &good).is_ok());
    assert!(message(open(0, &good)).contains("inputs of 0 tokens"));
    assert!(message(open(2, &good)).contains("inputs of 2 tokens"));
    for density in [0.0, 1.0, f64::NAN, -0.1] {
        assert!(message(open(16, &SpanOptions { density, ..good.clone() })).contains("hidden tokens"));
    }
    for mean in [0.5, f64::NAN] {
        let options = SpanOptions { scheme: SpanScheme::Segments(mean), ..good.clone() };
        assert!(message(open(16, &options)).contains("spans of"));
    }
    let few = SpanOptions { sentinels: Sentinels { count: 2, ..sentinels }, ..good.clone() };
    assert!(message(open(128, &few)).contains("are needed, and there are 2"));
    for sentinels in [Sentinels { count: 0, ..sentinels }, Sentinels { first: 500, ..sentinels }] {
        assert!(message(open(16, &SpanOptions { sentinels, ..good.clone() })).contains("sentinels from token"));
    }
    assert!(message(open(16, &SpanOptions { pad: 200, ..good.clone() })).contains("token 200 is not below"));
    let cpm = SpanOptions::cpm2(sentinels, 0);
    let without = RowOptions { eod: None, ..rows(directory.path(), 16, 5, 200) };
    assert!(message(SpanCorruption::open(&all, &without, &cpm)).contains("EOD token"));
}

#[test]
fn tokenizers_without_the_tokens_of_an_objective_are_refused() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cpm_tokenizer/cpm2");
    let cpm2 = AutoTokenizer::open(golden).unwrap();
    assert!(message(MaskTokens::of(&*cpm2)).contains("token, which masked language modelling needs"));
    let directory = tempdir().unwrap();
    let vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n##lo\n##\n#x\n";
    fs::write(directory.path().join("vocab.txt"), vocabulary).unwrap();
    let bert = AutoTokenizer::open(directory.path()).unwrap();
    assert!(message(Sentinels::of(&*bert)).contains("no sentinels"));
    assert_eq!(Sentinels::of(&*cpm2).unwrap(), Sentinels { first: 317, count: 190, descending: false });
    let tokens = MaskTokens::of(&*bert).unwrap();
    assert_eq!(tokens, MaskTokens { pad: 0, cls: 2, sep: 3, mask: 4, vocabulary: 9 });
    assert_eq!(*continuations(&*bert), [false, false, false, false, false, false, true, false, false]);
}

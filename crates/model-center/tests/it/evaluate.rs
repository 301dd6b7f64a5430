//! Scores of given tokens by the library against PyTorch in 64-bit floats, on the golden files of `golden/evaluate`;
//! the program's tests are in `crates/bmtrain-programs/tests/it/evaluate.rs`.

use bmtrain_core::Device;
use bmtrain_dist::Mesh;
use model_center::evaluate::{
    Detokenizer, EvalMasking, LambadaTotals, MaskedSet, ScoredSequence, Scorer, SourceOptions, TextSplitter,
    TokenScore, TokenSource, Windows, read_lambada, read_masked, read_requests,
};
use model_center::metrics::OrderedSum;
use model_center::model::{OpenOptions, Registry};
use model_center::tokenizer::{AutoTokenizer, Tokenizer};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// The largest relative error of a loss. The models compute in f32.
const TOLERANCE: f64 = 1e-5;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn expected(name: &str) -> Value {
    let all: Value = serde_json::from_slice(&std::fs::read(golden("evaluate/expected.json")).unwrap()).unwrap();
    all[name].clone()
}

fn tokenizer(directory: &TempDir, rows: usize) -> Arc<dyn Tokenizer> {
    let vocabulary = std::fs::read_to_string(golden("evaluate/vocab.txt")).unwrap();
    let words: String = vocabulary.lines().take(rows).flat_map(|word| [word, "\n"]).collect();
    std::fs::write(directory.path().join("vocab.txt"), words).unwrap();
    AutoTokenizer::open(directory.path()).unwrap()
}

fn with_scorer<T>(model: &str, work: impl FnOnce(&Scorer<'_>) -> T) -> T {
    let device = Device::cpu(1).unwrap();
    let opened = Registry::default().open(&golden(model), &OpenOptions::new(&device)).unwrap();
    work(&Scorer::new((&*opened.model, &device), (None, Mesh::SOLO), 3).unwrap())
}

fn loss(scorer: &Scorer<'_>, count: u64, sequence: &dyn Fn(u64) -> ScoredSequence) -> (f64, u64) {
    let (mut losses, mut all) = (OrderedSum::default(), 0);
    let mut add = |batch, sum, targets| {
        losses.add(batch, sum, targets as f64);
        all += targets;
        Ok(())
    };
    scorer.losses(count, &|number| Ok(sequence(number)), &mut add).unwrap();
    (losses.mean(), all)
}

fn tokens(scorer: &Scorer<'_>, sequences: &[ScoredSequence]) -> Vec<Vec<TokenScore>> {
    let mut scores = Vec::new();
    let mut add = |_, tokens| {
        scores.push(tokens);
        Ok(())
    };
    scorer.tokens(sequences.len() as u64, &|number| Ok(sequences[number as usize].clone()), &mut add).unwrap();
    scores
}

fn assert_close(what: &str, ours: f64, theirs: &Value) {
    let theirs = theirs.as_f64().unwrap();
    assert!((ours - theirs).abs() <= TOLERANCE * theirs.abs(), "{what}: {ours} and {theirs}");
}

#[test]
fn texts_are_detokenised_as_by_the_published_rules() {
    for case in expected("detokenised").as_array().unwrap() {
        assert_eq!(Detokenizer::Wikitext.apply(case["text"].as_str().unwrap()), case["plain"].as_str().unwrap());
    }
}

#[test]
fn every_token_is_scored_with_the_context_of_its_window() {
    let directory = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(&directory, 97);
    let options = SourceOptions { format: None, key: "text".into(), detokenizer: None, tokens: None };
    let source = TokenSource::of_texts(&golden("evaluate/wiki.test.tokens"), &*tokenizer, &options).unwrap();
    assert_eq!(source.detokenizer, Detokenizer::Wikitext);
    with_scorer("gpt2_a/lm", |scorer| {
        for case in expected("perplexity").as_array().unwrap() {
            let size = |name: &str| case[name].as_u64().unwrap();
            assert_eq!((source.len(), source.counts.unwrap().words), (size("tokens"), size("words")));
            let windows = Windows::new(source.len(), size("length") as usize, size("overlap") as usize).unwrap();
            let sequence = |window| {
                let (range, scored) = windows.at(window);
                Windows::sequence(&source.read(range).unwrap(), scored)
            };
            let (loss, targets) = loss(scorer, windows.len(), &sequence);
            assert_eq!(targets, windows.targets());
            assert_close(&case.to_string(), loss, &case["loss"]);
        }
    });
}

#[test]
fn passages_and_continuations_are_scored_token_by_token() {
    let directory = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(&directory, 97);
    let passages = read_lambada(&golden("evaluate/lambada.jsonl"), "text", &*tokenizer).unwrap();
    let requests = read_requests(&golden("evaluate/requests.jsonl"), Some(&*tokenizer)).unwrap();
    with_scorer("gpt2_a/lm", |scorer| {
        let mut totals = LambadaTotals::default();
        let sequences: Vec<_> = passages.iter().map(|passage| passage.sequence(19).unwrap()).collect();
        let scores = tokens(scorer, &sequences);
        scores.iter().zip(0..).for_each(|(scores, passage)| totals.add(passage, scores));
        let (ours, theirs) = (totals.result(), expected("lambada"));
        assert_eq!(Some(ours.last_token_accuracy), theirs["last_token_accuracy"].as_f64());
        assert_eq!(Some(ours.strict_accuracy), theirs["strict_accuracy"].as_f64());
        assert!(ours.strict_accuracy > 0.0 && ours.strict_accuracy < 1.0);
        assert!((ours.word_perplexity / theirs["word_perplexity"].as_f64().unwrap() - 1.0).abs() < 20.0 * TOLERANCE);
        let sequences: Vec<_> = requests.iter().map(|request| request.split.sequence(19).unwrap()).collect();
        let all = expected("likelihood");
        for ((request, scores), theirs) in requests.iter().zip(tokens(scorer, &sequences)).zip(all.as_array().unwrap())
        {
            let ours = request.result(&scores);
            for name in ["id", "continuation_ids", "is_greedy"] {
                assert_eq!(ours[name], theirs[name], "{name}");
            }
            let theirs = theirs["token_log_probs"].as_array().unwrap();
            assert_eq!(scores.len(), theirs.len());
            scores.iter().zip(theirs).for_each(|(ours, theirs)| assert_close("token", ours.log_prob, theirs));
        }
    });
    let refused = TextSplitter::new(&*tokenizer).split("here", "the film", "").unwrap_err().to_string();
    assert!(refused.contains("the continuation has no token"), "{refused}");
}

#[test]
fn masked_tokens_are_scored_at_their_own_position() {
    let directory = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(&directory, 101);
    let mask = tokenizer.special_ids().mask.unwrap();
    let lines = read_masked(&golden("evaluate/lines.txt"), Some(&*tokenizer), (None, "text", 24)).unwrap();
    let given = read_masked(&golden("evaluate/masked.jsonl"), None, (None, "text", 24)).unwrap();
    with_scorer("bert_a/mlm", |scorer| {
        for (case, sequences) in [("pseudo", lines), ("given", given)] {
            let (set, theirs) = (MaskedSet::new(sequences, EvalMasking::Each, mask), expected("mlm"));
            let (loss, targets) = loss(scorer, set.len(), &|number| set.at(number));
            assert_eq!(Some(targets), theirs[case]["masked_tokens"].as_u64());
            assert_close(case, loss, &theirs[case]["loss"]);
        }
    });
}

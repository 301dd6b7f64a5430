//! Vocabularies from the words of a corpus.
//!
//! Defines one function for each [`VocabularyKind`](super::VocabularyKind), which returns the `model` of a
//! `tokenizer.json`; called by [`super::train`]. The crate's trainers keep what they count in hash maps whose order
//! changes from run to run. What of that would reach the ids is put in order here: before, by giving the trainer its
//! alphabet; or after.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::TrainOptions;
use super::corpus::Corpus;
use bmtrain_core::Error as CoreError;
use bmtrain_core::limits::Resource;

use crate::tokenizer::catch::catch_errors;
use crate::tokenizer::document::{BpeOptions, bpe};
use crate::tokenizer::threads::start_threads;
use crate::{Error, Result};

const CONTINUED: &str = "##";
/// The longest piece of Unigram, in characters.
const MAX_PIECE: usize = 16;

pub(super) fn size(model: &Value) -> usize {
    model["vocab"].as_object().map(Map::len).or_else(|| model["vocab"].as_array().map(Vec::len)).unwrap_or(0)
}

/// Byte-level BPE: the alphabet is the 256 bytes.
pub(super) fn byte_bpe(corpus: &Corpus, options: &TrainOptions, special: &[String]) -> Result<Value> {
    let alphabet: BTreeSet<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    require_room(alphabet.len(), options, special)?;
    let fixed: Vec<String> = special.iter().cloned().chain(alphabet).collect();
    to_value(&merged(corpus, options, fixed, None)?)
}

/// WordPiece: BPE within words, of which only the tokens are kept.
pub(super) fn word_piece(corpus: &Corpus, options: &TrainOptions, special: &[String]) -> Result<Value> {
    let corpus = within_alphabet(corpus, options);
    let (mut first, mut continued) = (BTreeSet::new(), BTreeSet::new());
    for word in corpus.words.keys() {
        first.extend(word.chars().take(1).map(String::from));
        continued.extend(word.chars().skip(1).map(String::from));
    }
    // The trainer looks characters up without the mark, so all of them have to be there.
    first.extend(continued.iter().cloned());
    require_room(first.len() + continued.len(), options, special)?;
    let continued = continued.into_iter().map(|c| CONTINUED.to_owned() + &c);
    let fixed: Vec<String> = special.iter().cloned().chain(first).chain(continued).collect();
    let model = merged(&corpus, options, fixed, Some(CONTINUED))?;
    let mut tokens: Vec<(String, u32)> = model.get_vocab().into_iter().collect();
    tokens.sort_by_key(|(_, id)| *id);
    let vocab: Map<String, Value> = tokens.into_iter().map(|(token, id)| (token, id.into())).collect();
    Ok(json!({
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": CONTINUED,
        "max_input_chars_per_word": 100, "vocab": vocab,
    }))
}

/// Characters: BPE that merges nothing.
pub(super) fn characters(corpus: &Corpus, options: &TrainOptions, special: &[String]) -> Result<Value> {
    let least = options.least_frequency().div_ceil(corpus.divided);
    let room = options.vocab_size.saturating_sub(special.len()).min(options.limit_alphabet.unwrap_or(usize::MAX));
    // A character that is a special token has its id, and is not text.
    let is_text = |c: char| special.iter().all(|token| !token.chars().eq([c]));
    let characters = corpus.characters().into_iter().filter(|(c, count)| *count >= least && is_text(*c));
    let mut kept: Vec<char> = characters.take(room).map(|(c, _)| c).collect();
    require_room(1, options, special)?;
    kept.sort_unstable();
    let tokens = special.iter().cloned().chain(kept.into_iter().map(String::from));
    let vocab: Map<String, Value> = tokens.enumerate().map(|(id, token)| (token, id.into())).collect();
    Ok(bpe(vocab, Vec::new(), BpeOptions { unknown: Some("<unk>"), ..BpeOptions::default() }))
}

/// Unigram by expectation maximisation, its pieces in the order of their likelihood.
pub(super) fn unigram(corpus: &Corpus, options: &TrainOptions, special: &[String]) -> Result<Value> {
    let corpus = within_alphabet(corpus, options);
    require_room(corpus.characters().len(), options, special)?;
    let special_tokens: Vec<AddedToken> = special.iter().map(|token| AddedToken::from(token.as_str(), true)).collect();
    let size = u32::try_from(options.vocab_size).unwrap_or(u32::MAX);
    let mut builder = UnigramTrainer::builder();
    builder.show_progress(false).vocab_size(size).special_tokens(special_tokens).max_piece_length(MAX_PIECE);
    let trainer = catch_errors("training", "set up Unigram", || builder.unk_token(Some("<unk>".to_owned())).build())?;
    let sentences = corpus.words.iter().map(|(word, count)| (word.clone(), u32::try_from(*count).unwrap_or(u32::MAX)));
    let sentences: Vec<(String, u32)> = sentences.collect();
    let mut model = Unigram::default();
    // Sums of likelihoods depend on how they are cut over threads, so there is one.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let pool = pool.map_err(|error| CoreError::refused("thread that trains Unigram", Resource::Threads, error))?;
    catch_errors("training", "train Unigram", || pool.install(|| trainer.do_train(sentences, &mut model)))?;
    // A text that spells a special token yields a piece of that name, which exists already.
    let learnt = model.iter().skip(special.len());
    let pieces = learnt.filter(|(piece, _)| !special.contains(piece)).cloned().collect();
    let vocab: Vec<(String, f64)> = special.iter().map(|token| (token.clone(), 0.0)).chain(in_order(pieces)).collect();
    let unknown = special.iter().position(|token| token == "<unk>");
    Ok(json!({"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": false}))
}

/// Pieces by falling likelihood, then by spelling. Characters that training gave up are put back by the trainer with
/// rising likelihoods from the lowest on, in the order of a hash map. They get those likelihoods in the order of their
/// spellings instead.
fn in_order(mut pieces: Vec<(String, f64)>) -> Vec<(String, f64)> {
    let lowest = pieces.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
    let is_character = |piece: &str| piece.chars().nth(1).is_none();
    let (mut raised, mut back) = (0.0, Vec::new());
    loop {
        let score = lowest + raised;
        let before = back.len();
        back.extend((0..pieces.len()).filter(|at| pieces[*at].1 == score && is_character(&pieces[*at].0)));
        if back.len() == before {
            break;
        }
        raised += 0.0001;
    }
    let scores: Vec<f64> = back.iter().map(|at| pieces[*at].1).collect();
    back.sort_by(|a, b| pieces[*a].0.cmp(&pieces[*b].0));
    for (at, score) in back.into_iter().zip(scores) {
        pieces[at].1 = score;
    }
    pieces.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    pieces
}

/// Merges pairs. `fixed` are the tokens before the merged ones, the whole alphabet among them.
pub(super) fn merged(
    corpus: &Corpus,
    options: &TrainOptions,
    fixed: Vec<String>,
    continued: Option<&str>,
) -> Result<BPE> {
    let mut builder = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(options.vocab_size)
        .min_frequency(options.least_frequency().div_ceil(corpus.divided).max(1))
        .special_tokens(fixed.into_iter().map(|token| AddedToken::from(token, true)).collect());
    if let Some(prefix) = continued {
        builder = builder.continuing_subword_prefix(prefix.to_owned());
    }
    let trainer = builder.build();
    let counts = corpus.words.iter().map(|(word, count)| (word.as_str().into(), *count)).collect();
    let mut model = BPE::default();
    start_threads();
    catch_errors("training", "merge pairs", || trainer.do_train(&counts, &mut model))?;
    Ok(model)
}

/// The words whose characters are all among the most frequent ones.
pub(super) fn within_alphabet(corpus: &Corpus, options: &TrainOptions) -> Corpus {
    let limit = options.limit_alphabet.unwrap_or(usize::MAX);
    let kept: BTreeSet<char> = corpus.characters().into_iter().take(limit).map(|(c, _)| c).collect();
    let words = corpus.words.iter().filter(|(word, _)| word.chars().all(|c| kept.contains(&c)));
    let words = words.map(|(word, count)| (word.clone(), *count)).collect();
    Corpus { words, texts: corpus.texts, dropped: corpus.dropped, divided: corpus.divided }
}

/// Refuses a size that the alphabet does not fit into.
pub(super) fn require_room(alphabet: usize, options: &TrainOptions, special: &[String]) -> Result<()> {
    let least = alphabet + special.len() + 1;
    if options.vocab_size >= least {
        return Ok(());
    }
    let size = options.vocab_size;
    let reason =
        format!("{size} tokens have no room for an alphabet of {alphabet} beside {} special tokens", special.len());
    let fix = match options.kind {
        super::VocabularyKind::ByteBpe => format!("choose {least} or more"),
        _ => format!("choose {least} or more, or leave rare characters out with limit_alphabet"),
    };
    Err(Error::argument("vocab_size", reason, fix))
}

fn to_value(model: &BPE) -> Result<Value> {
    catch_errors("training", "write the vocabulary", || serde_json::to_value(model))
}

//! Vocabularies trained from texts: what comes out, that it is the same every time, and what is refused.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use model_center::data::TextLayout;
use model_center::tokenizer::{
    AutoTokenizer, HfTokenizer, Normalization, PieceModel, SentencePieceOptions, Tokenizer, TrainOptions, Trained,
    VocabularyKind, train, train_sentencepiece,
};
use tempfile::TempDir;

const KINDS: [VocabularyKind; 4] =
    [VocabularyKind::ByteBpe, VocabularyKind::Unigram, VocabularyKind::WordPiece, VocabularyKind::Characters];

/// Sentences of made-up words, some with rare characters, the same for every call.
fn texts(lines: u64) -> String {
    let syllables = ["ba", "re", "mi", "lo", "ku", "sti", "ver", "ung", "ing", "ö", "中", "国", "ra", "to", "ne", "x"];
    let mut state = 42_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut all = String::new();
    for line in 0..lines {
        for _ in 0..3 + random(9) {
            for _ in 0..1 + random(4) {
                all += syllables[random(16).min(random(16)) as usize];
            }
            all += if random(7) == 0 { ", " } else { " " };
        }
        if line % 50 == 0 {
            let _ = write!(all, "{}", char::from_u32(0x3b1 + (line / 50) as u32).unwrap_or('ω'));
        }
        all += ".\n";
    }
    all
}

fn corpus(text: &str) -> (TempDir, Vec<PathBuf>) {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("texts.txt");
    fs::write(&file, text).unwrap();
    (directory, vec![file])
}

fn trained(text: &str, options: &TrainOptions) -> Trained {
    let (_directory, files) = corpus(text);
    train(&files, &TextLayout::Lines, options).unwrap()
}

fn refused(text: &str, options: &TrainOptions) -> String {
    let (_directory, files) = corpus(text);
    train(&files, &TextLayout::Lines, options).unwrap_err().to_string()
}

fn size(kind: VocabularyKind) -> usize {
    match kind {
        VocabularyKind::ByteBpe => 500,
        VocabularyKind::Unigram | VocabularyKind::WordPiece => 260,
        VocabularyKind::Characters => 40,
    }
}

#[test]
fn every_kind_opens_and_gives_texts_back() {
    let text = texts(400);
    for kind in KINDS {
        let options = TrainOptions { special_tokens: vec!["<|im_end|>".into()], ..TrainOptions::new(kind, size(kind)) };
        let trained = trained(&text, &options);
        assert_eq!(trained.texts, 400);
        let directory = TempDir::new().unwrap();
        trained.save(directory.path().join("new")).unwrap();
        let tokenizer = HfTokenizer::from_directory(directory.path().join("new")).unwrap();
        assert_eq!(tokenizer.vocab_size(), trained.tokens, "{kind:?}");
        assert!(trained.tokens <= size(kind) && trained.tokens > 20, "{kind:?}: {}", trained.tokens);
        let special = tokenizer.special_ids();
        assert_eq!(special.pad, Some(0));
        assert_eq!(tokenizer.control_tokens().last().unwrap().text, "<|im_end|>");
        let line = "bareto mi, 中国 stiver.";
        let ids = &tokenizer.tokenize(&[line]).unwrap()[0];
        assert!(!ids.contains(&special.unk.unwrap_or(u32::MAX)), "{kind:?}: {ids:?}");
        let back = tokenizer.decode(ids, true).unwrap();
        let want = if kind == VocabularyKind::WordPiece { "bareto mi, 中 国 stiver." } else { line };
        assert_eq!(back, want, "{kind:?}");
        // What training is for: fewer tokens than characters, but where characters are the tokens.
        let characters = line.chars().count();
        assert_eq!(ids.len() < characters, kind != VocabularyKind::Characters, "{kind:?}: {}", ids.len());
    }
}

#[test]
fn texts_that_spell_special_tokens_teach_none_of_them() {
    let text = texts(300).replace("mi ", "</s> # <unk> [MASK] <pad> <|endoftext|> <pad></s> ");
    for kind in KINDS {
        for special in [vec![], vec!["#".to_owned(), "ba".to_owned(), "ö".to_owned()]] {
            let special =
                special.into_iter().filter(|token| kind != VocabularyKind::ByteBpe || token == "ba").collect();
            let options = TrainOptions { special_tokens: special, ..TrainOptions::new(kind, size(kind)) };
            let trained = trained(&text, &options);
            let directory = TempDir::new().unwrap();
            trained.save(directory.path().join("new")).unwrap();
            let tokenizer = HfTokenizer::from_directory(directory.path().join("new")).unwrap();
            assert_eq!(tokenizer.vocab_size(), trained.tokens, "{kind:?}");
            let controls: Vec<u32> = tokenizer.control_tokens().iter().map(|token| token.id).collect();
            let unknown = tokenizer.special_ids().unk;
            let ids = tokenizer.tokenize(&["bare </s> # <pad> [MASK]"]).unwrap().concat();
            assert!(ids.iter().all(|id| Some(*id) == unknown || !controls.contains(id)), "{kind:?}: {ids:?}");
        }
    }
    let hash = vec!["#".to_owned()];
    let options = TrainOptions { special_tokens: hash, ..TrainOptions::new(VocabularyKind::ByteBpe, 400) };
    let error = refused(&text, &options);
    assert!(error.contains("special_tokens") && error.contains("byte"), "{error}");
}

#[test]
fn the_same_texts_give_the_same_bytes_every_time_and_for_any_number_of_threads() {
    let (_directory, files) = corpus(&texts(800));
    for kind in KINDS {
        let min_frequency = (kind != VocabularyKind::Unigram).then_some(1);
        let options = TrainOptions { min_frequency, ..TrainOptions::new(kind, size(kind) + 200) };
        let bytes = || {
            let directory = TempDir::new().unwrap();
            train(&files, &TextLayout::Lines, &options).unwrap().save(directory.path()).unwrap();
            fs::read(directory.path().join("tokenizer.json")).unwrap()
        };
        let first = bytes();
        // Hash maps have another order every time, so what depends on it shows within a few runs.
        for run in 0..4 {
            assert!(bytes() == first, "{kind:?}, run {run}");
        }
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert!(pool.install(bytes) == first, "{kind:?}, {threads} threads");
        }
    }
}

#[test]
fn a_size_below_the_alphabet_and_texts_without_words_are_refused() {
    let text = texts(50);
    for kind in KINDS {
        let error = refused("", &TrainOptions::new(kind, 1000));
        assert!(error.contains("no word in 0 texts") && error.contains("texts.txt"), "{error}");
        let small = if kind == VocabularyKind::Characters { 4 } else { 12 };
        let error = refused(&text, &TrainOptions::new(kind, small));
        assert!(error.contains("vocab_size") && error.contains("no room for an alphabet"), "{kind:?}: {error}");
        for wrong in [0, usize::MAX] {
            assert!(refused(&text, &TrainOptions::new(kind, wrong)).contains("not a valid vocabulary size"));
        }
    }
    let options = |token: &str| TrainOptions {
        special_tokens: vec![token.into()],
        ..TrainOptions::new(VocabularyKind::WordPiece, 300)
    };
    assert!(refused(&text, &options(" ")).contains("is empty"));
    assert!(refused(&text, &options("[PAD]")).contains("is there already"));
}

#[test]
fn texts_come_from_columns_and_flaws_have_their_place() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("texts.jsonl");
    let lines: String =
        texts(60).lines().map(|line| serde_json::json!({"line": line, "n": 1}).to_string() + "\n").collect();
    fs::write(&file, &lines).unwrap();
    let options = TrainOptions::new(VocabularyKind::WordPiece, 200);
    let files = [file.clone()];
    let column = TextLayout::Column("line".into());
    let from_column = train(&files, &column, &options).unwrap();
    assert_eq!(from_column.tokenizer, trained(&texts(60), &options).tokenizer);
    let error = train(&files, &TextLayout::Column("text".into()), &options).unwrap_err().to_string();
    assert!(error.contains("texts.jsonl:1") && error.contains("text"), "{error}");
    fs::write(&file, lines + "{\"line\": \n").unwrap();
    let error = train(&files, &column, &options).unwrap_err().to_string();
    assert!(error.contains("texts.jsonl:61"), "{error}");
    let other = directory.path().join("texts.bin");
    fs::write(&other, b"a\xFFb\n").unwrap();
    let error = train(std::slice::from_ref(&other), &column, &options).unwrap_err().to_string();
    assert!(error.contains("texts.bin"), "{error}");
    let error = train(&[other], &TextLayout::Lines, &options).unwrap_err().to_string();
    assert!(error.contains("texts.bin:1:2") && error.contains("0xFF"), "{error}");
    let error = train(&[directory.path().join("none")], &TextLayout::Lines, &options).unwrap_err().to_string();
    assert!(error.contains("no such file"), "{error}");
}

#[test]
fn options_change_what_they_say() {
    let text = "Ｆｕｌｌ Width FULL width Ćwierć \u{63}\u{327}a\n".repeat(5);
    let kind = VocabularyKind::WordPiece;
    let open = |options: &TrainOptions| {
        let directory = TempDir::new().unwrap();
        trained(&text, options).save(directory.path()).unwrap();
        HfTokenizer::from_directory(directory.path()).unwrap()
    };
    let plain = TrainOptions::new(kind, 200);
    assert!(open(&plain).id("FULL").is_some());
    let lower = TrainOptions { lowercase: true, normalization: Normalization::Nfkc, ..plain.clone() };
    let tokenizer = open(&lower);
    assert!(tokenizer.id("FULL").is_none() && tokenizer.id("full").is_some() && tokenizer.id("cwierc").is_some());
    assert_eq!(tokenizer.tokenize(&["Ｆｕｌｌ"]).unwrap(), tokenizer.tokenize(&["full"]).unwrap());
    // A frequency that nothing reaches leaves the alphabet.
    let rare = trained(&text, &TrainOptions { min_frequency: Some(1_000_000), ..plain.clone() });
    assert!(rare.tokens < trained(&text, &plain).tokens);
    let few = TrainOptions { limit_alphabet: Some(3), ..TrainOptions::new(VocabularyKind::Characters, 100) };
    assert_eq!(trained(&text, &few).tokens, 4 + 3);
}

#[test]
fn no_more_words_are_kept_than_was_asked_for_and_the_frequent_ones_are() {
    let mut text = String::new();
    for number in 0..5000 {
        let _ = writeln!(text, "often word{number}");
    }
    let options = TrainOptions { max_words: 100, ..TrainOptions::new(VocabularyKind::WordPiece, 100) };
    let trained = trained(&text, &options);
    assert!(trained.words <= 100 && trained.words_dropped > 4800, "{} {}", trained.words, trained.words_dropped);
    assert!(trained.tokenizer["model"]["vocab"]["often"].is_u64());
}

fn pieces(text: &str, model: PieceModel, vocab_size: usize) -> model_center::Result<TempDir> {
    let (directory, files) = corpus(text);
    let control_tokens = vec!["<sep>".to_owned()];
    let options = SentencePieceOptions { model, vocab_size, control_tokens, limit_alphabet: None, max_words: 100_000 };
    train_sentencepiece(&files, &TextLayout::Lines, &options)?.save(directory.path())?;
    Ok(directory)
}

#[test]
fn sentencepiece_files_are_trained_read_and_the_same_every_time() {
    let text = texts(600);
    for (model, size) in [(PieceModel::Unigram, 300), (PieceModel::Bpe, 300), (PieceModel::Char, 60)] {
        let directory = pieces(&text, model, size).unwrap();
        let read = |name: &str| fs::read(directory.path().join(name)).unwrap();
        let again = pieces(&text, model, size).unwrap();
        assert!(fs::read(again.path().join("tokenizer.model")).unwrap() == read("tokenizer.model"), "{model:?}");
        let vocab = String::from_utf8(read("tokenizer.vocab")).unwrap();
        let listed: Vec<&str> = vocab.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(listed[..4], ["<unk>", "<s>", "</s>", "<sep>"]);
        assert!(listed.len() <= size && listed.len() > 30, "{model:?}: {}", listed.len());
        let tokenizer = AutoTokenizer::open(directory.path()).unwrap();
        assert_eq!(tokenizer.vocab_size(), listed.len());
        for (id, piece) in listed.iter().enumerate() {
            assert_eq!(tokenizer.id(piece), u32::try_from(id).ok(), "{model:?}: {piece}");
        }
        for line in text.lines().take(50) {
            let ids = tokenizer.tokenize(&[line]).unwrap().remove(0);
            assert!(!ids.contains(&0), "{model:?}: {line}");
            // Of several spaces one is left, and none at the ends.
            let plain = line.split(' ').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), plain, "{model:?}");
        }
        let sizes = |text: &str| tokenizer.tokenize(&[text]).unwrap()[0].len();
        assert_eq!(sizes("bare milo") < 9, model != PieceModel::Char, "{model:?} merges nothing");
    }
}

#[test]
fn whole_words_of_sentencepiece_are_trained_by_frequency() {
    let directory = pieces("a b a\nb a c\n", PieceModel::Word, 6).unwrap();
    let vocab = fs::read_to_string(directory.path().join("tokenizer.vocab")).unwrap();
    let (half, third) = (0.5_f32.ln(), (2.0_f64 / 6.0).ln() as f32);
    assert_eq!(vocab, format!("<unk>\t0\n<s>\t0\n</s>\t0\n<sep>\t0\n\u{2581}a\t{half}\n\u{2581}b\t{third}\n"));
    let error = AutoTokenizer::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("a vocabulary of whole words is not read"), "{error}");
    let error = pieces("abcdefgh", PieceModel::Bpe, 6).unwrap_err().to_string();
    assert!(error.contains("no room for an alphabet of 9"), "{error}");
}

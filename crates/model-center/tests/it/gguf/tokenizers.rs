//! Tokenizers of GGUF files.

use super::golden;
use bmtrain_core::DType;
use model_center::formats::{GgufFile, gguf_to_directory};
use model_center::tokenizer::gguf::tokenizer_files;
use model_center::tokenizer::{HfTokenizer, TextSpecials, Tokenizer};
use serde_json::Value;

#[test]
fn texts_are_cut_merged_and_put_back_together() {
    let dir = tempfile::tempdir().unwrap();
    let report = gguf_to_directory(&golden("llama.gguf"), &dir.path().join("a"), DType::F32).unwrap();
    assert_eq!(report.not_made, []);
    let tokenizer =
        HfTokenizer::from_directory(dir.path().join("a")).unwrap().with_text_specials(TextSpecials::AsTokens);
    let id = |token: &str| tokenizer.id(token).unwrap();
    let ids = |text: &str| tokenizer.encode(text, None, None).unwrap().input_ids;
    assert_eq!(ids("hello world"), [id("<|begin|>"), id("hello"), id("Ġworld")]);
    assert_eq!(ids("hello<|end|>"), [id("<|begin|>"), id("hello"), id("<|end|>")]);
    // A token marked as user-defined is matched as a whole, and is text.
    assert_eq!(ids("<think>12"), [id("<|begin|>"), id("<think>"), id("12")]);
    assert_eq!(tokenizer.decode(&ids("hello <think>\n"), true).unwrap(), "hello <think>\n");
    assert_eq!(tokenizer.vocab_size(), 44);
    assert_eq!((tokenizer.special_ids().bos, tokenizer.special_ids().eos), (Some(41), Some(42)));
    let as_text = HfTokenizer::from_directory(dir.path().join("a")).unwrap();
    assert!(!as_text.tokenize(&["<|end|>"]).unwrap()[0].contains(&42));

    // Qwen2 cuts digits one by one, composes marks with their letters, and puts nothing before a text.
    gguf_to_directory(&golden("qwen2.gguf"), &dir.path().join("b"), DType::F32).unwrap();
    let tokenizer = HfTokenizer::from_directory(dir.path().join("b")).unwrap();
    let id = |token: &str| tokenizer.id(token).unwrap();
    let ids = |text: &str| tokenizer.encode(text, None, None).unwrap().input_ids;
    assert_eq!(ids("12"), [id("1"), id("2")]);
    assert_eq!(ids("e\u{301}"), [id("Ã©")]);
}

#[test]
fn pieces_are_joined_by_their_scores_and_bytes_spell_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let report = gguf_to_directory(&golden("qwen3.gguf"), &dir.path().join("a"), DType::F32).unwrap();
    assert!(report.not_made.is_empty(), "{report}");
    let tokenizer = HfTokenizer::from_directory(dir.path().join("a")).unwrap();
    let ids = |text: &str| {
        let ids = tokenizer.encode(text, None, None).unwrap().input_ids;
        ids.iter().map(|id| tokenizer.token(*id).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(ids("hello"), ["<s>", "▁hello"]);
    // Both "el" and "lo" are pieces; the one of the better score joins first.
    assert_eq!(ids("elo wh"), ["<s>", "▁", "el", "o", "▁w", "h"]);
    assert_eq!(ids("hello é\n"), ["<s>", "▁hello", "▁", "<0xC3>", "<0xA9>", "<0x0A>"]);
    let all = tokenizer.encode("hello é\n", None, None).unwrap().input_ids;
    assert_eq!(tokenizer.decode(&all, true).unwrap(), "hello é\n");
    assert_eq!((tokenizer.special_ids().unk, tokenizer.special_ids().bos), (Some(0), Some(1)));
}

#[test]
fn the_keys_of_tokenizer_json_keep_their_order() {
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let file = GgufFile::open(&golden("qwen2.gguf")).unwrap();
    let tokenizer = tokenizer_files(file.metadata(), 10).unwrap().tokenizer;
    let expected = "version truncation padding post_processor added_tokens normalizer pre_tokenizer decoder model";
    assert_eq!(keys(&tokenizer), expected);
    assert_eq!(keys(&tokenizer["added_tokens"][0]), "id content special single_word lstrip rstrip normalized");
}

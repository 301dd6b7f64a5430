//! A byte-level vocabulary for the fixture's tiny BLOOM: the characters of JSON, and a few longer tokens.

use super::bloom;
use crate::fixture::Fixture;
use serde_json::{Map, Value, json};

/// The end token.
pub const END: u32 = 1;
const MARKS: [&str; 2] = ["<tool_call>", "</tool_call>"];

/// The tiny BLOOM with that vocabulary. The marks of tool calls are special tokens, or text.
pub fn byte_level(has_special_marks: bool) -> Fixture {
    let fixture = bloom();
    std::fs::remove_file(fixture.path("model/vocab.txt")).unwrap();
    let chars = (b'0'..=b'9').chain(b'a'..=b'z').chain(*b"{}[]\":,-.+\\_").map(|byte| char::from(byte).to_string());
    // A space, a line break, the two bytes of é, and tokens of several characters.
    let longer = ["Ġ", "Ċ", "Ã", "©", "{\"", "\":Ġ", "true"].map(str::to_owned);
    let tokens =
        ["<s>", "</s>"].map(str::to_owned).into_iter().chain(chars).chain(longer).chain(MARKS.map(str::to_owned));
    let tokens: Vec<String> = tokens.collect();
    assert_eq!(tokens.len(), 59, "the model's vocabulary");
    let vocabulary: Map<String, Value> = tokens.iter().zip(0..).map(|(token, id)| (token.clone(), id.into())).collect();
    let added = tokens.iter().enumerate().filter(|(id, token)| *id < 2 || MARKS.contains(&token.as_str()));
    let added = added.map(|(id, token)| {
        json!({
            "id": id, "content": token, "special": id < 2 || has_special_marks,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    });
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let document = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": [],
        },
    });
    fixture.write("model/tokenizer.json", &document.to_string());
    fixture
}

/// Gives the model a chat template with tools and tool calls.
pub fn with_tools(fixture: &Fixture) {
    let template = "{% if tools %}<tool_call>{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}\
                    {% for message in messages %}{{ message.role }} {% for call in message.tool_calls or [] %}\
                    {{ call.function.name }}{{ call.function.arguments.a }}{% endfor %}{{ message.content or '' }}\n\
                    {% endfor %}";
    fixture.write("model/chat_template.jinja", template);
}

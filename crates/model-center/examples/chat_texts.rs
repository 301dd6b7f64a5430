//! Renders and tokenizes many conversations with many templates. Called by `scripts/claims/chat-templates.sh`.
//!
//! ```text
//! chat_texts TOKENIZER <REQUESTS >RESULTS
//! ```
//!
//! Each line is a JSON object with `template` (a file), `messages`, `tools`, `more`, `add_generation_prompt`,
//! `continue_final_message`, `special_tokens` and `now`; each line of the results has `text` and `ids`, or `error`.

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufWriter, Write};
use std::time::{Duration, UNIX_EPOCH};

use model_center::tokenizer::{ChatMessage, ChatRequest, ChatTemplate, HfTokenizer, TextSpecials, Tokenizer};
use serde_json::{Value, json};

/// Marks where the last message ends, so that the text can be cut there.
const END: &str = "THE_END_OF_THE_LAST_MESSAGE ";

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: chat_texts TOKENIZER <REQUESTS >RESULTS")?;
    let plain = HfTokenizer::from_directory(directory)?.with_text_specials(TextSpecials::AsTokens);
    let mut templates = HashMap::new();
    let mut out = BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let asked: Value = serde_json::from_str(&line?)?;
        let path = asked["template"].as_str().unwrap_or_default();
        let template = templates.entry(path.to_owned()).or_insert_with(|| {
            let source = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
            let tokens = asked["special_tokens"].as_object().cloned().unwrap_or_default();
            ChatTemplate::from_source(path, &source, tokens).map_err(|error| error.to_string())
        });
        let text = template.as_ref().map_err(Clone::clone).and_then(|template| text(template, &asked));
        let result = match text {
            Ok(text) => json!({"ids": plain.tokenize(&[&text])?.concat(), "text": text}),
            Err(error) => json!({"error": error}),
        };
        writeln!(out, "{result}")?;
    }
    Ok(())
}

/// The text of one request; with `continue_final_message` up to the end of the last message.
fn text(template: &ChatTemplate, asked: &Value) -> Result<String, String> {
    let mut messages: Vec<ChatMessage> =
        serde_json::from_value(asked["messages"].clone()).map_err(|error| error.to_string())?;
    let continues = asked["continue_final_message"] == true;
    let mut unfinished = String::new();
    if continues {
        let last = messages.last_mut().ok_or("there is no message")?;
        let content = match &mut last.content {
            Value::Array(parts) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
            content => Some(content),
        };
        match content {
            Some(Value::String(content)) => {
                unfinished = content.trim().to_owned();
                content.push_str(END);
            }
            _ => return Err("the last message has no text".into()),
        }
    }
    let request = ChatRequest {
        add_generation_prompt: asked["add_generation_prompt"] == true,
        tools: asked.get("tools").filter(|tools| !tools.is_null()),
        more: asked["more"].as_object().cloned().unwrap_or_default(),
        now: asked["now"].as_u64().map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds)),
        ..ChatRequest::new(&messages)
    };
    let text = template.render_request(&request).map_err(|error| error.to_string())?;
    if !continues {
        return Ok(text);
    }
    // A template may delete parts of a message.
    if !text.contains(&unfinished) {
        return Err("the last message is not in the text".into());
    }
    let at = text.rfind(END.trim_end()).ok_or("the last message is not in the text")?;
    let before = &text[..at];
    // Where the template trims a text, the space is gone, and the text's own at its end.
    Ok(if text[at..].starts_with(END) { before } else { before.trim_end() }.to_owned())
}

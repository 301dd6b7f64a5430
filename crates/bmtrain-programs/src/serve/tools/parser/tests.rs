//! Tests of messages with tool calls, cut anywhere.

use super::*;

/// The text and the calls of a message, which are the same however it is cut.
fn read(form: ToolForm, message: &str) -> (String, Vec<(String, String)>) {
    let collect = |texts: &[&str]| {
        let mut parser = ToolCallParser::new(form, vec!["add".into(), "get_time".into()]);
        let mut parts: Vec<MessagePart> = texts.iter().flat_map(|text| parser.push(text)).collect();
        parts.extend(parser.finish());
        let (mut text, mut calls) = (String::new(), Vec::<(String, String)>::new());
        for part in parts {
            match part {
                MessagePart::Text(further) => text += &further,
                MessagePart::Call { index, name } => {
                    assert_eq!(index, calls.len());
                    calls.push((name, String::new()));
                }
                MessagePart::Arguments { index, text } => calls[index].1 += &text,
            }
        }
        (text, calls)
    };
    let whole = collect(&[message]);
    let chars: Vec<String> = message.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(collect(&chars), whole, "{message}");
    let middle = message.floor_char_boundary(message.len() / 2);
    let (first, second) = message.split_at(middle);
    assert_eq!(collect(&[first, second]), whole, "{message}");
    whole
}

fn calls(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect()
}

#[test]
fn calls_of_hermes_are_found_between_marks() {
    let one = r#"<tool_call>
{"name": "add", "arguments": {"a": "</tool_call> \" }", "b": [1, {}]}}
</tool_call>"#;
    let arguments = r#"{"a": "</tool_call> \" }", "b": [1, {}]}"#;
    let hermes = |message: &str| read(ToolForm::Hermes, message);
    assert_eq!(hermes(one), (String::new(), calls(&[("add", arguments)])));
    let two = format!("Let me see.\n\n{one}\n<tool_call>{{\"arguments\": {{}}, \"name\": \"get_time\"}}</tool_call>\n");
    assert_eq!(hermes(&two), ("Let me see.".into(), calls(&[("add", arguments), ("get_time", "{}")])));
    assert_eq!(hermes("a < b, and <tool_ x"), ("a < b, and <tool_ x".into(), Vec::new()));
    for (message, expected) in [
        (r#"<tool_call>{"name": "get_time"}</tool_call>"#, &[("get_time", "{}")][..]),
        (r#"<tool_call>{"name": "add", "arguments": "{\"a\": 1}"}</tool_call>"#, &[("add", r#"{"a": 1}"#)]),
        (r#"<tool_call>{"id": 7, "name": "add", "arguments": null }"#, &[("add", "null")]),
        // Broken after the name: no arguments that are not in the text.
        (r#"<tool_call>{"name": "add" x"#, &[("add", "")]),
        // The most tokens were generated.
        (r#"<tool_call>{"name": "add", "arguments": {"a": "#, &[("add", r#"{"a": "#)]),
    ] {
        assert_eq!(hermes(message), (String::new(), calls(expected)), "{message}");
    }
    // What is not a call of a function is text.
    for message in [
        r#"x <tool_call>{"name": "other", "arguments": {}}</tool_call> y"#,
        "<tool_call>nothing</tool_call>",
        r#"<tool_call>{"name": 3}"#,
        r#"<tool_call>{"na"#,
        "<tool_call>",
        " text ",
    ] {
        assert_eq!(hermes(message), (message.to_owned(), Vec::new()));
    }
}

#[test]
fn calls_of_llama_are_the_message() {
    let llama = |message: &str| read(ToolForm::Llama3, message);
    let one = r#"{"name": "add", "parameters": {"a": 1}}"#;
    for message in [one.to_owned(), format!("<|python_tag|>{one}"), format!("\n <|python_tag|>\n{one}\n")] {
        assert_eq!(llama(&message), (String::new(), calls(&[("add", r#"{"a": 1}"#)])), "{message}");
    }
    let two = format!(r#"{one}; {{"type": "function", "name": "get_time", "parameters": {{}}}}"#);
    assert_eq!(llama(&two), (String::new(), calls(&[("add", r#"{"a": 1}"#), ("get_time", "{}")])));
    for message in ["It is noon.", r#"{"name": "Ada", "age": 3}"#, "{", "", r#"See {"name": "add"}"#, "[1]", "{}"] {
        assert_eq!(llama(message), (message.to_owned(), Vec::new()));
    }
    assert_eq!(llama("<|python_tag|>print(1)"), ("print(1)".into(), Vec::new()));
}

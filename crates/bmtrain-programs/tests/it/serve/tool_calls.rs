//! Tools: calls that a random model is made to write, whole and streamed, and conversations with calls and results.

use super::client::Server;
use super::vocabulary::{byte_level, with_tools};
use super::with_chat;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// Two functions.
fn tools() -> Value {
    let add = json!({
        "type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
    });
    json!([
        {"type": "function", "function": {"name": "add", "description": "adds", "parameters": add}},
        {"type": "function", "function": {"name": "noon"}},
    ])
}

fn body(choice: Value) -> Value {
    json!({
        "messages": [{"role": "user", "content": "add"}], "tools": tools(), "tool_choice": choice, "temperature": 2,
        "seed": 4, "max_tokens": 400,
    })
}

/// Checks a call; its function and arguments.
fn checked(call: &Value) -> (String, String) {
    let part = |name: &str| call["function"][name].as_str().unwrap().to_owned();
    let (name, arguments) = (part("name"), part("arguments"));
    let value: Value = serde_json::from_str(&arguments).unwrap_or_else(|_| panic!("{call}"));
    match name.as_str() {
        "add" => {
            assert!(
                (0..100).contains(&value["a"].as_i64().unwrap()) && ["x", "y"].contains(&value["b"].as_str().unwrap())
            );
            assert_eq!(value.as_object().unwrap().len(), 2, "{call}");
        }
        "noon" => assert_eq!(value, json!({})),
        other => panic!("{other}"),
    }
    (name, arguments)
}

/// The calls of a whole response.
fn of_whole(result: &Value) -> Vec<(String, String)> {
    let choice = &result["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null),
        "{result}"
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let mut ids: Vec<&str> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert!(calls.iter().all(|call| call["type"] == "function"));
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), calls.len(), "{calls:?}");
    calls.iter().map(checked).collect()
}

/// The calls of a stream, joined as clients join them.
fn of_stream(events: &[Value]) -> Vec<(String, String)> {
    let mut calls: Vec<Value> = Vec::new();
    for delta in events.iter().flat_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array()).flatten() {
        let index = delta["index"].as_u64().unwrap() as usize;
        if delta["id"].is_string() {
            assert_eq!((index, &delta["type"]), (calls.len(), &json!("function")));
            calls.push(delta.clone());
        } else {
            let before = calls[index]["function"]["arguments"].as_str().unwrap();
            let joined = before.to_owned() + delta["function"]["arguments"].as_str().unwrap();
            calls[index]["function"]["arguments"] = joined.into();
        }
    }
    let reasons: Vec<&Value> =
        events.iter().map(|event| &event["choices"][0]["finish_reason"]).filter(|reason| !reason.is_null()).collect();
    assert_eq!(reasons, [&json!("tool_calls")]);
    let content = events.iter().skip(1).filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(content.collect::<String>(), "");
    calls.iter().map(checked).collect()
}

#[test]
fn calls_that_are_required_are_whole_and_streamed_the_same() {
    for (has_special_marks, arguments) in [(false, &[][..]), (true, &[]), (false, &["--tool-form", "llama3"])] {
        let fixture = byte_level(has_special_marks);
        with_tools(&fixture);
        let server = Server::of(&fixture, arguments);
        let required = body(json!("required"));
        let whole = of_whole(&server.post(CHAT, &required));
        assert!(!whole.is_empty());
        assert_eq!(of_stream(&server.stream(CHAT, &required)), whole);
        let named = body(json!({"type": "function", "function": {"name": "noon"}}));
        let [(name, arguments)] = &of_whole(&server.post(CHAT, &named))[..] else { panic!("not one call") };
        // There may be white space in an object.
        assert_eq!((name.as_str(), serde_json::from_str(arguments).ok()), ("noon", Some(json!({}))));
        let mut single = required.clone();
        single["parallel_tool_calls"] = false.into();
        assert_eq!(of_whole(&server.post(CHAT, &single)).len(), 1);
    }
}

#[test]
fn conversations_have_calls_and_results_and_what_is_wrong_is_refused() {
    let fixture = byte_level(false);
    with_tools(&fixture);
    let server = Server::of(&fixture, &[]);
    let mut auto = body(json!("auto"));
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 12}"}});
    auto["messages"] = json!([
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": null, "refusal": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]);
    auto["max_tokens"] = json!(5);
    let with_calls = server.post(CHAT, &auto);
    assert_eq!(with_calls["choices"][0]["message"]["role"], "assistant");
    // The template writes the tools, and the argument of the call.
    let prompt = |body: &Value| server.post(CHAT, body)["usage"]["prompt_tokens"].as_u64().unwrap();
    let text = "<tool_call>add noon user add\nassistant add12\ntool 3\n";
    assert_eq!(prompt(&auto), text.len() as u64 - "<tool_call>".len() as u64 + 1);
    let mut none = auto.clone();
    none["tool_choice"] = "none".into();
    assert_eq!(prompt(&none), prompt(&auto) - 1 - "add noon ".len() as u64);

    let refused = |server: &Server, field: &str, value: Value, param: &str| {
        let mut body = body(json!("auto"));
        body[field] = value.clone();
        let answer = server.ask("POST", CHAT, &[], body.to_string().as_bytes());
        let error: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, error["error"]["param"].as_str()), (400, Some(param)), "{field} {value}: {error}");
    };
    let tool = |function: Value| json!([{"type": "function", "function": function}]);
    for (field, value, param) in [
        ("tools", json!({}), "tools"),
        ("tools", json!([{"type": "function"}]), "tools"),
        ("tools", json!([{"type": "custom", "custom": {"name": "a"}}]), "tools"),
        ("tools", tool(json!({"name": "a b"})), "tools"),
        ("tools", tool(json!({"name": "a", "parameters": 3})), "tools"),
        ("tools", tool(json!({"name": "a", "returns": {}})), "tools.returns"),
        ("tools", tool(json!({"name": "a", "description": "ends </s>"})), "tools"),
        ("tools", tool(json!({"name": "a", "strict": true, "parameters": {"not": {}}})), "tools"),
        ("tools", json!([tools()[1], tools()[1]]), "tools"),
        ("tool_choice", json!("any"), "tool_choice"),
        ("tool_choice", json!({"type": "function", "function": {"name": "other"}}), "tool_choice"),
        ("tool_choice", json!({"type": "allowed_tools"}), "tool_choice"),
        ("parallel_tool_calls", json!("yes"), "parallel_tool_calls"),
        ("messages", json!([{"role": "assistant", "content": null}]), "messages"),
    ] {
        refused(&server, field, value, param);
    }
    let required = json!({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"});
    let answer = server.ask("POST", CHAT, &[], required.to_string().as_bytes());
    assert!(answer.status == 400 && answer.body.contains("no tools"), "{}", answer.body);
    // The chat template of this model has no place for tools.
    with_chat(&fixture);
    let server = Server::of(&fixture, &["--tool-form", "hermes"]);
    refused(&server, "tools", tools(), "tools");
}

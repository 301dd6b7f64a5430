//! The messages of a conversation.

use super::ApiError;
use model_center_formats::tokenizer::ChatMessage;
use serde_json::{Map, Value};

fn wrong(reason: impl Into<String>) -> ApiError {
    ApiError::field("messages", reason)
}

/// Messages with a role and a text; parts of a text are joined. An assistant's message may have tool calls, with a text
/// or without; the arguments of calls, which are JSON in a text, become objects, as templates read them.
pub(super) fn messages(value: Value) -> Result<Vec<ChatMessage>, ApiError> {
    let Value::Array(items) = value else { return Err(wrong("\"messages\" is not a list")) };
    if items.is_empty() {
        return Err(wrong("\"messages\" is empty"));
    }
    items.into_iter().map(message).collect()
}

fn message(item: Value) -> Result<ChatMessage, ApiError> {
    let mut message: ChatMessage =
        serde_json::from_value(item).map_err(|_| wrong("a message is not an object with \"role\" and \"content\""))?;
    // Clients send the fields of a response back, those without a value too.
    message.more.retain(|_, value| !value.is_null());
    let calls =
        message.more.remove("tool_calls").filter(|calls| calls.as_array().is_none_or(|calls| !calls.is_empty()));
    if calls.is_some() && message.role != "assistant" {
        return Err(wrong("a message that is not of the assistant has tool calls"));
    }
    if message.more.contains_key("function_call") {
        return Err(wrong("a message has \"function_call\": state it as \"tool_calls\""));
    }
    if let Value::Array(parts) = &message.content {
        let text = |part: &Value| match (part.get("type").and_then(Value::as_str), part.get("text")) {
            (Some("text"), Some(Value::String(text))) => Ok(text.clone()),
            _ => Err(wrong("the content of a message has a part that is not a text")),
        };
        message.content = parts.iter().map(text).collect::<Result<String, _>>()?.into();
    }
    match message.content {
        Value::String(_) => {}
        Value::Null if calls.is_some() => {}
        _ => return Err(wrong("the content of a message is not a text")),
    }
    if let Some(calls) = calls {
        let Value::Array(calls) = calls else { return Err(wrong("\"tool_calls\" is not a list")) };
        let calls = calls.into_iter().map(call).collect::<Result<Vec<_>, _>>()?;
        message.more.insert("tool_calls".into(), calls.into());
    }
    Ok(message)
}

/// A call with its arguments as an object.
fn call(call: Value) -> Result<Value, ApiError> {
    let form = || wrong("a tool call is not an object with \"function\", which has \"name\" and \"arguments\"");
    let Value::Object(mut call) = call else { return Err(form()) };
    if call.get("type").is_some_and(|kind| kind != "function") {
        return Err(wrong("a tool call is not of the type \"function\""));
    }
    let Some(Value::Object(function)) = call.get_mut("function") else { return Err(form()) };
    if !function.get("name").is_some_and(Value::is_string) {
        return Err(form());
    }
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) if text.trim().is_empty() => Map::new(),
        Some(Value::String(text)) => serde_json::from_str::<Map<String, Value>>(text)
            .map_err(|_| wrong("the arguments of a tool call are not an object of JSON"))?,
        Some(Value::Object(arguments)) => arguments.clone(),
        None => Map::new(),
        _ => return Err(form()),
    };
    function.insert("arguments".into(), arguments.into());
    Ok(call.into())
}

#[cfg(test)]
mod tests {
    use super::messages;
    use serde_json::json;

    #[test]
    fn calls_have_arguments_as_objects_and_null_fields_are_absent() {
        let call = |arguments: &str| {
            let function = json!({"name": "add", "arguments": arguments});
            json!({"id": "call_1", "type": "function", "function": function})
        };
        let calls = json!([call(r#"{"a": 1}"#), call("")]);
        let sent = json!([
            {"role": "user", "content": "1 + 2?", "name": null},
            {"role": "assistant", "content": null, "refusal": null, "audio": null, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "3"}]},
            {"role": "assistant", "content": "3", "tool_calls": []},
        ]);
        let read = messages(sent).unwrap();
        assert!(read[0].more.is_empty() && read[3].more.is_empty());
        assert!(read[1].content.is_null() && read[1].more.len() == 1);
        let calls = &read[1].more["tool_calls"];
        assert_eq!(
            (&calls[0]["function"]["arguments"], &calls[1]["function"]["arguments"]),
            (&json!({"a": 1}), &json!({}))
        );
        assert_eq!((&read[2].content, &read[2].more["tool_call_id"]), (&json!("3"), &json!("call_1")));
        for wrong in [
            json!({"role": "assistant", "content": null}),
            json!({"role": "assistant"}),
            json!({"role": "tool", "content": null}),
            json!({"role": "user", "content": "a", "tool_calls": [call("{}")]}),
            json!({"role": "assistant", "tool_calls": [call("[1]")]}),
            json!({"role": "assistant", "tool_calls": [call("{")]}),
            json!({"role": "assistant", "tool_calls": {"a": 1}}),
            json!({"role": "assistant", "tool_calls": [{"type": "custom"}]}),
            json!({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}),
            json!({"role": "assistant", "content": null, "function_call": {"name": "add", "arguments": "{}"}}),
        ] {
            assert!(messages(json!([wrong.clone()])).is_err(), "{wrong}");
        }
    }
}

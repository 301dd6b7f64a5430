//! What expressions of chat templates mean, against Jinja as transformers sets it up.
//!
//! Golden data: scripts/golden/make_chat_expressions.py.

use std::fs;
use std::path::Path;

use model_center::tokenizer::{ChatMessage, ChatRequest, ChatTemplate};
use serde_json::{Map, Value};

/// Small templates with what transformers makes of each.
fn expressions() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat/expressions.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A template's result, with `context` for its variables; the error as a text.
fn result(source: &str, context: &Value) -> Result<String, String> {
    let messages: Vec<ChatMessage> = serde_json::from_value(context["messages"].clone()).unwrap();
    let mut more = context.as_object().unwrap().clone();
    more.remove("messages");
    let request = ChatRequest { more, ..ChatRequest::new(&messages) };
    let template = ChatTemplate::from_source("test.jinja", source, Map::new()).map_err(|error| error.to_string())?;
    template.render_request(&request).map_err(|error| error.to_string())
}

#[test]
fn expressions_mean_what_they_mean_in_transformers_or_are_refused_by_name() {
    let golden = expressions();
    let (mut equal, mut refused, mut not_supported) = (0, 0, 0);
    for case in golden["cases"].as_array().unwrap() {
        let (source, want) = (case[0].as_str().unwrap(), case[1].as_str());
        match (result(source, &golden["context"]), want) {
            (Ok(got), Some(want)) => {
                assert_eq!(got, want, "{source}");
                equal += 1;
            }
            (Err(error), _) if case[2] == "not supported" => {
                assert!(error.contains("support") && error.contains("test.jinja, line "), "{source}: {error}");
                not_supported += 1;
            }
            (Err(error), None) => {
                assert!(error.contains("test.jinja, line "), "{source}: {error}");
                refused += 1;
            }
            (got, want) => panic!("{source}: {got:?}, in transformers {want:?}"),
        }
    }
    assert!(equal > 700 && refused > 100 && not_supported > 20, "{equal} {refused} {not_supported}");
}

#[test]
fn every_name_of_jinja_and_of_its_values_is_known() {
    let golden = expressions();
    let (names, context) = (&golden["names"], &golden["context"]);
    let list = |kind: &str| serde_json::from_value::<Vec<String>>(names[kind].clone()).unwrap();
    for filter in list("filters") {
        let error = result(&format!("{{{{ s|{filter} }}}}"), context).err().unwrap_or_default();
        assert!(!error.contains("there is no"), "{error}");
    }
    for test in list("tests").iter().filter(|test| test.chars().all(char::is_alphabetic)) {
        let error = result(&format!("{{{{ s is {test} }}}}"), context).err().unwrap_or_default();
        assert!(!error.contains("there is no"), "{error}");
    }
    for global in list("globals") {
        assert_eq!(result(&format!("{{{{ {global} is defined }}}}"), context).unwrap(), "True", "{global}");
    }
    let mut known = 0;
    for (value, attributes) in names["attributes"].as_object().unwrap() {
        for (attribute, is_defined) in attributes.as_object().unwrap() {
            let source = format!("{{{{ ({value}).{attribute} is defined }}}}");
            match result(&source, context) {
                Ok(got) => assert_eq!(got, if is_defined == true { "True" } else { "False" }, "{source}"),
                Err(error) => assert!(error.contains("is not supported"), "{error}"),
            }
            known += 1;
        }
    }
    assert!(known > 80, "{known}");
}

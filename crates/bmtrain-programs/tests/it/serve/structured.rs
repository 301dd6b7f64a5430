//! Texts of a form: every text of a random model is of it, by an own checker, unless its tokens are too few.

mod schemas;

use super::bloom;
use super::client::Server;
use super::vocabulary::{END, byte_level, with_tools};
use crate::fixture::program;
use bmtrain_core::Device;
use model_center::generate::{
    Constraint, FinishReason, Generated, GenerationOverrides, Grammar, Patience, TextGenerator, TokenTexts,
};
use model_center::model::Registry;
use model_center::tokenizer::AutoTokenizer;
use schemas::{is_valid, schemas};
use serde_json::{Value, json};
use std::sync::Arc;

const COMPLETIONS: &str = "/v1/completions";

#[test]
fn sampled_texts_are_of_their_form() {
    let fixture = byte_level(false);
    let directory = fixture.path("model");
    let texts = Arc::new(TokenTexts::new(&*AutoTokenizer::open(&directory).unwrap(), &[]).unwrap());
    let device = Device::cpu(1).unwrap();
    let base = GenerationOverrides { origin: "test", max_new_tokens: Some(400), ..GenerationOverrides::default() };
    let mut generator = TextGenerator::open_on(&directory, &device, Registry::default(), &base).unwrap();
    let generate = |generator: &mut TextGenerator, grammar: Grammar, method: GenerationOverrides| -> Vec<Generated> {
        let constraint = Some(Arc::new(Constraint::new(grammar, Arc::clone(&texts)).unwrap()));
        let overrides = GenerationOverrides { origin: "test", max_new_tokens: Some(400), constraint, ..method };
        generator.options = generator.setup.settings(&overrides).unwrap().options;
        generator.generate_batch(&["a form"]).unwrap().remove(0)
    };
    let sampled = |seed: u64| GenerationOverrides {
        temperature: Some(2.0),
        seed: Some(seed),
        texts: Some(6),
        ..GenerationOverrides::default()
    };
    let mut complete = 0;
    for (schema, seed) in schemas().into_iter().zip(0..) {
        for text in generate(&mut generator, Grammar::JsonSchema(schema.clone()), sampled(seed)) {
            if text.finish_reason == FinishReason::Length {
                continue;
            }
            assert_eq!(text.finish_reason, FinishReason::Complete);
            complete += 1;
            let value: Value =
                serde_json::from_str(&text.text).unwrap_or_else(|error| panic!("{error}: {}", text.text));
            assert!(is_valid(&value, &schema, &schema), "{value} for {schema}");
        }
    }
    assert!(complete >= 18, "{complete} of 24 are complete");
    // All of this form end, however they are chosen.
    let [first, ..] = schemas();
    let beams =
        GenerationOverrides { beams: Some(3), patience: Some(Patience::First), ..GenerationOverrides::default() };
    for method in [GenerationOverrides { greedy: true, ..GenerationOverrides::default() }, beams] {
        let text = generate(&mut generator, Grammar::JsonSchema(first.clone()), method).remove(0);
        assert_eq!(text.finish_reason, FinishReason::Complete, "{text:?}");
        assert!(is_valid(&serde_json::from_str(&text.text).unwrap(), &first, &first), "{}", text.text);
    }
    for text in generate(&mut generator, Grammar::Regex("[a-c]{2,4}(,é+)?x".into()), sampled(9)) {
        let (letters, rest) = text.text.split_at(text.text.find([',', 'x']).unwrap());
        assert!((2..=4).contains(&letters.len()) && letters.bytes().all(|byte| b"abc".contains(&byte)), "{text:?}");
        let accents = rest.strip_suffix('x').unwrap().strip_prefix(',');
        assert!(accents.is_none_or(|accents| !accents.is_empty() && accents.chars().all(|c| c == 'é')), "{text:?}");
    }
}

#[test]
fn requests_state_the_form_of_texts() {
    let fixture = byte_level(false);
    with_tools(&fixture);
    fixture.write("model/generation_config.json", &json!({"eos_token_id": END, "stop_strings": ["a"]}).to_string());
    let server = Server::of(&fixture, &[]);
    let completion = |field: &str, value: Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 60, "temperature": 2, "seed": 3, "n": 4});
        body[field] = value;
        body
    };
    let choices = |result: &Value| -> Vec<(String, String)> {
        let text = |choice: &Value| {
            let part = |name: &str| choice[name].as_str().unwrap().to_owned();
            (part("text"), part("finish_reason"))
        };
        result["choices"].as_array().unwrap().iter().map(text).collect()
    };
    for (field, value) in [
        ("guided_regex", json!("ab|cab")),
        ("structured_outputs", json!({"choice": ["ab", "cab"], "regex": null})),
        ("guided_choice", json!(["cab", "ab"])),
    ] {
        for (text, reason) in choices(&server.post(COMPLETIONS, &completion(field, value.clone()))) {
            assert!(["ab", "cab"].contains(&text.as_str()) && reason == "stop", "{field}: {text} {reason}");
        }
    }
    // The end token comes where the text is complete, and nowhere else.
    for (text, reason) in choices(&server.post(COMPLETIONS, &completion("guided_regex", json!("(?:[0-9]{2})+")))) {
        let is_whole = !text.is_empty() && text.len() % 2 == 0;
        assert!(text.bytes().all(|byte| byte.is_ascii_digit()) && (is_whole || reason == "length"), "{text} {reason}");
    }
    let schema = json!({"type": "array", "items": {"type": "integer"}, "minItems": 30});
    for (text, reason) in choices(&server.post(COMPLETIONS, &completion("guided_json", schema))) {
        assert!(text.starts_with('[') && reason == "length", "{text} {reason}");
    }
    // A text that is whole and cannot go on ends, whatever the least number of tokens.
    let digit = json!({"type": "integer", "minimum": 0, "maximum": 9});
    let mut short = completion("guided_json", digit);
    short["min_tokens"] = json!(5);
    for (text, reason) in choices(&server.post(COMPLETIONS, &short)) {
        assert!(
            text.len() == 1 && text.bytes().all(|byte| byte.is_ascii_digit()) && reason == "stop",
            "{text} {reason}"
        );
    }
    // Properties are in the order of the request's schema, also after another order.
    for [first, second] in [["b", "c"], ["c", "b"]] {
        let nothing = json!({"type": "null"});
        let schema = json!({
            "type": "object", "properties": {first: nothing, second: nothing}, "required": ["b", "c"],
            "additionalProperties": false,
        });
        for (text, _) in choices(&server.post(COMPLETIONS, &completion("guided_json", schema))) {
            assert!(text.find(first) < text.find(second), "{text}");
        }
    }
    let chat = |format: Value| {
        json!({
            "messages": [{"role": "user", "content": "a"}], "response_format": format, "max_tokens": 300, "seed": 1,
            "temperature": 1,
        })
    };
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]});
    let described = json!({"type": "json_schema", "json_schema": {"name": "one", "strict": true, "schema": schema}});
    let path = "/v1/chat/completions";
    let whole = server.post(path, &chat(described.clone()));
    let value: Value = serde_json::from_str(whole["choices"][0]["message"]["content"].as_str().unwrap()).unwrap();
    assert!(is_valid(&value, &schema, &schema), "{value}");
    let streamed: String = server
        .stream(path, &chat(described))
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(streamed, whole["choices"][0]["message"]["content"].as_str().unwrap());
    let object = server.post(path, &chat(json!({"type": "json_object"})));
    let text = object["choices"][0]["message"]["content"].as_str().unwrap();
    let is_object = serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    assert!(text.starts_with('{') && (is_object || object["choices"][0]["finish_reason"] == "length"), "{object}");

    let refused = |path: &str, body: &Value, param: &str, reason: &str| {
        let answer = server.ask("POST", path, &[], body.to_string().as_bytes());
        let error: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, error["error"]["param"].as_str()), (400, Some(param)), "{body}: {error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(reason), "{error}");
    };
    let of = |schema: Value| chat(json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}));
    for (schema, reason) in [
        (json!({"type": "array", "uniqueItems": true}), "\"uniqueItems\" is not supported"),
        (json!({"properties": {"a": {"not": {}}}}), "#/properties/a"),
        (json!({"type": "string", "format": "uri"}), "\"uri\""),
        (json!({"type": "string", "pattern": "(?=a)"}), "lookahead"),
        (json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "lead to each other"),
        (json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}), "no finite value"),
        (json!({"$ref": "https://example.com/a"}), "$ref"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
        // Keywords of objects and of strings allow all values of other types.
        (
            json!({"oneOf": [{"required": ["a"], "properties": {"a": {"type": "integer"}}}, {"type": "string"}]}),
            "oneOf",
        ),
        (json!({"oneOf": [{"const": 3}, {"minLength": 2}]}), "oneOf"),
        (json!({"type": "object", "properties": {"a": {"$id": "b", "type": "null"}}}), "$id"),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), "no number"),
        (json!({"type": "integer", "minLength": 2}), "no effect"),
        (json!({"enum": []}), "enum"),
        (json!(false), "no value"),
    ] {
        refused(path, &of(schema), "response_format", reason);
    }
    refused(path, &chat(json!({"type": "xml"})), "response_format", "unknown type");
    refused(path, &chat(json!({"type": "json_schema"})), "response_format", "json_schema");
    refused(path, &chat(json!({"type": "json_schema", "json_schema": {"name": "x"}})), "response_format", "schema");
    let mut both = chat(json!({"type": "json_object"}));
    both["guided_regex"] = json!("a");
    refused(path, &both, "guided_regex", "both");
    let mut stopped = chat(json!({"type": "json_object"}));
    stopped["stop"] = json!("}");
    refused(path, &stopped, "stop", "cut");
    refused(
        COMPLETIONS,
        &completion("structured_outputs", json!({"grammar": "x"})),
        "structured_outputs.grammar",
        "not supported",
    );
    // No token of the vocabulary has the character.
    refused(COMPLETIONS, &completion("guided_regex", json!("aQ")), "response_format", "no token");

    // WordPiece joins its tokens by rules of its own.
    let server = Server::of(&bloom(), &[]);
    let answer = server.ask("POST", COMPLETIONS, &[], br#"{"prompt": "good", "guided_regex": "a"}"#);
    assert!(answer.status == 400 && answer.body.contains("byte-level"), "{}", answer.body);
}

#[test]
fn the_generate_program_writes_texts_of_a_form() {
    let fixture = byte_level(false);
    let [schema, ..] = schemas();
    fixture.write("schema.json", &schema.to_string());
    let run = |arguments: &[&str]| {
        let common =
            ["model", "--prompt", "a", "--quiet", "--threads", "1", "--device", "cpu", "--max-new-tokens", "400"];
        fixture.run(program("generate"), &[&common[..], arguments].concat())
    };
    let made = run(&["--json-schema", "schema.json", "--temperature", "2"]);
    let value: Value = serde_json::from_str(made.stdout.trim()).unwrap_or_else(|_| panic!("{made:?}"));
    assert!(is_valid(&value, &schema, &schema), "{value}");
    let refused = run(&["--regex", "(a"]);
    assert!(
        refused.code == 2 && refused.stderr.contains("--regex") && refused.stderr.contains("not closed"),
        "{refused:?}"
    );
    let refused = run(&["--regex", "a", "--stop", "b"]);
    assert!(refused.code == 2 && refused.stderr.contains("--stop"), "{refused:?}");
}

//! Chat templates against transformers, what they cannot do, and what messages cannot do to them.
//!
//! Golden data: scripts/golden/make_chat.py.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use model_center::tokenizer::{ChatMessage, ChatRequest, ChatTemplate, HfTokenizer, TextSpecials, Tokenizer};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat")
}

fn special_tokens() -> Map<String, Value> {
    json!({"bos_token": "<s>", "eos_token": "</s>"}).as_object().unwrap().clone()
}

fn template(text: &str) -> ChatTemplate {
    ChatTemplate::from_source("test.jinja", text, special_tokens()).unwrap()
}

fn golden_template(name: &str) -> ChatTemplate {
    template(&fs::read_to_string(golden().join(format!("{name}.jinja"))).unwrap())
}

fn messages(value: &Value) -> Vec<ChatMessage> {
    serde_json::from_value(value.clone()).unwrap()
}

fn request<'a>(case: &'a Value, messages: &'a [ChatMessage]) -> ChatRequest<'a> {
    ChatRequest {
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(false),
        tools: case.get("tools"),
        more: case["more"].as_object().cloned().unwrap_or_default(),
        ..ChatRequest::new(messages)
    }
}

fn cases() -> Vec<Value> {
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(golden().join("cases.json")).unwrap()).unwrap();
    assert!(cases.len() >= 60);
    cases
}

/// The code of docs/chat-templates.md.
fn documented(golden_directory: &Path) -> Result<(String, Vec<u32>), Box<dyn std::error::Error>> {
    let template = ChatTemplate::from_directory(golden_directory)?.ok_or("the directory has no chat template")?;
    let tokenizer = HfTokenizer::from_directory(golden_directory)?;
    let messages = [ChatMessage::new("system", "Be brief."), ChatMessage::new("user", "Who wrote this?")];
    let text = template.render(&messages, true)?;
    let request = ChatRequest { add_generation_prompt: true, ..ChatRequest::new(&messages) };
    let ids = template.encode(&tokenizer, &request)?;
    Ok((text, ids))
}

#[test]
fn the_documented_code_asks_for_an_answer() {
    let directory = TempDir::new().unwrap();
    for (from, to) in [("tokenizer.json", "tokenizer.json"), ("chatml.jinja", "chat_template.jinja")] {
        fs::copy(golden().join(from), directory.path().join(to)).unwrap();
    }
    let (text, ids) = documented(directory.path()).unwrap();
    assert!(
        text.starts_with("<|im_start|>system\nBe brief.<|im_end|>") && text.ends_with("<|im_start|>assistant\n"),
        "{text}"
    );
    let tokenizer = HfTokenizer::from_directory(directory.path()).unwrap();
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
}

#[test]
fn every_conversation_renders_as_in_transformers_or_is_refused_as_there() {
    let (mut rendered, mut refused) = (0, 0);
    for case in cases() {
        let name = case["template"].as_str().unwrap();
        let messages = messages(&case["messages"]);
        let got = golden_template(name).render_request(&request(&case, &messages));
        match (got, case["text"].as_str()) {
            (Ok(got), Some(want)) => {
                assert_eq!(got, want, "{name}: {}", case["messages"]);
                rendered += 1;
            }
            (Err(error), None) => {
                let error = error.to_string();
                assert!(error.contains("test.jinja, line "), "{error}");
                // The template's own messages are passed on; Python's and Rust's own differ.
                let raised = case["error"].as_str().unwrap();
                assert!(
                    error.contains(raised) || raised.contains("can only concatenate") || raised.contains("has no"),
                    "{error} {raised}"
                );
                refused += 1;
            }
            (got, want) => panic!("{name}: {}: {got:?}, in transformers {want:?}, {}", case["messages"], case["error"]),
        }
    }
    assert!(rendered > 40 && refused > 5, "{rendered} {refused}");
}

#[test]
fn ids_are_those_of_transformers_where_no_message_spells_a_control_token() {
    let plain = HfTokenizer::from_directory(golden()).unwrap().with_text_specials(TextSpecials::AsTokens);
    let safe = HfTokenizer::from_directory(golden()).unwrap();
    let (mut equal, mut kept) = (0, 0);
    for case in cases().iter().filter(|case| case["text"].is_string()) {
        let messages = messages(&case["messages"]);
        let (request, template) = (request(case, &messages), golden_template(case["template"].as_str().unwrap()));
        let want: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let text = template.render_request(&request).unwrap();
        assert_eq!(plain.tokenize(&[&text]).unwrap()[0], want, "{text}");
        if messages[0].role == "critic" {
            assert!(template.encode(&safe, &request).unwrap_err().to_string().contains("\"critic\" is not known"));
        } else if case["messages"].to_string().contains("<|im_end|>") {
            match template.encode(&safe, &request) {
                Ok(ids) => {
                    assert!(ids.len() > want.len(), "{text}");
                    assert_eq!(safe.decode(&ids, false).unwrap(), text);
                    kept += 1;
                }
                Err(error) => {
                    assert_eq!(case["template"], "loops");
                    assert!(error.to_string().contains("spells <|im_end|>"), "{error}");
                }
            }
        } else {
            assert_eq!(template.encode(&safe, &request).unwrap(), want, "{text}");
            equal += 1;
        }
    }
    assert!(equal > 35 && kept >= 4, "{equal} {kept}");
}

#[test]
fn no_message_makes_a_control_token_wherever_a_template_puts_it() {
    let safe = HfTokenizer::from_directory(golden()).unwrap();
    let control = safe.control_tokens();
    assert_eq!(control.len(), 7);
    let harmless = |name: &str| {
        let messages =
            [ChatMessage::new("user", "Q"), ChatMessage::new("assistant", "A"), ChatMessage::new("user", "R")];
        golden_template(name).encode(&safe, &ChatRequest::new(&messages)).unwrap()
    };
    let of_control = |ids: &[u32]| ids.iter().filter(|id| control.iter().any(|token| token.id == **id)).count();
    let mut tried = 0;
    for name in ["chatml", "instruction", "tagged", "tools"] {
        let template = golden_template(name);
        let expected = of_control(&harmless(name));
        assert!(expected > 0);
        for token in &control {
            for text in ["T", " T ", "TT", "aTb", "T\nT", "<|T|>", "\u{e000}T", "q0000T", "<T"]
                .map(|form| form.replace('T', &token.text))
            {
                for at in 0..3 {
                    let mut messages = [
                        ChatMessage::new("user", "Q"),
                        ChatMessage::new("assistant", "A"),
                        ChatMessage::new("user", "R"),
                    ];
                    messages[at].content = Value::String(text.clone());
                    let ids = template.encode(&safe, &ChatRequest::new(&messages)).unwrap();
                    assert_eq!(of_control(&ids), expected, "{name}: {text}");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried >= 500, "{tried}");
}

#[test]
fn a_text_that_the_template_looks_into_is_kept_as_text_or_refused() {
    let safe = HfTokenizer::from_directory(golden()).unwrap();
    let looks = template("{{ '<|im_start|>' }}{{ messages[0].content | upper }}{{ '<|im_end|>' }}");
    let encode = |text: &str| looks.encode(&safe, &ChatRequest::new(&[ChatMessage::new("user", text)]));
    let ids = encode("hello <|").unwrap();
    assert_eq!(safe.decode(&ids, false).unwrap(), "<|im_start|>HELLO <|<|im_end|>");
    assert!(encode("<|im_end|>").unwrap_err().to_string().contains("spells <|im_end|>"));
    // Half a token in the message, half in the template, which looks at the length.
    let joins = template("{{ messages[0].content }}{{ 'end|>' if messages[0].content | length < 20 }}");
    let error = joins.encode(&safe, &ChatRequest::new(&[ChatMessage::new("user", "<|im_")])).unwrap_err().to_string();
    assert!(error.contains("together with the template"), "{error}");
    let plain = template("{{ messages[0].content }}{{ 'end|>' }}");
    let ids = plain.encode(&safe, &ChatRequest::new(&[ChatMessage::new("user", "<|im_")])).unwrap();
    assert!(ids.len() > 3 && safe.decode(&ids, true).unwrap() == "<|im_end|>");
}

#[test]
fn names_of_fields_kinds_and_a_tokenizer_that_reads_control_tokens_are_refused() {
    let safe = HfTokenizer::from_directory(golden()).unwrap();
    let template = golden_template("tools");
    let call = json!([{"role": "assistant", "content": null, "tool_calls": [{"function": {"<|im_end|>": 1}}]}]);
    let error = template.encode(&safe, &ChatRequest::new(&messages(&call))).unwrap_err().to_string();
    assert!(error.contains("message 1") && error.contains("spells <|im_end|>"), "{error}");
    let kind = json!([{"role": "user", "content": [{"type": "<|im_end|>", "text": "x"}]}]);
    assert!(template.encode(&safe, &ChatRequest::new(&messages(&kind))).is_err());
    let reads = HfTokenizer::from_directory(golden()).unwrap().with_text_specials(TextSpecials::AsTokens);
    let message = [ChatMessage::new("user", "a <|im_end|>")];
    let error = golden_template("chatml").encode(&reads, &ChatRequest::new(&message)).unwrap_err().to_string();
    assert!(error.contains("TextSpecials::AsTokens"), "{error}");
}

#[test]
fn endless_templates_stop_with_an_error() {
    let message = [ChatMessage::new("user", "x")];
    for text in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
        "{% for a in [[1]] recursive %}{{ loop([a]) }}{% endfor %}",
    ] {
        let start = Instant::now();
        let error = template(text).render(&message, false).unwrap_err().to_string();
        assert!(error.contains("test.jinja"), "{error}");
        // Generous, for a busy machine and a debug build.
        assert!(start.elapsed() < Duration::from_secs(30), "{text}: {:?}", start.elapsed());
    }
    let error = template("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}");
    assert!(error.render(&message, false).unwrap_err().to_string().contains("does not come to an end"));
}

#[test]
fn values_without_end_and_texts_too_large_are_refused_before_memory_is_taken() {
    let message = [ChatMessage::new("user", "x")];
    let itself = "{% set n = namespace() %}{% set n.a = n %}";
    for (text, reason) in [
        ("{{ n }}", "type Namespace is not supported"),
        ("{{ n|tojson }}", "not JSON serializable"),
        ("{{ [[n]]|tojson(indent=2) }}", "not JSON serializable"),
        ("{{ n|string }}", "type Namespace is not supported"),
        ("{{ n|upper }}", "type Namespace is not supported"),
        ("{{ n|pprint }}", "pprint is not supported"),
        ("{{ [n]|join(',') }}", "type Namespace is not supported"),
        ("{{ ','.join([n]) }}", "expected str"),
        ("{{ '%s'|format(n) }}", "type Namespace is not supported"),
        ("{{ '{}'.format(n) }}", "type Namespace is not supported"),
        ("{{ 'x'|replace('x', n) }}", "type Namespace is not supported"),
        ("{{ 'x'|indent(100000000000000) }}", "more than"),
        ("{{ 'x'|indent(width=100000000000000, first=true) }}", "more than"),
        ("{{ ('\\n' * 100000)|indent(10000) }}", "more than"),
        ("{{ '%100000000000d'|format(1) }}", "more than"),
        ("{{ '{:>100000000000}'.format(1) }}", "more than"),
        ("{{ ('{0}' * 10000).format('x' * 100000) }}", "more than"),
        ("{{ ('x' * 100000)|replace('x', 'y' * 100000) }}", "more than"),
        ("{{ ('x' * 100000).replace('', 'y' * 100000) }}", "more than"),
        ("{{ range(50000)|join('y' * 100000) }}", "more than"),
        ("{{ [1]|batch(100000000000000, 0)|length }}", "more than"),
        ("{{ [1]|slice(100000000000000)|length }}", "more than"),
        ("{{ ('y' * 100000).join(['x'] * 50000) }}", "more than"),
        (
            "{% set m = namespace(a='x' * 1000) %}{% for i in range(60) %}{% set m.a = [m.a, m.a] %}{% endfor %}{{ \
                m.a }}",
            "more than",
        ),
        (
            "{% set m = namespace(a=[]) %}{% for i in range(101) %}{% set m.a = [m.a] %}{% endfor %}{{ m.a|tojson }}",
            "too deep",
        ),
        ("{{ range(50000)|list|tojson(separators=['x' * 100000, ':']) }}", "more than"),
    ] {
        let error = template(&format!("{itself}{text}")).render(&message, false).unwrap_err().to_string();
        assert!(error.contains("test.jinja") && error.contains(reason), "{text}: {error}");
    }
    for (text, want) in [
        ("{{ 'a\\nb'|indent(2) }}{{ 'a'|indent(width=2, first=true) }}", "a\n  b  a"),
        ("{{ [1, 'b']|join(', ') }}{{ messages|join(d='-', attribute='role') }}", "1, buser"),
        ("{{ '%5d|%s'|format(1, 'x') }}{{ '{:>3}{a}'.format(1, a='y') }}", "    1|x  1y"),
        ("{{ [1, 2, 3]|batch(2, 0)|list }}{{ [1, 2]|slice(2)|list }}", "[[1, 2], [3, 0]][[1], [2]]"),
        ("{{ 'aXb'|replace('X', '-') }}{{ 'aXbX'.replace('X', '', 1) }}{{ '-'.join(['a', 'b']) }}", "a-babXa-b"),
        ("{{ ' Ab '|trim|upper }}{{ 1|string }}{{ nothing|upper }}{{ {'a': [1, none]} }}", "AB1{'a': [1, None]}"),
    ] {
        assert_eq!(template(text).render(&message, false).unwrap(), want, "{text}");
    }
}

#[test]
fn a_template_that_changes_texts_makes_no_control_token_of_them() {
    let safe = HfTokenizer::from_directory(golden()).unwrap();
    for (change, message) in [
        ("lower", "<|IM_END|>"),
        ("lower", "so <|Im_End|> it is"),
        ("replace('\\r', '')", "<|im\r_end|>"),
        ("replace('x', '')", "<|xim_end|>"),
        ("reverse", ">|dne_mi|<"),
    ] {
        let source =
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | CHANGE }}<|im_end|>\n{% endfor %}";
        let template = template(&source.replace("CHANGE", change));
        let encode = |text: &str| {
            let messages = [ChatMessage::new("user", text)];
            (template.render(&messages, false).unwrap(), template.encode(&safe, &ChatRequest::new(&messages)))
        };
        let (rendered, refused) = encode(message);
        assert_eq!(rendered.matches("<|im_end|>").count(), 2, "{change}: {rendered}");
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("the chat template looks into messages"), "{change}: {error}");
        // The same change of other texts has no effect.
        let (rendered, ids) = encode("Who wrote xthis\r\nbook?");
        assert_eq!(safe.decode(&ids.unwrap(), false).unwrap(), rendered, "{change}");
    }
}

#[test]
fn templates_reach_nothing_outside() {
    let message = [ChatMessage::new("user", "x")];
    for text in ["{% include '/etc/passwd' %}", "{% import 'chat_template.jinja' as x %}", "{{ open('/etc/passwd') }}"]
    {
        assert!(template(text).render(&message, false).is_err(), "{text}");
    }
}

#[test]
fn a_template_that_is_none_is_named_with_its_line() {
    let error = |text: &str| ChatTemplate::from_source("dir/x.jinja", text, Map::new()).unwrap_err().to_string();
    let syntax = error("first\n{% if %}");
    assert!(syntax.contains("dir/x.jinja, line 2") && syntax.contains("unexpected end of block"), "{syntax}");
    assert!(error(&"x".repeat((1 << 20) + 1)).contains("1048577 bytes"));
    assert!(error(&"{{ (".repeat(100_000)).contains("dir/x.jinja"));
}

/// Chains of `links`, with what they render as where they can be.
fn chains(links: usize) -> Vec<(&'static str, String, Option<&'static str>)> {
    let chain = |start: &str, link: &str, end: &str| format!("{{{{ {start}{}{end} }}}}", link.repeat(links));
    vec![
        ("+", chain("0", " + 0", ""), Some("0")),
        ("-", chain("0", " - 0", ""), Some("0")),
        ("~", chain("''", " ~ ''", ""), Some("")),
        ("*", chain("1", " * 1", ""), Some("1")),
        ("**", chain("1", " ** 1", ""), Some("1")),
        ("and", chain("1", " and 1", ""), Some("1")),
        ("or", chain("0", " or 0", ""), Some("0")),
        ("not", chain("", "not ", "0"), None),
        ("negation", chain("", "- ", "0"), Some("0")),
        ("in", chain("''", " in ''", ""), None),
        ("is", chain("x", " is defined", ""), None),
        ("filter", chain("'a'", "|trim", ""), Some("a")),
        ("attribute", chain("a", ".a", ""), None),
        ("number", chain("'ab'", "[0]", ""), None),
        ("slice", chain("'ab'", "[:1]", ""), Some("a")),
        ("call", chain("a", "()", ""), None),
        ("if-else", chain("", "0 if 0 else ", "1"), None),
        ("elif", format!("{{% if 0 %}}{}{{% else %}}a{{% endif %}}", "{% elif 0 %}".repeat(links)), Some("a")),
        ("filter block", format!("{{% filter trim{} %}}a{{% endfilter %}}", "|trim".repeat(links)), Some("a")),
        ("target", format!("{{% set {}a{} = 1 %}}", "(".repeat(links), ")".repeat(links)), None),
        ("attribute of a target", format!("{{% set a{} = 1 %}}", ".a".repeat(links)), None),
    ]
}

#[test]
fn chains_beyond_a_bound_are_refused_with_their_line_before_they_are_parsed() {
    for links in [600, 10_000, 77_500] {
        for (kind, source, _) in chains(links) {
            let error = ChatTemplate::from_source("test.jinja", &format!("first\n{source}"), Map::new()).unwrap_err();
            assert_eq!(error.exit_code(), 3, "{kind}: {error}");
            let error = error.to_string();
            assert!(error.contains("test.jinja, line 2 of the chat template"), "{kind}: {error}");
            let count = error.split_whitespace().find_map(|word| word.parse::<usize>().ok().filter(|count| *count > 2));
            assert!(count.is_some_and(|count| (links..=2 * links + 2).contains(&count)), "{kind}: {error}");
            assert!(error.contains("the most that is parsed is 500"), "{kind}: {error}");
        }
    }
}

#[test]
fn chains_within_the_bound_are_parsed_and_rendered_whatever_stack_the_caller_has() {
    let work = || {
        for (kind, source, rendered) in chains(249).into_iter().chain(chains(498)) {
            // Where a link is two levels half as many are allowed; Jinja has no chains of tests nor of attributes that
            // are set.
            let Ok(template) = ChatTemplate::from_source(kind, &source, Map::new()) else {
                assert!(["is", "attribute of a target", "if-else"].contains(&kind), "{kind}");
                continue;
            };
            if let Some(rendered) = rendered {
                assert_eq!(template.render(&[], false).unwrap(), rendered, "{kind}");
            }
        }
    };
    // Less than any thread has by default.
    std::thread::Builder::new().stack_size(512 << 10).spawn(work).unwrap().join().unwrap();
}

#[test]
fn values_of_a_conversation_nest_as_deep_as_json_may_and_no_deeper() {
    let safe = HfTokenizer::from_directory(golden()).unwrap();
    let nested = |levels: usize| (0..levels).fold(Value::from("x"), |inner, _| Value::Array(vec![inner]));
    let counts = template("{{ messages|length }}{{ deep is defined }}");
    let message = |levels: usize| [ChatMessage { content: nested(levels), ..ChatMessage::new("user", "") }];
    assert_eq!(counts.render(&message(128), false).unwrap(), "1False");
    let deep = message(129);
    for error in [counts.render(&deep, false).unwrap_err(), counts.encode(&safe, &ChatRequest::new(&deep)).unwrap_err()]
    {
        assert_eq!(error.exit_code(), 3);
        let error = error.to_string();
        assert!(error.contains("chat, message 1") && error.contains("128 levels"), "{error}");
    }
    let (tools, flat) = (nested(1000), [ChatMessage::new("user", "x")]);
    let request = ChatRequest { tools: Some(&tools), ..ChatRequest::new(&flat) };
    assert!(counts.render_request(&request).unwrap_err().to_string().contains("chat, tools"));
    let more = Map::from_iter([("deep".to_owned(), nested(129))]);
    let request = ChatRequest { more, ..ChatRequest::new(&flat) };
    assert!(counts.render_request(&request).unwrap_err().to_string().contains("chat, deep"));
}

#[test]
fn directories_have_templates_in_a_file_in_the_configuration_or_with_names() {
    let directory = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let open = || ChatTemplate::from_directory(directory.path());
    let message = [ChatMessage::new("user", "x")];
    assert!(open().unwrap().is_none());
    let config =
        json!({"bos_token": {"content": "<s>"}, "eos_token": null, "chat_template": "{{ bos_token }}1{{ eos_token }}"});
    write("tokenizer_config.json", &config.to_string());
    assert_eq!(open().unwrap().unwrap().render(&message, false).unwrap(), "<s>1");
    let named = json!({"image_token": "<i>", "extra_special_tokens": {"video_token": "<v>"},
                       "chat_template": "{{ image_token }}{{ video_token }}{{ other_token }}"});
    write("tokenizer_config.json", &named.to_string());
    assert_eq!(open().unwrap().unwrap().render(&message, false).unwrap(), "<i><v>");
    let template = |name: &str, template: &str| json!({"name": name, "template": template});
    let named = json!([template("default", "2"), template("tool_use", "3"), template("rag", "4")]);
    write("tokenizer_config.json", &json!({"chat_template": named}).to_string());
    let several = open().unwrap().unwrap();
    assert_eq!(several.names().collect::<Vec<_>>(), ["default", "tool_use", "rag"]);
    let (tools, plain) = (json!([]), ChatRequest::new(&message));
    assert_eq!(several.render_request(&plain).unwrap(), "2");
    assert_eq!(several.render_request(&ChatRequest { tools: Some(&tools), ..plain.clone() }).unwrap(), "3");
    assert_eq!(several.render_request(&ChatRequest { template: Some("rag"), ..plain.clone() }).unwrap(), "4");
    let error =
        several.render_request(&ChatRequest { template: Some("other"), ..plain.clone() }).unwrap_err().to_string();
    assert!(error.contains("\"other\"") && error.contains("default, tool_use, rag"), "{error}");
    assert!(error.contains("--chat-template") && error.contains("data.chat_template"), "{error}");
    let chosen = |name: &str| ChatTemplate::named(directory.path(), Some(name));
    assert_eq!(chosen("rag").unwrap().unwrap().render(&message, false).unwrap(), "4");
    assert!(chosen("other").unwrap_err().to_string().contains("default, tool_use, rag"));
    write("chat_template.jinja", "5");
    write("additional_chat_templates/short.jinja", "6");
    let files = open().unwrap().unwrap();
    assert_eq!(files.names().collect::<Vec<_>>(), ["default", "short"]);
    assert_eq!(files.render(&message, false).unwrap(), "5");
    fs::remove_file(directory.path().join("chat_template.jinja")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", directory.path().join("chat_template.jinja")).unwrap();
    assert!(open().unwrap_err().to_string().contains("chat_template.jinja"));
    fs::remove_file(directory.path().join("chat_template.jinja")).unwrap();
    fs::remove_dir_all(directory.path().join("additional_chat_templates")).unwrap();
    for (bad, want) in [(json!(7), "neither"), (json!([{"name": "x"}]), "lacks"), (json!("{% if %}"), "line 1")] {
        write("tokenizer_config.json", &json!({"chat_template": bad}).to_string());
        let error = open().unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json, chat_template") && error.contains(want), "{error}");
    }
}

#[test]
fn line_ends_of_every_form_are_one() {
    for source in ["a\r\nb\rc\n", "a\nb\nc\n"] {
        assert_eq!(template(source).render(&[ChatMessage::new("user", "x")], false).unwrap(), "a\nb\nc");
    }
}

#[test]
fn fields_of_a_message_that_are_null_are_left_out() {
    let messages = messages(&json!([{"role": "assistant", "content": null, "tool_calls": null, "name": "a"}]));
    assert_eq!(template("{{ messages[0]|list|join(' ') }}").render(&messages, false).unwrap(), "role name");
}

#[test]
fn a_template_states_the_time_that_it_is_told() {
    let dated = template("{{ strftime_now('%d %B %Y') }}");
    let message = [ChatMessage::new("user", "x")];
    let now = Some(UNIX_EPOCH + Duration::from_secs(951_827_696));
    assert_eq!(dated.render_request(&ChatRequest { now, ..ChatRequest::new(&message) }).unwrap(), "29 February 2000");
    assert!(!dated.render(&message, false).unwrap().ends_with("1970"));
    let error = template("{{ strftime_now('%Q') }}").render(&message, false).unwrap_err().to_string();
    assert!(error.contains("does not know %Q"), "{error}");
}

//! Which tokens of a conversation are the assistant's, for templates of the forms that models in use have.

use std::path::Path;

use model_center::Result;
use model_center::tokenizer::{
    AssistantTurns, ChatMessage, ChatRequest, ChatTemplate, ChatTokens, HfTokenizer, LearnedEnds, Tokenizer,
};
use serde_json::json;

/// Templates with what ends a turn of the assistant.
const FORMS: [(&str, &str, &str); 10] = [
    (
        "chatml",
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "<|im_end|>",
    ),
    (
        "llama-2",
        "{% for m in messages %}{% if m.role == 'system' %}{% elif m.role == 'user' %}\
         {{ bos_token + '[INST] ' + (messages[0].content + ' ' if messages[0].role == 'system' and loop.index0 == 1 \
         else '') + m.content | trim + ' [/INST]' }}{% else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}\
         {% endfor %}",
        " </s>",
    ),
    (
        "llama-3",
        "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + \
         m.content | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}\
         {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        "<|eot_id|>",
    ),
    (
        "mistral",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}\
         {% else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}{% endfor %}",
        "</s>",
    ),
    (
        "zephyr",
        "{% for m in messages %}\n{% if m.role == 'user' %}\n{{ '<|user|>\n' + m.content + eos_token }}\n\
         {% elif m.role == 'system' %}\n{{ '<|system|>\n' + m.content + eos_token }}\n{% else %}\n\
         {{ '<|assistant|>\n' + m.content + eos_token }}\n{% endif %}\n\
         {% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
        "</s>",
    ),
    (
        "gemma",
        "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + \
         '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        "<end_of_turn>",
    ),
    (
        "vicuna",
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + ' ' }}{% elif m.role == 'user' %}\
         {{ 'USER: ' + m.content + ' ' }}{% else %}{{ 'ASSISTANT: ' + m.content + eos_token }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
        "</s>",
    ),
    (
        "a heading and no generation prompt",
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}",
        "<|im_end|>",
    ),
    (
        // The end of the conversation differs from the end of a turn, as Phi-3's.
        "an end of the conversation",
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% else %}{{ eos_token }}{% endif %}",
        "<|im_end|>",
    ),
    (
        "marked",
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}\n\
         {%- generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}\n{% else %}\n\
         {{ m.content + '<|im_end|>' }}\n{%- endif %}\n{{ '\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "<|im_end|>",
    ),
];

fn tokenizer() -> HfTokenizer {
    HfTokenizer::from_directory(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat")).unwrap()
}

fn template(text: &str) -> ChatTemplate {
    let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"});
    ChatTemplate::from_source("test.jinja", text, tokens.as_object().unwrap().clone()).unwrap()
}

fn conversation() -> Vec<ChatMessage> {
    let texts = ["Be brief.", "Who wrote this?", "A printer did.", "A printer?", "I wrote it alone."];
    let roles = ["system", "user", "assistant", "user", "assistant"];
    roles.iter().zip(texts).map(|(role, text)| ChatMessage::new(*role, text)).collect()
}

fn encode(text: &str, messages: &[ChatMessage], turns: AssistantTurns) -> Result<ChatTokens> {
    template(text).encode_turns(&tokenizer(), &ChatRequest::new(messages), turns)
}

/// The text of each run of tokens that are the assistant's.
fn learned(tokens: &ChatTokens) -> Vec<String> {
    let tokenizer = tokenizer();
    let mut runs: Vec<Vec<u32>> = Vec::new();
    let mut is_open = false;
    for (id, in_turn) in tokens.ids.iter().zip(&tokens.in_turns) {
        match (in_turn, is_open) {
            (true, true) => runs.last_mut().unwrap().push(*id),
            (true, false) => runs.push(vec![*id]),
            (false, _) => {}
        }
        is_open = *in_turn;
    }
    runs.iter().map(|ids| tokenizer.decode(ids, false).unwrap()).collect()
}

#[test]
fn the_assistants_text_and_the_end_of_its_turn_are_learned_whatever_the_template() {
    for (name, text, end) in FORMS {
        let messages = conversation();
        let tokens = encode(text, &messages, AssistantTurns::All).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(tokens.ids, template(text).encode(&tokenizer(), &ChatRequest::new(&messages)).unwrap(), "{name}");
        let last = if name == "an end of the conversation" { "<|im_end|>\n</s>" } else { end };
        let expected = [format!("A printer did.{end}"), format!("I wrote it alone.{last}")];
        let found: Vec<String> = learned(&tokens).iter().map(|text| text.trim_start().to_owned()).collect();
        assert_eq!(found, expected, "{name}");
        let tokens = encode(text, &messages, AssistantTurns::Last).unwrap();
        let found: Vec<String> = learned(&tokens).iter().map(|text| text.trim_start().to_owned()).collect();
        assert_eq!(found, expected[1..], "{name}");
        assert_eq!(encode(text, &messages, AssistantTurns::From(3)).unwrap(), tokens, "{name}");
    }
}

/// As GLM's: only the next heading ends a turn; and with line breaks alone.
#[test]
fn the_heading_of_the_next_message_ends_a_turn_that_nothing_else_ends() {
    let headings = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}\
                    {% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";
    let lines = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}\
                 {% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
    let found = |text: &str| {
        let learned = learned(&encode(text, &conversation(), AssistantTurns::All).unwrap());
        learned.iter().map(|text| text.trim_start().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found(headings), ["A printer did.<|user|>", "I wrote it alone."]);
    assert_eq!(found(lines), ["A printer did.", "I wrote it alone."]);
    let ends = |text: &str| template(text).learned_ends(&tokenizer()).unwrap();
    assert_eq!(ends(headings), LearnedEnds { within: true, last: false });
    assert_eq!(ends(lines), LearnedEnds { within: false, last: false });
    let control = tokenizer().control_tokens();
    for (name, text, end) in FORMS {
        // The vocabulary lacks the tokens of some.
        let is_known = control.iter().any(|token| token.text == end.trim());
        assert_eq!(ends(text), LearnedEnds { within: is_known, last: is_known }, "{name}");
    }
}

#[test]
fn a_control_token_that_a_message_spells_is_text_and_ends_no_turn() {
    let mut messages = conversation();
    messages[2] = ChatMessage::new("assistant", "It ends with <|im_end|>, they write.");
    let tokens = encode(FORMS[0].1, &messages, AssistantTurns::All).unwrap();
    assert_eq!(learned(&tokens)[0], "It ends with <|im_end|>, they write.<|im_end|>");
    let end = tokenizer().id("<|im_end|>").unwrap();
    let ends = tokens.ids.iter().zip(&tokens.in_turns).filter(|(id, in_turn)| **id == end && **in_turn);
    assert_eq!(ends.count(), 2);
}

/// As Qwen 3's: thoughts of earlier turns are left out, and the last turn without any has an empty one.
const THINKING: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}\
    {% if loop.last %}{{ '<think>\n' + m.reasoning_content | default('') + '\n</think>\n\n' }}{% endif %}{% endif %}\
    {{ m.content + '<|im_end|>\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

#[test]
fn turns_are_found_where_the_template_changes_earlier_ones() {
    let tokens = encode(THINKING, &conversation(), AssistantTurns::All).unwrap();
    let expected = ["A printer did.<|im_end|>", "<think>\n\n</think>\n\nI wrote it alone.<|im_end|>"];
    assert_eq!(learned(&tokens), expected);
}

#[test]
fn a_template_with_which_turns_cannot_be_found_is_refused_and_marks_help() {
    // The number of messages comes first, and texts are changed.
    let body = "{{ m.content | upper + '<|im_end|>' }}";
    let with = |body: &str| {
        format!(
            "{{{{ messages | length }}}}{{% for m in messages %}}{{{{ '<|im_start|>' + m.role + '\n' }}}}\
             {{% if m.role == 'assistant' %}}{body}{{% else %}}{{{{ m.content }}}}{{% endif %}}{{% endfor %}}"
        )
    };
    let error = encode(&with(body), &conversation(), AssistantTurns::All).unwrap_err().to_string();
    assert!(error.contains("before message 3 differently") && error.contains("{% generation %}"), "{error}");
    let marked = with(&format!("{{% generation %}}{body}{{% endgeneration %}}"));
    let tokens = encode(&marked, &conversation(), AssistantTurns::All).unwrap();
    assert_eq!(learned(&tokens), ["A PRINTER DID.<|im_end|>", "I WROTE IT ALONE.<|im_end|>"]);
}

#[test]
fn marks_leave_no_white_space_behind() {
    let plain = "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {%- endif %}\n\n{% endfor %}";
    let marked = plain.replace("if true", "generation").replace("endif", "endgeneration");
    let render = |text: &str| template(text).render(&conversation(), false).unwrap();
    assert_eq!(render(&marked), render(plain));
    assert!(render(plain).contains("Be brief."));
}

//! Mistakes in what the generate program is given.

use super::fixture::{Fixture, Outcome};
use super::{DATA, REFUSED, USAGE, check};
use crate::fixture::program;

/// Runs generate on `model` of the fixture, which must leave every file as it was.
fn generate_refused(fixture: &Fixture, arguments: &[&str], code: i32, place: &str, texts: &[&str]) {
    let before = fixture.snapshot();
    check(&fixture.generate(arguments), code, place, texts);
    assert_eq!(fixture.snapshot(), before, "files were changed");
}

const PROMPT: [&str; 2] = ["--prompt", "the film"];
const FILES: [&str; 4] = ["--input", "in.jsonl", "--output", "out.jsonl"];

#[test]
fn settings_without_effect_or_out_of_range_are_named() {
    let (decoder, seq2seq) = (Fixture::decoder(), Fixture::seq2seq());
    let cases: [(&[&str], &str, &str); 22] = [
        (&["--top-k", "5", "--beams", "2"], "--top-k", "no effect"),
        (&["--greedy", "--temperature", "0.7"], "--temperature", "no effect"),
        (&["--length-penalty", "2"], "--length-penalty", "add --beams"),
        (&["--best", "2", "--sample"], "--best", "no effect"),
        (&["--best", "3", "--beams", "2"], "--best", "number of beams"),
        (&["--beams", "0"], "--beams", "between 1 and 1024"),
        (&["--beams", "99999999999"], "--beams", "between 1 and 1024"),
        (&["--repetition-window", "4"], "--repetition-window", "add --repetition-penalty"),
        (&["--penalise-prompt", "false"], "--penalise-prompt", "no effect"),
        (&["--repetition-penalty", "0"], "--repetition-penalty", "above 0"),
        (&["--temperature", "0"], "--temperature", "choose greedy decoding (--greedy)"),
        (&["--top-p", "1.5"], "--top-p", "(0, 1]"),
        (&["--min-p", "1"], "--min-p", "[0, 1)"),
        (&["--texts", "0"], "--texts", "between 1 and 1024"),
        (&["--max-new-tokens", "0"], "--max-new-tokens", "1 or more"),
        (&["--min-new-tokens", "200"], "--min-new-tokens", "at most --max-new-tokens"),
        (&["--stop", ""], "--stop", "empty text"),
        (&["--end-token", "id:97"], "--end-token", "the model has 97"),
        (&["--forbid", "filmstar"], "--forbid filmstar", "id:N"),
        (&["--forbid", "id:two"], "--forbid id:two", "not a number"),
        (&["--prefix", "it"], "--prefix", "encoder"),
        (&["--context"], "--context", "CPM-1"),
    ];
    for (arguments, place, text) in cases {
        generate_refused(&decoder, &[&PROMPT[..], arguments].concat(), USAGE, place, &[text]);
    }
    generate_refused(&seq2seq, &[&PROMPT[..], &["--prefix", " "]].concat(), USAGE, "--prefix", &["no token"]);
}

#[test]
fn options_that_do_not_go_together_are_named() {
    let fixture = Fixture::decoder();
    generate_refused(&fixture, &[], USAGE, "--prompt", &["--input", "--chat"]);
    for (arguments, place, text) in [
        (&["--template", "Q:"][..], "--template", "{prompt}"),
        (&["--system", "short"], "--system", "no conversation"),
        (&["--batch", "0"], "--batch", "from 1 to"),
        (&["--threads", "0"], "--threads", "from 1 to"),
    ] {
        if place == "--threads" {
            check(
                &fixture.run(program("generate"), &[&["model"], &PROMPT[..], arguments].concat()),
                USAGE,
                place,
                &[text],
            );
        } else {
            generate_refused(&fixture, &[&PROMPT[..], arguments].concat(), USAGE, place, &[text]);
        }
    }
    generate_refused(&fixture, &["--chat", "--ranks", "2"], USAGE, "--ranks", &["one rank"]);
    generate_refused(&fixture, &["--chat", "--batch", "2"], USAGE, "--batch", &["one prompt at a time"]);
    generate_refused(&fixture, &["--chat"], DATA, "model", &["no chat template"]);
}

#[test]
fn rows_that_cannot_be_read_are_named_by_line() {
    let fixture = Fixture::decoder();
    let long = format!("{{\"input_ids\": {:?}}}", [7; 19]);
    let cases: [(&str, &str); 12] = [
        ("{\"prompt\": \"the film\"", "EOF"),
        ("[\"the film\"]", "expected"),
        ("{\"question\": \"the film\"}", "no prompt"),
        ("{\"prompt\": \"the film\", \"input_ids\": [5]}", "several prompts"),
        ("{\"prompt\": 5}", "not a text"),
        ("{\"input_ids\": \"5\"}", "list of numbers"),
        ("{\"input_ids\": [5, -1]}", "list of numbers"),
        ("{\"input_ids\": [5, 97]}", "token 97"),
        ("{\"input_ids\": []}", "no token"),
        (&long, "19 tokens, the model takes 18"),
        ("{\"messages\": [{\"from\": \"it\"}]}", "\"role\""),
        ("{\"prompt\": \"the film\", \"generated_text\": \"was\"}", "rename"),
    ];
    for (line, text) in cases {
        fixture.write("in.jsonl", &format!("{{\"prompt\": \"it\"}}\n\n{line}\n"));
        generate_refused(&fixture, &FILES, DATA, "in.jsonl:3", &[text]);
    }
    fixture.write("in.jsonl", "\n");
    generate_refused(&fixture, &FILES, DATA, "in.jsonl", &["no line"]);
    generate_refused(&fixture, &["--input", "nowhere.jsonl"], DATA, "nowhere.jsonl", &["no such file"]);
    fixture.write("in.jsonl", "{\"prompt\": \"it\"}\n");
    generate_refused(
        &fixture,
        &[&FILES[..], &["--column", "asked"]].concat(),
        DATA,
        "in.jsonl:1",
        &["no \"asked\", which --column names"],
    );
    fixture.write("model/chat_template.jinja", "{{ raise_exception('only one may speak') }}");
    fixture.write("in.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"it\"}]}\n");
    generate_refused(&fixture, &FILES, DATA, "chat_template.jinja", &["only one may speak"]);
    fixture.write("in.jsonl", "{\"messages\": [{\"role\": \"boss\", \"content\": \"it\"}]}\n");
    generate_refused(&fixture, &FILES, DATA, "in.jsonl:1", &["boss"]);
}

#[test]
fn an_output_that_is_there_or_cannot_be_written_is_named() {
    let fixture = Fixture::decoder();
    fixture.write("in.jsonl", "{\"prompt\": \"it\"}\n");
    fixture.write("out.jsonl", "mine");
    generate_refused(&fixture, &FILES, USAGE, "out.jsonl", &["there already", "--overwrite"]);
    fixture.generate(&[&FILES[..], &["--overwrite"]].concat()).succeeded();
    assert!(fixture.read("out.jsonl").contains("generated_text"));
    let to = |output: &'static str| ["--input", "in.jsonl", "--output", output];
    generate_refused(&fixture, &to("model"), USAGE, "model", &["a directory"]);
    generate_refused(&fixture, &to("nowhere/out.jsonl"), REFUSED, "nowhere/out.jsonl", &["No such file"]);
}

#[test]
fn models_that_write_no_text_and_directories_that_lie_are_named() {
    let reader = Fixture::new();
    generate_refused(&reader, &PROMPT, DATA, "model", &["BERT", "encoder"]);
    let outcome = |fixture: &Fixture, model: &str| -> Outcome {
        fixture.run(program("generate"), &[&[model], &PROMPT[..]].concat())
    };
    check(&outcome(&reader, "nowhere"), DATA, "nowhere", &["no directory", "bmtrain fetch nowhere"]);
    check(&outcome(&reader, "some.gguf"), DATA, "some.gguf", &["no such file", "GGUF file"]);
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../model-center/tests/golden/gguf");
    reader.write_bytes("llama.gguf", &std::fs::read(golden.join("llama.gguf")).unwrap());
    let stored = |model: &str, further: &[&str]| {
        let program = program("generate");
        reader.run(program, &[&[model], &PROMPT[..], &["--weights", "as-stored"], further].concat())
    };
    check(&stored("model", &[]), USAGE, "--weights", &["no effect", ".gguf"]);
    check(&stored("llama.gguf", &["--dtype", "bf16"]), USAGE, "--dtype", &["bf16", "--weights dequantised"]);
    check(&stored("llama.gguf", &["--revision", "main"]), USAGE, "--revision", &["no effect"]);
    // Its only matrices in blocks are parts of one that has others beside them.
    check(&stored("llama.gguf", &[]), DATA, "llama.gguf", &["no matrix", "parts in Q8_0, Q4_1, plain floats"]);
    let decoder = Fixture::decoder();
    decoder.write("model/vocab.txt", &super::fixture::vocabulary(98));
    generate_refused(&decoder, &PROMPT, DATA, "model", &["98 tokens", "97 rows"]);
    std::fs::remove_file(decoder.path("model/vocab.txt")).unwrap();
    generate_refused(&decoder, &PROMPT, DATA, "model", &["the directory has no tokenizer: neither of tokenizer.json"]);
    let stops = ["--input", "in.jsonl", "--stop", "end"];
    decoder.write("in.jsonl", "{\"input_ids\": [5]}\n");
    generate_refused(&decoder, &stops, USAGE, "--stop", &["no tokenizer"]);
    for (stated, place, text) in [
        ("{\"eos_token_id\": 97}", "generation_config.json, field eos_token_id", "97"),
        ("{\"do_sample\": true, \"top_p\": 7}", "generation_config.json, field top_p", "--top-p"),
        ("{\"temperature\": []}", "generation_config.json, field temperature", "a number"),
        ("{", "generation_config.json:1", "JSON"),
    ] {
        decoder.write("model/generation_config.json", stated);
        generate_refused(&decoder, &["--input", "in.jsonl"], DATA, place, &[text]);
    }
}

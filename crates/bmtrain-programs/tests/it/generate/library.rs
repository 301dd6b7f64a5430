//! The library's text generator, which generates what the program prints.

use super::with_chat;
use crate::fixture::Fixture;
use bmtrain_core::Device;
use model_center::generate::{BeamOptions, GenerationOverrides, Method, TextGenerator};
use model_center::model::Registry;
use model_center::tokenizer::ChatMessage;

#[test]
fn the_text_generator_of_the_library_generates_what_the_program_prints() {
    let stated = r#"{"do_sample": true, "temperature": 0.8, "top_k": 9, "max_new_tokens": 11, "stop_strings": ["zz"]}"#;
    for (fixture, config) in [(Fixture::bloom(), "{}"), (Fixture::bloom(), stated), (Fixture::seq2seq(), "{}")] {
        fixture.write("model/generation_config.json", config);
        let generator = TextGenerator::open(fixture.path("model")).unwrap();
        let text = generator.generate("the film was").unwrap();
        let printed = fixture.generate(&["--prompt", "the film was"]).succeeded().stdout;
        assert_eq!(format!("{text}\n"), printed, "{config}");
        let mut streamed = String::new();
        let mut on_text = |text: &str| {
            streamed.push_str(text);
            Ok(())
        };
        assert_eq!(generator.stream("the film was", &mut on_text).unwrap(), text);
        assert_eq!(streamed, text);
        let batch = generator.generate_batch(&["the film was", "it is a very good plot"]).unwrap();
        assert_eq!((batch.len(), &batch[0][0].text), (2, &text));
    }
}

#[test]
fn the_text_generator_of_the_library_formats_conversations_and_takes_options() {
    let fixture = Fixture::bloom();
    with_chat(&fixture);
    let overrides = GenerationOverrides { max_new_tokens: Some(5), ..GenerationOverrides::default() };
    let device = Device::cpu(1).unwrap();
    let mut generator =
        TextGenerator::open_on(fixture.path("model"), &device, Registry::default(), &overrides).unwrap();
    let answer = generator.chat(&[ChatMessage::new("user", "it is bad")]).unwrap();
    let max = ["--max-new-tokens", "5"];
    let printed = fixture.generate(&[&["--chat", "--prompt", "it is bad"][..], &max].concat()).succeeded().stdout;
    assert_eq!(format!("{answer}\n"), printed);
    generator.options.method = Method::Beams(BeamOptions { beams: 3, best: 2, ..BeamOptions::DEFAULT });
    let texts = generator.generate_batch(&["the film was"]).unwrap().concat();
    let searched = ["--prompt", "the film was", "--beams", "3", "--best", "2"];
    let printed = fixture.generate(&[&searched[..], &max].concat()).succeeded().stdout;
    assert_eq!(texts.iter().map(|text| format!("{}\n", text.text)).collect::<String>(), printed);
    generator.options.max_new_tokens = 0;
    assert!(generator.generate("it").unwrap_err().to_string().contains("max_new_tokens"));
}

//! The rows of every family in both dialects: a written file reads back as it is, and a value of a wrong type is an
//! error that names the field.

use bmtrain_core::dtype::DType;
use model_center::config::rows::{Row, RowConfig};
use model_center::config::{
    AlbertConfig, BartConfig, BloomConfig, Config, Cpm1Config, Cpm2Config, CpmT5Config, CwmConfig, DistilBertConfig,
    ElectraConfig, Gemma2Config, Gemma3Config, Glm4Config, Gpt2Config, GptNeoxConfig, GptjConfig, GraniteConfig,
    HfHeader, LlamaConfig, MarianConfig, MegatronBertConfig, MinistralConfig, MistralConfig, ModernBertConfig,
    MpnetConfig, Olmo2Config, Olmo3Config, OptConfig, Phi3Config, Qwen2Config, Qwen3Config, RobertaConfig,
    SeedOssConfig, SmolLm3Config, T5Config,
};
use serde_json::{Map, Value, json};

fn read<C: Config>(map: &Map<String, Value>) -> Result<C, String> {
    C::from_json(&Value::Object(map.clone()).to_string(), "config.json").map_err(|e| e.to_string())
}

/// The names of a row in one dialect.
type Names<C> = fn(&Row<C>) -> &'static [&'static str];

/// The number of fields that were given a wrong type.
fn check<C: RowConfig>() -> usize {
    let header = HfHeader { architecture: "AnyModel".to_string(), dtype: DType::F32 };
    let (hugging_face, model_center) = (C::default().to_hf_json(&header).unwrap(), C::default().to_dict());
    assert_eq!(read::<C>(&hugging_face).unwrap().to_hf_json(&header).unwrap(), hugging_face);
    assert_eq!(read::<C>(&model_center).unwrap().to_dict(), model_center);
    let mut checked = 0;
    let dialects: [(_, Names<C>); 2] =
        [(&hugging_face, |row| row.hugging_face), (&model_center, |row| row.model_center)];
    for (map, names) in dialects {
        for name in C::ROWS.iter().flat_map(names) {
            let mut wrong = map.clone();
            wrong.insert((*name).to_string(), json!({"an": "object"}));
            let error = read::<C>(&wrong).map(|_| ()).unwrap_err();
            assert!(error.contains(name) && error.contains("is not"), "{name}: {error}");
            checked += 1;
        }
    }
    checked
}

#[test]
fn every_row_is_written_read_and_refused_with_a_wrong_type_in_both_dialects() {
    for (family, checked, least) in [
        ("albert", check::<AlbertConfig>(), 7),
        ("bart", check::<BartConfig>(), 14),
        ("bloom", check::<BloomConfig>(), 0),
        ("cpm1", check::<Cpm1Config>(), 10),
        ("cpm2", check::<Cpm2Config>(), 14),
        ("cpm_t5", check::<CpmT5Config>(), 9),
        ("gemma2", check::<Gemma2Config>(), 4),
        ("gemma3", check::<Gemma3Config>(), 4),
        ("distilbert", check::<DistilBertConfig>(), 5),
        ("electra", check::<ElectraConfig>(), 5),
        ("gpt2", check::<Gpt2Config>(), 4),
        ("gptj", check::<GptjConfig>(), 2),
        ("granite", check::<GraniteConfig>(), 10),
        ("ministral", check::<MinistralConfig>(), 2),
        ("cwm", check::<CwmConfig>(), 4),
        ("seed_oss", check::<SeedOssConfig>(), 8),
        ("olmo2", check::<Olmo2Config>(), 4),
        ("smollm3", check::<SmolLm3Config>(), 6),
        ("phi3", check::<Phi3Config>(), 2),
        ("glm4", check::<Glm4Config>(), 2),
        ("gpt_neox", check::<GptNeoxConfig>(), 4),
        ("olmo3", check::<Olmo3Config>(), 2),
        ("llama", check::<LlamaConfig>(), 6),
        ("marian", check::<MarianConfig>(), 14),
        ("megatron-bert", check::<MegatronBertConfig>(), 2),
        ("mistral", check::<MistralConfig>(), 4),
        ("mpnet", check::<MpnetConfig>(), 2),
        ("modernbert", check::<ModernBertConfig>(), 12),
        ("opt", check::<OptConfig>(), 9),
        ("qwen2", check::<Qwen2Config>(), 2),
        ("qwen3", check::<Qwen3Config>(), 4),
        ("roberta", check::<RobertaConfig>(), 4),
        ("t5", check::<T5Config>(), 9),
    ] {
        assert!(checked >= least, "{family}: {checked} fields");
    }
}

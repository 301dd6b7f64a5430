//! Settings of adapters that are refused.

use super::tune;
use crate::fixture::{Fixture, program};

#[test]
fn settings_of_prefixes_and_bottlenecks_that_contradict_others_are_named() {
    let fixture = Fixture::decoder();
    let refused = |sets: &[&str]| {
        let sets = sets.iter().chain(&["data.task=language"]).flat_map(|set| ["--set", set]);
        fixture.finetune(&["--dry-run"].into_iter().chain(sets).collect::<Vec<_>>()).refused()
    };
    let error = refused(&["adapter.method=prefix", "data.packing=true"]);
    assert!(error.contains("virtual tokens precede a sequence"), "{error}");
    let both = ["adapter.method=bottleneck", "adapter.placement=attention", "adapter.targets=[\"c_proj\"]"];
    let error = refused(&both);
    assert!(error.contains("`adapter.placement` has no effect: adapter.targets names the layers"), "{error}");
    let error = refused(&["adapter.method=bottleneck", "adapter.targets=[\"c_attn\"]"]);
    assert!(error.contains("c_attn does not end an attention or a feed-forward"), "{error}");
    let error = refused(&["adapter.method=prefix", "adapter.activation=relu"]);
    assert!(error.contains("`adapter.activation` has no effect: it is for adapter.method = \"bottleneck\""), "{error}");
}

#[test]
fn mistakes_are_named_before_weights_are_read() {
    let fixture = Fixture::decoder();
    let refused = |sets: &[&str]| tune(&fixture, "out", &["--dry-run"], sets).refused();
    let error = refused(&["adapter.targets=[\"q_proj\"]"]);
    assert!(error.contains("no linear layer of the model is named \"q_proj\""), "{error}");
    assert!(error.contains("its layers are c_attn, c_fc, c_proj"), "{error}");
    let of_directory = |directory: &str| {
        let path = format!("adapter.path={directory}");
        let sets = ["adapter.method=lora", "data.task=language", path.as_str()].into_iter();
        let sets: Vec<&str> = ["--dry-run"].into_iter().chain(sets.flat_map(|set| ["--set", set])).collect();
        fixture.finetune(&sets).refused()
    };
    let error = of_directory("nowhere");
    assert!(error.contains("nowhere"), "{error}");
    let error = refused(&["adapter.path=nowhere"]);
    assert!(error.contains("`adapter.rank` has no effect: adapter.path has the adapter"), "{error}");
    fixture.write("broken/adapter_config.json", "{\"peft_type\": \"LOHA\"}");
    let error = of_directory("broken");
    assert!(error.contains("\"LOHA\" is not read"), "{error}");
    let qalora = "{\"peft_type\": \"LORA\", \"use_qalora\": true, \"r\": 2, \"lora_alpha\": 4}";
    fixture.write("broken/adapter_config.json", qalora);
    let error = of_directory("broken");
    assert!(error.contains("use_qalora"), "{error}");
    let ia3 = ["--dry-run", "--set", "adapter.method=ia3", "--set", "adapter.rank=4", "--set", "adapter.dora=true"];
    let error = fixture.finetune(&ia3).refused();
    for key in ["adapter.rank", "adapter.dora"] {
        let reason = format!("`{key}` has no effect: it is for adapter.method = \"lora\"");
        assert!(error.contains(&reason), "{error}");
    }
    let error = fixture.finetune(&["--set", "adapter.rank=4"]).refused();
    assert!(error.contains("adapter.method = \"none\" trains the model itself"), "{error}");
}

#[test]
fn an_adapter_without_its_base_model_names_its_configuration_and_how_to_give_the_model() {
    let fixture = Fixture::decoder();
    tune(&fixture, "run", &[], &["train.steps=1"]).succeeded();
    std::fs::rename(fixture.path("model"), fixture.path("moved")).unwrap();
    let generate = |model: &[&str]| {
        let prompt = ["--prompt", "the film", "--greedy", "--max-new-tokens", "2", "--device", "cpu"];
        fixture.run(program("generate"), &[model, &prompt].concat())
    };
    let refused = generate(&["run/model"]).refused();
    for part in ["--> run/model/adapter_config.json", "names \"model\": ", "BASE --adapter run/model"] {
        assert!(refused.contains(part), "no {part:?} in {refused}");
    }
    generate(&["moved", "--adapter", "run/model"]).succeeded();
}

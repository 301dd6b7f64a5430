//! Two tiny models of GPT-J against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_gptj.py`.

use crate::goldens;

use bmtrain_core::Device;
use bmtrain_dist::Module;
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::param::BuilderOptions;
use model_center::config::{GptjConfig, TextConfig};
use model_center::model::Head;
use model_center::model::gptj::Gptj;

decoder_tests! { models: ["gptj_a", "gptj_b"], heads: ["lm", "cls"], trained: "lm" }

/// ModelCenter initializes the embedding and the heads with ten times the blocks' standard deviation.
#[test]
fn blocks_and_what_is_around_them_have_deviations_of_their_own() {
    let device = Device::cpu(1).unwrap();
    let text = TextConfig {
        vocab_size: 301,
        dim_model: 40,
        num_heads: 2,
        dim_head: 20,
        dim_ff: 160,
        num_layers: 1,
        ..GptjConfig::default().text
    };
    let config = GptjConfig { text, rotary_dim: 4 };
    let head = Head::CausalLm { tied: false };
    let model = Gptj::new(&device, config, head, BlockOptions::default(), BuilderOptions::default()).unwrap();
    for (name, expected) in [
        ("input_embedding.weight", 1.0),
        ("lm_head.weight", 1.0),
        ("decoder.layers.0.attention.project_qkv.weight", 0.1),
        ("decoder.layers.0.ffn.w_out.weight", 0.1),
    ] {
        let param = model.parameters().iter().find(|param| param.name() == name).unwrap();
        let values = param.read().unwrap();
        let deviation = (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt();
        // Of 4800 values and more: three times the expected error of an estimated deviation.
        assert!((deviation / expected - 1.0).abs() < 0.03, "{name}: {deviation}");
    }
}

"""Golden data for BLOOM: writes bloom_a and bloom_b. decoders.py describes them and how to run this script."""

from transformers import BloomConfig, BloomForCausalLM, BloomForSequenceClassification

from decoders import MIXED, RIGHT, Family, main, three_heads

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both. The second has a number of
# heads that is not a power of two, and therefore ALiBi slopes of two series.
MODELS = {
    "bloom_a": {
        "seed": 97,
        "labels": 3,
        "config": {
            "vocab_size": 59, "hidden_size": 20, "n_head": 4, "n_layer": 2, "pad_token_id": 0,
            "layer_norm_epsilon": 1e-5,
        },
        "masks": RIGHT,
    },
    "bloom_b": {
        "seed": 101,
        "labels": 1,
        "config": {
            "vocab_size": 43, "hidden_size": 18, "n_head": 3, "n_layer": 3, "pad_token_id": 0,
            "layer_norm_epsilon": 1e-3,
        },
        "masks": MIXED,
    },
}

FAMILY = Family(
    config=BloomConfig,
    off={"hidden_dropout": 0.0, "attention_dropout": 0.0},
    heads=three_heads(BloomForCausalLM, BloomForSequenceClassification),
    models=MODELS,
    is_norm=lambda name: "layernorm" in name or ".ln_f" in name,
    fields={"bos_token_id": 1, "eos_token_id": 2},
)

if __name__ == "__main__":
    main(FAMILY)

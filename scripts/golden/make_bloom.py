"""Golden data for BLOOM: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/bloom_a and bloom_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_bloom.py            # writes the folders
    "$python" scripts/golden/make_bloom.py --check    # recomputes them and compares with the committed files
"""

from transformers import BloomConfig, BloomForCausalLM, BloomForSequenceClassification

from decoders import Family, main

HEADS = {
    "lm": (BloomForCausalLM, True),
    "untied": (BloomForCausalLM, False),
    "cls": (BloomForSequenceClassification, True),
}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both. The second has a number of heads that
# is no power of two, and so slopes of two series.
MODELS = {
    "bloom_a": {
        "seed": 97,
        "labels": 3,
        "config": {
            "vocab_size": 59, "hidden_size": 20, "n_head": 4, "n_layer": 2, "pad_token_id": 0,
            "layer_norm_epsilon": 1e-5,
        },
        "masks": ["###########", "#######....", "#..........", "#########.."],
    },
    "bloom_b": {
        "seed": 101,
        "labels": 1,
        "config": {
            "vocab_size": 43, "hidden_size": 18, "n_head": 3, "n_layer": 3, "pad_token_id": 0,
            "layer_norm_epsilon": 1e-3,
        },
        "masks": ["########", "#####...", "...#####", "####..##", "....#..."],
    },
}

FAMILY = Family(
    config=BloomConfig,
    off={"hidden_dropout": 0.0, "attention_dropout": 0.0},
    heads=HEADS,
    models=MODELS,
    is_norm=lambda name: "layernorm" in name or ".ln_f" in name,
    fields={"bos_token_id": 1, "eos_token_id": 2},
)

if __name__ == "__main__":
    main(FAMILY)

"""Golden data for Mistral: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/mistral_a and mistral_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_mistral.py            # writes the folders
    "$python" scripts/golden/make_mistral.py --check    # recomputes them and compares with the committed files
"""

from transformers import MistralConfig, MistralForCausalLM, MistralForSequenceClassification

from decoders import Family, main

HEADS = {
    "lm": (MistralForCausalLM, True),
    "untied": (MistralForCausalLM, False),
    "cls": (MistralForSequenceClassification, False),
}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # A window of fewer keys than rows are long, shorter than the padding and the hole of some; heads that are not D / N long.
    "mistral_a": {
        "seed": 71,
        "labels": 3,
        "config": {
            "vocab_size": 53, "hidden_size": 22, "intermediate_size": 31, "num_hidden_layers": 2,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "sliding_window": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 30.0},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##......###"],
    },
    # No window; one key head for all; stretched positions.
    "mistral_b": {
        "seed": 73,
        "labels": 1,
        "config": {
            "vocab_size": 37, "hidden_size": 18, "intermediate_size": 23, "num_hidden_layers": 3,
            "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 26,
            "rms_norm_eps": 1e-3, "pad_token_id": 0, "sliding_window": None,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 20.0, "factor": 2.5},
        },
        "masks": ["#############", "########.....", ".....########", "#######..####", ".......#....."],
    },
}

FAMILY = Family(
    config=MistralConfig,
    off={"attention_dropout": 0.0},
    heads=HEADS,
    models=MODELS,
    is_norm=lambda name: "norm" in name,
    fields={"bos_token_id": 1, "eos_token_id": 2},
)

if __name__ == "__main__":
    main(FAMILY)

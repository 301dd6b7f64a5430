"""Golden data for Qwen 3: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/qwen3_a and qwen3_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_qwen3.py            # writes the folders
    "$python" scripts/golden/make_qwen3.py --check    # recomputes them and compares with the committed files
"""

from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from decoders import Family, main

HEADS = {
    "lm": (Qwen3ForCausalLM, True),
    "untied": (Qwen3ForCausalLM, False),
    "cls": (Qwen3ForSequenceClassification, False),
}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Windows in the first and the last layer; biases; heads that are not D / N long.
    "qwen3_a": {
        "seed": 89,
        "labels": 3,
        "config": {
            "vocab_size": 43, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "attention_bias": True,
            "use_sliding_window": True, "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # No windows, no biases; positions stretched by YaRN with what it takes where a file is silent, in rows of twice as many
    # tokens as the file has positions.
    "qwen3_b": {
        "seed": 97,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 27, "intermediate_size": 38, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10, "max_position_embeddings": 8,
            "rms_norm_eps": 1e-3, "pad_token_id": 0,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 15.0, "factor": 2.5,
                                "original_max_position_embeddings": 8},
        },
        "masks": ["#" * 16, "#" * 9 + "." * 7, "." * 7 + "#" * 9, "#" * 9 + ".." + "#" * 5, "." * 8 + "#" + "." * 7],
    },
}

FAMILY = Family(
    config=Qwen3Config,
    off={"attention_dropout": 0.0},
    heads=HEADS,
    models=MODELS,
    is_norm=lambda name: "norm" in name,
    fields={"bos_token_id": 1, "eos_token_id": 2},
)

if __name__ == "__main__":
    main(FAMILY)

"""Golden data for Qwen 2: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/qwen2_a and qwen2_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_qwen2.py            # writes the folders
    "$python" scripts/golden/make_qwen2.py --check    # recomputes them and compares with the committed files
"""

from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from decoders import Family, main

HEADS = {
    "lm": (Qwen2ForCausalLM, True),
    "untied": (Qwen2ForCausalLM, False),
    "cls": (Qwen2ForSequenceClassification, False),
}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Windows in all layers but the first; heads that are not D / N long; positions stretched by YaRN so that some of the five
    # angles of a head are fast, some slow and some between.
    "qwen2_a": {
        "seed": 79,
        "labels": 3,
        "config": {
            "vocab_size": 47, "hidden_size": 22, "intermediate_size": 29, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "pad_token_id": 0,
            "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 30.0, "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.25,
                                "attention_factor": 1.25, "original_max_position_embeddings": 16},
        },
        "masks": ["#" * 19, "#" * 12 + "." * 7, "#" + "." * 18, "...." + "#" * 15],
    },
    # No windows; rows longer than the trained length, beyond which the base of the angles grows.
    "qwen2_b": {
        "seed": 83,
        "labels": 1,
        "config": {
            "vocab_size": 41, "hidden_size": 24, "intermediate_size": 17, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 8,
            "rms_norm_eps": 1e-3, "pad_token_id": 0, "use_sliding_window": False,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0},
        },
        "masks": ["#############", "########.....", ".....########", "#######..####", ".......#....."],
    },
}

FAMILY = Family(
    config=Qwen2Config,
    off={"attention_dropout": 0.0},
    heads=HEADS,
    models=MODELS,
    is_norm=lambda name: "norm" in name,
    fields={"bos_token_id": 1, "eos_token_id": 2},
)

if __name__ == "__main__":
    main(FAMILY)

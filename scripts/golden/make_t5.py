"""Golden data for T5 and mT5: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/t5_a, t5_b and t5_mt5; crates/model-center/tests/golden/README.md describes
every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_t5.py            # writes the directories
    "$python" scripts/golden/make_t5.py --check    # recomputes them and compares with the committed files
"""

from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration

from seq2seq import FROM_LABELS, LABELS_ALONE, SPELLED_OUT, Family, main

# Shapes that share no size, so that a transposed or mixed-up axis cannot pass all.
MODELS = {
    # T5 1.0: tied, with scaled states before the head; decoder inputs that are made from the labels.
    "t5_a": {
        "kind": (T5ForConditionalGeneration, T5Config),
        "seed": 71,
        "tied": True,
        "config": {
            "vocab_size": 47, "d_model": 18, "d_kv": 5, "d_ff": 29, "num_layers": 2, "num_decoder_layers": 1,
            "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9,
            "feed_forward_proj": "relu", "decoder_start_token_id": 3,
        },
        **FROM_LABELS,
    },
    # T5 1.1: a gate, a head of its own, nothing scaled; decoder inputs and their padding are given.
    "t5_b": {
        "kind": (T5ForConditionalGeneration, T5Config),
        "seed": 73,
        "tied": False,
        "config": {
            "vocab_size": 39, "d_model": 20, "d_kv": 7, "d_ff": 17, "num_layers": 1, "num_decoder_layers": 2,
            "num_heads": 3, "relative_attention_num_buckets": 12, "relative_attention_max_distance": 7,
            "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-3, "decoder_start_token_id": 0,
        },
        **SPELLED_OUT,
    },
    "t5_mt5": {
        "kind": (MT5ForConditionalGeneration, MT5Config),
        "seed": 79,
        "tied": False,
        "config": {
            "vocab_size": 31, "d_model": 15, "d_kv": 4, "d_ff": 22, "num_layers": 2, "num_decoder_layers": 1,
            "num_heads": 5, "relative_attention_num_buckets": 6, "relative_attention_max_distance": 5,
        },
        "masks": ["######", "####.."],
        "decoder_masks": ["#####", "###.."],
        "inputs": LABELS_ALONE,
    },
}

FAMILY = Family(
    off={"dropout_rate": 0.0},
    models=MODELS,
    is_norm=lambda name: "layer_norm" in name,
)

if __name__ == "__main__":
    main(FAMILY)

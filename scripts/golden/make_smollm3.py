"""Golden data for SmolLM3: writes smollm3_a and smollm3_b. decoders.py describes them and how to run this script."""

from transformers import SmolLM3Config, SmolLM3ForCausalLM, SmolLM3ForSequenceClassification

from decoders import two_heads, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # The middle one of three layers has no positions, and windows are in the first and in the last.
    "smollm3_a": {
        "seed": 233,
        "labels": 3,
        "config": {
            "vocab_size": 43, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True, "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 20.0},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # Every second layer has no positions and a window, without lists; biases everywhere, as many key heads.
    "smollm3_b": {
        "seed": 239,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 26,
            "rms_norm_eps": 1e-3, "pad_token_id": 0, "attention_bias": True, "mlp_bias": True,
            "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 4,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0},
        },
        "masks": ["#############", "#########....", "....#########", "#####..######", "......#......"],
    },
}

if __name__ == "__main__":
    main(two_heads(SmolLM3Config, SmolLM3ForCausalLM, SmolLM3ForSequenceClassification, MODELS))

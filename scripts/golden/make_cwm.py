"""Golden data for Code World Model: writes cwm_a and cwm_b. decoders.py describes them and how to run this."""

from transformers import CwmConfig, CwmForCausalLM

from decoders import Family, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Windows in all layers but the first of four, as where a file is silent; angles stretched as by Llama 3.
    "cwm_a": {
        "seed": 347,
        "labels": 1,
        "config": {
            "vocab_size": 43, "hidden_size": 16, "intermediate_size": 21, "num_hidden_layers": 5,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "sliding_window": 3,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 20.0, "factor": 4.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # Listed layers; biases in the feed-forward part; as many key heads; plain angles.
    "cwm_b": {
        "seed": 337,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8, "max_position_embeddings": 26,
            "rms_norm_eps": 1e-3, "pad_token_id": 0, "mlp_bias": True, "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        },
        "masks": ["#############", "#########....", "....#########", "#####..######", "......#......"],
    },
}

if __name__ == "__main__":
    main(Family(
        config=CwmConfig, off={"attention_dropout": 0.0},
        heads={"lm": (CwmForCausalLM, True), "untied": (CwmForCausalLM, False)}, models=MODELS,
        is_norm=lambda name: "norm" in name, fields={"bos_token_id": 1, "eos_token_id": 2}))

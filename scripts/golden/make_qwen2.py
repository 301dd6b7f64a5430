"""Golden data for Qwen 2: writes qwen2_a and qwen2_b. decoders.py describes them and how to run this script."""

from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from decoders import like_llama, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Windows in all layers but the first; heads that are not D / N long; positions stretched by YaRN so that some of
    # the five angles of a head are fast, some slow and some between.
    "qwen2_a": {
        "seed": 79,
        "labels": 3,
        "config": {
            "vocab_size": 47, "hidden_size": 22, "intermediate_size": 29, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "pad_token_id": 0,
            "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 30.0, "factor": 4.0, "beta_fast": 2.0,
                                "beta_slow": 0.25,
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

if __name__ == "__main__":
    main(like_llama(Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification, MODELS))

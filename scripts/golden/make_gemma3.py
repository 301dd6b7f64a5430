"""Golden data for Gemma 3: writes gemma3_a, gemma3_b and gemma3_c. decoders.py describes them and how to run this
script."""

from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Gemma3TextForSequenceClassification

from decoders import like_llama, main
from make_gemma2 import MASKS, SIZES

MODELS = {
    # Windows shorter than the text in the first and the last layer; biases; heads that are not D / N long; other bases
    # in layers with and without a window; scores scaled by another number than the size of a head.
    "gemma3_a": {
        "seed": 411,
        "labels": 3,
        "heads": ["lm", "cls"],
        "config": {
            **SIZES["a"],
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 90.0},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}},
        },
        "masks": MASKS["a"],
    },
    # Every second layer without a window, where positions are stretched.
    "gemma3_b": {
        "seed": 423,
        "labels": 1,
        "heads": ["lm", "cls"],
        "config": {
            **SIZES["b"],
            "sliding_window_pattern": 2,
            "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.5},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 15.0}},
        },
        "masks": MASKS["b"],
    },
    # Tokens attend to later ones too, as in EmbeddingGemma; windows to both sides.
    "gemma3_c": {
        "seed": 437,
        "labels": 4,
        "heads": ["cls"],
        "trained": "cls",
        "config": {
            "vocab_size": 37, "hidden_size": 14, "intermediate_size": 19, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 24,
            "rms_norm_eps": 1e-6, "pad_token_id": 0, "query_pre_attn_scalar": 8, "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"], "use_bidirectional_attention": True,
        },
        "masks": ["############", "#######.....", "....########", "#####..#####", "...#........"],
    },
}

if __name__ == "__main__":
    main(like_llama(Gemma3TextConfig, Gemma3ForCausalLM, Gemma3TextForSequenceClassification, MODELS, norm_mean=0.0))

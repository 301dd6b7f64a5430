"""Golden data for ModernBERT: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/modernbert_a and modernbert_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_modernbert.py            # writes the directories
    "$python" scripts/golden/make_modernbert.py --check    # recomputes them and compares with the committed files
"""

import transformers

from encoders import Family, main

HEADS = {
    "cls": transformers.ModernBertForSequenceClassification,
    "mlm": transformers.ModernBertForMaskedLM,
    "tokens": transformers.ModernBertForTokenClassification,
}
# Its loss reads the logits of padding, too: these are defined where every window has a token.
SPANS = {"qa": transformers.ModernBertForQuestionAnswering}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
OFF = {"attention_dropout": 0.0, "embedding_dropout": 0.0, "mlp_dropout": 0.0, "classifier_dropout": 0.0}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Windows by the period; no biases but for the logits of masked tokens; classes by the first token.
    "modernbert_a": {
        "heads": HEADS | SPANS,
        "seed": 711,
        "labels": 2,
        "config": {
            "vocab_size": 37, "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 22,
            "num_hidden_layers": 4, "max_position_embeddings": 30, "hidden_activation": "gelu", "norm_eps": 1e-5,
            "pad_token_id": 3, "local_attention": 5, "global_attn_every_n_layers": 3,
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 90.0},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}},
        },
        # A full row, right padding, a hole in the middle: all within two tokens of another.
        "masks": ["###########", "##########.", "#########..", "#####..####"],
    },
    # Windows in listed layers, the first among them; all biases but for the logits of masked tokens; classes by
    # the mean over the tokens; positions stretched where layers have no window.
    "modernbert_b": {
        "heads": HEADS,
        "seed": 723,
        "labels": 5,
        "config": {
            "vocab_size": 29, "hidden_size": 18, "num_attention_heads": 3, "intermediate_size": 14,
            "num_hidden_layers": 3, "max_position_embeddings": 16, "hidden_activation": "gelu_new",
            "norm_eps": 1e-3, "pad_token_id": 7, "local_attention": 2,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.5},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 15.0}},
            "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True,
            "decoder_bias": False, "classifier_pooling": "mean", "classifier_activation": "silu",
        },
        # A full row, padding on the right, on the left, in the middle and on both sides, a row of one token.
        "masks": ["#########", "#####....", "...######", "####..###", "..#####..", "....#...."],
    },
}

if __name__ == "__main__":
    models = {name: spec | {"kind": transformers.ModernBertConfig, "config": SPECIAL | spec["config"]}
              for name, spec in MODELS.items()}
    main(Family(models=models, off=OFF, is_norm=lambda name: "norm" in name))

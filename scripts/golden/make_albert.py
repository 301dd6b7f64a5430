"""Golden data for ALBERT: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/albert_a and albert_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_albert.py            # writes the directories
    "$python" scripts/golden/make_albert.py --check    # recomputes them and compares with the committed files
"""

import transformers

from encoders import Family, main

HEADS = {
    "cls": transformers.AlbertForSequenceClassification,
    "mlm": transformers.AlbertForMaskedLM,
    "pretraining": transformers.AlbertForPreTraining,
    "tokens": transformers.AlbertForTokenClassification,
}
# The gradients of the other one are too small beside the rounding of sums over a softmax, which cancel.
SPANS = {"qa": transformers.AlbertForQuestionAnswering}
OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # One block at three places.
    "albert_a": {
        "heads": HEADS | SPANS,
        "seed": 711,
        "labels": 2,
        "config": {
            "vocab_size": 41, "embedding_size": 7, "hidden_size": 12, "num_attention_heads": 4,
            "intermediate_size": 22, "num_hidden_layers": 3, "max_position_embeddings": 17, "type_vocab_size": 2,
            "hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "pad_token_id": 3,
        },
        # Right padding: a full row, a row of one token, and lengths between.
        "masks": ["############", "#######.....", "#...........", "#########..."],
    },
    # Two blocks at two places each, and a projection between equal dimensions.
    "albert_b": {
        "heads": HEADS,
        "seed": 723,
        "labels": 5,
        "config": {
            "vocab_size": 29, "embedding_size": 9, "hidden_size": 9, "num_attention_heads": 3,
            "intermediate_size": 14, "num_hidden_layers": 4, "num_hidden_groups": 2, "max_position_embeddings": 13,
            "type_vocab_size": 3, "hidden_act": "relu", "layer_norm_eps": 1e-12,
        },
        # A full row, right padding, left padding, a hole in the middle, a row of one token that is not the first.
        "masks": ["#########", "#####....", "...######", "####..###", "....#...."],
    },
}

if __name__ == "__main__":
    kind = transformers.AlbertConfig
    main(Family(models={name: spec | {"kind": kind} for name, spec in MODELS.items()}, off=OFF,
                renamed={"next_sentence_label": "sentence_order_label"}))

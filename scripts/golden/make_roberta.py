"""Golden data for RoBERTa: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/roberta_a and roberta_b, an XLM-RoBERTa;
crates/model-center/tests/golden/README.md describes every file and tensor. The data are committed; run this only to
change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_roberta.py            # writes the directories
    "$python" scripts/golden/make_roberta.py --check    # recomputes them and compares with the committed files
"""

import transformers

from encoders import Family, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both. Heads have odd lengths.
MODELS = {
    "roberta_a": {
        "seed": 61,
        "labels": 2,
        "kind": transformers.RobertaConfig,
        "heads": {
            "cls": transformers.RobertaForSequenceClassification, "mlm": transformers.RobertaForMaskedLM,
            "tokens": transformers.RobertaForTokenClassification, "qa": transformers.RobertaForQuestionAnswering,
        },
        "config": {
            "vocab_size": 83, "hidden_size": 20, "num_attention_heads": 4, "intermediate_size": 36,
            "num_hidden_layers": 2, "max_position_embeddings": 19, "type_vocab_size": 1, "pad_token_id": 1,
            "hidden_act": "gelu", "layer_norm_eps": 1e-5,
        },
        # Right padding: a full row, a row of one token, and lengths between.
        "masks": ["###########", "#######....", "#..........", "#########.."],
        # Positions count it as a token, though nothing attends to it.
        "masked_tokens": [(1, 8)],
    },
    "roberta_b": {
        "seed": 79,
        "labels": 5,
        "kind": transformers.XLMRobertaConfig,
        "heads": {
            "cls": transformers.XLMRobertaForSequenceClassification, "mlm": transformers.XLMRobertaForMaskedLM,
            "tokens": transformers.XLMRobertaForTokenClassification, "qa": transformers.XLMRobertaForQuestionAnswering,
        },
        "config": {
            "vocab_size": 59, "hidden_size": 27, "num_attention_heads": 3, "intermediate_size": 31,
            "num_hidden_layers": 3, "max_position_embeddings": 13, "type_vocab_size": 2, "pad_token_id": 3,
            "hidden_act": "gelu_new", "layer_norm_eps": 1e-12,
        },
        # A full row, right padding, left padding, a hole in the middle, a row of one token that is not the first.
        "masks": ["#########", "#####....", "...######", "####..###", "....#...."],
        "masked_tokens": [(2, 1), (3, 4)],
    },
}

if __name__ == "__main__":
    main(Family(models=MODELS))

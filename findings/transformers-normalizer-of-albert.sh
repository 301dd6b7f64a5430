#!/usr/bin/env bash
# Guess: the normalizer that tokenizer.json states is the one a tokenizer has, whatever tokenizer_config.json has.
# Seen: the class of a family builds normalizer and pre-tokenizer anew, from the vocabulary and the settings of
# tokenizer_config.json (do_lower_case, keep_accents); what tokenizer.json states of them is not read. The class for any
# tokenizer.json, PreTrainedTokenizerFast, takes the file as it is. The same directory gives two sequences of ids.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages torch==2.15.0 transformers==5.23.0
"$python" -W ignore - <<'PYTHON'
import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
pieces = [(piece, 0.0) for piece in special] + [("\u2581", -2.0), ("A", -2.0), ("a", -2.0), ("b", -2.0)]
tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1))
# No normalizer: case is kept.
tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
directory = Path(tempfile.mkdtemp())
tokenizer.save(str(directory / "tokenizer.json"))
settings = {"tokenizer_class": "AlbertTokenizer", "do_lower_case": True, "unk_token": "<unk>", "pad_token": "<pad>",
            "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
(directory / "tokenizer_config.json").write_text(json.dumps(settings))
of_file = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), unk_token="<unk>")
of_class = AutoTokenizer.from_pretrained(directory)
found = [one.convert_ids_to_tokens(one("Ab", add_special_tokens=False).input_ids) for one in (of_file, of_class)]
print(f"tokenizer.json: {found[0]}, {type(of_class).__name__}: {found[1]}")
assert found == [["\u2581", "A", "b"], ["\u2581", "a", "b"]], "the class takes the file's normalizer now"
PYTHON

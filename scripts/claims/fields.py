"""Lists of the fields of tokenizers and sentence encoders, for the claim `fields`: of the installed transformers and
sentence-transformers, in the form of the golden lists.

Usage: fields.py DIRECTORY, into which tokenizer_config_fields.json and sentence_fields.json are written.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))

import make_sentence_fields  # noqa: E402
import make_tokenizer_fields  # noqa: E402


def main(directory):
    directory.mkdir(parents=True, exist_ok=True)
    for script in (make_tokenizer_fields, make_sentence_fields):
        for package, wanted in script.PINNED.items():
            if version(package) != wanted:
                sys.exit(f"{package} {version(package)} is installed, the lists are of {wanted}")
        text = json.dumps(script.fields(), indent=0) + "\n"
        (directory / script.OUT.name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

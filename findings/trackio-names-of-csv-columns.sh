#!/usr/bin/env bash
# Guess: import_csv takes each column of numbers as a metric of the column's name.
# Seen: names lose all but letters, digits and slashes and are cut to ten characters, and a number tells equal ones
# apart: which of validation, validation_1 and validation_2 was the accuracy is not stored.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages trackio==0.43.0
TRACKIO_DIR="$(mktemp -d)" HF_HUB_OFFLINE=1 "$python" -W ignore - <<'PYTHON'
import json
import os
import sqlite3
from pathlib import Path

import trackio

directory = Path(os.environ["TRACKIO_DIR"])
table = directory / "table.csv"
table.write_text("step,train/loss,train/grad_norm,validation/loss,validation/accuracy\n1,0.5,1.5,0.25,0.75\n")
trackio.import_csv(str(table), project="claim", name="first")
(row,) = sqlite3.connect(directory / "claim.db").execute("SELECT metrics FROM metrics")
found = json.loads(row[0])
print(f"stored: {found}")
assert found == {"train/loss": 0.5, "train/grad": 1.5, "validation": 0.25, "validation_1": 0.75}, "names are kept now"
PYTHON

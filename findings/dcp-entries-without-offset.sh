#!/usr/bin/env bash
# Guess: each key of storage_data in the .metadata of torch.distributed.checkpoint, a MetadataIndex, is stored with its
# three declared fields: fqn, offset, index.
# Seen: the field offset is stored for parts of tensors alone. For other values, such as a step number, it is missing
# from the stored state rather than None; the class has None as a default of its own, so that only a reader without the
# class sees it.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages torch==2.15.0
"$python" -W ignore - <<'PYTHON'
import pickle
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

directory = tempfile.mkdtemp()
dcp.save({"w": torch.ones(2), "step": 3}, checkpoint_id=directory)
metadata = pickle.loads((Path(directory) / ".metadata").read_bytes())
found = {entry.fqn: sorted(vars(entry)) for entry in metadata.storage_data}
print(f"stored fields: {found}")
assert found == {"w": ["fqn", "index", "offset"], "step": ["fqn", "index"]}, "entries have other fields now"
PYTHON

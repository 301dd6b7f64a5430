#!/usr/bin/env bash
# Guess: `wandb sync --sync-tensorboard DIR`, or `wandb sync DIR`, uploads TensorBoard's event files as a run.
# Seen: the option is refused as removed after 0.29, and without it event files are passed over with exit status 0.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages wandb==0.31.0 tensorboard==2.21.0
WANDB_MODE=offline "$python" -W ignore - <<'PYTHON'
import subprocess
import sys
import tempfile

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

directory = tempfile.mkdtemp()
writer = EventFileWriter(directory)
for step in range(3):
    value = Summary.Value(tag="train/loss", simple_value=step)
    writer.add_event(Event(wall_time=1.0 + step, step=step, summary=Summary(value=[value])))
writer.close()


def sync(*arguments):
    command = [sys.executable, "-m", "wandb", "sync", *arguments, directory]
    done = subprocess.run(command, capture_output=True, text=True)
    text = (done.stdout + done.stderr).strip()
    print(f"wandb sync {' '.join(arguments)} DIR: exit status {done.returncode}: {text}")
    return done.returncode, text


status, text = sync("--sync-tensorboard")
assert status == 1 and "have been removed" in text, "the option is there again"
status, text = sync("--yes")
assert status == 0 and "No runs to sync" in text, "event files are synced now"
PYTHON

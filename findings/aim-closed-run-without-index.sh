#!/usr/bin/env bash
# Guess: Repo.iter_runs has a run that was closed, as Repo.list_all_runs has.
# Seen: it has it after the index was made anew (`aim storage reindex`, or `aim up`, which does so in the background);
# before, get_run gives None and a Run opened for reading has no metrics, without an error.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages aim==3.29.1
repository="$(mktemp -d)"
"$python" -W ignore - "$repository" <<'PYTHON'
import sys

import aim

run = aim.Run(repo=sys.argv[1], system_tracking_interval=None, log_system_params=False, capture_terminal_logs=False)
run.track(0.5, name="loss", step=1)
run.close()
PYTHON
# look: runs by two methods of the SDK, and metrics of the run, in a process of its own.
look() {
    "$python" -W ignore - "$repository" <<'PYTHON'
import sys

import aim

repo = aim.Repo(sys.argv[1])
(name,) = repo.list_all_runs()
metrics = list(aim.Run(name, repo=repo, read_only=True).metrics())
print(f"list_all_runs 1, iter_runs {len(list(repo.iter_runs()))}, metrics {len(metrics)}")
PYTHON
}
before="$(look)"
"$(dirname "$python")/aim" storage --repo "$repository" reindex -y >/dev/null 2>&1
after="$(look)"
printf 'before: %s\nafter:  %s\n' "$before" "$after"
[ "$before" = "list_all_runs 1, iter_runs 0, metrics 0" ] && [ "$after" = "list_all_runs 1, iter_runs 1, metrics 1" ]

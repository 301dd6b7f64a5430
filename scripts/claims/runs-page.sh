#!/usr/bin/env bash
# The page of `runs serve` and a report in headless Chromium, on real runs of the quickstart's recipe and on 500 runs of
# 120,000 points each: comparing, filtering, smoothing, following a live run, names that are markup, deletion, and no
# request to any other host. The figure is checks that hold, of all; seconds to load 500 runs; seconds to index them
# first. ok: all hold and 500 runs load in 2 s. With `--pictures DIR` it writes the screenshots of docs/images.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"
need_pip
need node "install Node.js 18 or later, on Debian: apt-get install nodejs npm"
need chromium "install Chromium, on Debian: apt-get install chromium"
pictures=""
if [ "${1:-}" = --pictures ]; then pictures="$(realpath "${2:?a directory}")"; fi
build finetune runs
browser="$("$root/scripts/browser_env.sh")"
quickstart_data
scratch
quickstart_recipe --set data.eval_limit=200 --set "eval.every=20 steps" --set log.every=1 --set train.batch_size=16
figure="$(NODE_PATH="$browser/node_modules" CHROMIUM="$(command -v chromium)" PICTURES="$pictures" python3 \
    "$root/scripts/claims/runs_page.py" "$scratch" "$bin/runs" "${recipe[@]}")"
IFS=, read -r checks load _ <<<"$figure"
if [ "${checks%/*}" = "${checks#*/}" ] && awk -v s="${load%s*}" 'BEGIN { exit !(s <= 2) }'; then
    verdict "$figure" ok
else
    verdict "$figure" short
fi

#!/usr/bin/env bash
# Usage: RECIPE=recipe.toml bsub < examples/launch/lsf.sh
#
# Fine-tunes on two hosts with eight GPUs each: blaunch starts a task on each slot, and a slot is a GPU. Ten minutes
# before the time limit the tasks get SIGTERM: they write a checkpoint and end with status 75. LSF puts the job back
# into the queue after status 75, and after 6, with which the other ranks end when one is lost; it resumes.
#BSUB -J finetune
#BSUB -n 16
#BSUB -R "span[ptile=8]"
#BSUB -gpu "num=8:mode=shared"
#BSUB -W 24:00
#BSUB -wa TERM
#BSUB -wt 10
#BSUB -Q "6 75"
#BSUB -o finetune.%J.log
set -euo pipefail

: "${RECIPE:?is not set: give the path of the recipe}"
exec blaunch "${BMTRAIN:-bmtrain}" finetune --recipe "$RECIPE"

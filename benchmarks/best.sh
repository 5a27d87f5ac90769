#!/bin/bash
# What is missing of the table of `--preset best`, in the order of its worth, in lanes that can run side by side:
#
#   bash benchmarks/best.sh LANE [DATA_DIR [RESULTS_DIR]]
#
# lane                s    what it tells; one chain / average in %, the goal and what is recorded
# ten-noise-60      480    ten images of CIFAR-10 on a held-out tenth: windows of 60 steps from faint noise, with rates that
#                          fall at the end; 69.5 / 72, 63.5 / 68.3
# ten-noise-60-far, ten-noise-60-masses, ten-noise-100, ten-recorded-60, ten-recorded-60-far
#                   480    the same by differences further apart, by chains with a mass for each tensor, by windows of 100,
#                          and from the recorded coreset
# samplers           60    the recorded coresets of 10 and 50 images by sghmc and psghmc, on training images: which one
#                          samples better, at which step, and whether 300 steps do
# one-noise-100-masses 300 one image of CIFAR-10 by windows with masses: 53 / 56, 51.9 / 55.1
# svhn1             170    windows of 100 at one image, as CIFAR-10 chose them: 72 / 76, 67.1 / 71.7
# fashion-mnist     450    ten images by the preset from raw data, test data once: 89.5 / 90.5, 88.0 / 89.1
# uses10             90    the recorded ten images of CIFAR-10 by other kernels, steps, temperatures and networks
# fifty-recorded-60 480    fifty images of CIFAR-10: 75.5 / 77.5, 70.3 / 74.1
# seeds1            450    two more constructions of one image of CIFAR-10
#
# Seconds are those of a free H200; beside four other processes an iteration took two to four times as long. Lanes that are
# named for what they vary judge on a held-out tenth of the training data: what they choose becomes a rule of
# presets/best.json, and only then is `bpc run --preset best` to see test data. GROW_SECONDS bounds their constructions.
lane=$1 data=${2:-data} results=${3:-runs}
mkdir -p "$results"

construct() { # DATASET SEED [IPC]
  local out=$results/$1-ipc${3:-1}-seed$2
  bpc run --dataset "$1" --ipc "${3:-1}" --preset best --seed "$2" --data-dir "$data" --out "$out"
  bpc compact "$out/coreset.safetensors" "$results/$1-ipc${3:-1}-best-seed$2.safetensors" --data-dir "$data"
}

grow() { # VARIANT DATASET
  python benchmarks/one_chain.py grow "$1" --dataset "$2" --seconds "${GROW_SECONDS:-450}" --data-dir "$data" \
    --out "$results/$2-$1.jsonl"
}

case $lane in
samplers)
  python benchmarks/one_chain.py samplers benchmarks/results/coresets/*-ipc{10,50}-bptt.safetensors \
    --sampler sghmc:step_size=0.0125 --sampler psghmc:step_size=0.0125 --sampler psghmc:step_size=0.02 \
    --sampler psghmc:step_size=0.03 --steps 300 --steps 1000 --data-dir "$data" --out "$results/samplers.jsonl"
  ;;
one-* | ten-* | fifty-*) grow "$lane" "${DATASET:-cifar10}" ;;
svhn1) construct svhn 0 ;;
fashion-mnist) construct fashion-mnist 0 10 ;;
uses10)
  python benchmarks/one_chain.py uses benchmarks/results/coresets/cifar10-ipc10-bptt.safetensors --preset paper \
    --data-dir "$data" --out "$results/uses10.jsonl"
  ;;
seeds1) for seed in 1 2; do construct cifar10 $seed; done ;;
*) echo "There is no lane '$lane'; the first lines of this script name them." >&2 && exit 2 ;;
esac

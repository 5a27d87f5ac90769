#!/bin/bash
# What of the paper's tables is still to be computed on a GPU:
#
#   bash benchmarks/reproduce.sh LANE [DATA_DIR [RESULTS_DIR [OPTIONS OF bpc reproduce ...]]]
#
# Half an hour of one H200, in this order; every call may be broken off and given again:
#
#   1. bench   cafe against the published loop, alone on the device (60 s); gm, dsa and dm are recorded
#   2. all     three lanes side by side, each with the most valuable cells first; seconds are estimates, alone:
#                published10 (100), selections (110), published50 (270)
#                condensation (500): rivals, most with a part of their iterations; ld, dd and kip have never run on a GPU
#                best (250), attack (600): our recorded coreset of ten images and its control; calibration, other
#                networks, corruptions, then both suites at four epsilons, each of which is kept when it is over
#   3. mtt     in part, with 12 experts (500 s)
#
# Each of these names is a LANE too. With --smoke as an option everything is tried on the digits, without data or a GPU.
# Finished cells are taken from benchmarks/results/reproduce. Every 45 s, and at the end, RESULTS_DIR/LANE.tgz has all
# cells, with coresets of up to ten images per class: what benchmarks/tables.py reads from benchmarks/results/reproduce.
lane=$1 data=${2:-data} results=${3:-runs}
shift $(($# < 3 ? $# : 3))
out=runs/paper_$lane

follow() {
  for each; do bash "$0" "$each" "$data" "$results" "${options[@]}"; done
}
options=("$@")
if [ "$lane" = all ]; then
  follow published10 selections published50 &
  follow condensation &
  follow best attack &
  wait
  exit
fi

compute() {
  bpc reproduce "$@" --datasets cifar10 --data-dir "$data" --out "$out" "${options[@]}"
}
pack() {
  tar czf "$results/$lane.tgz" --exclude='*.checkpoint*' --exclude=log.jsonl \
    --exclude='*-ipc50-*/coreset.safetensors' -C "$out" cells
}
mkdir -p "$out/recorded" "$results"
cp -r benchmarks/results/reproduce/cells "$out/"
cp benchmarks/results/coresets/cifar10-ipc10-bptt.safetensors "$out/recorded/cifar10-ipc10-best.safetensors"
while sleep 45; do pack; done > /dev/null 2>&1 &
keeper=$!

case $lane in
published*)
  compute main efficiency pictures --variants published --ipc "${lane#published}" --expert-count 12
  ;;
selections)
  compute coresets --expert-count 1 \
    --only herding:10,k-center:10,forgetting:10,herding:50,herding:1,k-center:50,forgetting:50,k-center:1,forgetting:1
  ;;
condensation)
  compute condensation --budget 1000 \
    --only gm:10:0.4,kip:1:0.2,cafe-dsa:10:0.1,cafe:10:0.1,ld:1:0.1,ld:10:0.05,dd:10:0.02,cafe:1:0.5,cafe-dsa:1:0.5
  ;;
best)
  compute calibration cross-architecture shift --variants best --protocols cold --ipc 10 --coresets "$out/recorded"
  ;;
attack)
  compute attack --variants best --protocols cold --ipc 10 --coresets "$out/recorded"
  ;;
mtt)
  compute condensation --expert-count 12 --budget 600 --only mtt:1:0.1,mtt:10:0.1
  ;;
bench)
  bpc bench --methods cafe --ipc 10 --out "$results/bench_methods.json"
  ;;
*)
  echo "There is no lane '$lane'; the first lines of this script name them." >&2
  false
  ;;
esac
status=$?
kill $keeper
pack
exit $status

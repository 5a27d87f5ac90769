#!/bin/bash
# What of the paper's tables is still to be computed on a GPU, in lanes that can run side by side:
#
#   bash benchmarks/reproduce.sh LANE [DATA_DIR [RESULTS_DIR]]
#
# published10, published50   the method as published (150 and 270 s on a free H200, with its experts 35 s more)
# selections, condensation   rivals in the order of worth (60 and 300 s)
# best                       our recorded coreset of ten images: calibration, corruptions, other networks, attacks (500 s)
# distilled                  mtt and kip in part, which have not run on a GPU yet
# bench                      ours against the published loops, alone on the device (120 s)
#
# Finished cells are taken from benchmarks/results/reproduce. Every 45 s, and at the end, RESULTS_DIR/LANE.tgz has all
# cells, with coresets of up to ten images per class.
lane=$1 data=${2:-data} results=${3:-runs}
out=runs/paper_$lane
common="--datasets cifar10 --data-dir $data --out $out"
recorded=runs/recorded_best
mkdir -p "$out" "$results" $recorded
cp -r benchmarks/results/reproduce/cells "$out/"
cp benchmarks/results/coresets/cifar10-ipc10-bptt.safetensors $recorded/cifar10-ipc10-best.safetensors

pack() {
  tar czf "$results/$lane.tgz" --exclude='*.checkpoint*' --exclude=log.jsonl \
    --exclude='*-ipc50-*/coreset.safetensors' -C runs "paper_$lane/cells"
}
while sleep 45; do pack; done &
keeper=$!

case $lane in
published*)
  bpc reproduce main efficiency pictures --variants published --ipc "${lane#published}" --expert-count 12 $common --budget 480
  ;;
selections)
  bpc reproduce coresets --expert-count 1 $common --budget 250 \
    --only herding:10,k-center:10,forgetting:10,herding:50,herding:1,k-center:50,forgetting:50,k-center:1,forgetting:1
  ;;
condensation)
  bpc reproduce condensation $common --budget 500 \
    --only gm:10:0.4,dm:50:0.5,cafe:1:0.1,cafe-dsa:1:0.1,ld:10:0.1,ld:1:0.1,dd:10:0.05,cafe-dsa:10:0.1,cafe:10:0.1
  ;;
best)
  bpc reproduce calibration shift cross-architecture attack --variants best --protocols cold --ipc 10 \
    --coresets $recorded $common --budget 520
  ;;
distilled)
  bpc reproduce condensation --expert-count 12 $common --budget 300 --only kip:1:0.2,mtt:1:0.1
  ;;
bench)
  bpc bench --methods gm,dsa,dm,cafe --ipc 10 --out "$results/bench_methods.json"
  ;;
*)
  echo "There is no lane '$lane'; the first lines of this script name them." >&2
  ;;
esac
kill $keeper
pack

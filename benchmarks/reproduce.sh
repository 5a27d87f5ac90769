#!/bin/bash
# What of the paper's tables is still to be computed on a GPU:
#
#   bash benchmarks/reproduce.sh LANE [DATA_DIR [RESULTS_DIR [OPTIONS OF bpc reproduce ...]]]
#
# Each LANE holds the most valuable cells first and may be broken off and given again; several can run side by side, best
# under the multi-process service of NVIDIA. Seconds are estimates, alone on an H200:
#
#   selections       60   forgetting, by the rule that ranks images never learned first
#   labels          210   ld, learned labels of fixed images, with a part of its iterations
#   matching        350   gm whole at ten images; dsa and gm at fifty, in part
#   features         80   cafe and cafe-dsa at fifty images, in part
#   kernel          100   kip at fifty images, in part
#   mtt             350   in part, with 12 experts
#   best            150   our recorded coreset of ten images: corruptions
#   attack          600   the same: both suites at four epsilons, each of which is kept when it is over
#   published50     270   the method as published at fifty images, with 12 experts
#
# With --smoke as an option everything is tried on the digits, without data or a GPU. Finished cells are taken from
# benchmarks/results/reproduce. Every 45 s, and at the end, RESULTS_DIR/LANE.tgz has the new cells, with coresets of up to
# ten images per class: what benchmarks/tables.py reads from benchmarks/results/reproduce.
lane=$1 data=${2:-data} results=${3:-runs}
shift $(($# < 3 ? $# : 3))
out=runs/paper_$lane
options=("$@")

compute() {
  bpc reproduce "$@" --datasets cifar10 --data-dir "$data" --out "$out" "${options[@]}"
}
pack() {
  (cd "$out" && find cells -type f -newer started ! -name '*.checkpoint*' ! -name log.jsonl ! -path '*-ipc50-*/coreset.*') |
    tar czf "$results/$lane.tgz" -C "$out" -T -
}
if [ ! -e "$out/started" ]; then
  mkdir -p "$out/recorded" "$results"
  cp -r benchmarks/results/reproduce/cells "$out/"
  cp benchmarks/results/coresets/cifar10-ipc10-bptt.safetensors "$out/recorded/cifar10-ipc10-best.safetensors"
  touch "$out/started"
fi
while sleep 45; do pack; done > /dev/null 2>&1 &
keeper=$!

case $lane in
published*)
  compute main efficiency pictures --variants published --ipc "${lane#published}" --expert-count 12
  ;;
selections)
  compute coresets --expert-count 1 \
    --only forgetting:10,forgetting:50,forgetting:1
  ;;
labels)
  compute condensation --only ld:10:0.03,ld:1:0.03,ld:50:0.02
  ;;
matching)
  compute condensation --only gm:10,dsa:50:0.02,gm:50:0.02
  ;;
features)
  compute condensation --only cafe:50:0.05,cafe-dsa:50:0.05
  ;;
kernel)
  compute condensation --only kip:50:0.005
  ;;
mtt)
  compute condensation --expert-count 12 --only mtt:10:0.08,mtt:1:0.06,mtt:50:0.03
  ;;
best)
  compute shift --variants best --protocols cold --ipc 10 --coresets "$out/recorded"
  ;;
attack)
  compute attack --variants best --protocols cold --ipc 10 --coresets "$out/recorded"
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

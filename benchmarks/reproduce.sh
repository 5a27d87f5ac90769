#!/bin/bash
# What of the paper's tables is still to be computed on a GPU:
#
#   bash benchmarks/reproduce.sh LANE [DATA_DIR [RESULTS_DIR [OPTIONS OF bpc reproduce ...]]]
#
# Each LANE holds the most valuable cells first and may be broken off and given again; several can run side by side, best
# under the multi-process service of NVIDIA. Seconds are estimates, alone on an H200:
#
#   best            250   our ten images of CIFAR-10: other networks and corruptions
#   labels          160   ld, learned labels of fixed images, at one and fifty, with a part of its iterations
#   features         80   cafe and cafe-dsa at fifty images, in part
#   kernel          100   kip at fifty images, in part
#   published10     250   the method as published at ten images, with 12 experts; published50 270
#   attack          600   our ten images: both suites at four epsilons, each of which is kept when it is over
#   matching        500   gm and dsa at fifty images, a fifth of their schedules
#   mtt            2700   whole at ten images, with 12 experts: half a second an iteration
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
  cp benchmarks/results/one_chain/cifar10-ipc10-best.safetensors "$out/recorded/"
  touch "$out/started"
fi
while sleep 45; do pack; done > /dev/null 2>&1 &
keeper=$!

case $lane in
published*)
  compute main efficiency pictures --variants published --ipc "${lane#published}" --expert-count 12
  ;;
labels)
  compute condensation --only ld:1:0.03,ld:50:0.02
  ;;
matching)
  compute condensation --only dsa:50:0.2,gm:50:0.2
  ;;
features)
  compute condensation --only cafe:50:0.05,cafe-dsa:50:0.05
  ;;
kernel)
  compute condensation --only kip:50:0.005
  ;;
mtt)
  compute condensation --expert-count 12 --only mtt:10
  ;;
best)
  compute cross-architecture shift --variants best --protocols cold --ipc 10 --coresets "$out/recorded"
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

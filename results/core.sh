#!/usr/bin/env bash
# Every number of the README's first results table: 12 configs x 3 seeds, each on one core.
#   bash results/core.sh [how many at a time, 2] [only configs that match this, such as dyck3]
# dyck3 trains for half of its configs' iterations here, to fit everything into 40 minutes; when the loss falls differs by seed.
# A finished run is skipped and a stopped one resumed, so this can be stopped and started again.
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
run() {
    out=results/core/$1-$2 init=scratch shorter=
    [[ $1 == dyck3* ]] && shorter=--max_iters=2000
    [ -f "$out/eval.json" ] && exit 0
    [ -f "$out/ckpt.pt" ] && init=resume
    mkdir -p "$out"
    if python train.py "config/$1.py" --seed="$2" --out_dir="$out" --init_from=$init $shorter > "$out/output.txt" 2>&1 &&
        python eval.py "$out" >> "$out/output.txt" 2>&1
    then rm "$out/output.txt"; echo "done    $1, seed $2"
    else echo "FAILED  $1, seed $2: see $out/output.txt"; fi
}
export -f run
for seed in 0 1 2; do for config in config/{bio_rotation,modulo,dyck3}_{rope,spectral,bifocal,tapa}.py; do
    [[ $config == *$2* ]] && echo "$(basename "$config" .py) $seed"
done; done | xargs -P "${1:-2}" -L1 bash -c 'run $0 $1'
echo "$(ls results/core/*-[0-9]/eval.json | wc -l) of 36 runs evaluated"

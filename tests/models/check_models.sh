#!/usr/bin/env bash
# usage: check_models.sh WORK_FOLDER [--large] [MODEL...]
#
# Searches the full state space of each SPIN model (ring, commit, accumulate, copy_team), then shows that each of its broken twins is caught: every
# TWIN_ that a model names is one mistake, compiled in. --large searches larger bounds too (two minutes more; 2.5 GB). One core.
#
# Exit codes: 0 the models hold and every twin was caught, 1 otherwise, 2 usage.
set -euo pipefail
models=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
memory_mib=2700
depth_max=20000
compiler=$(command -v clang-14 || echo gcc)  # of 47 programs, most of which run for a moment only: clang makes them in half of the time
failures=0

# Bounds of --large: MODEL=FLAGS, one search each.
large_bounds=(
  "ring=-DITEMS=4"
  "commit=-DTILES1=2"
  "accumulate=-DTILES=3"
  "accumulate=-DRANKS=2 -DCRASHES=1 -DDROPS=0"
  "copy_team=-DPIECES_MAX=4"
)

complain() {
  echo "check_models: $*" >&2
  failures=$((failures + 1))
}

# search FOLDER MODEL TABLE "GCC-FLAGS" SPIN-FLAG...: what the search printed is in FOLDER/result. TABLE: so many bits for the table of states.
search() {
  local folder=$1 model=$2 table=$3 compiler_flags spin_flags=("${@:5}")
  read -ra compiler_flags <<< "$4"
  rm -rf -- "$folder"
  mkdir -p -- "$folder"
  cd -- "$folder"
  if ! spin "${spin_flags[@]}" -a "$models/$model.pml" > result 2>&1; then return 1; fi
  "$compiler" -w -DSAFETY "-DMEMLIM=$memory_mib" "${compiler_flags[@]}" -o pan pan.c > result 2>&1 || return 1
  ./pan "-m$depth_max" "-w$table" > result 2>&1 || true
}

number_before() { sed -n "s/^ *\([0-9.e+]*\) $2.*/\1/p" "$1" | head -n 1; }
memory_of() { sed -n 's/^ *\([0-9.]*\)[[:space:]]*total actual memory usage.*/\1/p' "$1"; }
seconds_of() { sed -n 's/^pan: elapsed time \([0-9.]*\) seconds.*/\1/p' "$1"; }

# A search counts when it found nothing, was not cut short anywhere, and reached the end.
check_model() {
  local model=$1 flags spin_flags result=$work/$1/result
  read -ra spin_flags <<< "${2:-}"
  # What is small enough is kept as it is; packed, it takes half as long again.
  flags="-O3 -march=native"
  [[ $model != ring || -z ${2:-} ]] || flags+=" -DCOLLAPSE"
  search "$work/$model" "$model" 24 "$flags" "${spin_flags[@]}" || complain "$model could not be compiled: $(tail -n 5 "$result")"
  if ! grep -q 'errors: 0$' "$result" || grep -Eq 'Search not completed|search depth too small|reached -DMEMLIM|out of memory|aborting' "$result"; then
    complain "$model${2:+ ($2)}: the search found something or was not completed; replay with: cd $work/$model && spin -t -p $models/$model.pml"
    cat -- "$result" >&2
  fi
  printf '%-11s %-32s %10s states %8s MiB %7s s\n' "$model" "${2:-}" "$(number_before "$result" 'states, stored')" "$(memory_of "$result")" "$(seconds_of "$result")"
}

# A twin is caught by an assertion or by processes that wait for ever; anything else is a fault of the model.
check_twin() {
  local model=$1 twin=$2 result=$work/$1.$2/result
  search "$work/$model.$twin" "$model" 22 "-O0" "-D$twin" || complain "$model with $twin could not be compiled: $(tail -n 5 "$result")"
  if ! grep -Eq '^pan:1: (assertion violated|invalid end state)' "$result" || ! grep -Eq 'errors: [1-9]' "$result"; then
    complain "$model: $twin was not caught"
    cat -- "$result" >&2
  fi
  printf '  %-30s caught after %s states\n' "$twin" "$(number_before "$result" 'states, stored')"
}

twins_of() { grep -Eo '^#(if|ifdef|ifndef|elif)[^/]*' "$models/$1.pml" | grep -Eo 'TWIN_[A-Z_]+' | sort -u; }

if (($# == 0)) || [[ $1 == -* ]]; then
  echo "usage: check_models.sh WORK_FOLDER [--large] [MODEL...]" >&2
  exit 2
fi
work=$1
shift
large=false
if [[ ${1:-} == --large ]]; then
  large=true
  shift
fi
chosen=("$@")
((${#chosen[@]})) || chosen=(ring commit accumulate copy_team)
command -v spin > /dev/null || {
  echo "check_models: spin is not installed: run scripts/setup" >&2
  exit 1
}
mkdir -p -- "$work"
work=$(cd -- "$work" && pwd -P)

for model in "${chosen[@]}"; do
  check_model "$model"
  twins=$(twins_of "$model")
  [[ -n $twins ]] || complain "$model names no twin"
  for twin in $twins; do check_twin "$model" "$twin"; done
  if $large; then
    for bounds in "${large_bounds[@]}"; do
      [[ ${bounds%%=*} != "$model" ]] || check_model "$model" "${bounds#*=}"
    done
  fi
done
echo "models: ${#chosen[@]} searched in $SECONDS s, $failures failures"
((failures == 0))

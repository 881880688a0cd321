#!/usr/bin/env bash
# Installs a build into a temporary prefix, builds examples/own_module with nothing but find_package(Tidepool), trains with it, and looks at
# what users see when an option, LibTorch's folder or its release is wrong.
# usage: check_own_module.sh BUILD_FOLDER SOURCE_FOLDER
set -euo pipefail
build=$1 source=$2
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
fail() {
  echo "check_own_module: $*" >&2
  exit 1
}

for component in server trainer; do
  cmake --install "$build" --prefix "$scratch/first" --component "$component" > "$scratch/log" || fail "cmake --install failed: $(tail -n 5 "$scratch/log")"
done
mv -- "$scratch/first" "$scratch/prefix"  # a prefix may be moved
own=$scratch/own
launcher=$(command -v ccache || true)
export CCACHE_BASEDIR=$scratch CCACHE_NOHASHDIR=1  # LibTorch's headers take half a minute, but not where nothing has changed
configure() {
  cmake -S "$source/examples/own_module" -B "$own" -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_CXX_FLAGS='-O0 -Wall -Wextra' \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" "$@" > "$scratch/log" 2>&1
}
# As one line: CMake breaks its messages.
told() { tr -s ' \n' ' ' < "$scratch/log"; }

if configure -DTIDEPOOL_TORCH_DIR="$scratch/none"; then fail "configured without LibTorch"; fi
[[ $(told) == *"LibTorch "*" is missing: "*"$scratch/none"*"-DTIDEPOOL_TORCH_DIR="* ]] || fail "a missing LibTorch is reported as: $(told)"
old=$scratch/old/include/torch
mkdir -p "$scratch/old/lib" "$old/csrc/api/include/torch" "$old/headeronly"
touch "$scratch/old/lib/libtorch_cpu.so" "$old/csrc/api/include/torch/torch.h"
printf '#define TORCH_VERSION_%s 1\n' MAJOR MINOR PATCH > "$old/headeronly/version.h"
if configure -DTIDEPOOL_TORCH_DIR="$scratch/old"; then fail "configured with another LibTorch"; fi
[[ $(told) == *"is 1.1.1, and this Tidepool was built with "* ]] || fail "another LibTorch is reported as: $(told)"

configure -DTIDEPOOL_TORCH_DIR= || fail "the example cannot be configured: $(cat "$scratch/log")"
cmake --build "$own" > "$scratch/log" 2>&1 || fail "the example does not compile: $(grep -m 5 -E 'error|undefined' "$scratch/log")"

export OMP_NUM_THREADS=1
unset TIDEPOOL_BIN
cd -- "$scratch"
PATH=/usr/bin:/bin "$own/own_module" > out 2> errors || fail "the example ended with $?: $(tail -n 20 errors)"
grep -c '^step' out | grep -qx 30 || fail "the example took another number of steps: $(cat out)"
awk '$1 == "step" { if ($2 == 1) first = $4; last = $4 }
     $1 == "held-out" { held = $3 }
     END { exit !(last < first / 2 && held < first / 2 && last > 0) }' out || fail "the loss did not fall: $(cat out)"
grep -q '^bias: 64 numbers, norm [0-9.]*[1-9]' out || fail "the example printed no weights: $(tail -n 2 out)"

expect() {  # ARGUMENT WORDS...: the example ends with 1 and says all of the words
  local argument=$1 code=0
  shift
  PATH=/usr/bin:/bin "$own/own_module" "$argument" > out 2> errors || code=$?
  ((code == 1)) || fail "with $argument the example ended with $code"
  for word in "$@"; do
    grep -qF -- "$word" errors || fail "with $argument the example says nothing of $word: $(cat errors)"
  done
}
expect lots 'error[TP1104]' rcache lots fix:
expect 64KiB 'error[TP4001]' 'rcache 64KiB' 'give at least'
echo "check_own_module: ok"

#!/usr/bin/env bash
# Ninefold's entry: installs what is missing, builds, runs. Without arguments it prints its usage.
# All that it says itself goes to stderr, so that `./nf info --json | ...` stays clean.
set -euo pipefail

root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
build=$root/build

# What a Debian 12 or Ubuntu 24.04 machine needs beyond its base system: the only such list.
packages=(g++ cmake ninja-build libhwy-dev libdnnl-dev libdlpack-dev nlohmann-json3-dev
          libcli11-dev libfmt-dev libgtest-dev python3 python3-jsonschema)
formatter=clang-format-14  # one version: others lay out the same code differently

usage() {
  cat <<END
usage: ./nf COMMAND

  bench [ARGS]      build, check and time everything on this machine, write build/report.html
                    (ARGS go to the program: ./nf bench --op softmax --suite full)
  test [ARGS]       build, run all tests (ARGS go to ctest: ./nf test -R softmax)
  build [ARGS]      only build (ARGS go to cmake, which remembers them: ./nf build -DNF_CUDA=OFF)
  format [--check]  lay out the sources with $formatter
  package           a tree to run on another Linux machine, in build/package
  ARGS              any other word goes to the program: ./nf info, ./nf check, ./nf --help
END
}

say() { echo "nf: $*" >&2; }
die() {
  say "$*"
  exit 2
}

# need PACKAGE...: installs those that are missing, with apt.
need() {
  local missing sudo=()
  command -v dpkg-query apt-get >/dev/null ||
    die "neither Debian nor Ubuntu: bring what they call $*, then run cmake -S . -B build -G Ninja"
  missing=$(comm -13 \
    <(dpkg-query -Wf '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
      sed -n 's/ installed$//p' | sort -u) <(printf '%s\n' "$@" | sort))
  [[ $missing ]] || return 0
  mapfile -t missing <<<"$missing"
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || die "missing, and neither root nor sudo to install: ${missing[*]}"
    sudo=(sudo)
  fi

  say "installing ${missing[*]}"
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  local install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
  # A fresh machine has no package lists, and an old one's may name files that are gone.
  if compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null && "${install[@]}" >&2; then return; fi
  if "${apt[@]}" update >&2 && "${install[@]}" >&2; then return; fi
  die "apt could not install ${missing[*]}: see above"
}

# ready [CMAKE-ARG...]: what is needed is installed, and build/ is configured. Runs cmake on the
# first call, with arguments, or when what cmake itself would not notice has changed: the checkout
# moved, nvcc or torch came or went.
ready() {
  need "${packages[@]}"
  local nvcc torch setting fresh=()
  nvcc=${CUDACXX:-$(PATH=$PATH:/usr/local/cuda/bin; type -P nvcc || true)}
  torch=$(python3 -c 'from importlib import metadata, util
print(util.find_spec("torch").origin, metadata.version("torch"))' 2>/dev/null || true)
  setting="$root, nvcc: ${nvcc:-none}, torch: ${torch:-none}"
  if [[ ! -e $build/configured-for || $(<"$build/configured-for") != "$setting" ]]; then
    fresh=(--fresh -G Ninja)
  elif [[ $# -eq 0 ]]; then
    return
  fi
  rm -f "$build/configured-for"
  CUDACXX=$nvcc cmake -S "$root" -B "$build" "${fresh[@]}" "$@" >&2
  echo "$setting" >"$build/configured-for"
}

# compile [TARGET]: brings it up to date; silent when only the commit was looked up again.
compile() {
  cmake --build "$build" ${1:+--target "$1"} 2>&1 |
    sed -uE '/Re-checking globbed|cmake\/Sources\.cmake|_provenance$|no work to do/d' >&2
}

say_devices() {
  local absent gpu='no GPU here, so its code is built and not run'
  absent=$(sed -n 's/^NF_CUDA_ABSENT:INTERNAL=//p' "$build/CMakeCache.txt")
  if compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]]; then gpu='a GPU is here'; fi
  if [[ $absent ]]; then say "CPU backend only; $absent"; else say "CPU and CUDA backends; $gpu"; fi
}
say_door() {
  local absent
  absent=$(sed -n 's/^NF_TORCH_ABSENT:INTERNAL=//p' "$build/CMakeCache.txt")
  say "${absent:-with the PyTorch door}"
}

program() {
  ready
  compile bin/ninefold
  exec "$build/bin/ninefold" "$@"
}

bench() {
  local arg last='' status=0 suite=(--suite quick) out=$build/results.jsonl
  for arg in "$@"; do
    case $last$arg in
      -h | --help) program bench --help ;;
      --suite | --suite=*) suite=() ;;
      --out=*) out=${arg#*=} ;;
      --out*) out=$arg ;;
    esac
    last=''
    [[ $arg != --out ]] || last=--out
  done
  ready
  compile bin/ninefold
  say_devices
  [[ $* == *--out* ]] || set -- --out "$out" "$@"
  "$build/bin/ninefold" bench "${suite[@]}" "$@" || status=$?
  [[ $status -le 1 ]] || exit "$status"  # 1: a check failed, and the report must show it
  "$build/bin/ninefold" report "$out" -o "$build/report.html"
  say "the report is $build/report.html"
  return "$status"
}

run_tests() {
  ready
  compile
  say_devices
  say_door
  exec ctest --test-dir "$build" --output-on-failure "$@"
}

format() {
  local file files=() how=(-i)
  if [[ ${1-} == --check ]]; then
    how=(--dry-run --Werror)
    shift
  fi
  [[ $# -eq 0 ]] || die "format takes nothing but --check"
  need git "$formatter"
  cd "$root"
  # New files count before git add; deleted ones no longer do.
  while IFS= read -r -d '' file; do
    [[ ! -f $file ]] || files+=("$file")
  done < <(git ls-files -z -co --exclude-standard -- '*.c' '*.h' '*.cpp' '*.hpp' '*.cu' '*.cuh')
  "$formatter" "${how[@]}" "${files[@]}"
}

# A tree that runs wherever the C and C++ runtimes are as new as here. Those alone are not carried:
# old copies of them would break what else the program loads there (cuDNN, the driver).
package() {
  local version name tree part library path origin size
  ready
  compile
  version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
  name=ninefold-$version-linux-$(uname -m)
  tree=$build/package/$name
  rm -rf "$build/package"
  for part in runtime development tests; do
    cmake --install "$build" --prefix "$tree" --strip --component "$part" >/dev/null
  done
  rm "$tree"/lib/libninefold.a "$tree"/lib/cmake/ninefold/ninefold-static*  # big, not for running

  # What the loader finds outside the tree comes along, with its licence.
  mkdir -p "$tree/share/doc/ninefold"
  while read -r library path; do
    cp -L "$path" "$tree/lib/$library"
    origin=$(dpkg -S "$(realpath "$path")" | cut -d: -f1)
    cp "/usr/share/doc/$origin/copyright" "$tree/share/doc/ninefold/$origin.copyright"
  done < <(outside "$tree")
  [[ -z $(outside "$tree") ]] || die "the package still needs $(outside "$tree")"

  tar -C "$build/package" -czf "$tree.tar.gz" "$name"
  size=$(du --block-size=1MB --apparent-size "$tree.tar.gz" | cut -f1)
  ((size <= 60)) || die "the package has $size MB, and 60 are allowed"
  say "$tree.tar.gz, $size MB"
}
# outside TREE: "soname path" of each library that its programs load from elsewhere.
outside() {
  ldd "$1"/bin/* "$1"/lib/libninefold.so | grep -vF " => $1/" |
    sed -nE 's/ \(0x\w+\)$//; s/^\s+(\S+) => (.*)/\1 \2/p' | sort -u |
    grep -vE '^lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so' || true
}

command=${1-}
[[ $# -eq 0 ]] || shift
case $command in
  '' | help | -h | --help) usage ;;
  bench) bench "$@" ;;
  test) run_tests "$@" ;;
  build)
    ready "$@"
    compile
    say_devices
    say_door
    ;;
  format) format "$@" ;;
  package) package ;;
  *) program "$command" "$@" ;;
esac

#!/usr/bin/env bash
# ./nf's installing step, against stand-ins for dpkg-query, apt-get, sudo and clang-format.
# usage: nf_test.sh PATH-OF-NF
set -uo pipefail

nf=$(realpath -- "$1")
here=$(mktemp -d "${TMPDIR:-/tmp}/nf test.XXXXXX")  # a space, for paths have them
trap 'rm -rf "$here"' EXIT
mkdir "$here/bin" "$here/plain" "$here/tree"
cp "$nf" "$here/tree/nf"
git -C "$here/tree" init -q && echo 'int x;' >"$here/tree/x.cpp"
export PATH=$here/bin:$PATH
passed=0 failed=0

stub() {  # NAME BODY
  printf '#!/bin/sh\nhere="%s"\n%s\n' "$here" "$2" >"$here/bin/$1" && chmod +x "$here/bin/$1"
}
# expect WHAT STATUS PATTERN COMMAND...: the status, and a line of the output like PATTERN.
expect() {
  local what=$1 status=$2 pattern=$3 got=0 output
  shift 3
  output=$("$@" 2>&1) || got=$?
  if [[ $got -eq $status ]] && grep -qE -- "$pattern" <<<"$output"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAILED: %s\n  exit %s, expected %s and /%s/ in:\n%s\n' \
      "$what" "$got" "$status" "$pattern" "$output"
  fi
}
calls() { tr '\n' ' ' <"$here/calls"; }

stub sudo 'exec "$@"'
stub clang-format-14 'echo "formatted $*"'
# shellcheck disable=SC2016
stub apt-get 'for word; do case $word in install|update) break;; esac; done
echo "$word" >>"$here/calls"
[ "$word" = update ] && touch "$here/fresh"
[ -e "$here/fresh" ]'

expect 'no arguments: the usage' 0 '^usage: ./nf COMMAND' "$here/tree/nf"
expect 'an unknown word of format' 2 'takes nothing but --check' "$here/tree/nf" format --chekc

stub dpkg-query 'printf "%s\n" "git installed" "clang-format-14 installed"'
: >"$here/calls"
expect 'nothing is missing' 0 '^formatted --dry-run --Werror x.cpp$' "$here/tree/nf" format --check
expect 'so apt is not called' 0 '^ *$' calls

stub dpkg-query 'printf "%s\n" "git installed" "clang-format-14 config-files"'
expect 'a missing package is named' 0 '^nf: installing clang-format-14$' "$here/tree/nf" format
expect 'and stale lists are renewed' 0 '^(install )?update install $' calls

rm "$here/fresh"
stub apt-get 'echo "E: no network"; exit 100'
expect 'apt fails' 2 '^nf: apt could not install clang-format-14' "$here/tree/nf" format

for tool in bash env readlink dirname; do ln -s "$(command -v $tool)" "$here/plain/$tool"; done
expect 'not Debian: the packages by name' 2 '^nf: neither Debian nor Ubuntu.*clang-format-14' \
  env PATH="$here/plain" "$here/tree/nf" format

echo "$passed passed, $failed failed"
((failed == 0))

#!/bin/sh
# SPDX-License-Identifier: MIT
# deps.sh - installs what building and testing needs through the system's package manager.
#
# usage: deps.sh [PACKAGE...]     the Debian packages named are needed too
# Uses sudo when not root. Does nothing, quickly, when everything is there. On macOS the manager is Homebrew.
set -eu
if [ "$(uname -s)" = Darwin ]; then
    # bash, coreutils, flock and gnu-tar are for the scripts of tools/; the Makefile puts them into their PATH.
    need="bash coreutils flock gnu-tar pkgconf openssl@3 sqlite jansson pcre2 utf8proc cmocka python numpy"
    xcode-select -p >/dev/null 2>&1 || { echo "deps: no compiler; run: xcode-select --install" >&2; exit 1; }
    command -v brew >/dev/null || { echo "deps: no Homebrew; install by hand: $need" >&2; exit 1; }
    missing=
    for p in $need; do brew list --formula "$p" >/dev/null 2>&1 || missing="$missing $p"; done
    [ -n "$missing" ] || exit 0
    echo "deps: installing$missing"
    brew install --quiet $missing
    exit 0
fi
need="gcc make pkg-config git ca-certificates libssl-dev libsqlite3-dev libjansson-dev libpcre2-dev
libutf8proc-dev libcmocka-dev python3 python3-pip python3-venv python3-numpy python3-jinja2 openssl"
[ "$(uname -s)" = Linux ] || { echo "deps: unsupported system $(uname -s)" >&2; exit 1; }
command -v dpkg-query >/dev/null || { echo "deps: no dpkg; install by hand: $need" >&2; exit 1; }
native=$(dpkg --print-architecture)
missing=
for p in $need "$@"; do
    # Without ":ARCH" this machine's own is meant: another architecture's may be here without it.
    case $p in *:*) arch=${p#*:} ;; *) arch=$native ;; esac
    dpkg-query -W -f '${Architecture} ${Status}\n' "$p" 2>/dev/null |
        grep -Eq "^($arch|all) .* ok installed" || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
sudo=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "deps: not root and no sudo; install:$missing" >&2; exit 1; }
    sudo=sudo
fi
echo "deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# portability.sh - the portability matrix: builds each cell, holds its bits against tests/golden, prints a table.
#
# usage: portability.sh [CELL...]     all cells without arguments:
#   gcc-O1 gcc-O2 gcc-O3 clang-O1 clang-O2 clang-O3   this machine, every instruction set that it has
#   aarch64    cross-compiled, under qemu-user
#   s390x      big-endian: the same, and the tests of every format; s390x-long: those that take minutes
#   darwin     compiled for arm64 macOS and its outside names checked, never run
# Installs what a cell needs (as root or through sudo). The table stays in build/portability/table.md.
# docs/portability.md says what each cell proves.
cd "$(dirname "$0")/.." || exit 1
. tools/golden.sh
DIR=build/portability JOBS=$(nproc)
ROOT=$DIR/s390x            # libraries of s390x: unpacked here, so that no second copy of the system's own is needed
ZIG_VERSION=0.13.0         # a C compiler with the headers of macOS's libc, as a Python wheel
mkdir -p $DIR
COMMIT=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
git diff --quiet HEAD 2>/dev/null || COMMIT+=-dirty
HEAD='| build | kernels | command | commit | result |'
ROWS=()

row() { ROWS+=("| $1 | $2 | \`$3\` | $4 | $5 |"); }

# compared BUILD KERNELS CELL COMMAND...: runs tests and makes one row of what they gave.
compared() {
    local build=$1 kernels=$2 cell=$3 good=$N_PASSED bad=$N_FAILED; shift 3
    "$@"
    good=$((N_PASSED - good)) bad=$((N_FAILED - bad))
    row "$build" "$kernels" "tools/portability.sh $cell" "$COMMIT" \
        "$([ $bad -eq 0 ] && echo "$good of $good pass" || echo "**$bad of $((good + bad)) failed**")"
}
level() { golden_short "$1"; golden_mini "$1"; }

# native CC LEVEL: the whole program at one optimisation level, kernels included; no warning is allowed.
native() {
    local cc=$1 o=$2 l
    export BUILD=$DIR/$cc$o ISO=$DIR/$cc$o/isobit
    if ! t "build $cc $o" make -k -j"$JOBS" BUILD=$BUILD CC="$cc" CFLAGS="$o -g -Werror" KERNEL_O="$o" REF_O="$o" \
        $BUILD/isobit; then
        row "$cc $o" all "tools/portability.sh $cc$o" "$COMMIT" '**does not build**'
        return
    fi
    find_levels
    for l in "${LEVELS[@]}"; do compared "$(uname -m), $cc $o" "$l" "$cc$o" level "$l"; done
}

aarch64() {
    local l
    sh tools/deps.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >&2
    export ARCH=aarch64 PKG_CONFIG='env PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig pkg-config'
    export BUILD=$DIR/aarch64 ISO=$DIR/aarch64/isobit
    t "build aarch64 (libraries: .ci/run deps)" make -k -j"$JOBS" BUILD=$BUILD CC=aarch64-linux-gnu-gcc \
        CFLAGS='-O2 -g -Werror' $BUILD/isobit
    export RUN=qemu-aarch64
    find_levels
    for l in "${LEVELS[@]}"; do compared "aarch64, gcc -O2, qemu-user" "$l" aarch64 level "$l"; done
}

# The libraries of s390x without installing them: Debian's security updates leave that architecture out, so they
# cannot stand beside the system's own. Lists and packages live in folders of their own.
s390x_root() {
    [ ! -f $ROOT/complete ] || return 0
    sh tools/deps.sh gcc-s390x-linux-gnu libc6-dev-s390x-cross qemu-user || return 1
    local apt=$PWD/$DIR/apt p
    rm -rf "$apt" $ROOT
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" $ROOT
    : >"$apt/status"
    local options=(-o APT::Architecture=s390x -o APT::Architectures=s390x -o Dir::State::Lists="$apt/lists"
        -o Dir::Cache="$apt/cache" -o Dir::State::status="$apt/status" -o Acquire::Languages=none -q)
    if [ "$(id -u)" -eq 0 ]; then options+=(-o APT::Sandbox::User=root); fi
    apt-get "${options[@]}" update || return 1
    (cd "$apt/cache/archives" && apt-get "${options[@]}" download libc6 libgcc-s1 libssl3 libssl-dev libsqlite3-0 \
        libsqlite3-dev libjansson4 libjansson-dev libpcre2-8-0 libpcre2-dev libutf8proc2 libutf8proc-dev libcmocka0 \
        libcmocka-dev) || return 1
    for p in "$apt"/cache/archives/*.deb; do dpkg -x "$p" $ROOT || return 1; done
    touch $ROOT/complete
}

# Left out: what an emulator does not keep (time limits, memory limits, a program that starts itself again) and
# tests/format/test_mapped: qemu-user 7.2 gives a big-endian guest the address of a SIGBUS with its halves exchanged.
FORMATS=('tests/arith/*' 'tests/base/test_[!m]*' 'tests/format/test_g*' 'tests/model/test_[ft]*' 'tests/node/*'
    tests/tokenizer/test_vocab tests/tokenizer/test_template tests/tokenizer/test_utf8_stream
    'tests/handoff/test_[dl]*' tests/handoff/test_frame)
OPERATIONS=('tests/kernels/*' tests/engine/test_sampler)
LONG=(tests/tokenizer/test_tokenizer tests/engine/test_audit tests/engine/test_pages)  # minutes

# s390x_build: variables for the build and the emulator, then the build itself.
s390x_build() {
    t "libraries of s390x" s390x_root || return
    local lib=$PWD/$ROOT/usr/lib/s390x-linux-gnu inc=$PWD/$ROOT/usr/include
    export ARCH=s390x BUILD=$DIR/s390x-gcc ISO=$DIR/s390x-gcc/isobit
    export PKG_CONFIG="env PKG_CONFIG_SYSROOT_DIR=$PWD/$ROOT PKG_CONFIG_LIBDIR=$lib/pkgconfig pkg-config"
    local tests; tests=$(unit_programs "${FORMATS[@]}" "${OPERATIONS[@]}" "${LONG[@]}" | sed "s|^|$BUILD/|")
    t "build s390x" make -k -j"$JOBS" BUILD=$BUILD CC=s390x-linux-gnu-gcc CFLAGS='-O2 -g -Werror' \
        CPPFLAGS="-isystem $inc -isystem $inc/s390x-linux-gnu" \
        LDFLAGS="-L$lib -Wl,-rpath-link,$lib:$PWD/$ROOT/lib/s390x-linux-gnu" $BUILD/isobit $tests || return
    export RUN="qemu-s390x -L $ROOT"
}
# Emulated and without vectors, 200 positions of every mini model take minutes; 66 cross a page.
level_66() {
    local a
    golden_short ref
    for a in llama qwen2 qwen3 muse-glimmer; do
        t "mini $a, 66 positions" digest_is mini-$a $GOLDEN/smollm2-135m/long.ids $GOLDEN/mini/$a.expect 66
    done
}
s390x() {
    local name="s390x, gcc -O2, qemu-user"
    s390x_build || { row "$name" ref 'tools/portability.sh s390x' "$COMMIT" '**does not build**'; return; }
    compared "$name" "tests of formats, wire and documents" s390x unit_tests "${FORMATS[@]}"
    compared "$name" "tests of ref operations" s390x unit_tests "${OPERATIONS[@]}"
    compared "$name" ref s390x level_66
}
s390x-long() {
    local name="s390x, gcc -O2, qemu-user"
    s390x_build || { row "$name" ref 'tools/portability.sh s390x-long' "$COMMIT" '**does not build**'; return; }
    compared "$name" "tests of tokenizer, audit and pages" s390x-long unit_tests "${LONG[@]}"
    compared "$name" "ref, all positions" s390x-long golden_mini ref
}

# linked BUILD: the program as a Mach-O file whose names are all known: those of macOS's libSystem, of our five
# libraries, of the Objective-C runtime and of Metal. Their code is not there, so it cannot run.
linked() {
    $DIR/zig -o "$1/isobit" $(find "$1/src" "$1/metal" -name '*.o') -Wl,-undefined,dynamic_lookup || return 1
    python3 - "$1/isobit" $DIR/venv/lib/python3*/site-packages/ziglang/lib/libc/darwin/libSystem.tbd <<'PY'
import re, struct, sys
program = open(sys.argv[1], "rb").read()
system = set(re.findall(r"[\w$.]+", open(sys.argv[2]).read()))
ours = re.compile(r"_(SSL|TLS|EVP|X509|BIO|ASN1|PEM|OPENSSL|CRYPTO|ERR|RAND|HMAC|EC|BN|OBJ|GENERAL|OSSL)_|_(d2i|i2d)_"
                  r"|_X509V3|_HMAC$"
                  r"|_(sqlite3|json|pcre2|utf8proc|objc)_|_OBJC_CLASS_\$_(NS|MTL)|_MTLCreateSystemDefaultDevice$")
count, at, undefined = struct.unpack_from("<I", program, 16)[0], 32, set()
for _ in range(count):
    kind, size = struct.unpack_from("<II", program, at)
    if kind == 2:  # LC_SYMTAB
        symbols, n, names, _ = struct.unpack_from("<IIII", program, at + 8)
        for i in range(n):
            name, flags = struct.unpack_from("<IB", program, symbols + 16 * i)
            if flags & 0x0E == 0 and flags & 1:
                undefined.add(program[names + name:program.index(b"\0", names + name)].decode())
    at += size
unknown = sorted(n for n in undefined - system if not ours.match(n))
print(len(undefined), "names from outside; unknown:", unknown)
sys.exit(0 if len(undefined) > 100 and not unknown else 1)
PY
}
darwin() {
    local zig=$PWD/$DIR/zig inc=$PWD/$DIR/darwin-include build=$DIR/arm64-darwin rc=0 n
    zig_ready() {
        python3 -m venv $DIR/venv && $DIR/venv/bin/pip install -q ziglang==$ZIG_VERSION || return 1
        # The libraries' own headers: plain C, the same on every system but for the configuration of OpenSSL.
        rm -rf "$inc"; mkdir -p "$inc/openssl"
        cp /usr/include/openssl/*.h /usr/include/"$(gcc -print-multiarch)"/openssl/*.h "$inc/openssl" &&
            cp /usr/include/{sqlite3,jansson,jansson_config,pcre2,utf8proc,cmocka}.h "$inc"
    }
    [ -x $DIR/venv/bin/python ] && [ -d "$inc" ] || t "ziglang $ZIG_VERSION" zig_ready
    export ZIG_GLOBAL_CACHE_DIR=$PWD/$DIR/zig-cache ZIG_LOCAL_CACHE_DIR=$PWD/$DIR/zig-cache
    printf '#!/bin/sh\nexec "%s" -m ziglang cc -target aarch64-macos "$@" -Wno-string-conversion\n' \
        "$PWD/$DIR/venv/bin/python" >"$zig"
    chmod +x "$zig"
    # zig defines NDEBUG above -O0; our asserts stay on. The stubs stand for Apple's frameworks. The warning turned
    # off is about assert(!"text"), which macOS's own assert() turns into a truth value.
    compile() {
        local o  # of a source that is gone: nothing would replace it
        while read -r o; do o=${o#"$build"/}; [ -e "${o%.o}" ] || rm -f "$build/$o"; done < <(find $build -name '*.o' 2>/dev/null)
        make -k -j"$JOBS" BUILD=$build UNAME=Darwin ARCH=arm64 METAL=1 CC="$zig" PKG_CONFIG=pkg-config \
            CPPFLAGS="-isystem $inc -Itests/metal_stubs" CFLAGS='-O2 -UNDEBUG -Werror' \
            objects >$DIR/darwin.log 2>&1 && return
        grep -E 'error:|Error [0-9]|No rule' $DIR/darwin.log
        return 1
    }
    t "compile for arm64 macOS" compile || rc=1
    mach_o() { # cffaedfe 0c000001: a 64-bit Mach-O file for arm64
        local f; n=0
        while read -r f; do
            [ "$(od -An -tx1 -N8 "$f" | tr -d ' ')" = cffaedfe0c000001 ] || { echo "$f: not arm64 macOS"; return 1; }
            n=$((n + 1))
        done < <(find $build -name '*.o')
        echo $n >"$TMP/objects"; [ $n -gt 100 ]
    }
    t "objects are Mach-O for arm64" mach_o || rc=1
    t "every name from outside is known" linked $build || rc=1
    n=$(cat "$TMP/objects" 2>/dev/null || echo 0)
    row "arm64 macOS, clang of zig $ZIG_VERSION" "neon, ref" 'tools/portability.sh darwin' "$COMMIT" \
        "$([ $rc -eq 0 ] && echo "$n files compiled, every outside name known; not run" || echo '**does not compile**')"
}

# What this script does not run, with what does.
others() {
    local h200=bench/results/2026-11-30-h200.md
    row "x86_64 + Metal kernels, emulated" metal 'make check-metal-emulated' - 'see its output'
    row "x86_64 + CUDA 13.0 on an H200" "cuda sm90, generic" 'make CUDA=1; tools/check_cuda.sh' \
        "$(sed -n 's/^Commit \([0-9a-f]*\).*/\1/p' $h200)" "recorded in $h200"
}

cells=("$@")
[ $# -gt 0 ] || cells=(gcc-O1 gcc-O2 gcc-O3 clang-O1 clang-O2 clang-O3 aarch64 s390x s390x-long darwin)
t "models" bash tools/fetch_models.sh all
for cell in "${cells[@]}"; do
    rows_before=${#ROWS[@]}
    case $cell in
    gcc-O[123] | clang-O[123]) native "${cell%-O?}" "-${cell##*-}" ;;
    aarch64 | s390x | s390x-long | darwin) "$cell" ;;
    *) sed -n '5,9s/^# //p' "$0" >&2; exit 2 ;;
    esac
    unset ARCH PKG_CONFIG RUN; RUN=
    [ ${#ROWS[@]} -gt $rows_before ] || t "cell $cell made rows" false
done
[ $# -gt 0 ] || others
{ echo "$HEAD"; echo '|---|---|---|---|---|'; printf '%s\n' "${ROWS[@]}"; } | tee $DIR/table.md
finish

# make            build ./isobit for this machine
# make demo       install what is missing, fetch SmolLM2, hand one prompt from a producer to a consumer
# make check      install what is missing, build, run every test that needs no GPU
# make check-all  long prompts at each ISA level, then a pairwise cover of settings
# make check-mutants  one changed operation at a time: the golden tests must see it
# make CUDA=1     with CUDA (needs nvcc; GENCODE=... narrows the fat binary)
# make METAL=1    with Metal (the default on a Mac); METAL=emulated: tests without one; make check-metal[-emulated]
# make CC=clang, ARCH=aarch64 CC=aarch64-linux-gnu-gcc RUN=qemu-aarch64, CFLAGS=-O3: each in its own folder
# make SAN=address,undefined unit
# make unit fuzz bench tidy lint isa-check headers format compdb clean
MAKEFLAGS += -r
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-4s %s\n' $1 $2;)
ifeq ($(origin CC),default)
CC := cc
endif
NVCC ?= nvcc
UNAME := $(shell uname -s)
ARCH ?= $(shell uname -m)
METAL ?= $(if $(filter Darwin,$(UNAME)),1,0)
CUDA ?= 0
GENCODE ?= $(foreach a,80 86 89 90a 100 120,-gencode arch=compute_$(a),code=sm_$(a))
RUN ?=
SAN ?=
comma := ,
OS := $(if $(filter Darwin,$(UNAME)),darwin,linux)
OTHER_OS := $(filter-out $(OS),linux darwin)
BUILD ?= build/$(ARCH)-$(notdir $(firstword $(CC)))$(if $(filter 1,$(CUDA)),-cuda)$(if $(filter emulated,$(METAL)),-metal-emulated)$(if $(SAN),-$(subst $(comma),-,$(SAN)))

ISO_CPPFLAGS := -Iinclude -Isrc -Itests -D_GNU_SOURCE
CFLAGS ?= -O2 -g
# After the user's CFLAGS in every rule: `make CFLAGS=-O3` must not lose -ffp-contract=off.
ISO_CFLAGS := -std=c11 -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion \
          -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror=implicit -ffp-contract=off
# macOS: Homebrew's libraries (two are not linked into its prefix) and its GNU tools for the scripts.
ifeq ($(OS),darwin)
BREW := $(or $(HOMEBREW_PREFIX),$(if $(filter arm64,$(ARCH)),/opt/homebrew,/usr/local))
empty :=
space := $(empty) $(empty)
export PATH := $(BREW)/opt/coreutils/libexec/gnubin:$(BREW)/opt/gnu-tar/libexec/gnubin:$(BREW)/bin:$(PATH)
PKG_CONFIG ?= env PKG_CONFIG_PATH=$(subst $(space),:,$(foreach p,opt/openssl@3 opt/sqlite .,$(BREW)/$p/lib/pkgconfig)) $(BREW)/bin/pkg-config
ISO_CPPFLAGS += -I$(BREW)/include
LDLIBS += -L$(BREW)/lib
endif
PKG_CONFIG ?= $(if $(filter $(ARCH),$(shell uname -m)),pkg-config,$(ARCH)-linux-gnu-pkg-config)
PKGS := libssl libcrypto sqlite3 jansson libpcre2-8 libutf8proc
# Goals that need no library: they install them or only clean up.
NO_LIBS := deps clean format demo check check-all check-mutants check-cuda check-metal check-metal-emulated help
ifneq ($(filter-out $(NO_LIBS),$(or $(MAKECMDGOALS),all)),)
ifneq ($(shell $(PKG_CONFIG) --exists $(PKGS) && echo yes),yes)
$(error a library is missing, run `make deps`: $(shell $(PKG_CONFIG) --print-errors --exists $(PKGS) 2>&1))
endif
ISO_CPPFLAGS += $(shell $(PKG_CONFIG) --cflags $(PKGS))
LDLIBS += $(shell $(PKG_CONFIG) --libs $(PKGS)) -lm -pthread
endif
ifneq ($(SAN),)
ISO_CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
LDFLAGS += -fsanitize=$(SAN)
endif

# One suffix per instruction set; only these files get the flag. -O3: their loops are written to be vectorised.
# With sanitizers -O1, or one file takes minutes to compile.
KERNEL_O := $(if $(SAN),-O1,-O3)
REF_O := -O2
ISA_ref := $(REF_O) -fno-tree-vectorize
ISA_avx2 := $(KERNEL_O) -mavx2 -mfma -mf16c
ISA_avx512 := $(KERNEL_O) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512
ISA_vnni := $(ISA_avx512) -mavx512vnni
ISA_neon := $(KERNEL_O)
OTHER_x86_64 := neon
OTHER_aarch64 := avx2 avx512 vnni
OTHER_arm64 := $(OTHER_aarch64)
OTHER_$(ARCH) ?= avx2 avx512 vnni neon
# s390x: GCC's -std=c11 would compute f32 expressions in f64 there.
ISO_CFLAGS += $(if $(filter s390x,$(ARCH)),-fexcess-precision=fast)

SRC := $(wildcard src/*/*.c src/*/*/*.c)
SRC := $(filter-out $(foreach i,$(OTHER_$(ARCH)) $(OTHER_OS),%_$(i).c),$(SRC))
MAIN := $(BUILD)/src/cli/main.c.o
OBJ := $(SRC:%=$(BUILD)/%.o)
ifeq ($(CUDA),1)
OBJ += $(patsubst %,$(BUILD)/%.o,$(wildcard src/*/*_cuda.cu src/*/*/*_cuda.cu))
ISO_CPPFLAGS += -DISO_CUDA
# Static: a machine without CUDA still starts the program and gets an error with a name.
LDLIBS += -L$(dir $(shell readlink -f $$(command -v $(NVCC))))../lib64 -lcudart_static -lstdc++ -ldl -lrt
endif
# Metal: the kernels become one text inside the program, nothing is read at run time. METAL=emulated runs it without a Mac.
METAL_SRC := $(sort $(wildcard src/kernels/*/*_metal.metal))
ifneq ($(METAL),0)
OBJ += $(BUILD)/metal/metal_source.c.o
ISO_CPPFLAGS += -DISO_METAL
endif
ifeq ($(METAL),1)
OBJ += $(BUILD)/src/device/metal_gpu_darwin.m.o
# CoreGraphics: without it a command line program finds no default device.
LDLIBS += -framework Metal -framework Foundation -framework CoreGraphics
$(if $(filter darwin,$(OS)),,$(error METAL=1 needs a Mac; METAL=emulated runs the kernels without one))
endif
# The emulator of tests/metal in the place of a Mac's GPU. METAL_CHECK=1: each access of a kernel is checked unless
# ISO_METAL_CHECK=0. Its fibers change stacks, which sanitizers do not follow.
METAL_CHECK ?= 0
METAL_EMU := $(patsubst %,$(BUILD)/%.o,$(filter-out %/emu_case.c tests/metal/test_%,$(wildcard tests/metal/*.c)))
ifeq ($(METAL),emulated)
OBJ += $(METAL_EMU)
endif
$(METAL_EMU): CPPFLAGS += -DEMU_CHECK_DEFAULT=$(METAL_CHECK) -DEMU_CACHE='"$(BUILD)/metal-modules"'
$(METAL_EMU): ISO_CFLAGS := $(filter-out -fsanitize%,$(ISO_CFLAGS))
LIB := $(filter-out $(MAIN),$(OBJ))
ARCHIVE := $(BUILD)/libisobit.a
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)$(shell git diff --quiet HEAD 2>/dev/null || echo -dirty)

# tests/<area>/test_*.c and check_*.c are one program each; other files of an area are linked into each.
TESTS := $(wildcard tests/*/test_*.c tests/*/check_*.c)
# Kernels of Metal against the reference: on a Mac or in the emulator, with the inputs of tests/kernels.
TESTS := $(filter-out $(if $(filter 0,$(METAL)),tests/metal_kernels/%),$(TESTS))
# The emulator itself needs Linux (its loader, its contexts).
TESTS := $(filter-out $(if $(filter darwin,$(OS)),tests/metal/%),$(TESTS))
TEST_C := $(wildcard $(addsuffix *.c,$(sort $(dir $(TESTS)))))
TEST_BIN := $(TESTS:%.c=$(BUILD)/%)
FUZZ := $(wildcard tests/fuzz/fuzz_*.c)
BENCH := $(wildcard bench/bench_*.c)
BENCH_BIN := $(BENCH:%.c=$(BUILD)/%)

all: $(BUILD)/isobit
	@ln -sf $(BUILD)/isobit isobit
deps:
	@sh tools/deps.sh
demo: deps
	@$(MAKE) --no-print-directory -j$$(getconf _NPROCESSORS_ONLN) all
	@bash tools/demo.sh
check: deps
	@sh tools/deps.sh clang   # compiles the kernels of tests/metal
	@bash tools/check.sh
check-all: deps
	@bash tools/check_all.sh
check-mutants: deps
	@bash tools/fetch_models.sh all && python3 tools/mutation_check.py
objects: $(OBJ) $(TEST_C:%=$(BUILD)/%.o) $(BENCH:%=$(BUILD)/%.o)   # compiles all, links nothing
unit: $(TEST_BIN)
	@test -n "$^" || { echo "no tests found"; exit 1; }
	@for t in $^; do echo "$$t"; $(RUN) $$t || exit 1; done
bench: $(BENCH_BIN)

isa = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $1)))))

$(BUILD)/%.c.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(ISO_CPPFLAGS) $(CPPFLAGS) $(CFLAGS) $(ISO_CFLAGS) $(call isa,$<) -MMD -MP -c -o $@ $<
$(BUILD)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) -std=c++17 $(filter-out -pthread,$(ISO_CPPFLAGS)) -O2 -g -lineinfo -fmad=false -Xcompiler -ffp-contract=off $(GENCODE) -MMD -MP -c -o $@ $<
$(BUILD)/%.m.o: %.m Makefile
	@mkdir -p $(@D)
	$(call say,OBJC,$<)$(CC) $(ISO_CPPFLAGS) $(CPPFLAGS) $(CFLAGS) $(ISO_CFLAGS) -fno-objc-arc -fblocks -MMD -MP -c -o $@ $<
$(BUILD)/metal/metal_source.c: tools/flatten_metal.py $(METAL_SRC) $(wildcard src/arith/*.h src/kernels/*/*.h)
	@mkdir -p $(@D)
	$(call say,TEXT,$@)python3 tools/flatten_metal.py --c $@ $(METAL_SRC)
$(BUILD)/metal/metal_source.c.o: $(BUILD)/metal/metal_source.c
	$(call say,CC,$<)$(CC) $(ISO_CPPFLAGS) $(CPPFLAGS) $(CFLAGS) $(ISO_CFLAGS) -c -o $@ $<
$(ARCHIVE): $(LIB)
	@rm -f $@ && $(AR) rcs $@ $^
AR ?= ar

$(BUILD)/commit: FORCE
	@mkdir -p $(@D); echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@
FORCE:
$(BUILD)/src/cli/main.c.o: ISO_CPPFLAGS += -DISO_COMMIT='"$(COMMIT)"'
$(BUILD)/src/cli/main.c.o: $(BUILD)/commit

$(BUILD)/isobit: $(MAIN) $(ARCHIVE)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
.SECONDEXPANSION:
helpers = $(patsubst %,$(BUILD)/%.o,$(filter-out $(dir $1)test_% $(dir $1)check_% $(dir $1)fuzz_% $(dir $1)bench_%,$(wildcard $(dir $1)*.c)) $(if $(filter tests/metal_kernels/,$(dir $1)),tests/kernels/check.c tests/kernels/inputs.c tests/kernels/weights.c))
$(TEST_BIN): $(BUILD)/%: $(BUILD)/%.c.o $$(call helpers,%) $(ARCHIVE)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka
$(BENCH_BIN): $(BUILD)/%: $(BUILD)/%.c.o $$(call helpers,%) $(ARCHIVE)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Programs that need a GPU: tests/cuda/gpu_*.c, bench/gpu_*.c; run by tools/check_cuda.sh.
GPU_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/cuda/gpu_*.c bench/gpu_*.c))
GPU_HELP := $(patsubst %,$(BUILD)/%.o,$(filter-out tests/cuda/gpu_% tests/cuda/fake_%,$(wildcard tests/cuda/*.c)))
$(GPU_BIN): $(BUILD)/%: $(BUILD)/%.c.o $(GPU_HELP) $(ARCHIVE)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
gpu: $(GPU_BIN) $(BUILD)/isobit
# The program with a CUDA runtime that only has faults (needs CUDA=1, no GPU): tests/cuda/loud.sh.
$(BUILD)/tests/cuda/fake_cudart.c.o: ISO_CPPFLAGS += -isystem $(dir $(shell readlink -f $$(command -v $(NVCC))))../include
$(BUILD)/isobit-fake: $(MAIN) $(BUILD)/tests/cuda/fake_cudart.c.o $(ARCHIVE)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(filter-out -lcudart_static,$(LDLIBS))
check-cuda: deps
	@bash tools/check_cuda.sh
# On a Mac; and the same device and kernels on an emulated GPU, anywhere (docs/metal.md).
check-metal:
	@$(if $(filter darwin,$(OS)),sh tools/deps.sh)
	@bash tools/check_metal.sh
check-metal-emulated:
	@sh tools/deps.sh clang
	@bash tools/check_metal_emulated.sh

# libFuzzer targets: clang, sources compiled with coverage; FUZZ_SECONDS each.
FUZZ_SECONDS ?= 60
fuzz:
	@bash tools/fuzz.sh $(FUZZ_SECONDS)

compile_commands.json: $(SRC) Makefile
	@$(MAKE) -Bn BUILD=build/compdb CC=clang CUDA=0 METAL=0 all | python3 tools/compdb.py > $@
compdb: compile_commands.json
tidy: compile_commands.json
	@for f in $(SRC); do clang-tidy -quiet -p . $$f || exit 1; done   # one process per file
lint: $(OBJ)
	python3 tools/check_layers.py
	python3 tools/check_style.py
	@for o in $(filter %.c.o,$(LIB)); do test -f $$o || exit 1; nm -g --defined-only $$o | awk -v o=$$o '$$3 !~ /^_?iso_/ {print o": global without prefix: "$$3; bad=1} END {exit bad}' || exit 1; done
isa-check: $(OBJ)   # a vector register outside its own file means a leaked flag
	@for o in $(filter-out %_avx512.c.o %_vnni.c.o,$(filter %.c.o,$(OBJ))); do ! objdump -d $$o | grep -q '%zmm' || { echo "$$o: AVX-512 leak"; exit 1; }; done
	@for o in $(filter-out %_avx2.c.o %_avx512.c.o %_vnni.c.o,$(filter %.c.o,$(OBJ))); do ! objdump -d $$o | grep -q '%ymm' || { echo "$$o: AVX2 leak"; exit 1; }; done
headers:            # every header compiles on its own (vector code only inside its own file's flags, Metal's not in C)
	@for h in $$(find include src -name '*.h' ! -name '*_body.h' ! -name '*_avx*.h' ! -name '*_neon*.h' ! -name '*_x86*.h' ! -name '*_vnni*.h' ! -path '*/shared/metal_*' ! -name '*_chain_metal.h' ! -name '*_page_metal.h'); do $(CC) $(ISO_CPPFLAGS) $(CPPFLAGS) $(CFLAGS) $(ISO_CFLAGS) -fsyntax-only -x c $$h || exit 1; done
format:
	clang-format -i $$(git ls-files '*.[ch]' '*.cu' '*.m')
clean:
	rm -rf build compile_commands.json isobit
help:
	@sed -n '1,10s/^# //p' Makefile
.PHONY: all deps demo check check-all check-mutants check-cuda check-metal check-metal-emulated gpu unit objects bench fuzz lint isa-check headers compdb tidy format clean help FORCE
.SECONDARY:
-include $(shell test -d $(BUILD) && find $(BUILD) -name '*.d')

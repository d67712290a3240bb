/* SPDX-License-Identifier: MIT
 * emu_module.c - Metal source becomes a loaded library; part of an EMULATION of Metal on the CPU.
 */
#include "emu_internal.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/mem.h"

/* Where this folder and the compiled modules are; relative to the project's root, where tests run. */
#ifndef EMU_DIR
#define EMU_DIR "tests/metal"
#endif
#ifndef EMU_CACHE
#define EMU_CACHE "build/metal-modules"
#endif

static const char *const g_parts[] = {
    "build_module.py", "emu_abi.h", "emu_hooks.cc", "shim/metal_stdlib", "shim/metal_types",
    "shim/metal_math", "shim/metal_simdgroup", "shim/metal_simdgroup_matrix", "shim/metal_atomic",
    "shim/emu_builtins", "shim/emu_words",
};

void *emu_alloc(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) abort();
    return p;
}

void *emu_realloc(void *p, size_t n, size_t size)
{
    p = reallocarray(p, n, size);
    if (!p) abort();
    return p;
}

uint64_t emu_random(struct emu_random *r)
{
    /* splitmix64 */
    uint64_t z = r->state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

uint32_t emu_random_below(struct emu_random *r, uint32_t n)
{
    return (uint32_t)(((emu_random(r) >> 32) * n) >> 32);
}

void emu_random_order(struct emu_random *r, uint32_t *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t j = emu_random_below(r, i + 1);
        list[i] = list[j];
        list[j] = i;
    }
}

static const char *setting(const char *name, const char *otherwise)
{
    const char *v = getenv(name);
    return v && *v ? v : otherwise;
}

static enum iso_err read_file(char **out, size_t *len, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) ISO_FAIL(ISO_E_IO, "%s: cannot open; tests run in the project's root", path);
    char *text = emu_alloc(1, (size_t)1 << 20);
    *len = fread(text, 1, ((size_t)1 << 20) - 1, f);
    fclose(f);
    *out = text;
    return ISO_OK;
}

/* A name for the module that these bytes give. */
static enum iso_err module_key(char hex[ISO_DIGEST_HEX], const char *source, size_t len, bool checked)
{
    struct iso_hasher *h = iso_hasher_new();
    const char *cxx = setting("ISO_METAL_CXX", "clang++");
    iso_hasher_update(h, source, len);
    iso_hasher_update(h, &checked, sizeof(checked));
    iso_hasher_update(h, cxx, strlen(cxx));
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < ISO_COUNT(g_parts) && err == ISO_OK; i++) {
        char path[512], *text = NULL;
        size_t n = 0;
        snprintf(path, sizeof(path), "%s/%s", setting("ISO_METAL_EMULATOR", EMU_DIR), g_parts[i]);
        err = read_file(&text, &n, path);
        if (err == ISO_OK) iso_hasher_update(h, text, n);
        free(text);
    }
    struct iso_digest d;
    iso_hasher_final(h, &d);
    iso_hasher_free(h);
    iso_digest_hex(hex, &d);
    return err;
}

static void make_folders(const char *path)
{
    char part[512];
    for (size_t i = 0; path[i] && i < sizeof(part) - 1; i++) {
        part[i] = path[i];
        part[i + 1] = 0;
        if (path[i + 1] == '/' || !path[i + 1]) mkdir(part, 0777);
    }
}

/* The first line of a log that says "error", else its first line. */
static void first_error(char *out, size_t len, const char *log)
{
    const char *at = strstr(log, "error");
    while (at && at > log && at[-1] != '\n') at--;
    if (!at) at = log;
    snprintf(out, len, "%.*s", (int)strcspn(at, "\n"), at);
}

static enum iso_err compile(const char *so, const char *source, size_t len, bool checked)
{
    char metal[560], log[560], command[2400];
    const pid_t id = getpid();
    const int stem = (int)strlen(so) - 3;
    snprintf(metal, sizeof(metal), "%.*s.metal", stem, so);
    snprintf(log, sizeof(log), "%.*s.%d.log", stem, so, (int)id);
    /* Another process may compile the same module now: each file appears whole. */
    snprintf(command, sizeof(command), "%s.%d", metal, (int)id);
    FILE *f = fopen(command, "wb");
    if (!f) ISO_FAIL(ISO_E_IO, "%s: cannot write", command);
    const bool written = fwrite(source, 1, len, f) == len;
    if (fclose(f) != 0 || !written || rename(command, metal) != 0) ISO_FAIL(ISO_E_IO, "%s: cannot write", metal);
    snprintf(command, sizeof(command), "python3 '%s/build_module.py' %s '%s' '%s' >'%s' 2>&1",
             setting("ISO_METAL_EMULATOR", EMU_DIR), checked ? "--check" : "", metal, so, log);
    const int status = system(command); /* NOLINT(cert-env33-c): a test tool; the paths are the build's */
    char *text = NULL, message[700];
    size_t n = 0;
    ISO_TRY(read_file(&text, &n, log));
    remove(log);
    first_error(message, sizeof(message), text);
    if (status == 0 && n) fprintf(stderr, "%s\n", text);
    free(text);
    if (status != 0) ISO_FAIL(ISO_E_GPU, "Metal compiler (emulated): %s", message[0] ? message : "it failed");
    return ISO_OK;
}

static int find_segments(struct dl_phdr_info *info, size_t size, void *data)
{
    struct emu_loaded *m = data;
    (void)size;
    if (!info->dlpi_name || strcmp(info->dlpi_name, m->path) != 0) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        const char *lo = (const char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        const char *hi = lo + info->dlpi_phdr[i].p_memsz;
        if (!m->lo || lo < m->lo) m->lo = lo;
        if (hi > m->hi) m->hi = hi;
    }
    return 1;
}

enum iso_err emu_module_load(struct emu_loaded *m, const char *source, size_t len, bool checked)
{
    char hex[ISO_DIGEST_HEX], folder[300], full[PATH_MAX];
    ISO_TRY(module_key(hex, source, len, checked));
    snprintf(folder, sizeof(folder), "%s", setting("ISO_METAL_CACHE", EMU_CACHE));
    make_folders(folder);
    if (!realpath(folder, full)) ISO_FAIL(ISO_E_IO, "%s: cannot make this folder", folder);
    memset(m, 0, sizeof(*m));
    snprintf(m->path, sizeof(m->path), "%.400s/%.24s.so", full, hex);
    if (access(m->path, R_OK) != 0) ISO_TRY(compile(m->path, source, len, checked));
    m->handle = dlopen(m->path, RTLD_NOW | RTLD_LOCAL);
    if (!m->handle) ISO_FAIL(ISO_E_GPU, "%s", dlerror());
    m->module = dlsym(m->handle, "emu_module");
    if (!m->module || m->module->version != EMU_ABI_VERSION) ISO_FAIL(ISO_E_GPU, "%s: not a module", m->path);
    dl_iterate_phdr(find_segments, m);
    *m->module->abi = emu_runner_abi();
    return ISO_OK;
}

void emu_module_unload(struct emu_loaded *m)
{
    if (m->handle) dlclose(m->handle);
    memset(m, 0, sizeof(*m));
}

/* The line in the Metal source of an instruction: the innermost inlined one that is not in shim/. */
static int line_of(const struct emu_loaded *m, const void *pc)
{
    char command[700], text[400];
    int line = 0;
    snprintf(command, sizeof(command), "addr2line -i -e '%s' 0x%zx 2>/dev/null", m->path,
             (size_t)((const char *)pc - m->lo) - 1);
    FILE *f = popen(command, "r"); /* NOLINT(cert-env33-c): a test tool */
    if (!f) return 0;
    while (fgets(text, sizeof(text), f)) {
        const char *at = strstr(text, ".metal:");
        if (at && !line) line = atoi(at + 7);
    }
    pclose(f);
    return line;
}

void emu_module_where(const struct emu_loaded *m, const void *pc, int line, char *out, size_t len)
{
    if (pc) line = line_of(m, pc);
    char path[560], *text = NULL;
    size_t n = 0;
    snprintf(path, sizeof(path), "%.*s.metal", (int)strlen(m->path) - 3, m->path);
    snprintf(out, len, "line %d", line);
    if (line <= 0 || read_file(&text, &n, path) != ISO_OK) {
        if (line <= 0) snprintf(out, len, "an unknown line");
        return;
    }
    const char *at = text;
    for (int i = 1; i < line && at; i++) {
        at = strchr(at, '\n');
        if (at) at++;
    }
    if (at) {
        at += strspn(at, " \t");
        snprintf(out, len, "line %d: %.*s", line, (int)ISO_MIN(strcspn(at, "\n"), (size_t)110), at);
    }
    free(text);
}

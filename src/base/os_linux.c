/* SPDX-License-Identifier: MIT
 * os_linux.c - Linux: /proc, affinity, the program's own code. */
#include "base/os.h"

#include <link.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

unsigned iso_os_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
    const int n = CPU_COUNT(&set);
    return n < 1 ? 1 : (unsigned)n;
}

uint64_t iso_os_memory_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (f == NULL) return 0;
    char line[128];
    unsigned long long kib = 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    }
    (void)fclose(f);
    return (uint64_t)kib * 1024;
}

uint64_t iso_os_peak_memory(void)
{
    struct rusage r;
    if (getrusage(RUSAGE_SELF, &r) != 0) return 0;
    return (uint64_t)r.ru_maxrss * 1024;
}

void iso_os_cpu_name(char *out, size_t len)
{
    (void)snprintf(out, len, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (f == NULL) return;
    char line[256];
    while (fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *colon = strchr(line, ':');
        if (colon == NULL) break;
        line[strcspn(line, "\n")] = '\0';
        const char *name = colon + 1 + strspn(colon + 1, " \t");
        if (name[0] != '\0') (void)snprintf(out, len, "%s", name);
        break;
    }
    (void)fclose(f);
}

int iso_os_sync(int fd)
{
    return fsync(fd);
}

struct code_search {
    struct iso_hasher *h;
    int found;
};

/* The first object of the list is the program itself. Code is mapped read-only and holds no
 * addresses (the program is position-independent), so its bytes are those of the file. */
static int hash_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    struct code_search *s = arg;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
        iso_hasher_update(s->h, (const void *)(info->dlpi_addr + p->p_vaddr), p->p_memsz);
        s->found++;
    }
    return 1;
}

enum iso_err iso_os_hash_code(struct iso_hasher *h)
{
    struct code_search s = {.h = h};
    (void)dl_iterate_phdr(hash_object, &s);
    if (s.found == 0) ISO_FAIL(ISO_E_IO, "the program's code segment was not found");
    return ISO_OK;
}

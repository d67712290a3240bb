/* SPDX-License-Identifier: MIT
 * os_darwin.c - macOS: sysctl, Mach statistics, the program's own code. */
#include "base/os.h"

#include <fcntl.h>
#include <mach-o/dyld.h>
#include <mach-o/loader.h>
#include <mach/mach.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysctl.h>
#include <unistd.h>

unsigned iso_os_processors(void)
{
    int n = 0;
    size_t len = sizeof(n);
    /* There is no affinity on macOS: all processors that are switched on. */
    if (sysctlbyname("hw.activecpu", &n, &len, NULL, 0) != 0) return 1;
    return n < 1 ? 1 : (unsigned)n;
}

/* Free pages, purgeable ones and those that only cache files; dirty inactive pages would have to be
 * compressed or swapped and do not count. */
uint64_t iso_os_memory_available(void)
{
    vm_statistics64_data_t s;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    vm_size_t page_bytes = 0;
    const mach_port_t host = mach_host_self();
    const bool known = host_page_size(host, &page_bytes) == KERN_SUCCESS &&
                       host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&s, &n) == KERN_SUCCESS;
    (void)mach_port_deallocate(mach_task_self(), host);
    if (!known) return 0;
    return ((uint64_t)s.free_count + s.purgeable_count + s.external_page_count) * page_bytes;
}

uint64_t iso_os_peak_memory(void)
{
    struct rusage r;
    if (getrusage(RUSAGE_SELF, &r) != 0) return 0;
    return (uint64_t)r.ru_maxrss; /* bytes here, KiB on Linux */
}

void iso_os_cpu_name(char *out, size_t len)
{
    char name[256] = "";
    size_t n = sizeof(name) - 1;
    const bool known = sysctlbyname("machdep.cpu.brand_string", name, &n, NULL, 0) == 0;
    (void)snprintf(out, len, "%s", known && name[0] != '\0' ? name : "unknown");
}

int iso_os_sync(int fd)
{
    /* fsync() leaves the bytes in the drive's cache here. A file system that cannot do more says so. */
    if (fcntl(fd, F_FULLFSYNC) == 0) return 0;
    return fsync(fd);
}

/* The header of the program itself: the one image of this type. Its load commands follow it. */
static const struct mach_header_64 *program(intptr_t *slide)
{
    for (uint32_t i = 0; i < _dyld_image_count(); i++) {
        const struct mach_header_64 *m = (const void *)_dyld_get_image_header(i);
        if (m == NULL || m->magic != MH_MAGIC_64 || m->filetype != MH_EXECUTE) continue;
        *slide = _dyld_get_image_vmaddr_slide(i);
        return m;
    }
    return NULL;
}

/* Executable segments are mapped read-only and hold no addresses, so their bytes are those of the
 * file. dyld has checked the load commands, hence they are read without further checks. */
enum iso_err iso_os_hash_code(struct iso_hasher *h)
{
    intptr_t slide = 0;
    const struct mach_header_64 *m = program(&slide);
    if (m == NULL) ISO_FAIL(ISO_E_IO, "the program's own image was not found");
    const uint8_t *at = (const uint8_t *)(m + 1);
    unsigned n_found = 0;
    for (uint32_t i = 0; i < m->ncmds; i++) {
        struct load_command c;
        struct segment_command_64 s;
        memcpy(&c, at, sizeof(c));
        if (c.cmd == LC_SEGMENT_64) memcpy(&s, at, sizeof(s));
        at += c.cmdsize;
        if (c.cmd != LC_SEGMENT_64 || (s.initprot & VM_PROT_EXECUTE) == 0) continue;
        iso_hasher_update(h, (const void *)((uintptr_t)slide + s.vmaddr), s.filesize);
        n_found++;
    }
    if (n_found == 0) ISO_FAIL(ISO_E_IO, "the program's code segment was not found");
    return ISO_OK;
}

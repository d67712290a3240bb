/* SPDX-License-Identifier: MIT
 * fuzz_gguf.c - opens any bytes as a GGUF file and reads all that the reader offers of it. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/gguf.h"
#include "format/gguf_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A memory file reached through /proc: the reader takes a path, and a disk file would be slow. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0) return 0;
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    struct iso_gguf *g = NULL;
    if (write(fd, data, size) == (ssize_t)size && iso_gguf_open(&g, path) == ISO_OK) {
        static volatile uint64_t sum;
        sum = sum + gguf_walk(g);
        if (iso_gguf_check(g) != ISO_OK) __builtin_trap();
        iso_gguf_close(g);
    } else if (iso_err_message()[0] == '\0') {
        __builtin_trap(); /* a refusal without a reason */
    }
    (void)close(fd);
    return 0;
}

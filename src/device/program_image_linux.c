/* SPDX-License-Identifier: MIT
 * program_image_linux.c - sections of the running program: its own file has the table, memory the bytes. */
#include "device/program_image.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where the program was loaded: the first object of the list is the program itself. */
static int program_base(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    *(const uint8_t **)arg = (const uint8_t *)info->dlpi_addr;
    return 1;
}

/* The section's header in an ELF file [len], or NULL. */
static const ElfW(Shdr) *find_section(const uint8_t *file, size_t len, const char *name)
{
    const ElfW(Ehdr) *e = (const ElfW(Ehdr) *)file;
    if (len < sizeof(*e) || memcmp(e->e_ident, ELFMAG, SELFMAG) != 0) return NULL;
    if (e->e_shoff == 0 || e->e_shoff > len || e->e_shstrndx >= e->e_shnum) return NULL;
    if ((len - e->e_shoff) / sizeof(ElfW(Shdr)) < e->e_shnum) return NULL;
    const ElfW(Shdr) *s = (const ElfW(Shdr) *)(file + e->e_shoff);
    const ElfW(Shdr) *names = &s[e->e_shstrndx];
    if (names->sh_offset > len || names->sh_size > len - names->sh_offset) return NULL;
    const char *text = (const char *)file + names->sh_offset;
    const size_t n = strlen(name) + 1;
    for (unsigned i = 0; i < e->e_shnum; i++) {
        const bool fits = s[i].sh_name < names->sh_size && n <= names->sh_size - s[i].sh_name;
        if (fits && memcmp(text + s[i].sh_name, name, n) == 0) return &s[i];
    }
    return NULL;
}

enum iso_err iso_program_section(const uint8_t **p, size_t *len, const char *name)
{
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0) ISO_FAIL(ISO_E_IO, "the program's own file: %s", strerror(errno));
    void *file = MAP_FAILED;
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    const int map_errno = errno;
    (void)close(fd);
    if (file == MAP_FAILED) ISO_FAIL(ISO_E_IO, "the program's own file: %s", strerror(map_errno));
    const ElfW(Shdr) *s = find_section(file, (size_t)st.st_size, name);
    const bool mapped = s && (s->sh_flags & SHF_ALLOC) && !(s->sh_flags & SHF_WRITE) && s->sh_type != SHT_NOBITS;
    const uint8_t *base = NULL;
    if (mapped) {
        (void)dl_iterate_phdr(program_base, &base);
        *p = base + s->sh_addr;
        *len = s->sh_size;
    }
    (void)munmap(file, (size_t)st.st_size);
    if (!mapped) ISO_FAIL(ISO_E_UNSUPPORTED, "this program has no section '%s'", name);
    return ISO_OK;
}

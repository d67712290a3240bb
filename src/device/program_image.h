/* SPDX-License-Identifier: MIT
 * program_image.h - the bytes of the running program: its sections, and the GPU images inside it.
 *
 * A fingerprint of kernels is made from what is mapped, not from a file's name or a build number. On
 * Linux the section table is read from the program's own file and the bytes from memory.
 */
#ifndef ISO_DEVICE_PROGRAM_IMAGE_H
#define ISO_DEVICE_PROGRAM_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"

/* Bytes [*len] of a read-only section of the program, ".rodata"; borrowed, for the program's life.
 * Thread: any. Errors: ISO_E_UNSUPPORTED no such section here (or no way to find it); ISO_E_IO. */
enum iso_err iso_program_section(const uint8_t **p, size_t *len, const char *name) ISO_NODISCARD;

/* All images of one architecture in a list of CUDA fat binaries. */
struct iso_gpu_image {
    uint32_t arch;             /* 90 for sm_90 and sm_90a */
    uint32_t n;                /* one for each source file with kernels */
    uint64_t bytes;            /* as stored: compressed where the compiler did so */
    struct iso_digest sha256;  /* of the stored bytes of all of them, in the program's order */
};

#define ISO_GPU_IMAGES 16 /* more architectures than one program is built for */

/* Reads fat binaries [len] (section ".nv_fatbin"): the machine code of each architecture, lowest first.
 * Intermediate code (PTX) has bit 31 of arch set. *n is how many there are.
 * Errors: ISO_E_FORMAT offset and what is wrong; ISO_E_LIMIT more than cap architectures. */
enum iso_err iso_gpu_images_read(struct iso_gpu_image *out, size_t cap, size_t *n, const uint8_t *p,
                                 size_t len) ISO_NODISCARD;

/* The same of the running program; *n is 0 when it has none. */
enum iso_err iso_gpu_images(struct iso_gpu_image *out, size_t cap, size_t *n) ISO_NODISCARD;

/* The fingerprint of the CUDA kernels that run at a level: SHA-256 over "isobit-kernels-1 cuda LEVEL sm_ARCH\n"
 * and the digest of that architecture's images. Where the program's list cannot be read or has no such
 * images (the driver compiled PTX), over "isobit-kernels-1 cuda LEVEL whole\n" and all its GPU code. */
void iso_gpu_kernels_digest(struct iso_digest *out, const char *level, uint32_t arch);

#endif

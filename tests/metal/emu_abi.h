/* SPDX-License-Identifier: MIT
 * emu_abi.h - what a module of compiled kernels and the Metal emulator call in each other.
 *
 * Part of an EMULATION of Metal on the CPU, for tests; nothing here runs on a GPU. Read by C (the emulator)
 * and by C++ without a library (the module), therefore only built-in types.
 */
#ifndef EMU_ABI_H
#define EMU_ABI_H

#define EMU_ABI_VERSION 1
#define EMU_SIMD 32           /* lanes of a SIMD group */
#define EMU_SLOT_BYTES 32     /* most bytes that a lane brings to a SIMD operation */

enum emu_access {
    EMU_READ = 0,
    EMU_WRITE = 1,
    EMU_ATOMIC = 2,     /* with READ or WRITE */
    EMU_COLLECTIVE = 4, /* done by the SIMD group: which lane does it is not known */
    EMU_ALIGNED = 8,    /* the address is a multiple of the size, says the type */
};

enum emu_scope { EMU_SIMDGROUP, EMU_THREADGROUP };
enum emu_flags { EMU_MEM_NONE = 0, EMU_MEM_DEVICE = 1, EMU_MEM_THREADGROUP = 2 };

/* Values that the lanes of a SIMD group brought to one operation. Valid for a lane until its next but one. */
struct emu_meet {
    unsigned active; /* bit i: lane i came */
    unsigned pad;
    unsigned long seed;
    unsigned char slot[EMU_SIMD][EMU_SLOT_BYTES] __attribute__((aligned(16)));
};

/* Where a lane is. */
struct emu_ids {
    unsigned thread; /* in its threadgroup, one dimension */
    unsigned threads;
    unsigned group[3], groups[3];
    unsigned dynamic_bytes; /* of [[threadgroup(0)]] */
};

/* The emulator, called by lanes. line: in the Metal source. */
struct emu_abi {
    const struct emu_ids *(*ids)(void);
    void *(*buffer)(unsigned index);
    void *(*group_memory)(unsigned id, const char *name, unsigned size, unsigned align);
    void (*barrier)(int scope, unsigned flags, int line);
    /* Waits until all live lanes of the SIMD group are at the same operation. */
    const struct emu_meet *(*meet)(const char *op, int line, const void *value, unsigned size, unsigned *lane);
    /* Checks an access; does not return when it is an error. pc: of the instruction, or 0 and line. */
    void (*access)(const void *p, unsigned long size, unsigned kind, const void *pc, int line);
    unsigned long (*random)(void);
    void (*fail)(const char *message, int line); /* does not return */
};

struct emu_kernel {
    const char *name;
    void (*run)(void);
    unsigned max_threads;
};

struct emu_constant {
    const char *name;
    unsigned index, size; /* bytes of the value */
    void *value;
    int *defined;
    int optional; /* the source asks is_function_constant_defined */
};

/* The symbol emu_module of a module. */
struct emu_module {
    unsigned version;
    int checked; /* each access calls emu_abi.access */
    const struct emu_kernel *kernels;
    unsigned n_kernels;
    const struct emu_constant *constants;
    unsigned n_constants;
    const struct emu_abi **abi;
    unsigned long *order; /* random bits that change per threadgroup */
};

#endif

// SPDX-License-Identifier: MIT
// emu_hooks.cc - the part of a kernel module that is not instrumented; part of an EMULATION of Metal on the CPU.
//
// Checked modules are compiled with clang's ThreadSanitizer pass, but linked without its library: each access
// of a kernel calls one of the functions below, which ask the emulator.
#include "emu_abi.h"

extern const struct emu_abi *emu_rt;
const struct emu_abi *emu_rt;
extern unsigned long emu_order;
unsigned long emu_order;

typedef __SIZE_TYPE__ size_t;

#if EMU_CHECK
void emu_raw_copy(void *dst, const void *src, const void *p, unsigned long size, unsigned kind, int line);
void emu_raw_copy(void *dst, const void *src, const void *p, unsigned long size, unsigned kind, int line)
{
    emu_rt->access(p, size, kind, nullptr, line);
    for (size_t i = 0; i < size; i++) ((volatile char *)dst)[i] = ((const char *)src)[i]; // not memcpy: it checks
}

extern "C" {
#define PC __builtin_return_address(0)
#define SIZE(N) \
    void __tsan_read##N(void *p) { emu_rt->access(p, N, EMU_READ | EMU_ALIGNED, PC, 0); } \
    void __tsan_write##N(void *p) { emu_rt->access(p, N, EMU_WRITE | EMU_ALIGNED, PC, 0); } \
    void __tsan_unaligned_read##N(void *p) { emu_rt->access(p, N, EMU_READ, PC, 0); } \
    void __tsan_unaligned_write##N(void *p) { emu_rt->access(p, N, EMU_WRITE, PC, 0); } \
    void __tsan_read_write##N(void *p) { emu_rt->access(p, N, EMU_WRITE, PC, 0); } \
    void __tsan_unaligned_read_write##N(void *p) { emu_rt->access(p, N, EMU_WRITE, PC, 0); }
SIZE(1)
SIZE(2)
SIZE(4)
SIZE(8)
SIZE(16)
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}

// Copies of structures. The loops are volatile, or the compiler would make them calls of themselves.
void *emu_copy(void *dst, const void *src, size_t n, const void *pc);
void *emu_copy(void *dst, const void *src, size_t n, const void *pc)
{
    if (n == 0) return dst;
    emu_rt->access(src, n, EMU_READ, pc, 0);
    emu_rt->access(dst, n, EMU_WRITE, pc, 0);
    char *d = (char *)dst;
    const char *s = (const char *)src;
    if (d <= s) {
        for (size_t i = 0; i < n; i++) *(volatile char *)(d + i) = s[i];
    } else {
        for (size_t i = n; i-- > 0;) *(volatile char *)(d + i) = s[i];
    }
    return dst;
}
void *memcpy(void *dst, const void *src, size_t n) { return emu_copy(dst, src, n, PC); }
void *memmove(void *dst, const void *src, size_t n) { return emu_copy(dst, src, n, PC); }
void *memset(void *dst, int c, size_t n)
{
    if (n) emu_rt->access(dst, n, EMU_WRITE, PC, 0);
    for (size_t i = 0; i < n; i++) *(volatile char *)((char *)dst + i) = (char)c;
    return dst;
}
void *__tsan_memcpy(void *dst, const void *src, size_t n) { return emu_copy(dst, src, n, PC); }
void *__tsan_memmove(void *dst, const void *src, size_t n) { return emu_copy(dst, src, n, PC); }
void *__tsan_memset(void *dst, int c, size_t n)
{
    if (n) emu_rt->access(dst, n, EMU_WRITE, PC, 0);
    for (size_t i = 0; i < n; i++) *(volatile char *)((char *)dst + i) = (char)c;
    return dst;
}
}
#endif

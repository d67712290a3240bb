/* SPDX-License-Identifier: MIT
 * emu_fiber.c - changing from one stack to another; part of an EMULATION of Metal on the CPU.
 *
 * swapcontext makes a system call each time, and _longjmp is watched by sanitizers, which refuse stacks that
 * they do not know. So the switch is a few instructions on the two architectures that tests run on: it keeps
 * the registers that a called function must keep, and nothing else. Others use swapcontext.
 */
#include "emu_internal.h"

#include <string.h>

#if defined(__x86_64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".globl emu_fiber_switch\n"
        ".type emu_fiber_switch, @function\n"
        "emu_fiber_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq (%rsi), %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emu_fiber_switch, .-emu_fiber_switch\n");

void emu_fiber_prepare(struct emu_fiber *f, char *stack, size_t len, void (*run)(void))
{
    /* Six registers, the address to "return" to, and one word: run finds the stack as behind a call. */
    void **top = (void **)(void *)(stack + (len & ~(size_t)15)) - 8;
    memset(top, 0, 8 * sizeof(*top));
    memcpy(&top[6], &run, sizeof(run));
    f->sp = top;
}
#elif defined(__aarch64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".globl emu_fiber_switch\n"
        ".type emu_fiber_switch, %function\n"
        "emu_fiber_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x2, sp\n"
        "    str x2, [x0]\n"
        "    ldr x2, [x1]\n"
        "    mov sp, x2\n"
        "    ldp x19, x20, [sp]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size emu_fiber_switch, .-emu_fiber_switch\n");

void emu_fiber_prepare(struct emu_fiber *f, char *stack, size_t len, void (*run)(void))
{
    void **top = (void **)(void *)(stack + (len & ~(size_t)15)) - 20;
    memset(top, 0, 20 * sizeof(*top));
    memcpy(&top[11], &run, sizeof(run)); /* x30 */
    f->sp = top;
}
#else
void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to)
{
    swapcontext(&from->context, &to->context);
}

void emu_fiber_prepare(struct emu_fiber *f, char *stack, size_t len, void (*run)(void))
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = len;
    f->context.uc_link = NULL;
    makecontext(&f->context, run, 0);
}
#endif

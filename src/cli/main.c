/* SPDX-License-Identifier: MIT
 * main.c - the isobit program: picks a sub-command. */
#include <stdio.h>

int main(void)
{
    (void)puts("isobit " ISO_COMMIT);
    return 0;
}

/* SPDX-License-Identifier: MIT
 * commands.h - the sub-commands of isobit: each takes its own argv and returns the exit status. */
#ifndef ISO_CLI_COMMANDS_H
#define ISO_CLI_COMMANDS_H

/* X(name, "one line for the list of commands") */
#define ISO_COMMAND_MAP(X)                                                                         \
    X(run, "answer one prompt, here or with a producer")                                           \
    X(chat, "talk in turns")                                                                       \
    X(produce, "prefill prompts for other machines")                                               \
    X(keys, "make, exchange and revoke the keys of this machine")                                  \
    X(inspect, "show what a model file holds")                                                     \
    X(tokenize, "text on stdin, ids out")                                                          \
    X(template, "chat messages (JSON) on stdin, prompt text out")                                  \
    X(digest, "digests of a run, for comparing machines")                                          \
    X(diff, "the first tensor and element at which two runs differ")                               \
    X(bench, "speed of prefill and decode")                                                        \
    X(identity, "version, kernels of this machine, digests of a model")                            \
    X(doctor, "check this machine, its memory, ports and link")                                    \
    X(verify_receipt, "check a receipt of a hand-off")

#define ISO_VERSION "0.1.0"

/* The commit that this program was built from. */
const char *iso_cli_commit(void);

#define X(name, text) int iso_cmd_##name(int argc, char **argv);
ISO_COMMAND_MAP(X)
#undef X

#endif

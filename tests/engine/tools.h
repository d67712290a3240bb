/* SPDX-License-Identifier: MIT
 * tools.h - tiny engines, ids and comparisons for the tests of the engine. */
#ifndef ISO_TESTS_ENGINE_TOOLS_H
#define ISO_TESTS_ENGINE_TOOLS_H

#include "engine/engine.h"
#include "isobit.h"
#include "isobit_kv.h"
#include "model/tiny_model.h"

#define N_FAMILIES 5
extern const char *const tools_family[N_FAMILIES];

/* An engine of the tiny model of a family, on one thread, contexts of 1,024 and no tokenizer; zero
 * fields of o are filled in, o may be NULL. The file is gone from its folder when this returns. */
iso_engine *tools_engine(const char *arch, const struct iso_engine_options *o);

/* The same for any model description. */
iso_engine *tools_engine_of(const struct tiny_spec *spec, const struct iso_engine_options *o);

iso_session *tools_session(iso_engine *e);

/* n ids that depend on seed only. Returns owned. */
int32_t *tools_ids(const iso_engine *e, size_t n, uint64_t seed);

/* Appends ids in steps of chunk rows, logits of every row; writes the SHA-256 of each into out [n]
 * when it is not NULL. */
void tools_run(iso_session *s, const int32_t *ids, size_t n, size_t chunk, struct iso_digest *out);

/* SHA-256 of the logits of the session's last row; fails the test when there are none. */
struct iso_digest tools_logits(const iso_session *s);
struct iso_digest tools_chain(const iso_session *s);

/* Fails the test unless err is want and its message contains text. */
void tools_expect(enum iso_err err, enum iso_err want, const char *text);
void tools_ok(enum iso_err err);

/* cmocka replaces the handler of SIGBUS before each test: puts the guard of format/mapped.c back.
 * The first call must come from main(), before any test. */
void tools_guard_on(void);

#endif

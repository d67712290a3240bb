/* SPDX-License-Identifier: MIT
 * rig.h - a producer and a consumer in one process, with a relay between them, for tests. */
#ifndef ISO_TESTS_HANDOFF_RIG_H
#define ISO_TESTS_HANDOFF_RIG_H

#include <pthread.h>

#include "handoff/consumer.h"
#include "handoff/producer.h"
#include "isobit_kv.h"
#include "node_pair.h"
#include "proxy.h"

#define RIG_CTX 512
#define RIG_IDS 200 /* of the golden prompt: golden data of the mini models have as many */

/* alice produces, bob consumes. */
struct rig {
    struct node_pair nodes;
    iso_engine *pe, *ce; /* the producer's and the consumer's engine */
    struct iso_producer *producer;
    pthread_t thread; /* runs the producer */
    struct proxy *proxy;
    struct iso_consumer *consumer;
    struct iso_producer_options po;
    struct iso_consumer_options co;
    char address[32]; /* of the proxy */
    int32_t ids[RIG_IDS];
};

/* Fails the test with the message unless err is ISO_OK. */
void rig_must(enum iso_err err);

/* Opens a model of the cache with 1 thread, n_batch 64 (several chunks) and keep_expired. */
iso_engine *rig_engine(const char *file, uint32_t n_sessions, bool staging);

/* First RIG_IDS ids of tests/golden/smollm2-135m/long.ids. */
void rig_ids(int32_t *ids);

/* Everything up to a running producer; po and co are taken over with listen, address and peer
 * filled in. The consumer's silence limit defaults to 3 s, probes are off. */
void rig_start(struct rig *r,
               const char *model,
               const struct iso_producer_options *po,
               const struct iso_consumer_options *co);
/* The same with engines of the caller's, the producer's and the consumer's; rig_stop() closes them. */
void rig_start_with(struct rig *r,
                    iso_engine *pe,
                    iso_engine *ce,
                    const struct iso_producer_options *po,
                    const struct iso_consumer_options *co);
void rig_stop(struct rig *r);

/* Ends the consumer and makes a new one with r->co: a restarted process. */
void rig_new_consumer(struct rig *r);

/* The same for the producer with r->po; the proxy leads to the new one. */
void rig_new_producer(struct rig *r);
void rig_stop_producer(struct rig *r);

/* Until the producer has no transfer any more; fails after limit_ns. The time, by iso_clock_ns(). */
int64_t rig_wait_idle(struct rig *r, int64_t limit_ns);

/* fetch through the source; the error. */
enum iso_err rig_fetch(struct rig *r, iso_session *s, const int32_t *ids, size_t n);

/* What a session was: rig_same() fails the test unless it is still the same, bit for bit. */
struct rig_state {
    uint32_t position;
    struct iso_digest chain, ids;
    uint32_t first_page[ISO_KV_CLASSES];
};
void rig_state(struct rig_state *out, const iso_session *s);
void rig_same(const struct rig_state *was, const iso_session *s);

/* Fails unless the pages of s, which holds n-1 positions, are those of a local run of the
 * consumer's engine, page for page, and the logits behind ids[n-1] have the same bits. Appends
 * ids[n-1]. */
void rig_check_exact(struct rig *r, iso_session *s, const int32_t *ids, uint32_t n);

#endif

/* SPDX-License-Identifier: MIT
 * policy.c - decision by measured rates and the breaker. */
#include "handoff/policy.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define WEIGHT 0.3 /* of a new measurement: three or four prompts settle a rate */

struct iso_policy {
    pthread_mutex_t lock; /* guards all below */
    enum iso_policy_mode mode;
    struct iso_policy_rates rates;
    int failures;     /* in a row */
    bool open;        /* the breaker */
    bool probing;     /* the half-open attempt runs */
    int64_t until_ns; /* open until then */
};

struct iso_policy *iso_policy_new(enum iso_policy_mode mode)
{
    struct iso_policy *p = iso_xalloc(1, sizeof(*p));
    (void)pthread_mutex_init(&p->lock, NULL);
    p->mode = mode;
    return p;
}

void iso_policy_free(struct iso_policy *p)
{
    if (p == NULL) return;
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

enum iso_policy_mode iso_policy_mode(const struct iso_policy *p)
{
    return p->mode;
}

enum iso_err iso_policy_parse_mode(enum iso_policy_mode *out, const char *name)
{
    static const char *const names[] = {"auto", "remote", "local"};
    for (size_t i = 0; i < ISO_COUNT(names); i++) {
        if (strcmp(names[i], name) == 0) {
            *out = (enum iso_policy_mode)i;
            return ISO_OK;
        }
    }
    ISO_FAIL(ISO_E_ARG, "prefill '%s': auto, remote or local", name);
}

static enum iso_breaker_state state(const struct iso_policy *p, int64_t now_ns)
{
    if (!p->open) return ISO_BREAKER_CLOSED;
    return now_ns < p->until_ns ? ISO_BREAKER_OPEN : ISO_BREAKER_HALF_OPEN;
}

/* Estimates from what is known. */
static void estimate(const struct iso_policy_rates *r,
                     struct iso_policy_decision *d,
                     uint64_t n,
                     uint64_t bytes)
{
    if (r->local_tokens_s > 0) d->local_s = (double)n / r->local_tokens_s;
    if (r->remote_tokens_s > 0 && r->wire_bytes_s > 0) {
        const double compute = (double)n / r->remote_tokens_s;
        const double wire = (double)bytes / r->wire_bytes_s;
        d->remote_s = r->setup_s + ISO_MAX(compute, wire);
    }
}

static void decide_auto(const struct iso_policy *p, struct iso_policy_decision *d, uint64_t bytes,
                        int64_t now_ns)
{
    const struct iso_policy_rates *r = &p->rates;
    const enum iso_breaker_state s = state(p, now_ns);
    if (s == ISO_BREAKER_OPEN || (s == ISO_BREAKER_HALF_OPEN && p->probing)) {
        (void)snprintf(d->why, sizeof(d->why), "local: the breaker is open after %d failures",
                       p->failures);
        return;
    }
    if (d->remote_s <= 0) {
        d->remote = true;
        (void)snprintf(d->why, sizeof(d->why), "remote: its rates are not measured yet");
        return;
    }
    if (d->local_s <= 0) {
        d->remote = true;
        (void)snprintf(d->why, sizeof(d->why),
                       "remote: %.3f s expected, the local rate is not measured yet", d->remote_s);
        return;
    }
    d->remote = d->remote_s < d->local_s;
    (void)snprintf(
        d->why, sizeof(d->why),
        "%s: remote %.3f s (%.3f s wire for %.1f MB, %.0f tok/s), local %.3f s (%.0f tok/s)",
        d->remote ? "remote" : "local", d->remote_s, (double)bytes / r->wire_bytes_s,
        (double)bytes / 1e6, r->remote_tokens_s, d->local_s, r->local_tokens_s);
}

void iso_policy_decide(struct iso_policy *p,
                       struct iso_policy_decision *out,
                       uint64_t n_tokens,
                       uint64_t bytes,
                       int64_t now_ns)
{
    *out = (struct iso_policy_decision){0};
    pthread_mutex_lock(&p->lock);
    estimate(&p->rates, out, n_tokens, bytes);
    if (p->mode == ISO_POLICY_AUTO) {
        decide_auto(p, out, bytes, now_ns);
    } else {
        out->remote = p->mode == ISO_POLICY_REMOTE;
        (void)snprintf(out->why, sizeof(out->why), "%s: by configuration",
                       out->remote ? "remote" : "local");
    }
    pthread_mutex_unlock(&p->lock);
}

static void blend(double *rate, double amount, double seconds)
{
    if (!(amount > 0) || !(seconds > 0)) return;
    const double x = amount / seconds;
    *rate = *rate > 0 ? *rate + WEIGHT * (x - *rate) : x;
}

void iso_policy_note_local(struct iso_policy *p, uint64_t n_tokens, double seconds)
{
    pthread_mutex_lock(&p->lock);
    blend(&p->rates.local_tokens_s, (double)n_tokens, seconds);
    pthread_mutex_unlock(&p->lock);
}

void iso_policy_note_remote(struct iso_policy *p,
                            uint64_t n_tokens,
                            double compute_s,
                            uint64_t bytes,
                            double wire_s,
                            double setup_s)
{
    pthread_mutex_lock(&p->lock);
    blend(&p->rates.remote_tokens_s, (double)n_tokens, compute_s);
    blend(&p->rates.wire_bytes_s, (double)bytes, wire_s);
    blend(&p->rates.setup_s, setup_s, 1.0);
    pthread_mutex_unlock(&p->lock);
}

void iso_policy_rates(struct iso_policy *p, struct iso_policy_rates *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->rates;
    pthread_mutex_unlock(&p->lock);
}

enum iso_err iso_policy_admit(struct iso_policy *p, int64_t now_ns, enum iso_reason *reason)
{
    pthread_mutex_lock(&p->lock);
    const enum iso_breaker_state s = state(p, now_ns);
    const bool in = s == ISO_BREAKER_CLOSED || (s == ISO_BREAKER_HALF_OPEN && !p->probing);
    if (in && s == ISO_BREAKER_HALF_OPEN) p->probing = true;
    const int failures = p->failures;
    const double left_s = (double)(p->until_ns - now_ns) / (double)ISO_NS_PER_S;
    pthread_mutex_unlock(&p->lock);
    if (in) return ISO_OK;
    ISO_FAIL_REASON(reason, BREAKER_OPEN, ISO_E_REFUSED,
                    "%d failures in a row, the next attempt is due in %.1f s", failures,
                    ISO_MAX(left_s, 0.0));
}

void iso_policy_result(struct iso_policy *p, enum iso_reason result, int64_t now_ns)
{
    pthread_mutex_lock(&p->lock);
    if (result == ISO_REASON_OK) {
        p->failures = 0;
        p->open = false;
    } else if (iso_policy_counts(result)) {
        p->failures++;
        if (p->failures >= ISO_BREAKER_FAILURES) {
            p->open = true;
            p->until_ns = now_ns + ISO_BREAKER_OPEN_MS * ISO_NS_PER_MS;
        }
    }
    /* A probe that ended for another reason proved nothing: the next attempt probes again. */
    p->probing = false;
    pthread_mutex_unlock(&p->lock);
}

enum iso_breaker_state iso_policy_breaker(struct iso_policy *p, int64_t now_ns)
{
    pthread_mutex_lock(&p->lock);
    const enum iso_breaker_state s = state(p, now_ns);
    pthread_mutex_unlock(&p->lock);
    return s;
}

bool iso_policy_counts(enum iso_reason r)
{
    switch (r) {
    case ISO_REASON_OK:
    case ISO_REASON_CANCELLED:
    case ISO_REASON_NO_IDS:
    case ISO_REASON_CONTEXT_EXCEEDED:
    case ISO_REASON_ID_OUT_OF_RANGE:
    case ISO_REASON_AUDIT_UNAVAILABLE:
    case ISO_REASON_NO_ROOM:
    case ISO_REASON_QUOTA:
    case ISO_REASON_BUSY:
    case ISO_REASON_LEDGER:
    case ISO_REASON_BREAKER_OPEN:
        return false;
    default:
        return true;
    }
}

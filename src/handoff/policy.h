/* SPDX-License-Identifier: MIT
 * policy.h - local or remote prefill: decided from measured rates, with a reason, behind a breaker.
 *
 * Modes: local never asks a producer; remote always does and fails when that fails; auto takes the
 * faster side by what was measured and falls back to the local side, saying so.
 * Estimates for n tokens and b bytes: local n/local_rate; remote setup + max(n/remote_rate,
 * b/wire), since the stream runs under the producer's prefill. Breaker: three failures in a row
 * open it for 30 s; then one attempt is let through, which closes it or opens it again. What the
 * request or this machine is to blame for does not count.
 *
 * Thread: any; a lock inside.
 */
#ifndef ISO_HANDOFF_POLICY_H
#define ISO_HANDOFF_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "handoff/reason.h"

#define ISO_BREAKER_FAILURES 3
#define ISO_BREAKER_OPEN_MS 30000
#define ISO_POLICY_WHY_MAX 192 /* bytes of a stated reason with the NUL */

enum iso_policy_mode { ISO_POLICY_AUTO, ISO_POLICY_REMOTE, ISO_POLICY_LOCAL };

enum iso_breaker_state { ISO_BREAKER_CLOSED, ISO_BREAKER_OPEN, ISO_BREAKER_HALF_OPEN };

/* Rates as measured so far (moving averages); 0: not measured yet. */
struct iso_policy_rates {
    double local_tokens_s;  /* local prefill */
    double remote_tokens_s; /* the producer's prefill, without its queue */
    double wire_bytes_s;    /* while payload was flowing */
    double setup_s;         /* dialling until the producer accepts */
};

struct iso_policy_decision {
    bool remote;
    double local_s, remote_s;     /* estimates; 0: unknown */
    char why[ISO_POLICY_WHY_MAX]; /* one line with the figures */
};

struct iso_policy;

/* Returns owned, free with iso_policy_free(). */
struct iso_policy *iso_policy_new(enum iso_policy_mode mode);
void iso_policy_free(struct iso_policy *p);
enum iso_policy_mode iso_policy_mode(const struct iso_policy *p);

/* "auto", "remote" or "local". Errors: ISO_E_ARG. */
enum iso_err iso_policy_parse_mode(enum iso_policy_mode *out, const char *name) ISO_NODISCARD;

/* Where should n_tokens, of which bytes would cross the wire, be computed? Asks the breaker but
 * does not take its half-open probe. now_ns: iso_clock_ns(). */
void iso_policy_decide(struct iso_policy *p,
                       struct iso_policy_decision *out,
                       uint64_t n_tokens,
                       uint64_t bytes,
                       int64_t now_ns);

/* Measurements; a figure that is not positive is ignored. */
void iso_policy_note_local(struct iso_policy *p, uint64_t n_tokens, double seconds);
void iso_policy_note_remote(struct iso_policy *p,
                            uint64_t n_tokens,
                            double compute_s,
                            uint64_t bytes,
                            double wire_s,
                            double setup_s);
void iso_policy_rates(struct iso_policy *p, struct iso_policy_rates *out);

/* May an attempt start now? Takes the probe when the breaker is half open; the caller must report
 * the end with iso_policy_result().
 * Errors: ISO_E_REFUSED with *reason BREAKER_OPEN. */
enum iso_err
iso_policy_admit(struct iso_policy *p, int64_t now_ns, enum iso_reason *reason) ISO_NODISCARD;

/* The end of an admitted attempt. */
void iso_policy_result(struct iso_policy *p, enum iso_reason result, int64_t now_ns);

enum iso_breaker_state iso_policy_breaker(struct iso_policy *p, int64_t now_ns);

/* Does this end of an attempt speak against the producer or the way to it? */
bool iso_policy_counts(enum iso_reason r);

#endif

/* SPDX-License-Identifier: MIT
 * device_copy_cuda.cu - pages leave a CUDA GPU beside a step: events, a stream of copies, pinned memory.
 *
 * Unlike the rest of the device these calls come from any thread, so they leave the device's record of its
 * first failure alone: a failure is the caller's here, and the stepping thread meets it by itself.
 */
#include "device/device_cuda.h"

#include <stdlib.h>
#include <time.h>

extern "C" {
#include "base/clock.h"
}

#define NAP_NS 20000 /* between two looks at an event: little beside a layer, and no busy processor */

static struct iso_cuda_device *cuda_of(struct iso_device *dev)
{
    return (struct iso_cuda_device *)dev;
}

/* A failed call as this thread's error. */
static enum iso_err raise(const struct iso_cuda_device *d, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return ISO_OK;
    (void)cudaGetLastError();
    ISO_FAIL(ISO_E_GPU, "%s: %s (%s, %s)", d->chip_name, cudaGetErrorString(e), cudaGetErrorName(e), what);
}

/* Waits for an event that was recorded at since_ns. */
static enum iso_err reach(const struct iso_cuda_device *d, cudaEvent_t event, int64_t since_ns, int64_t timeout_ns)
{
    const int64_t start = iso_clock_ns();
    for (;;) {
        const cudaError_t e = cudaEventQuery(event);
        if (e != cudaErrorNotReady) return raise(d, e, "cudaEventQuery");
        const int64_t now = iso_clock_ns();
        if (now - since_ns > (int64_t)ISO_CUDA_WAIT_S * ISO_NS_PER_S) {
            ISO_FAIL(ISO_E_TIMEOUT, "%s did not come to an event in %d s", d->chip_name, ISO_CUDA_WAIT_S);
        }
        if (now - start >= timeout_ns) return ISO_E_AGAIN;
        const struct timespec nap = {0, NAP_NS};
        (void)nanosleep(&nap, NULL);
    }
}

/* --- events of the step ------------------------------------------------------------------------------- */

static enum iso_err make_event(const struct iso_cuda_device *d, cudaEvent_t *event, unsigned flags)
{
    return *event ? ISO_OK : raise(d, cudaEventCreateWithFlags(event, flags), "cudaEventCreate");
}

static enum iso_err record_locked(struct iso_cuda_device *d, uint64_t *event)
{
    struct iso_cuda_copies *c = &d->copies;
    const uint64_t n = c->n_events + 1;
    cudaEvent_t *at = &c->event[n % ISO_CUDA_EVENTS];
    ISO_TRY(make_event(d, at, cudaEventDisableTiming));
    ISO_TRY(raise(d, cudaEventRecord(*at, d->stream), "cudaEventRecord"));
    c->event_ns[n % ISO_CUDA_EVENTS] = iso_clock_ns();
    *event = c->n_events = n;
    return ISO_OK;
}

static enum iso_err event_record(struct iso_queue *q, uint64_t *event)
{
    struct iso_cuda_device *d = q->dev;
    (void)cudaSetDevice(d->ordinal);
    iso_cuda_flush(q);
    ISO_TRY(iso_cuda_status(d));
    pthread_mutex_lock(&d->copies.lock);
    const enum iso_err err = record_locked(d, event);
    pthread_mutex_unlock(&d->copies.lock);
    q->launched = true;
    return err;
}

/* The event of a number; NULL for one whose place has been used again: the engine has awaited that one, or
 * everything behind it. */
static cudaEvent_t event_at(const struct iso_cuda_copies *c, uint64_t event)
{
    return event == 0 || event + ISO_CUDA_EVENTS <= c->n_events ? NULL : c->event[event % ISO_CUDA_EVENTS];
}

static enum iso_err event_wait(struct iso_device *dev, uint64_t event, int64_t timeout_ns)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    pthread_mutex_lock(&d->copies.lock);
    const cudaEvent_t at = event_at(&d->copies, event);
    const int64_t since_ns = d->copies.event_ns[event % ISO_CUDA_EVENTS];
    pthread_mutex_unlock(&d->copies.lock);
    return at ? reach(d, at, since_ns, timeout_ns) : ISO_OK;
}

/* --- copies ------------------------------------------------------------------------------------------------ */

static enum iso_err start_locked(struct iso_cuda_device *d, const struct iso_copy_part *parts, size_t n,
                                 uint64_t event, uint64_t *copy)
{
    struct iso_cuda_copies *c = &d->copies;
    const uint64_t number = c->n_copies + 1;
    const uint32_t i = (uint32_t)(number % ISO_DEVICE_COPIES);
    ISO_TRY(make_event(d, &c->begin[i], cudaEventDefault));
    ISO_TRY(make_event(d, &c->end[i], cudaEventDefault));
    const cudaEvent_t after = event_at(c, event);
    if (after) ISO_TRY(raise(d, cudaStreamWaitEvent(c->stream, after, 0), "cudaStreamWaitEvent"));
    ISO_TRY(raise(d, cudaEventRecord(c->begin[i], c->stream), "cudaEventRecord"));
    for (size_t k = 0; k < n; k++) {
        const cudaError_t e = cudaMemcpyAsync(parts[k].dst, iso_cuda_at(d, parts[k].src), parts[k].len,
                                              cudaMemcpyDeviceToHost, c->stream);
        ISO_TRY(raise(d, e, "cudaMemcpyAsync"));
    }
    ISO_TRY(raise(d, cudaEventRecord(c->end[i], c->stream), "cudaEventRecord"));
    c->copy_ns[i] = iso_clock_ns();
    *copy = c->n_copies = number;
    return ISO_OK;
}

static enum iso_err copy_start(struct iso_device *dev, const struct iso_copy_part *parts, size_t n, uint64_t event,
                               uint64_t *copy)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    pthread_mutex_lock(&d->copies.lock);
    const enum iso_err err = start_locked(d, parts, n, event, copy);
    pthread_mutex_unlock(&d->copies.lock);
    return err;
}

static enum iso_err copy_wait(struct iso_device *dev, uint64_t copy, int64_t timeout_ns, int64_t *took_ns)
{
    struct iso_cuda_device *d = cuda_of(dev);
    const uint32_t i = (uint32_t)(copy % ISO_DEVICE_COPIES);
    (void)cudaSetDevice(d->ordinal);
    pthread_mutex_lock(&d->copies.lock);
    const cudaEvent_t begin = d->copies.begin[i], end = d->copies.end[i];
    const int64_t since_ns = d->copies.copy_ns[i];
    pthread_mutex_unlock(&d->copies.lock);
    ISO_TRY(reach(d, end, since_ns, timeout_ns));
    float took_ms = 0;
    ISO_TRY(raise(d, cudaEventElapsedTime(&took_ms, begin, end), "cudaEventElapsedTime"));
    *took_ns = (int64_t)((double)took_ms * (double)ISO_NS_PER_MS);
    return ISO_OK;
}

/* --- pinned memory ------------------------------------------------------------------------------------------- */

static enum iso_err pin(struct iso_device *dev, size_t len, const char *what, void **p)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    const cudaError_t e = cudaHostAlloc(p, len, cudaHostAllocDefault);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        ISO_FAIL(ISO_E_NOMEM, "%s: %zu bytes of pinned host memory", what, len);
    }
    return raise(d, e, "cudaHostAlloc");
}

static void unpin(struct iso_device *dev, void *p)
{
    (void)cudaSetDevice(cuda_of(dev)->ordinal);
    (void)cudaFreeHost(p);
}

/* --- life -------------------------------------------------------------------------------------------------------- */

enum iso_err iso_cuda_copies_init(struct iso_cuda_device *d)
{
    ISO_CUDA_OK(d, cudaStreamCreateWithFlags(&d->copies.stream, cudaStreamNonBlocking));
    return iso_cuda_status(d);
}

void iso_cuda_copies_deinit(struct iso_cuda_device *d)
{
    struct iso_cuda_copies *c = &d->copies;
    if (c->stream) (void)cudaStreamSynchronize(c->stream);
    for (uint32_t i = 0; i < ISO_CUDA_EVENTS; i++) {
        if (c->event[i]) (void)cudaEventDestroy(c->event[i]);
    }
    for (uint32_t i = 0; i < ISO_DEVICE_COPIES; i++) {
        if (c->begin[i]) (void)cudaEventDestroy(c->begin[i]);
        if (c->end[i]) (void)cudaEventDestroy(c->end[i]);
    }
    if (c->stream) (void)cudaStreamDestroy(c->stream);
}

void iso_cuda_copy_slots(struct iso_device_vt *vt)
{
    vt->event_record = event_record;
    vt->event_wait = event_wait;
    vt->pin = pin;
    vt->unpin = unpin;
    vt->copy_start = copy_start;
    vt->copy_wait = copy_wait;
}

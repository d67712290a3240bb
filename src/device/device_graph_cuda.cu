/* SPDX-License-Identifier: MIT
 * device_graph_cuda.cu - launches a recorded list, as a CUDA graph when it is the same again.
 *
 * A list that equals the one of the step before byte for byte (decoding: only ids, positions and tables
 * differ, and those are read from memory) is captured once and then launched as one graph.
 */
#include "device/device_cuda.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_OPS 24 /* shorter lists are not worth a graph */

static bool equals(const struct iso_queue *q, const struct iso_cuda_graph *g)
{
    return g->n_ops == q->n_ops && memcmp(&g->uploads, &q->uploads, sizeof(g->uploads)) == 0 &&
           memcmp(g->ops, q->ops, q->n_ops * sizeof(*q->ops)) == 0;
}

static void graph_clear(struct iso_cuda_graph *g)
{
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    free(g->ops);
    *g = {};
}

void iso_cuda_graphs_drop(struct iso_cuda_device *d)
{
    for (int i = 0; i < ISO_CUDA_GRAPHS; i++) graph_clear(&d->graph[i]);
    graph_clear(&d->last);
}

/* malloc, not iso_xalloc: a step must not allocate between two tokens, but a new kind of step (another
 * batch size, a context twice as long) is remembered once. */
static bool remember(struct iso_cuda_graph *g, const struct iso_queue *q)
{
    graph_clear(g);
    g->ops = (struct iso_cuda_op *)malloc(q->n_ops * sizeof(*q->ops));
    if (g->ops == NULL) return false;
    memcpy(g->ops, q->ops, q->n_ops * sizeof(*q->ops));
    g->n_ops = q->n_ops;
    g->uploads = q->uploads;
    return true;
}

static struct iso_cuda_graph *oldest(struct iso_cuda_device *d)
{
    struct iso_cuda_graph *g = &d->graph[0];
    for (int i = 1; i < ISO_CUDA_GRAPHS; i++) {
        if (d->graph[i].used < g->used) g = &d->graph[i];
    }
    return g;
}

/* Captures the list and launches it. */
static void launch_captured(struct iso_queue *q)
{
    struct iso_cuda_device *d = q->dev;
    struct iso_cuda_graph *g = oldest(d);
    cudaGraph_t graph = NULL;
    if (!ISO_CUDA_OK(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal))) return;
    iso_cuda_launch_all(q);
    if (!ISO_CUDA_OK(d, cudaStreamEndCapture(d->stream, &graph))) return;
    if (remember(g, q) && ISO_CUDA_OK(d, cudaGraphInstantiate(&g->exec, graph, 0))) {
        g->used = ++d->clock;
        ISO_CUDA_OK(d, cudaGraphLaunch(g->exec, d->stream));
    }
    (void)cudaGraphDestroy(graph);
}

static bool launch_known(struct iso_queue *q)
{
    struct iso_cuda_device *d = q->dev;
    for (int i = 0; i < ISO_CUDA_GRAPHS; i++) {
        struct iso_cuda_graph *g = &d->graph[i];
        if (g->exec == NULL || !equals(q, g)) continue;
        g->used = ++d->clock;
        d->n_graph_launches++;
        ISO_CUDA_OK(d, cudaGraphLaunch(g->exec, d->stream));
        return true;
    }
    return false;
}

void iso_cuda_flush(struct iso_queue *q)
{
    struct iso_cuda_device *d = q->dev;
    if (d->err == ISO_OK && q->n_ops > 0 && iso_cuda_ready_memory(q)) {
        q->launched = true;
        if (q->n_ops < GRAPH_OPS) {
            iso_cuda_launch_all(q);
        } else if (!launch_known(q)) {
            if (equals(q, &d->last)) {
                launch_captured(q);
            } else {
                iso_cuda_launch_all(q);
                (void)remember(&d->last, q);
            }
        }
        ISO_CUDA_OK(d, cudaGetLastError());
    }
    q->n_ops = 0;
    memset(&q->uploads, 0, sizeof(q->uploads));
}

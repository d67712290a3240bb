/* SPDX-License-Identifier: MIT
 * diff_report.c - the result of `isobit diff` as a few lines and as JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arith/lang.h"
#include "base/mem.h"
#include "cli/diff.h"

static const char *const region_name[ISO_DIFF_REGIONS] = {"k_hi", "k_lo", "v", "k_scale", "v_scale"};

/* How far a difference went. */
struct spread {
    size_t later;      /* tensors behind the first that differ too */
    size_t n_different; /* all tensors that differ */
    size_t positions, first, last;
};

static struct spread spread_of(const struct iso_diff_result *r)
{
    struct spread s = {0};
    for (size_t t = 0; t < r->n_tensors; t++) s.n_different += r->stat[t].n_different > 0;
    s.later = s.n_different > 0 ? s.n_different - 1 : 0;
    for (size_t p = 0; p < r->n; p++) {
        if (r->position[p] == 0) continue;
        if (s.positions++ == 0) s.first = p;
        s.last = p;
    }
    return s;
}

/* The two faces of a value: decimal and bits. */
struct shown {
    char decimal[32], bits[16];
};

static struct shown show_f32(uint32_t bits)
{
    struct shown s;
    (void)snprintf(s.decimal, sizeof(s.decimal), "%.9g", (double)iso_as_f32(bits));
    (void)snprintf(s.bits, sizeof(s.bits), "0x%08" PRIx32, bits);
    return s;
}

static struct shown show_page_value(enum iso_diff_region r, uint32_t bits)
{
    if (r == ISO_DIFF_K_SCALE || r == ISO_DIFF_V_SCALE) return show_f32(bits);
    struct shown s;
    const int v = r == ISO_DIFF_K_LO ? (int)bits : (int8_t)bits;
    (void)snprintf(s.decimal, sizeof(s.decimal), "%d", v);
    (void)snprintf(s.bits, sizeof(s.bits), r == ISO_DIFF_K_LO ? "0x%x" : "0x%02x", (unsigned)bits);
    return s;
}

/* --- for people ----------------------------------------------------------------------------------- */

static void print_sides(const struct iso_diff_options *o, const struct shown v[2])
{
    const int width = (int)ISO_MAX(strlen(o->spec[0]), strlen(o->spec[1]));
    for (int i = 0; i < 2; i++) {
        (void)printf("  %c  %-*s  %s  (%s)\n", 'A' + i, width, o->spec[i], v[i].decimal, v[i].bits);
    }
}

static void print_tensor(const struct iso_diff_result *r, const struct iso_diff_shape *shape,
                         const struct iso_diff_options *o)
{
    const size_t t = iso_diff_first(r);
    const struct iso_diff_stat *s = &r->stat[t];
    char name[48];
    (void)printf("first difference: %s, position %u, element %u\n",
                 iso_diff_tensor_name(name, &shape->tensor[t]), s->first_position, s->element);
    const struct shown v[2] = {show_f32(s->bits[0]), show_f32(s->bits[1])};
    print_sides(o, v);
    const int64_t ulp = iso_diff_ulp(s->bits[0], s->bits[1]);
    if (ulp >= 0) (void)printf("  %" PRId64 " ulp apart; ", ulp);
    else (void)printf("  not a number; ");
    (void)printf("%" PRIu64 " of %zu elements of this tensor differ, positions %u to %u\n", s->n_different,
                 shape->tensor[t].width * r->n, s->first_position, s->last_position);
    const struct spread far = spread_of(r);
    (void)printf("  spread: %zu of %zu later tensors, %zu of %zu positions (%zu to %zu)\n", far.later,
                 r->n_tensors - t - 1, far.positions, r->n, far.first, far.last);
}

static void print_page(const struct iso_diff_result *r, const struct iso_diff_options *o, bool leads)
{
    const struct iso_diff_page *p = &r->page;
    (void)printf("%s: layer %u, head %u, page %u, %s, position %u, element %u\n",
                 leads ? "first difference" : "first page", p->layer, p->head, p->page,
                 region_name[p->region], p->position, p->element);
    const struct shown v[2] = {show_page_value(p->region, p->bits[0]), show_page_value(p->region, p->bits[1])};
    print_sides(o, v);
    (void)printf("  %" PRIu64 " of %" PRIu64 " pages differ in %" PRIu64 " values\n", r->n_pages_different,
                 r->n_pages, r->n_values_different);
}

void iso_diff_print(const struct iso_diff_result *r, const struct iso_diff_shape *shape,
                    const struct iso_diff_options *o)
{
    if (iso_diff_equal(r)) {
        (void)printf("equal: ");
        if (r->has_tensors) {
            (void)printf("%zu tensors%s and ", r->n_tensors,
                         r->n_tensors < shape->n_tensors ? " (a dump has no logits)" : "");
        }
        (void)printf("%" PRIu64 " pages of %zu positions\n", r->n_pages, r->n - !r->has_tensors);
        return;
    }
    const bool tensor = iso_diff_first(r) < r->n_tensors;
    if (tensor) print_tensor(r, shape, o);
    if (r->n_pages_different > 0) print_page(r, o, !tensor);
    else (void)printf("pages: all %" PRIu64 " equal\n", r->n_pages);
}

/* --- for scripts ---------------------------------------------------------------------------------- */

static json_t *value_json(struct shown v)
{
    return json_pack("{s:s, s:s}", "decimal", v.decimal, "bits", v.bits);
}

static json_t *tensor_json(const struct iso_diff_result *r, const struct iso_diff_shape *shape)
{
    const size_t t = iso_diff_first(r);
    if (t == r->n_tensors) return json_null();
    const struct iso_diff_stat *s = &r->stat[t];
    const struct iso_diff_tensor *x = &shape->tensor[t];
    const int64_t ulp = iso_diff_ulp(s->bits[0], s->bits[1]);
    const struct spread far = spread_of(r);
    char name[48];
    return json_pack(
        "{s:s, s:i, s:i, s:o, s:o, s:o, s:I, s:I, s:i, s:i, s:{s:i, s:i, s:i, s:i, s:i}}", "tensor",
        iso_diff_tensor_name(name, x), "position", (int)s->first_position, "element", (int)s->element, "a",
        value_json(show_f32(s->bits[0])), "b", value_json(show_f32(s->bits[1])), "ulp",
        ulp < 0 ? json_null() : json_integer(ulp), "different", (json_int_t)s->n_different, "elements",
        (json_int_t)(x->width * r->n), "first_position", (int)s->first_position, "last_position",
        (int)s->last_position, "spread", "later_tensors", (int)far.later, "of", (int)(r->n_tensors - t - 1),
        "positions", (int)far.positions, "first_position", (int)far.first, "last_position", (int)far.last);
}

static json_t *page_json(const struct iso_diff_result *r)
{
    if (r->n_pages_different == 0) return json_null();
    const struct iso_diff_page *p = &r->page;
    return json_pack("{s:i, s:i, s:i, s:s, s:i, s:i, s:o, s:o}", "layer", (int)p->layer, "head", (int)p->head,
                     "page", (int)p->page, "region", region_name[p->region], "position", (int)p->position,
                     "element", (int)p->element, "a", value_json(show_page_value(p->region, p->bits[0])), "b",
                     value_json(show_page_value(p->region, p->bits[1])));
}

json_t *iso_diff_json(const struct iso_diff_result *r, const struct iso_diff_shape *shape,
                      const struct iso_diff_options *o)
{
    return json_pack("{s:b, s:s, s:s, s:i, s:{s:i, s:i, s:o}, s:{s:I, s:I, s:I, s:o}}", "equal",
                     (int)iso_diff_equal(r), "a", o->spec[0], "b", o->spec[1], "positions", (int)r->n,
                     "tensors", "compared", (int)r->n_tensors, "different", (int)spread_of(r).n_different,
                     "first", tensor_json(r, shape), "pages", "compared", (json_int_t)r->n_pages, "different",
                     (json_int_t)r->n_pages_different, "values", (json_int_t)r->n_values_different, "first",
                     page_json(r));
}

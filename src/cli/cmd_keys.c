/* SPDX-License-Identifier: MIT
 * cmd_keys.c - `isobit keys`: make this machine's node, exchange keys with others, revoke, list. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "handoff/ledger.h"
#include "node/node.h"

#define DIR_MAX 4096
#define SECONDS_PER_DAY 86400
#define SHOWN_PIN 32 /* hex digits that people compare: 128 bits, no second key will have them */

/* What the flags said, and the one argument. */
struct keys {
    const char *dir;
    const char *output;
    const char *pin;
    const char *arg;
    uint32_t days;
    bool ca, replace, new_key, json;
};

enum keys_flag {
    K_OUTPUT = 1,
    K_PIN = 2,
    K_DAYS = 4,
    K_CA = 8,
    K_REPLACE = 16,
    K_NEW_KEY = 32,
    K_JSON = 64
};

/* Small helpers --------------------------------------------------------- */

/* A pin as people write it (spaces, capitals) to plain hex. Owner: free(). */
static char *plain_pin(const char *text)
{
    if (text == NULL) return NULL;
    char *out = iso_xalloc(strlen(text) + 1, 1);
    size_t n = 0;
    for (; *text; text++) {
        if (!isspace((unsigned char)*text)) out[n++] = (char)tolower((unsigned char)*text);
    }
    return out;
}

/* "1a2b 3c4d ...": the first SHOWN_PIN digits in groups of four. */
static const char *shown_pin(char out[64], const struct iso_digest *pin)
{
    char hex[ISO_DIGEST_HEX];
    size_t n = 0;
    iso_digest_hex(hex, pin);
    for (size_t i = 0; i < SHOWN_PIN; i++) {
        if (i > 0 && i % 4 == 0) out[n++] = ' ';
        out[n++] = hex[i];
    }
    out[n] = '\0';
    return out;
}

static enum iso_err open_node(struct iso_node **out, const struct keys *k)
{
    return iso_node_open(out, k->dir);
}

/* A document goes to stdout, or to a new private file. */
static enum iso_err put_document(const struct keys *k, const struct iso_buf *doc)
{
    if (doc->len == 0) return ISO_OK;
    if (k->output == NULL || strcmp(k->output, "-") == 0) {
        if (fwrite(doc->data, 1, doc->len, stdout) != doc->len || fflush(stdout) != 0)
            ISO_FAIL(ISO_E_IO, "stdout: %s", strerror(errno));
        return ISO_OK;
    }
    const int fd = open(k->output, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) ISO_FAIL(ISO_E_IO, "%s: %s", k->output, strerror(errno));
    const ssize_t n = write(fd, doc->data, doc->len);
    const int closed = close(fd);
    if (n != (ssize_t)doc->len || closed != 0) ISO_FAIL(ISO_E_IO, "%s: cannot write", k->output);
    return ISO_OK;
}

static void say_own_pin(struct iso_node *node)
{
    struct iso_digest pin;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    char text[64];
    iso_node_identity(node, &pin, spki);
    (void)fprintf(stderr, "%s has the pin %s\n", iso_node_name(node), shown_pin(text, &pin));
}

static void say_peer(struct iso_node *node, const char *name)
{
    struct iso_peer peer;
    char text[64];
    if (iso_node_peer_by_name(node, &peer, name) != ISO_OK) return;
    (void)fprintf(stderr,
                  "enrolled %s with the pin %s\ncompare it with what `isobit keys list` shows "
                  "on that machine\n",
                  name, shown_pin(text, &peer.pin));
    iso_peer_wipe(&peer);
}

/* The first label of the host name, made a node name. */
static enum iso_err default_name(char out[ISO_NODE_NAME_MAX])
{
    char host[256] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        ISO_FAIL(ISO_E_IO, "host name: %s", strerror(errno));
    host[strcspn(host, ".")] = '\0';
    size_t n = 0;
    for (const char *p = host; *p && n < ISO_NODE_NAME_MAX - 1; p++) {
        const char c = (char)tolower((unsigned char)*p);
        const bool fine = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c == '-' && n > 0);
        if (fine) out[n++] = c;
    }
    out[n] = '\0';
    if (n == 0) ISO_FAIL(ISO_E_ARG, "the host name gives no node name: isobit keys init NAME");
    return ISO_OK;
}

/* Verbs ----------------------------------------------------------------- */

static enum iso_err do_init(const struct keys *k)
{
    char name[ISO_NODE_NAME_MAX];
    struct iso_node *node = NULL;
    const struct iso_node_opts opts = {.ca = k->ca, .days = (int)k->days};
    if (k->arg == NULL) ISO_TRY(default_name(name));
    ISO_TRY(iso_node_init(k->dir, k->arg ? k->arg : name, &opts));
    ISO_TRY(open_node(&node, k));
    (void)fprintf(stderr, "made node %s in %s%s\n", iso_node_name(node), k->dir,
                  k->ca ? ", with the CA of your machines" : "");
    say_own_pin(node);
    if (!k->ca)
        (void)fprintf(
            stderr,
            "next: isobit keys request -o %s.request, and take the file to the CA machine\n",
            iso_node_name(node));
    iso_node_free(node);
    return ISO_OK;
}

static enum iso_err do_request(const struct keys *k)
{
    struct iso_node *node = NULL;
    struct iso_buf doc;
    ISO_TRY(open_node(&node, k));
    iso_buf_init(&doc, ISO_NODE_DOC_MAX);
    enum iso_err err = iso_node_request(node, &doc);
    if (err == ISO_OK) err = put_document(k, &doc);
    if (err == ISO_OK) say_own_pin(node);
    iso_buf_deinit(&doc);
    iso_node_free(node);
    return err;
}

/* Both take a document and may answer with one. */
static enum iso_err with_document(const struct keys *k, bool issue)
{
    struct iso_node *node = NULL;
    struct iso_buf in;
    struct iso_buf out;
    char who[ISO_NODE_NAME_MAX] = "";
    char *pin = plain_pin(k->pin);
    const struct iso_node_opts opts = {
        .days = (int)k->days, .replace = k->replace, .expect_pin = pin};
    iso_buf_init(&out, ISO_NODE_DOC_MAX);
    enum iso_err err = iso_cli_read(&in, k->arg, ISO_NODE_DOC_MAX);
    const char *doc = (const char *)in.data;
    if (err == ISO_OK) err = open_node(&node, k);
    if (err == ISO_OK && issue) err = iso_node_issue(node, &out, who, doc, in.len, &opts);
    if (err == ISO_OK && !issue) err = iso_node_enroll(node, &out, who, doc, in.len, &opts);
    if (err == ISO_OK) err = put_document(k, &out);
    if (err == ISO_OK && who[0] != '\0') say_peer(node, who);
    if (err == ISO_OK && issue)
        (void)fprintf(stderr, "take the answer back; there: isobit keys enroll FILE\n");
    if (err == ISO_OK && !issue && out.len == 0 && who[0] == '\0')
        (void)fprintf(stderr, "revocation list taken over\n");
    iso_node_free(node);
    iso_buf_deinit(&in);
    iso_buf_deinit(&out);
    free(pin);
    return err;
}

static enum iso_err do_issue(const struct keys *k)
{
    return with_document(k, true);
}

static enum iso_err do_enroll(const struct keys *k)
{
    return with_document(k, false);
}

static enum iso_err do_revoke(const struct keys *k)
{
    struct iso_node *node = NULL;
    ISO_TRY(open_node(&node, k));
    const enum iso_err err = iso_node_revoke(node, k->arg);
    if (err == ISO_OK && iso_node_is_ca(node))
        (void)fprintf(stderr,
                      "revoked %s; the other machines learn it from the list: isobit keys crl -o "
                      "revoked.pem here, isobit keys enroll revoked.pem there\n",
                      k->arg);
    else if (err == ISO_OK)
        (void)fprintf(
            stderr, "revoked %s on this machine; only the CA machine can revoke for all\n", k->arg);
    iso_node_free(node);
    return err;
}

static enum iso_err do_rotate(const struct keys *k)
{
    struct iso_node *node = NULL;
    struct iso_buf doc;
    const struct iso_node_opts opts = {.days = (int)k->days};
    ISO_TRY(open_node(&node, k));
    iso_buf_init(&doc, ISO_NODE_DOC_MAX);
    enum iso_err err = iso_node_rotate(node, &doc, k->new_key, &opts);
    if (err == ISO_OK) err = put_document(k, &doc);
    if (err == ISO_OK && doc.len == 0)
        (void)fprintf(stderr, "new certificate for %" PRId64 " days%s\n", iso_node_days_left(node),
                      k->new_key ? "; every peer must enrol this node anew: isobit keys request"
                                 : "");
    if (err == ISO_OK && doc.len > 0)
        (void)fprintf(
            stderr, "take the request to the CA machine%s; the old %s stays in use until then\n",
            k->new_key ? " (isobit keys issue --replace)" : "", k->new_key ? "key" : "certificate");
    iso_buf_deinit(&doc);
    iso_node_free(node);
    return err;
}

static enum iso_err do_crl(const struct keys *k)
{
    struct iso_node *node = NULL;
    struct iso_buf pem;
    ISO_TRY(open_node(&node, k));
    iso_buf_init(&pem, ISO_NODE_DOC_MAX);
    enum iso_err err = iso_node_crl(node, &pem);
    if (err == ISO_OK) err = put_document(k, &pem);
    iso_buf_deinit(&pem);
    iso_node_free(node);
    return err;
}

static enum iso_err do_renew_ledger(const struct keys *k)
{
    struct iso_node *node = NULL;
    ISO_TRY(open_node(&node, k));
    const enum iso_err err = iso_ledger_renew(node, NULL);
    if (err == ISO_OK)
        (void)fprintf(stderr,
                      "new ledger identity; every peer must enrol this node anew with --replace\n");
    iso_node_free(node);
    return err;
}

/* List ------------------------------------------------------------------ */

static int64_t days_until(int64_t when_s)
{
    return (when_s - iso_clock_wall_s()) / SECONDS_PER_DAY;
}

static json_t *peer_json(const struct iso_peer *p)
{
    char pin[ISO_DIGEST_HEX];
    iso_digest_hex(pin, &p->pin);
    return json_pack("{s:s, s:s, s:I, s:I, s:b}", "name", p->name, "pin", pin, "enrolled_s",
                     (json_int_t)p->enrolled_s, "certificate_days",
                     (json_int_t)days_until(p->cert_expires_s), "revoked", (int)p->revoked);
}

static enum iso_err list_json(struct iso_node *node, const struct iso_peer *peers, size_t n)
{
    struct iso_digest pin;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    char hex[ISO_DIGEST_HEX];
    struct iso_buf text;
    iso_node_identity(node, &pin, spki);
    iso_digest_hex(hex, &pin);
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) (void)json_array_append_new(rows, peer_json(&peers[i]));
    const bool ready = iso_node_ready(node) == ISO_OK;
    json_t *obj = json_pack(
        "{s:s, s:s, s:b, s:o, s:o}", "name", iso_node_name(node), "pin", hex, "ca",
        (int)iso_node_is_ca(node), "certificate_days",
        ready ? json_integer((json_int_t)iso_node_days_left(node)) : json_null(), "peers", rows);
    if (obj == NULL) ISO_FAIL(ISO_E_NOMEM, "no memory for the list");
    iso_buf_init(&text, 1u << 20);
    enum iso_err err = iso_json_canonical(&text, obj);
    if (err == ISO_OK && puts((const char *)text.data) < 0) err = ISO_E_IO;
    iso_buf_deinit(&text);
    json_decref(obj);
    return err;
}

static enum iso_err list_text(struct iso_node *node, const struct iso_peer *peers, size_t n)
{
    struct iso_digest own;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    char pin[64];
    iso_node_identity(node, &own, spki);
    (void)printf("%-16s %s  this node%s", iso_node_name(node), shown_pin(pin, &own),
                 iso_node_is_ca(node) ? ", CA" : "");
    if (iso_node_ready(node) == ISO_OK)
        (void)printf(", certificate for %" PRId64 " days\n", iso_node_days_left(node));
    else
        (void)printf(", not ready: %s\n", iso_err_message());
    for (size_t i = 0; i < n; i++) {
        (void)printf("%-16s %s  %s", peers[i].name, shown_pin(pin, &peers[i].pin),
                     peers[i].revoked ? "REVOKED" : "peer");
        (void)printf(", certificate at enrolment for %" PRId64 " more days\n",
                     days_until(peers[i].cert_expires_s));
    }
    if (fflush(stdout) != 0) ISO_FAIL(ISO_E_IO, "stdout: %s", strerror(errno));
    return ISO_OK;
}

static enum iso_err do_list(const struct keys *k)
{
    struct iso_node *node = NULL;
    struct iso_peer *peers = NULL;
    size_t n = 0;
    ISO_TRY(open_node(&node, k));
    enum iso_err err = iso_node_peers(node, &peers, &n);
    if (err == ISO_OK) err = k->json ? list_json(node, peers, n) : list_text(node, peers, n);
    iso_node_peers_free(peers, n);
    iso_node_free(node);
    return err;
}

/* Command line ---------------------------------------------------------- */

struct verb {
    const char *name;
    const char *line;
    const char *what;
    enum iso_err (*run)(const struct keys *);
    unsigned flags;
    size_t min_args, max_args;
};

static const struct verb VERBS[] = {
    {"init", "isobit keys init [NAME] [--ca] [options]",
     "Makes this machine's node: its private key, and with --ca the CA of all your machines.",
     do_init, K_CA | K_DAYS, 0, 1},
    {"request", "isobit keys request [-o FILE]",
     "Writes this node's request for the CA machine, or for a peer that has a certificate too.",
     do_request, K_OUTPUT, 0, 0},
    {"issue", "isobit keys issue REQUEST [-o GRANT] [options]",
     "On the CA machine: gives the requesting node a certificate, enrols it, writes the answer.",
     do_issue, K_OUTPUT | K_DAYS | K_REPLACE | K_PIN, 1, 1},
    {"enroll", "isobit keys enroll FILE [-o GRANT] [options]",
     "Takes in a grant, a revocation list, or the request of a node that has a certificate.",
     do_enroll, K_OUTPUT | K_REPLACE | K_PIN, 1, 1},
    {"revoke", "isobit keys revoke NODE|SERIAL",
     "Refuses a node from now on; on the CA machine its certificates go on the revocation list.",
     do_revoke, 0, 1, 1},
    {"rotate", "isobit keys rotate [--new-key] [-o FILE]",
     "Renews the certificate (pins stay valid), or with --new-key the key itself.", do_rotate,
     K_OUTPUT | K_DAYS | K_NEW_KEY, 0, 0},
    {"crl", "isobit keys crl [-o FILE]",
     "Writes the revocation list, to carry it to other machines.", do_crl, K_OUTPUT, 0, 0},
    {"renew-ledger", "isobit keys renew-ledger",
     "Gives the hand-off ledger a new identity after its file was lost.", do_renew_ledger, 0, 0, 0},
    {"list", "isobit keys list [--json]", "Shows this node and the nodes it is enrolled with.",
     do_list, K_JSON, 0, 0},
};

static int usage(FILE *f)
{
    (void)fprintf(f, "usage: isobit keys VERB [--dir DIR] ...; isobit keys VERB --help\n\n");
    for (size_t i = 0; i < ISO_COUNT(VERBS); i++)
        (void)fprintf(f, "  %-14s %s\n", VERBS[i].name, VERBS[i].what);
    return f == stdout ? 0 : 2;
}

/* The options of one verb, from those of all. */
static enum iso_err parse(struct keys *k, bool *help, const struct verb *v, int argc, char **argv)
{
    const struct {
        unsigned flag;
        struct iso_opt opt;
    } all[] = {
        {0,
         {"dir", 0, ISO_OPT_STRING, &k->dir, "DIR",
          "node directory (default: $XDG_CONFIG_HOME/isobit or ~/.isobit)", 0, 0}},
        {K_OUTPUT,
         {"output", 'o', ISO_OPT_STRING, &k->output, "FILE", "write here (default: stdout)", 0, 0}},
        {K_CA,
         {"ca", 0, ISO_OPT_FLAG, &k->ca, NULL, "make the CA here; on one machine only", 0, 0}},
        {K_DAYS,
         {"days", 0, ISO_OPT_U32, &k->days, "N", "life of the certificate (default 730)", 1,
          ISO_NODE_CA_DAYS}},
        {K_REPLACE,
         {"replace", 0, ISO_OPT_FLAG, &k->replace, NULL,
          "the node has a new key or ledger, and its owner said so", 0, 0}},
        {K_PIN,
         {"pin", 0, ISO_OPT_STRING, &k->pin, "HEX",
          "refuse unless the other's pin begins so (16 digits or more)", 0, 0}},
        {K_NEW_KEY,
         {"new-key", 0, ISO_OPT_FLAG, &k->new_key, NULL, "make a new private key", 0, 0}},
        {K_JSON, {"json", 0, ISO_OPT_FLAG, &k->json, NULL, "for programs", 0, 0}},
    };
    struct iso_opt options[ISO_COUNT(all) + 1] = {{0}};
    size_t n = 0;
    for (size_t i = 0; i < ISO_COUNT(all); i++) {
        if (all[i].flag == 0 || (v->flags & all[i].flag)) options[n++] = all[i].opt;
    }
    const struct iso_usage u = {.line = v->line, .what = v->what, .options = options};
    ISO_TRY(iso_options_parse(&k->arg, v->min_args, v->max_args, help, argc, argv, &u));
    return ISO_OK;
}

static enum iso_err run_verb(const struct verb *v, int argc, char **argv)
{
    struct keys k = {0};
    struct iso_buf dir;
    bool help = false;
    ISO_TRY(parse(&k, &help, v, argc, argv));
    if (help) return ISO_OK;
    iso_buf_init(&dir, DIR_MAX);
    enum iso_err err = k.dir ? ISO_OK : iso_node_default_dir(&dir);
    if (err == ISO_OK) {
        if (k.dir == NULL) k.dir = (const char *)dir.data;
        err = v->run(&k);
    }
    iso_buf_deinit(&dir);
    return err;
}

int iso_cmd_keys(int argc, char **argv)
{
    if (argc < 2) return usage(stderr);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return usage(stdout);
    for (size_t i = 0; i < ISO_COUNT(VERBS); i++) {
        if (strcmp(VERBS[i].name, argv[1]) != 0) continue;
        const enum iso_err err = run_verb(&VERBS[i], argc - 1, argv + 1);
        return err == ISO_OK ? 0 : iso_cli_fail(err);
    }
    (void)fprintf(stderr, "isobit: keys has no verb '%s'\n", argv[1]);
    return usage(stderr);
}

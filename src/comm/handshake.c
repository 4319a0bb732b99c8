#include "src/comm/handshake.h"

#include "base/sha256.h"
#include "tide_config.h"

#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { PROTOCOL = 1, BYTE_ORDER_MARK = 0x01020304 };

static const char magic[] = "tidecomm";

static_assert(sizeof(tide_handshake) == 128, "the size is the same in all versions");
static_assert(sizeof magic == sizeof((tide_handshake *)0)->magic + 1, "the magic number has 8 letters");
static_assert(sizeof TIDE_VERSION <= sizeof((tide_handshake *)0)->version, "the version fits");
static_assert(TIDE_SHA256_BYTES == sizeof((tide_handshake *)0)->token, "the token's hash fits");

tide_handshake tide_handshake_make(const tide_comm_socket_options *options)
{
    const char *token = options->token == NULL ? "" : options->token;
    tide_handshake own = {.byte_order = BYTE_ORDER_MARK,
                          .protocol = PROTOCOL,
                          .version = TIDE_VERSION,
                          .rank = options->rank,
                          .ranks = options->ranks,
                          .fingerprint = options->fingerprint};
    memcpy(own.magic, magic, sizeof own.magic);
    tide_sha256 hash;
    tide_sha256_begin(&hash);
    tide_sha256_add(&hash, magic, sizeof magic);
    tide_sha256_add(&hash, token, strlen(token));
    tide_sha256_end(&hash, own.token);
    return own;
}

bool tide_handshake_is_ours(const tide_handshake *own, const tide_handshake *other)
{
    return memcmp(own->magic, other->magic, sizeof own->magic) == 0 &&
           memcmp(own->token, other->token, sizeof own->token) == 0;
}

tide_status tide_handshake_check(const tide_handshake *own, const tide_handshake *other, const char *host)
{
    assert(tide_handshake_is_ours(own, other));
    if (other->byte_order != own->byte_order)
        return tide_fail(TIDE_ERROR_PEER, "the rank at %s has another byte order than rank %u", host,
                         own->rank);
    if (other->protocol != own->protocol || memcmp(other->version, own->version, sizeof own->version) != 0)
        return tide_fail(TIDE_ERROR_PEER,
                         "rank %u (%s) runs tidepool %.16s, protocol %u, where rank %u runs %s, protocol %u",
                         other->rank, host, other->version, other->protocol, own->rank, own->version,
                         own->protocol);
    if (other->ranks != own->ranks)
        return tide_fail(TIDE_ERROR_PEER, "rank %u (%s) is one of %u ranks, where rank %u is one of %u",
                         other->rank, host, other->ranks, own->rank, own->ranks);
    if (other->rank >= own->ranks || other->channel >= TIDE_CHANNELS)
        return tide_fail(TIDE_ERROR_PEER, "the rank at %s sends rank %u, channel %u: there are %u ranks",
                         host, other->rank, other->channel, own->ranks);
    if (other->fingerprint != own->fingerprint)
        return tide_fail(TIDE_ERROR_PEER,
                         "rank %u (%s) has fingerprint %016" PRIx64 ", where rank %u has %016" PRIx64
                         ": their models or options differ",
                         other->rank, host, other->fingerprint, own->rank, own->fingerprint);
    return TIDE_OK;
}

tide_start_answer tide_start_answer_make(tide_status status)
{
    tide_start_answer answer = {.has_failed = status != TIDE_OK};
    if (status != TIDE_OK)
        snprintf(answer.reason, sizeof answer.reason, "%s", tide_message());
    return answer;
}

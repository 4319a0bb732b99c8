/* SHA-256 against the values of FIPS 180 and of Python's hashlib. */
#include "base/sha256.h"

#include "tests/support/assert_ok.h"

#include <stdio.h>

static void assert_digest(const uint8_t digest[TIDE_SHA256_BYTES], const char *hexadecimal)
{
    char text[2 * TIDE_SHA256_BYTES + 1];
    for (int i = 0; i < TIDE_SHA256_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(text, hexadecimal);
}

static void sha256_has_the_values_of_fips_180(void **unused)
{
    static const struct {
        const char *message;
        uint32_t times;
        const char *digest;
    } cases[] = {
        {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmno"
         "pqrs"
         "tnopqrstu",
         1, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
        {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t digest[TIDE_SHA256_BYTES];
        tide_sha256 hash;
        tide_sha256_begin(&hash);
        for (uint32_t time = 0; time < cases[i].times; time++)
            tide_sha256_add(&hash, cases[i].message, strlen(cases[i].message));
        tide_sha256_end(&hash, digest);
        assert_digest(digest, cases[i].digest);
    }
}

/* The digest of the digests of 201 messages, of 0 to 200 bytes, by Python's hashlib. */
static void sha256_of_any_length_does_not_depend_on_the_pieces(void **unused)
{
    for (uint32_t most = 1; most <= 200; most += most < 4 ? 1 : 49) {
        tide_sha256 all;
        uint8_t digest[TIDE_SHA256_BYTES];
        tide_sha256_begin(&all);
        for (uint32_t bytes = 0; bytes <= 200; bytes++) {
            uint8_t message[200];
            uint32_t pieces = 0;
            tide_sha256 hash;
            for (uint32_t i = 0; i < bytes; i++)
                message[i] = (uint8_t)(i * i + 31 * bytes + 7);
            tide_sha256_begin(&hash);
            for (uint32_t done = 0, part; done < bytes; done += part) {
                part = (7 * pieces++ + bytes) % (most + 1); /* 0 is allowed */
                part = part < bytes - done ? part : bytes - done;
                tide_sha256_add(&hash, message + done, part);
            }
            tide_sha256_end(&hash, digest);
            tide_sha256_add(&all, digest, sizeof digest);
        }
        tide_sha256_end(&all, digest);
        assert_digest(digest, "dc267fd4ca69a4b77484b6f31777b31e53778f73fc41f20d0ee3485b1800474b");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_has_the_values_of_fips_180),
        cmocka_unit_test(sha256_of_any_length_does_not_depend_on_the_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

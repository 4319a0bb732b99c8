/* Folders of weights that are damaged or another model's are refused at opening, in one line that names
 * the file and the tensor. */
#include "tests/files/test_weights.h"

#include <sys/stat.h>

/* ---- refusals of one file ---- */

#define AT "/model.safetensors: "

static void a_file_that_is_not_sound_or_not_the_models_is_refused(void **state)
{
    const scratch *at = *state;
    static const struct {
        const char *header;
        size_t data_bytes;
        tide_status status;
        const char *line;
    } cases[] = {
        {"[]", 0, TIDE_ERROR_CORRUPT, AT "its header is not a JSON object"},
        {"{" EMBED, 24, TIDE_ERROR_CORRUPT,
         AT "its header is not sound JSON at byte 67: '}' expected near end of file"},
        {"{\"a\n\":1}", 0, TIDE_ERROR_CORRUPT,
         AT "its header is not sound JSON at byte 3: unexpected newline near '\"a'"},
        {"{" EMBED "," EMBED "}", 24, TIDE_ERROR_CORRUPT,
         AT "its header is not sound JSON at byte 82: duplicate object key near '\"embed.weight\"'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8,
         TIDE_ERROR_CORRUPT,
         AT "its header is not sound JSON at byte 39: duplicate object key near '\"dtype\"'"},
        {"{\"a\":1}", 0, TIDE_ERROR_CORRUPT, AT "tensor a lacks a sound dtype, shape or data_offsets"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, TIDE_ERROR_CORRUPT,
         AT "tensor a lacks a sound dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, TIDE_ERROR_CORRUPT,
         AT "tensor a lacks a sound dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8,
         TIDE_ERROR_CORRUPT, AT "tensor a lacks a sound dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, TIDE_ERROR_CORRUPT,
         AT "tensor a lacks a sound dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, TIDE_ERROR_CORRUPT,
         AT "tensor a lacks a sound dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,7]}}", 7, TIDE_ERROR_CORRUPT,
         AT "tensor a has 7 bytes, its shape and dtype F32 need 8"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, TIDE_ERROR_CORRUPT,
         AT "tensor a has 8 bytes, its shape and dtype I64 need 16"},
        {SMALL, 37, TIDE_ERROR_CORRUPT,
         AT "truncated, its header describes 38 bytes of data and there are 37"},
        {SMALL, 39, TIDE_ERROR_CORRUPT,
         AT "too long, its header describes 38 bytes of data and there are 39"},
        {"{" EMBED ",\"norm.bias\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[22,30]}}", 30,
         TIDE_ERROR_CORRUPT, AT "tensors embed.weight and norm.bias overlap at byte 22 of its data"},
        {"{" EMBED ",\"norm.bias\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[26,34]}}", 34,
         TIDE_ERROR_CORRUPT, AT "a gap of 2 bytes before tensor norm.bias at byte 26 of its data"},
        {"{" EMBED "," NORM "}", 32, TIDE_ERROR_MISMATCH, AT "tensor head.weight of shape [3, 1] is missing"},
        {"{" EMBED "}", 24, TIDE_ERROR_MISMATCH, AT "tensor norm.bias of shape [4] is missing, and 1 other"},
        {"{" EMBED "," NORM "," HEAD ",\"tail\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[38,42]}}",
         42, TIDE_ERROR_MISMATCH, AT "tensor tail is none of the model's 3"},
        {"{" NORM "," HEAD ",\"embed.weight\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]}}",
         38, TIDE_ERROR_MISMATCH, AT "tensor embed.weight has shape [3, 2], it must be [2, 3]"},
        {"{" NORM "," HEAD
         ",\"embed.weight\":{\"dtype\":\"F32\",\"shape\":[2,3,1,1,1],\"data_offsets\":[0,24]}}",
         38, TIDE_ERROR_MISMATCH, AT "tensor embed.weight has shape [2, 3, 1, 1, ...], it must be [2, 3]"},
        {"{" NORM "," HEAD ",\"embed.weight\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}", 38,
         TIDE_ERROR_MISMATCH, AT "tensor embed.weight has shape [6], it must be [2, 3]"},
        {"{\"norm.bias\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
         TIDE_ERROR_UNSUPPORTED, AT "tensor norm.bias has dtype F8_E4M3, it must be BF16, F16 or F32"},
        {"{\"norm.bias\":{\"dtype\":\"I64\",\"shape\":[4],\"data_offsets\":[0,32]}}", 32,
         TIDE_ERROR_UNSUPPORTED, AT "tensor norm.bias has dtype I64, it must be BF16, F16 or F32"},
        {"{\"norm.bias\":{\"dtype\":\"\\u001b[1m\",\"shape\":[4],\"data_offsets\":[0,32]}}", 32,
         TIDE_ERROR_UNSUPPORTED, AT "tensor norm.bias has dtype ?[1m, it must be BF16, F16 or F32"},
        {"{\"x\\ny\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, TIDE_ERROR_MISMATCH,
         AT "tensor x?y is none of the model's 3"},
        {"{}", 0, TIDE_ERROR_MISMATCH, AT "tensor embed.weight of shape [2, 3] is missing, and 2 others"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_single(at->root, cases[i].header, NULL, cases[i].data_bytes);
        assert_refused(at->root, &small, cases[i].status, cases[i].line);
    }
}

static void a_file_that_is_no_safetensors_file_is_refused(void **state)
{
    const scratch *at = *state;
    put_text(at->root, "model.safetensors", "1234567");
    assert_refused(at->root, &small, TIDE_ERROR_CORRUPT, AT "truncated, it has 7 bytes");
    put_text(at->root, "model.safetensors",
             "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    assert_refused(at->root, &small, TIDE_ERROR_CORRUPT,
                   AT "this is Git LFS's pointer to the file, get the file itself (git lfs pull)");
    put(tide_files_posix(), at->root, "model.safetensors", "\x01\xe1\xf5\x05\0\0\0\0{}", 10);
    assert_refused(at->root, &small, TIDE_ERROR_CORRUPT,
                   AT
                   "not a safetensors file, its header would have 100000001 bytes, at most 100000000 may be");
    put(tide_files_posix(), at->root, "model.safetensors", "\x03\0\0\0\0\0\0\0{}", 10);
    assert_refused(at->root, &small, TIDE_ERROR_CORRUPT,
                   AT "truncated, its header needs 3 bytes and there are 2");
}

static void a_folder_without_such_weights_is_refused(void **state)
{
    const scratch *at = *state;
    char path[128];
    assert_refused(at->root, &small, TIDE_ERROR_IO,
                   ": neither model.safetensors nor model.safetensors.index.json is there");
    put_text(at->root, "config.json", "{}");
    assert_refused(at->root, &small, TIDE_ERROR_IO,
                   ": neither model.safetensors nor model.safetensors.index.json is there");
    put_text(at->root, "pytorch_model.bin", "");
    assert_refused(at->root, &small, TIDE_ERROR_UNSUPPORTED,
                   ": only pytorch_model.bin is there, convert it to model.safetensors first");
    put_text(at->root, "llama.gguf", "");
    assert_refused(at->root, &small, TIDE_ERROR_UNSUPPORTED,
                   ": only llama.gguf is there, convert it to model.safetensors first");
    put_text(at->root, "consolidated.safetensors", "");
    assert_refused(at->root, &small, TIDE_ERROR_UNSUPPORTED,
                   ": consolidated.safetensors is there without model.safetensors.index.json, and it must be "
                   "that or be called model.safetensors");
    snprintf(path, sizeof path, "%s/model.safetensors", at->root);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_refused(at->root, &small, TIDE_ERROR_IO, "/model.safetensors: can't be opened: Is a directory");
    assert_refused("/tmp/tidepool-weights-nowhere", &small, TIDE_ERROR_IO,
                   ": can't be opened: No such file or directory");
    put_text(at->root, "file", "");
    snprintf(path, sizeof path, "%s/file", at->root);
    assert_refused(path, &small, TIDE_ERROR_IO, "/model.safetensors: can't be opened: Not a directory");
}

static void a_link_that_leads_nowhere_is_refused_as_one(void **state)
{
    const scratch *at = *state;
    char path[128];
    put_text(at->root, "consolidated.safetensors", "");
    snprintf(path, sizeof path, "%s/" INDEX, at->root);
    assert_int_equal(symlink("../blobs/gone", path), 0);
    assert_refused(at->root, &small, TIDE_ERROR_IO,
                   "/" INDEX ": a link that leads nowhere, it must be the file or lead to it");
    snprintf(path, sizeof path, "%s/model.safetensors", at->root);
    assert_int_equal(symlink("../blobs/gone", path), 0);
    assert_refused(at->root, &small, TIDE_ERROR_IO,
                   AT "a link that leads nowhere, it must be the file or lead to it");
}

/* ---- refusals of shards ---- */

static void shards_that_are_not_as_the_index_says_are_refused(void **state)
{
    const scratch *at = *state;
    static const struct {
        const char *index, *one, *two;
        size_t one_bytes, two_bytes;
        tide_status status;
        const char *line;
    } cases[] = {
        {"{\"weight_map\":7}", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT,
         "/" INDEX ": it has no weight_map of tensors and files"},
        {"{\"weight_map\":{}}", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT,
         "/" INDEX ": it has no weight_map of tensors and files"},
        {"[1]", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT, "/" INDEX ": it is not a JSON object"},
        {"{\"weight_map\":{" MAPS ",\"norm.bias\":\"" SHARD_ONE "\"}}", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT,
         "/" INDEX ": it is not sound JSON at byte 172: duplicate object key near '\"norm.bias\"'"},
        {"{\"weight_map\":{\"a\":3}}", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT,
         "/" INDEX ": the file of tensor a is not a text, it must be a name inside the folder"},
        {"{\"weight_map\":{\"a\":\"../" SHARD_ONE "\"}}", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT,
         "/" INDEX ": the file of tensor a is ../" SHARD_ONE ", it must be a name inside the folder"},
        {"{\"weight_map\":{\"a\":\"..\"}}", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT,
         "/" INDEX ": the file of tensor a is .., it must be a name inside the folder"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT,
         "/" INDEX ": the file of tensor a is /etc/passwd, it must be a name inside the folder"},
        {"{\"weight_map\":{\"a\":\"x\\u001b[1m\\n\"}}", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT,
         "/" INDEX ": the file of tensor a is x?[1m?, it must be a name inside the folder"},
        {"{\"weight_map\":{\"a\":\"\"}}", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT,
         "/" INDEX ": the file of tensor a is , it must be a name inside the folder"},
        {"{\"weight_map\":{\"a\":\"gone.safetensors\"}}", ONE, TWO, 32, 6, TIDE_ERROR_IO,
         "/gone.safetensors: can't be opened: No such file or directory"},
        {"{\"weight_map\":{" MAPS ",\"tail\":\"" SHARD_TWO "\"}}", ONE, TWO, 32, 6, TIDE_ERROR_CORRUPT,
         "/" SHARD_TWO ": tensor tail is missing, " INDEX " places it here"},
        {"{\"weight_map\":{" MAPS ",\"__metadata__\":\"" SHARD_TWO "\"}}", ONE, TWO, 32, 6,
         TIDE_ERROR_CORRUPT, "/" SHARD_TWO ": tensor __metadata__ is missing, " INDEX " places it here"},
        {"{\"weight_map\":{\"embed.weight\":\"" SHARD_ONE "\",\"head.weight\":\"" SHARD_TWO "\"}}", ONE, TWO,
         32, 6, TIDE_ERROR_CORRUPT, "/" SHARD_ONE ": tensor norm.bias is here, and " INDEX " lacks it"},
        {MAP, ONE,
         "{\"head.weight\":{\"dtype\":\"F16\",\"shape\":[3,1],\"data_offsets\":[0,6]},\"norm.bias\":{"
         "\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[6,14]}}",
         32, 14, TIDE_ERROR_CORRUPT,
         "/" SHARD_TWO ": tensor norm.bias is here, and " INDEX " places it in " SHARD_ONE},
        {"{\"weight_map\":{\"embed.weight\":\"" SHARD_ONE "\",\"norm.bias\":\"" SHARD_ONE "\"}}", ONE, TWO,
         32, 6, TIDE_ERROR_MISMATCH, "/" INDEX ": tensor head.weight of shape [3, 1] is missing"},
        {MAP, ONE, TWO, 32, 5, TIDE_ERROR_CORRUPT,
         "/" SHARD_TWO ": truncated, its header describes 6 bytes of data and there are 5"},
        {MAP, ONE, "{\"head.weight\":{\"dtype\":\"F16\",\"shape\":[1,3],\"data_offsets\":[0,6]}}", 32, 6,
         TIDE_ERROR_MISMATCH, "/" SHARD_TWO ": tensor head.weight has shape [1, 3], it must be [3, 1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_text(at->root, INDEX, cases[i].index);
        put_tensors(tide_files_posix(), at->root, SHARD_ONE, cases[i].one, NULL, cases[i].one_bytes);
        put_tensors(tide_files_posix(), at->root, SHARD_TWO, cases[i].two, NULL, cases[i].two_bytes);
        assert_refused(at->root, &small, cases[i].status, cases[i].line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scratch(a_file_that_is_not_sound_or_not_the_models_is_refused),
        in_scratch(a_file_that_is_no_safetensors_file_is_refused),
        in_scratch(a_folder_without_such_weights_is_refused),
        in_scratch(a_link_that_leads_nowhere_is_refused_as_one),
        in_scratch(shards_that_are_not_as_the_index_says_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

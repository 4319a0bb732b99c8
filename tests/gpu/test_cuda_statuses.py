#!/usr/bin/env python3
"""Checks that no status of a CUDA call is dropped: the result of every call of a cuda*, cu* or cublasLt*
function, and of every call through the driver's table, has to be used. A call whose result is dropped begins
a statement, alone or behind (void); the script looks for such calls in all sources of the CUDA device, its
kernels and its module.

usage: test_cuda_statuses.py SOURCE      prints TAP
"""
import pathlib
import re
import sys

# A runtime, driver or cuBLASLt function, or a member of tide_cuda_driver called through a pointer.
CALL = r'(?:(?:cuda|cublasLt|cu)[A-Z]\w*|(?:[A-Za-z_]\w*(?:->|\.))*driver(?:->|\.)\w+)\s*\('
# The text before the beginning of a statement ends in one of these: another statement, `else` or `do`, a
# label. CONDITION and CAST match a condition or a cast in front of the call.
BEGIN = re.compile(r'(?:^|[;{}]|\b(?:else|do)|(?:^|[;{}])\s*(?:case\b[^;{}?]*|[A-Za-z_]\w*)\s*:)$')
CONDITION = re.compile(r'\b(?:if|for|while|switch)\s*$')
CAST = re.compile(r'\(\s*void\s*\)\s*!?$')
# The comma operator drops all operands but its last. In TIDE_CUDA_LAUNCH the first operand is a launch,
# which is no call.
COMMA = re.compile(r'\(\s*' + CALL + r'[^()]*(?:\([^()]*\)[^()]*)*\)\s*,\s*\w+\s*\(')
# Names that are no statuses: functions that return an error's text, and types.
VALUES = ('cudaGetErrorName', 'cudaGetErrorString', 'cublasLtGetStatusName', 'cublasLtGetStatusString', 'cublasLtGetVersion',
          'cudaStream_t', 'cudaError_t', 'cudaEvent_t')
LAUNCH = re.compile(r'<<<')

SAMPLE = '''
void dropped(cudaStream_t stream)
{
    cudaStreamDestroy(stream);                               // 4
    (void)cudaFree(NULL);                                    // 5
    if (stream != NULL)
        cudaStreamSynchronize(stream);                       // 7
    for (;;) cudaEventQuery(event);                          // 8
    else cublasLtDestroy(handle);                            // 9
    device->driver.unmap(place, bytes);                      // 10
undo:
    driver->release(handle);                                 // 12
    cuMemRelease(
        handle);                                             // 13
    (void)!cudaEventDestroy(event);                          // 15
    do cudaGetLastError(); while (0);                        // 16
    kernel<<<1, 1, 0, stream>>>(memory);                     // 17
    return (cudaEventRecord(event, stream), tide_ok(0));     // 18
    switch (kind) { case 3: cudaFree(memory); }              // 19
}
'''
KEPT = '''
tide_status kept(cudaStream_t stream)
{
    /* cudaFree(memory); in a comment */
    const cudaError_t error = cudaFree(memory);
    if (cudaEventQuery(event) != cudaSuccess)
        return tide_cuda_check(cudaStreamDestroy(stream), "cudaStreamDestroy();");
    status = tide_cuda_check(
        cudaMalloc(&memory, bytes), "cudaMalloc");
    tide_cuda_undo(cudaFree(memory), "cudaFree");
    const CUresult result = driver->map(place, bytes, 0, handle, 0);
    return device->driver.unmap(place, bytes) == CUDA_SUCCESS && it ? cublasLtMatmul(handle) : cudaGetLastError();
}
'''


def without_comments(text):
    """Replaces comments and strings by spaces and keeps the lines."""
    def blank(match):
        return re.sub(r'[^\n]', ' ', match.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', blank, text, flags=re.S)


def without_directives(text):
    """Removes the preprocessor's directives, except #define: a macro's body is code too."""
    return re.sub(r'^[ \t]*#[ \t]*(?:include|if|ifdef|ifndef|elif|else|endif|pragma|error|undef)\b[^\n]*', '', text, flags=re.M)


def before_parenthesis(text):
    """The text before the parenthesis that matches the text's last character."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ')') - (text[at] == '(')
        if depth == 0:
            return text[:at]
    return ''


def begins_statement(before):
    before = CAST.sub('', before.rstrip()).rstrip()
    if before.endswith(')'):
        return CONDITION.search(before_parenthesis(before)) is not None
    return BEGIN.search(before[-400:]) is not None


def dropped_calls(text, kernels):
    """(line, call) of every call whose status is dropped. `kernels`: launches by <<< >>> are allowed, since one
    macro has them.
    """
    text = without_directives(without_comments(text)).replace('\\\n', ' \n')
    found = []
    for match in re.finditer(r'(?<![\w.>])' + CALL, text):
        if begins_statement(text[:match.start()]):
            found.append(match)
    found += COMMA.finditer(text)
    if not kernels:
        found += LAUNCH.finditer(text)
    named = {(text.count('\n', 0, match.start()) + 1, match.group(0).rstrip('( \t\n')) for match in found}
    return sorted(place for place in named if place[1] not in VALUES)


def sources(root):
    patterns = ('offload/cuda/*.[ch]', 'offload/host_executor.[ch]', 'kernels/cuda/*.[ch]',
                'kernels/cuda/*.cu')
    for pattern in patterns:
        found = sorted(root.glob(pattern))
        if not found:
            sys.exit('no source is named like %s' % pattern)
        yield from found


def main():
    root = pathlib.Path(sys.argv[1])
    count = 0

    def ok(good, words):
        nonlocal count
        count += 1
        print('%s %d - %s' % ('ok' if good else 'not ok', count, words), flush=True)

    wanted = [4, 5, 7, 8, 9, 10, 12, 13, 15, 16, 17, 18, 19]
    got = [line for line, _ in dropped_calls(SAMPLE, False)]
    if got != wanted:
        print('# found in the sample: %s' % got)
    ok(got == wanted, 'every dropped status of a sample is found')
    got = dropped_calls(KEPT, False)
    if got:
        print('# found: %s' % got)
    ok(not got, 'no status that is used is taken for a dropped one')
    calls = 0
    for path in sources(root):
        text = path.read_text()
        calls += len(re.findall(CALL, without_comments(text)))
        bad = dropped_calls(text, path.name == 'launch.h')
        for line, name in bad:
            print('# %s:%d: the status of %s is dropped' % (path.relative_to(root), line, name))
        ok(not bad, str(path.relative_to(root)))
    ok(calls >= 40, 'there are calls to look at: %d' % calls)
    print('1..%d' % count)
    return 0


if __name__ == '__main__':
    sys.exit(main())

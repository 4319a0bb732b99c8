#include "tests/model/test_gpt2_float64.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* out[n] = bias[n] + the sum over k of in[k] weight[k, n] */
static void linear(const double *in, const double *weight, const double *bias, size_t k, size_t n,
                   double *restrict out)
{
    size_t i = 0;
    memcpy(out, bias, n * sizeof *out);
    for (; i + 4 <= k; i += 4) { /* four at once, so that `out` is loaded and stored a quarter as often */
        const double *w = weight + i * n, *x = in + i;
        for (size_t j = 0; j < n; j++)
            out[j] += x[0] * w[j] + x[1] * w[n + j] + (x[2] * w[2 * n + j] + x[3] * w[3 * n + j]);
    }
    for (; i < k; i++) {
        for (size_t j = 0; j < n; j++)
            out[j] += in[i] * weight[i * n + j];
    }
}

static void layer_norm(const double *in, const double *weight, const double *bias, size_t width,
                       double epsilon, double *out)
{
    double mean = 0, variance = 0;
    for (size_t i = 0; i < width; i++)
        mean += in[i] / (double)width;
    for (size_t i = 0; i < width; i++)
        variance += (in[i] - mean) * (in[i] - mean) / (double)width;
    for (size_t i = 0; i < width; i++)
        out[i] = (in[i] - mean) / sqrt(variance + epsilon) * weight[i] + bias[i];
}

/* One head's output for position `t`. A row of `qkv` has q, k and v of all heads. */
static void attend(const double *qkv, size_t t, size_t width, size_t head_width, size_t head, double *out)
{
    const double *q = qkv + t * 3 * width + head * head_width;
    double total = 0;
    memset(out, 0, head_width * sizeof *out);
    for (size_t s = 0; s <= t; s++) {
        const double *k = qkv + s * 3 * width + width + head * head_width, *v = k + width;
        double score = 0;
        for (size_t i = 0; i < head_width; i++)
            score += q[i] * k[i];
        const double weight = exp(score / sqrt((double)head_width));
        total += weight;
        for (size_t i = 0; i < head_width; i++)
            out[i] += weight * v[i];
    }
    for (size_t i = 0; i < head_width; i++)
        out[i] /= total;
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

typedef struct forward {
    const tide_model_config *config;
    double *const *params;
    uint32_t layer;
    double *qkv;  /* [seq_len, 3 width] */
    double *row;  /* [width] */
    double *wide; /* [4 width] */
    double *part; /* [width] */
} forward;

static const double *param(const forward *f, tide_role role)
{
    return f->params[tide_model_param_index(f->config, role, f->layer)];
}

static void add_attention(const forward *f, double *x, uint32_t seq_len)
{
    const size_t width = f->config->width, head_width = width / f->config->heads;
    for (size_t t = 0; t < seq_len; t++) {
        layer_norm(x + t * width, param(f, TIDE_ROLE_NORM_1_WEIGHT), param(f, TIDE_ROLE_NORM_1_BIAS), width,
                   f->config->norm_epsilon, f->row);
        linear(f->row, param(f, TIDE_ROLE_QKV_WEIGHT), param(f, TIDE_ROLE_QKV_BIAS), width, 3 * width,
               f->qkv + t * 3 * width);
    }
    for (size_t t = 0; t < seq_len; t++) {
        for (size_t head = 0; head < f->config->heads; head++)
            attend(f->qkv, t, width, head_width, head, f->row + head * head_width);
        linear(f->row, param(f, TIDE_ROLE_ATTENTION_WEIGHT), param(f, TIDE_ROLE_ATTENTION_BIAS), width, width,
               f->part);
        for (size_t i = 0; i < width; i++)
            x[t * width + i] += f->part[i];
    }
}

static void add_mlp(const forward *f, double *x, uint32_t seq_len)
{
    const size_t width = f->config->width;
    for (size_t t = 0; t < seq_len; t++) {
        layer_norm(x + t * width, param(f, TIDE_ROLE_NORM_2_WEIGHT), param(f, TIDE_ROLE_NORM_2_BIAS), width,
                   f->config->norm_epsilon, f->row);
        linear(f->row, param(f, TIDE_ROLE_FC_WEIGHT), param(f, TIDE_ROLE_FC_BIAS), width, 4 * width, f->wide);
        for (size_t i = 0; i < 4 * width; i++)
            f->wide[i] = gelu(f->wide[i]);
        linear(f->wide, param(f, TIDE_ROLE_MLP_WEIGHT), param(f, TIDE_ROLE_MLP_BIAS), 4 * width, width,
               f->part);
        for (size_t i = 0; i < width; i++)
            x[t * width + i] += f->part[i];
    }
}

/* Cross entropy of one row. Writes its logits to `logits` unless that is NULL. */
static double row_loss(const forward *f, const double *x, int32_t target, double *logits)
{
    const size_t width = f->config->width;
    const double *wte = param(f, TIDE_ROLE_TOKEN_EMBEDDING);
    layer_norm(x, param(f, TIDE_ROLE_NORM_F_WEIGHT), param(f, TIDE_ROLE_NORM_F_BIAS), width,
               f->config->norm_epsilon, f->row);
    double total = 0, of_target = 0;
    for (size_t v = 0; v < f->config->vocab_size; v++) {
        double logit = 0;
        for (size_t i = 0; i < width; i++)
            logit += f->row[i] * wte[v * width + i];
        total += exp(logit);
        of_target = (int32_t)v == target ? logit : of_target;
        if (logits)
            logits[v] = logit;
    }
    return log(total) - of_target;
}

static double sequence_loss(forward *f, const int32_t *inputs, const int32_t *targets, uint32_t seq_len,
                            double *logits)
{
    const size_t width = f->config->width;
    double *x = malloc(seq_len * width * sizeof *x);
    double loss = 0;
    f->layer = 0;
    const double *wte = param(f, TIDE_ROLE_TOKEN_EMBEDDING), *wpe = param(f, TIDE_ROLE_POSITION_EMBEDDING);
    for (size_t t = 0; t < seq_len; t++) {
        for (size_t i = 0; i < width; i++)
            x[t * width + i] = wte[(size_t)inputs[t] * width + i] + wpe[t * width + i];
    }
    for (f->layer = 0; f->layer < f->config->layers; f->layer++) {
        add_attention(f, x, seq_len);
        add_mlp(f, x, seq_len);
    }
    f->layer = 0;
    for (size_t t = 0; t < seq_len; t++)
        loss += row_loss(f, x + t * width, targets[t], logits ? logits + t * f->config->vocab_size : NULL);
    free(x);
    return loss;
}

double float64_gpt2_loss(const tide_model_config *config, double *const *params, const int32_t *inputs,
                         const int32_t *targets, uint32_t sequences, uint32_t seq_len, double *logits)
{
    forward f = {.config = config,
                 .params = params,
                 .qkv = malloc(3 * (size_t)seq_len * config->width * sizeof(double)),
                 .row = malloc(config->width * sizeof(double)),
                 .wide = malloc(4 * (size_t)config->width * sizeof(double)),
                 .part = malloc(config->width * sizeof(double))};
    double loss = 0;
    for (uint32_t s = 0; s < sequences; s++) {
        const size_t first = (size_t)s * seq_len;
        loss += sequence_loss(&f, inputs + first, targets + first, seq_len,
                              logits ? logits + first * config->vocab_size : NULL);
    }
    free(f.qkv);
    free(f.row);
    free(f.wide);
    free(f.part);
    return loss / ((double)sequences * seq_len);
}

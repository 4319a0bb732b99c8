#include "tools/tune/tune_plot.h"

#include "base/atomic_file.h"
#include "tools/units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 720, HEIGHT = 400, LEFT = 72, RIGHT = 24, TOP = 56, BOTTOM = 56, TICKS_MOST = 6 };

typedef struct canvas {
    FILE *out;
    const tide_tune_point *points;
    uint32_t count;
    double most; /* seconds at the top of the plot */
} canvas;

/* Chunk sizes are equally spaced; each is twice the one before. */
static double x_of(const canvas *of, uint32_t point)
{
    const double span = WIDTH - LEFT - RIGHT;
    return of->count < 2 ? LEFT + span / 2 : LEFT + span * (0.04 + 0.92 * point / (of->count - 1));
}

static double y_of(const canvas *of, double seconds)
{
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / of->most;
}

/* Distance of the ticks: 1, 2 or 5 times a power of ten, so that there are at most TICKS_MOST. */
static double tick_of(double most)
{
    static const double steps[] = {1, 2, 5, 10};
    const double least = most / TICKS_MOST, power = pow(10, floor(log10(least)));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i] * power >= least)
            return steps[i] * power;
    return 10 * power;
}

static void text_write(const char *text, FILE *out)
{
    for (; *text != '\0'; text++) {
        const char *entity = *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : NULL;
        if (entity != NULL)
            fputs(entity, out);
        else
            fputc(*text, out);
    }
}

static void head_draw(const canvas *of, const char *title)
{
    fprintf(of->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"13\">\n"
            "<style>\n"
            ".back{fill:#fff}.ink{fill:#1b2733}.faint{fill:#5b6b7a}.grid{stroke:#dde3e8}\n"
            ".step{stroke:#0b6bcb;fill:#0b6bcb}.stall{stroke:#c2410c;fill:#c2410c}.line{fill:none;stroke-"
            "width:2}\n"
            ".real{fill:none;stroke:#1b2733;stroke-width:1.5}\n"
            "@media (prefers-color-scheme:dark){.back{fill:#12181f}.ink{fill:#e6edf3}.faint{fill:#93a1ae}"
            ".grid{stroke:#2a3540}.step{stroke:#58a6ff;fill:#58a6ff}.stall{stroke:#f78166;fill:#f78166}"
            ".line{fill:none}.real{stroke:#e6edf3}}\n"
            "</style>\n<rect class=\"back\" width=\"%d\" height=\"%d\"/>\n"
            "<text class=\"ink\" x=\"%d\" y=\"24\" font-size=\"15\">",
            WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    text_write(title, of->out);
    fprintf(of->out, "</text>\n");
}

static void axes_draw(const canvas *of)
{
    const double tick = tick_of(of->most);
    char size[TIDE_UNITS_TEXT_BYTES];
    for (double at = 0; at <= of->most; at += tick)
        fprintf(of->out,
                "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"faint\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                LEFT, WIDTH - RIGHT, y_of(of, at), y_of(of, at), LEFT - 8, y_of(of, at) + 4, at);
    for (uint32_t i = 0; i < of->count; i++)
        fprintf(of->out, "<text class=\"faint\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                x_of(of, i), HEIGHT - BOTTOM + 20, tide_size_format(of->points[i].chunk_bytes, size));
    fprintf(of->out,
            "<text class=\"faint\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">chunk size</text>\n"
            "<text class=\"faint\" x=\"%d\" y=\"%d\" text-anchor=\"end\">seconds</text>\n",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, LEFT - 8, TOP - 12);
}

static double seconds_of(const tide_tune_point *point, int series)
{
    return series == 0 ? point->step_seconds : point->stall_seconds;
}

static void series_draw(const canvas *of, int series)
{
    static const char *const classes[] = {"step", "stall"};
    fprintf(of->out, "<polyline class=\"%s line\" points=\"", classes[series]);
    for (uint32_t i = 0; i < of->count; i++)
        fprintf(of->out, "%.1f,%.1f ", x_of(of, i), y_of(of, seconds_of(&of->points[i], series)));
    fprintf(of->out, "\"/>\n");
    for (uint32_t i = 0; i < of->count; i++)
        fprintf(of->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", classes[series],
                x_of(of, i), y_of(of, seconds_of(&of->points[i], series)));
}

static void real_draw(const canvas *of)
{
    for (uint32_t i = 0; i < of->count; i++)
        if (of->points[i].real_step_seconds > 0)
            fprintf(of->out, "<circle class=\"real\" cx=\"%.1f\" cy=\"%.1f\" r=\"6\"/>\n", x_of(of, i),
                    y_of(of, of->points[i].real_step_seconds));
}

static void legend_draw(const canvas *of)
{
    const int y = 42;
    fprintf(
        of->out,
        "<circle class=\"step\" cx=\"%d\" cy=\"%d\" r=\"4\"/><text class=\"ink\" x=\"%d\" y=\"%d\">a step, "
        "predicted</text>\n"
        "<circle class=\"stall\" cx=\"%d\" cy=\"%d\" r=\"4\"/><text class=\"ink\" x=\"%d\" y=\"%d\">of it, "
        "compute "
        "stands still</text>\n"
        "<circle class=\"real\" cx=\"%d\" cy=\"%d\" r=\"5\"/><text class=\"ink\" x=\"%d\" y=\"%d\">a real "
        "step</text>\n</svg>\n",
        LEFT + 4, y, LEFT + 14, y + 4, LEFT + 164, y, LEFT + 174, y + 4, LEFT + 378, y, LEFT + 390, y + 4);
}

tide_status tide_tune_plot(const char *path, const char *title, const tide_tune_point *points, uint32_t count)
{
    tide_atomic_file file;
    const tide_status status = tide_atomic_file_open("plot", path, &file);
    if (status != TIDE_OK)
        return status;
    canvas of = {.out = file.stream, .points = points, .count = count};
    for (uint32_t i = 0; i < count; i++)
        of.most = fmax(of.most, fmax(points[i].step_seconds, points[i].real_step_seconds));
    of.most = of.most > 0 ? 1.08 * of.most : 1;
    head_draw(&of, title);
    axes_draw(&of);
    series_draw(&of, 0);
    series_draw(&of, 1);
    real_draw(&of);
    legend_draw(&of);
    return tide_atomic_file_finish(&file);
}
